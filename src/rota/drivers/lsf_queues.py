"""Queues and hosts of LSF and OpenLava: bqueues, bparams, bhosts, lshosts."""

import re

from rota.drivers.dialect import Queue

__all__ = ["read_bqueues", "with_hosts"]

UNITS = {"": 1 << 20, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def read_bqueues(text: str) -> tuple[Queue, ...]:
    """Queues from `bqueues -l`. One that is open but inactive takes jobs and starts none."""
    out = []
    for block in re.split(r"^QUEUE: ", text, flags=re.MULTILINE)[1:]:
        name = block.split("\n", 1)[0].strip()
        status = re.search(r"\b(Open|Closed):(\w+)", block)
        is_default = "thisisthedefaultqueue" in "".join(block.split()).lower()  # broken anywhere
        if name:
            up = status is not None and status[1] == "Open" and not status[2].startswith("Inact")
            users, hosts = _names(block, "USERS"), _names(block, "HOSTS")
            if any(re.search(r"[/~@]", user) for user in users or ()):
                users = None  # nobody has said who is in a group
            usual, most = _run_limits(block)
            out.append(
                Queue(name, is_default, None, None, None, None, most, up, users=users, hosts=hosts, usual_s=usual)
            )
    return tuple(out)


def _names(block: str, what: str) -> tuple[str, ...] | None:
    """Those to whom a queue is restricted; None: to none. A group has a `/` in it."""
    found = re.search(rf"^{what}:[ \t]*(\S.*(?:\n[ \t]+\S.*)*)", block, re.MULTILINE)
    names = found[1].split() if found else []
    if not names or (names[0].lower() in ("all", "none") and not any("~" in name for name in names)):
        return None
    return tuple(name.partition("+")[0] for name in names)  # hostA+1: it is preferred


def _run_limits(block: str) -> tuple[int | None, int | None]:
    """Seconds that a job in this queue gets if it asks for nothing, and that it may run at most."""
    usual = re.search(r"DEFAULT LIMITS:.*?(?=MAXIMUM LIMITS:|SCHEDULING PARAMETERS|\Z)", block, re.DOTALL)
    if usual is None:
        return None, _run_limit(block)
    return _run_limit(usual[0]), _run_limit(block[: usual.start()] + block[usual.end() :])


def _run_limit(block: str) -> int | None:
    heading = re.search(r"^(.*\bRUNLIMIT\b.*)\n(.*)$", block, re.MULTILINE)
    if heading is None:
        return None
    names, amounts = heading[1].split(), re.findall(r"(\d{1,9}(?:\.\d{1,3})?) min", heading[2])
    number = names.index("RUNLIMIT")
    return int(float(amounts[number]) * 60) if number < len(amounts) else None


def with_hosts(queues: tuple[Queue, ...], params: str, slots: str, sizes: str) -> tuple[Queue, ...]:
    """The queues with what bparams -l, bhosts and lshosts say; an empty text says nothing."""
    usual = re.search(r"^\s*DEFAULT_QUEUE\s*=[ \t]*(.*)$", params, re.MULTILINE)
    cores = {row["HOST_NAME"]: _count(row.get("MAX")) for row in _rows(slots)}
    hosts = {row["HOST_NAME"]: (_count(row.get("ncpus")), _bytes(row.get("maxmem"))) for row in _rows(sizes)}
    out = []
    for queue in queues:
        if usual is not None:
            queue = queue._replace(is_default=queue.name in usual[1].split()[:1])
        mine = list(cores) if queue.hosts is None else list(queue.hosts)
        if mine and all(name in cores for name in mine):
            most = [cores[name] or hosts.get(name, (None, None))[0] or 0 for name in mine]
            memory = [hosts.get(name, (None, None))[1] or 0 for name in mine]
            queue = queue._replace(nodes=len(mine), cores=max(most) * 1000 or None, memory=max(memory) or None)
        out.append(queue)
    return tuple(out)


def _rows(text: str) -> list[dict[str, str]]:
    """The lines of a table by the words of its heading, as far as they have as many."""
    heading, *lines = text.splitlines() or [""]
    names = heading.split()
    rows = [dict(zip(names, line.split(), strict=False)) for line in lines if line.strip()]
    return [row for row in rows if "HOST_NAME" in row]


def _count(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 9 else None


def _bytes(text: str | None) -> int | None:
    found = re.fullmatch(r"(\d{1,12}(?:\.\d{1,6})?)([KMGT]?)", text or "")
    return int(float(found[1]) * UNITS[found[2]]) if found else None
