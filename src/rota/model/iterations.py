"""How much each of several jobs gets, where they are to share all that there is: QCG's schedulers of iterations."""

from rota.model.errors import UsageError

__all__ = ["maximum_iters", "split_into"]


def maximum_iters(jobs: int, total: int, least: int = 1) -> list[int]:
    """What each job gets so that as many as possible run at one time, in as few rounds as that takes.

    Each has at least `least`; what a round has to give is shared out among its jobs, the later ones getting what does
    not divide: 10 for 3 are 3, 3 and 4.
    """
    if least < 1 or least > total:
        raise UsageError(f"maximum-iters: each job gets {least} at least, and there are {total}")
    at_once = min(jobs, total // least)
    rounds = -(-jobs // at_once) if jobs else 0
    out: list[int] = []
    for number in range(rounds):
        count = -(-(jobs - len(out)) // (rounds - number))
        left = total
        for later in range(count, 0, -1):
            out.append(left // later)
            left -= left // later
    return out


def split_into(jobs: int, total: int, parts: int | None = None) -> list[int]:
    """What each job gets if all that there is is split into so many equal parts (default: one for each job)."""
    parts = jobs if parts is None else parts
    if parts < 1 or total // parts < 1:
        raise UsageError(f"split-into: {total} cannot be split into {parts} parts")
    return [total // parts] * jobs
