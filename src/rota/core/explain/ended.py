"""Jobs that are settled: how they ended, why they are not tried again, and what helps."""

from rota.core.decide.learning import NO_TIME
from rota.core.decide.retries import no_use
from rota.core.explain.account import Account, Records
from rota.core.state import BatchState, State
from rota.model.amounts import format_duration, show_size
from rota.model.batch import Template
from rota.model.job import Result, format_job
from rota.model.tables import JOB_STATES

__all__ = ["ended", "how_it_ended", "never_ran", "new_line", "was_raised"]

_HOW = {
    "killed": "was killed on request",
    "memory": "used more than its memory and was ended",
    "disk-full": "found no space left to write to",
    "lost": "was lost with its runner",
    "lost-too-often": "was lost with its runner too often",
    "not-found": "its command was not found",
    "not-executable": "its command is not executable",
    "cwd": "its working directory cannot be used",
    "output": "its output cannot be written",
    "start": "could not be started",
    "container": "could not be started in its container",
    "no-report": "ended without a report",
    "cancelled": "was cancelled at the cluster, not by rota",
    "deadline": "could not end before the deadline of the cluster",
    "refused": "was refused by the cluster",
    "brokered": "was called back before it started, to go elsewhere",
    "runner-stopped": "was ended with its runner, which was told to stop",
    "node-fail": "was ended with its node, which failed",
    "preempt": "was ended by the cluster, to make room for others",
    "requeue": "was put back into its queue by the cluster",
    "launch": "could not be started by the cluster",
    "vanished": "is gone from the cluster without a trace",
    "input": "could not have what it reads",
    "staging": "could not have its files brought",
}
_AGAIN = {
    "not-found": " --command TEXT",
    "not-executable": " --command TEXT",
    "cwd": " --cwd DIR",
    "output": " -o FILE",
    "start": "",
    "input": "",
    "staging": "",
    "launch": "",
}
"""Why an attempt never ran → what a retry changes, if that helps: it has no output to look at."""

_OWN_TIME = ("over its time limit", "took more than")
"""What runners and `escalated` say of a job whose own time was over."""
_FIGURES = ("over its time limit", "over its limit")
"""What runners say with figures of the moment."""
_FINAL = ("used ", "took more than ")
"""With what `escalated` begins where it says the same with those of the end."""
RAISED = ("the next try asks for", "the next try gets")
"""What `escalated` says of a job that asks for more from now on."""
_SIGNALS = {
    1: "SIGHUP", 2: "SIGINT", 3: "SIGQUIT", 4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL",
    11: "SIGSEGV", 13: "SIGPIPE", 14: "SIGALRM", 15: "SIGTERM", 24: "SIGXCPU", 25: "SIGXFSZ", 31: "SIGSYS",
}  # fmt: skip


def ended(state: State, batch: BatchState, pos: int, records: Records) -> Account:
    """How a settled job ended; its last line, and what helps."""
    now, last = JOB_STATES[batch.states[pos]], records.last(batch.id, pos)
    job, template = format_job(batch.id, batch.index(pos)), batch.template(pos)
    if now == "COMPLETED":
        note = f": {last.note}" if last is not None and last.note else ""
        return Account(f"succeeded in attempt {batch.attempts[pos]}{_place(last)}{note}")
    if now == "REMOVED":
        return Account("was removed")
    if last is None:
        by = f" ({batch.killed_why})" if batch.killed_why else ""
        words = f"was killed before it ran{by}" if now != "FAILED" else "failed"
        return Account(words, commands=[f"rota retry {job}"])
    words = how_it_ended(last, template)
    if now == "ABORTED" and batch.killed_why:
        words = words.replace("was killed on request", f"was {batch.killed_why}")
    words += _no_more(template, last) if now == "FAILED" else ""
    line = new_line(last, records.line(batch, pos))
    if not line:
        return Account(words, commands=_commands(job, last, template))
    return Account(f"{words}; its last line: {line}", f"{words}: {line}", commands=_commands(job, last, template))


def how_it_ended(result: Result, template: Template) -> str:
    """How an attempt ended, in words."""
    if result.state == "COMPLETED":
        return "succeeded"
    note = f": {told}" if (told := _note(result)) else ""
    if result.reason in (None, "exit"):
        return f"ended with exit code {result.exit_code}{note}" if result.reason else f"failed{note}"
    if result.reason == "signal":
        return f"was ended by signal {_signal(result.signal)}, which rota did not send{note}"
    if result.reason == "time":
        return f"{_time(result, template)}{note}"
    if result.reason == "oom":
        return f"{_memory(result, template)}{note}"
    return f"{_HOW.get(result.reason or '', f'failed ({result.reason})')}{note}"


def _note(result: Result) -> str:
    """What was noted of an attempt, with each figure once."""
    note = result.note or ""
    parts = note.split("; ")
    rest = [part for part in parts if not any(words in part for words in _FIGURES)]
    return "; ".join(rest) if any(part.startswith(_FINAL) for part in rest) else note


def new_line(result: Result, line: str) -> str:
    """The last line that a job wrote, if it says more than how it ended does."""
    said = line.removeprefix("rota: ")
    return "" if result.reason == "killed" or (result.note and said and said in result.note) else line


def never_ran(reason: str | None) -> bool:
    """Whether a job that failed so was not even started, so that it wrote nothing."""
    return reason in _AGAIN


def _time(result: Result, template: Template) -> str:
    """Whose time was over: that of the job, or that of its allocation."""
    asked, wall, note = template.needs.time_s, _wall(result), result.note or ""
    took = "" if wall is None else f" after {format_duration(max(1, round(wall)))}"
    if any(words in note for words in _OWN_TIME):
        return f"took longer than its time and was ended{took}"
    if asked is not None and (wall is None or wall >= asked - 1):
        return f"took longer than its time ({format_duration(asked)}) and was ended{took}"
    may = "" if asked is None or NO_TIME in note else f" (the job itself may take {format_duration(asked)})"
    return f"was ended with its allocation, whose time was over{took}{may}"


def _memory(result: Result, template: Template) -> str:
    """That the kernel ended it, with what was measured and what it had, neither of which is what it wanted."""
    had = template.needs.memory
    figures = []
    if result.peak_memory:
        figures.append(f"{show_size(result.peak_memory)} when it was last measured")
    if not was_raised(result):  # else the note has what it asked for, as it asks for more now
        figures.append(f"it asked for {show_size(had)}" if had is not None else "it asked for no memory")
    told = f" ({', '.join(figures)})" if figures else ""
    return f"ran out of memory and was ended by the kernel{told}"


def was_raised(result: Result) -> bool:
    """Whether the job asks for more since an attempt ended so."""
    return any(words in (result.note or "") for words in RAISED)


def _wall(result: Result) -> float | None:
    return result.ended - result.started if result.started is not None and result.ended is not None else None


def _signal(number: int | None) -> str:
    name = _SIGNALS.get(number or 0)
    return str(number) if name is None else f"{number} ({name})"


def _place(result: Result | None) -> str:
    if result is None:
        return ""
    wall = _wall(result)
    took = f" after {format_duration(round(wall)) if wall >= 10 else f'{wall:.2f}s'}" if wall is not None else ""
    return f"{f' on {result.host}' if result.host else ''}{took}"


def _no_more(template: Template, last: Result) -> str:
    """Why a job that failed, and has retries, is not tried again."""
    if not template.retries or last.reason in ("lost", "lost-too-often"):
        return ""
    why = no_use(template, last)
    return "; no retries are left" if why is None else f"; it is not tried again ({why})"


def _commands(job: str, last: Result, template: Template) -> list[str]:
    """What helps after such an end."""
    again = f"rota retry {job}"
    if was_raised(last):
        return [again]
    if last.reason in ("oom", "memory"):
        more = " --memory x2" if template.needs.memory or last.peak_memory else " --memory 4G"
        return [f"{again}{more}"]
    if last.reason == "time":
        return [f"{again} --time x2" if template.needs.time_s else f"{again} --time 2h"]
    if last.reason in ("killed", "lost", "lost-too-often", "cancelled", "disk-full", "runner-stopped"):
        return [again]
    if last.reason in _AGAIN:
        return [f"{again}{_AGAIN[last.reason]}"]
    return [f"rota log {job} --stderr", again]
