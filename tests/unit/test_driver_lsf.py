"""LSF's dialect, and OpenLava's: against recordings of a real OpenLava, and of LSF after its manual."""

import random
import re
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recorded import recorded
from rota.drivers.api import Ask, Outcome
from rota.drivers.bhist import WHY
from rota.drivers.dialect import Answer, Dialect, Options, Queue, Seen
from rota.drivers.dialects import dialect_names, load_dialect
from rota.drivers.lsf import Lsf, OpenLava
from rota.model.errors import UsageError
from rota.model.needs import Amounts
from rota.testing.fake_cluster.simulated import SimulatedCluster

LSF, LAVA = Lsf(), OpenLava()
DIALECTS: tuple[Dialect, ...] = (LSF, LAVA)
CASES = recorded("lsf")
PLAIN = Options()
NAMES = (
    "JOBID JOBINDEX STAT EXIT_CODE EXIT_REASON START_TIME FINISH_TIME FIRST_HOST CPU_USED MAX_MEM PEND_REASON JOB_NAME"
)
COLUMNS = NAMES.replace(" ", "^") + "\n"
WIDE = "JOBID   USER    STAT  QUEUE      FROM_HOST   EXEC_HOST   JOB_NAME   SUBMIT_TIME\n"


def ask(**changes: object) -> Ask:
    given: dict[str, object] = {
        "tag": "0123456789ab",
        "name": "align reads",
        "ids": ("a",),
        "amounts": Amounts(2000, 3 << 30),
        "script": "#!/bin/bash\necho hello\n",
        "directory": "/data/run 1",
    }
    return Ask(**{**given, **changes})  # type: ignore[arg-type]


def row(
    job: str, state: str, *, index: str = "0", code: str = "-", why: str = "-", name: str = "x-0123456789ab"
) -> str:
    return f"{job}^{index}^{state}^{code}^{why}^Nov 15 21:00^-^n1^0.1 second(s)^5 Mbytes^-^{name}\n"


def listed(*rows: str, options: Options = PLAIN) -> list[Seen]:
    listing = LSF.read_listing(Answer(0, COLUMNS + "".join(rows), ""), options)
    assert listing.result == "ok", listing.detail
    return list(listing.seen)


def told(seen: Seen) -> tuple[object, ...]:
    out = seen.outcome
    return (seen.kind, out.exit_code, out.signal, out.why) if out else (seen.kind,)


STATES = [
    ("PEND", "pending", "pending"),
    ("PROV", "pending", "pending"),
    ("PSUSP", "held", "held"),
    ("RUN", "running", "running"),
    ("USUSP", "suspended", "suspended"),
    ("SSUSP", "suspended", "suspended"),
    ("DONE", "completed", "completed"),
    ("PDONE", "completed", "completed"),
    ("POST_DONE", "completed", "completed"),
    ("EXIT", "failed", "failed"),
    ("PERR", "exited", "failed"),
    ("POST_ERR", "exited", "failed"),
    ("ERROR", "exited", "exited"),
    ("UNKWN", "unsure", "unsure"),
    ("WAIT", "unsure", "pending"),
    ("ZOMBI", "unsure", "unsure"),
    ("NULL", "unsure", "unsure"),
    ("LATER", "unsure", "unsure"),
]


@pytest.mark.parametrize(("state", "kind", "strict"), STATES)
def test_every_state(state: str, kind: str, strict: str) -> None:
    (seen,) = listed(row("7", state))
    assert (seen.kind, seen.native_state, seen.tag) == (kind, state, "0123456789ab")
    (seen,) = listed(row("7", state), options=Options(strict=True))
    assert seen.kind == strict
    (seen,) = LAVA.read_listing(
        Answer(0, f"{WIDE}7 me {state} normal a b x-0123456789ab Nov 15 21:05\n", ""), PLAIN
    ).seen
    assert (seen.kind, seen.tag) == (kind, "0123456789ab")


def test_the_table_has_no_other_states() -> None:
    assert set(LSF.states) == {state for state, *_ in STATES[:-1]} == set(LAVA.states)


def test_a_site_has_the_last_word_about_a_state() -> None:
    wish = Options(state_map=(("UNKWN", "running"), ("TERM_OWNER", "aborted"), ("WAIT", "nonsense")))
    rows = [row("7", "UNKWN"), row("8", "EXIT", code="130", why="TERM_OWNER: job killed by owner"), row("9", "WAIT")]
    assert [seen.kind for seen in listed(*rows, options=wish)] == ["running", "aborted", "unsure"]


@pytest.mark.parametrize(
    ("term", "why"),
    [
        *((word, "cancelled") for word in ("OWNER", "ADMIN", "FORCE_OWNER", "FORCE_ADMIN")),
        *((word, "oom") for word in ("MEMLIMIT", "SWAP")),
        *((word, "time") for word in ("RUNLIMIT", "CPULIMIT")),
        *((word, "deadline") for word in ("DEADLINE", "WINDOW")),
        *((word, "launch") for word in ("CWD_NOTEXIST", "PRE_EXEC_FAIL")),
        *((word, "node-fail") for word in ("ZOMBIE", "REMOVE_HUNG_JOB", "RC")),
        *((word, None) for word in ("LOAD", "PROCESSLIMIT", "THREADLIMIT", "UNKNOWN", "EXTERNAL_SIGNAL")),
        ("PREEMPT", "preempt"),
    ],
)
def test_why_it_was_ended(term: str, why: str | None) -> None:
    (seen,) = listed(row("7", "EXIT", code="137", why=f"TERM_{term}: words"))
    assert told(seen) == ("failed", None, 9, why)
    assert seen.reason == f"TERM_{term}: words"
    (seen,) = listed(row("7", "EXIT", code="137", why=f"TERM_{term}: words"), options=Options(strict=True))
    aborts = term in ("OWNER", "ADMIN", "FORCE_OWNER", "FORCE_ADMIN", "PREEMPT", "RUNLIMIT", "MEMLIMIT")
    assert seen.kind == ("aborted" if aborts else "failed")
    assert set(WHY.values()) == {"cancelled", "time", "oom", "deadline", "launch", "node-fail", "preempt"}


@pytest.mark.parametrize(
    ("state", "code", "want"),
    [
        ("EXIT", "3", ("failed", 3, None, None)),
        ("EXIT", "137", ("failed", 137, None, None)),
        ("EXIT", "-", ("failed", None, None, None)),
        ("EXIT", "junk", ("failed", None, None, None)),
        ("DONE", "-", ("completed", 0, None, None)),
        ("PERR", "-", ("exited", 0, None, None)),
        ("PERR", "4", ("exited", 4, None, None)),
        ("EXIT", "0", ("failed", None, None, None)),
        ("ERROR", "-", ("exited", None, None, None)),
    ],
)
def test_exit_status(state: str, code: str, want: tuple[object, ...]) -> None:
    (seen,) = listed(row("7", state, code=code))
    assert told(seen) == want


def test_usage_and_elements() -> None:
    text = (
        "7^3^EXIT^1^-^Nov 15 21:00:02 2026^Nov 15 21:00:12 2026 L^4*n1^12.5 second(s)^1.5 Gbytes^-^x-0123456789ab[3]\n"
    )
    (seen,) = listed(text)
    assert seen.native_id == "7[3]" == LSF.element_id("7", 2, 9)
    assert seen.tag == "0123456789ab"
    assert seen.outcome == Outcome(1, None, None, "n1", 1794776402.0, 1794776412.0, 12.5, 3 << 29)
    assert LSF.element_id("7", 0, 1) == "7"
    (seen,) = listed("7^0^PEND^-^-^-^-^-^-^-^New job is waiting for scheduling;^a^b-0123456789ab\n")
    assert (seen.reason, seen.tag, seen.outcome) == ("New job is waiting for scheduling;", "0123456789ab", None)


# As the manual has it


def test_documented_listings() -> None:
    listing = LSF.read_listing(CASES["documented-bjobs-o-delimiter"].answer, PLAIN)
    assert listing.result == "ok"
    assert {seen.native_id: told(seen) for seen in listing.seen} == {
        "101": ("running", None, None, None),
        "102": ("completed", 0, None, None),
        "103": ("failed", 3, None, None),
        "104": ("failed", None, 2, "cancelled"),
    }
    assert listing.seen[2].outcome == Outcome(exit_code=3, host="n2")
    some = LSF.read_listing(CASES["documented-bjobs-o-delimiter-unknown-among-known"].answer, PLAIN)
    assert ([seen.native_id for seen in some.seen], some.result) == (["101"], "partial")
    assert LSF.read_listing(CASES["documented-bjobs-lim-down"].answer, PLAIN)[:2] == ((), "transient")
    assert LSF.read_listing(CASES["documented-bjobs-o-noheader"].answer, PLAIN)[:2] == ((), "transient")


def test_documented_history() -> None:
    (seen,) = LSF.read_history(CASES["documented-bhist-l-exit"].answer, PLAIN).seen
    assert (seen.native_id, told(seen)) == ("103", ("failed", 3, None, None))
    assert seen.outcome is not None
    assert (seen.outcome.host, seen.outcome.cpu_s) == ("n2", 0.1)


# As a real OpenLava had it

WIDE_CASES = {
    "running": ("running", None, None, None),
    "resumed": ("running", None, None, None),
    "requeued": ("running", None, None, None),
    "multi-host": ("running", None, None, None),
    "odd-name": ("running", None, None, None),
    "ususp": ("suspended",),
    "ssusp": ("suspended",),
    "psusp": ("held",),
    "psusp-bstop": ("held",),
    "done": ("completed", 0, None, None),
    "killed-trapped": ("completed", 0, None, None),
    "unkwn": ("unsure",),
    "node-cut": ("unsure",),
    **dict.fromkeys(("dependency", "dependency-never", "begin-time", "pend-window"), ("pending",)),
    **dict.fromkeys(
        [
            "exit3",
            "exit137",
            "command-not-found",
            "killed-pending",
            "killed-running",
            "killed-s-kill",
            "killed-usr1",
            "runlimit",
            "signal11",
            "signal9",
        ],
        ("failed", None, None, None),
    ),
}


@pytest.mark.parametrize("name", WIDE_CASES)
def test_recorded_states(name: str) -> None:
    case = CASES[f"bjobs-aw-{name}"]
    listing = LAVA.read_listing(case.answer, PLAIN)
    (seen,) = listing.seen
    assert (listing.result, seen.native_id, seen.tag) == ("ok", case.argv[-1], None)
    assert told(seen) == WIDE_CASES[name], case.truth


def test_every_recorded_state_is_looked_at() -> None:
    assert {name for name in CASES if name.startswith("bjobs-aw-")} == {f"bjobs-aw-{name}" for name in WIDE_CASES}


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("bjobs-array", {"108[1]": "running", "108[2]": "running"} | {f"108[{i}]": "pending" for i in (3, 4, 5)}),
        ("bjobs-array-element", {"108[2]": "running"}),
        ("bjobs-array-finished", {f"130[{i}]": "failed" for i in (1, 2, 3)}),
        ("bjobs-array-killed", {f"108[{i}]": "failed" for i in range(1, 6)}),
        ("bjobs-after-heal", {"103": "failed"}),
        ("bjobs-node-cut-after-bkill", {"103": "unsure"}),
        ("bjobs-right-after-bkill", {"124": "running"}),
        ("bjobs-right-after-submit", {"124": "pending"}),
        ("bjobs-finished-without-a", {"105": "completed"}),
    ],
)
def test_recorded_listings(name: str, kinds: dict[str, str]) -> None:
    listing = LAVA.read_listing(CASES[name].answer, PLAIN)
    assert listing.result == "ok"
    assert {seen.native_id: seen.kind for seen in listing.seen} == kinds


def test_a_recorded_listing_of_all() -> None:
    listing = LAVA.read_listing(CASES["bjobs-a-w"].answer, PLAIN)
    kinds = [seen.kind for seen in listing.seen]
    assert listing.result == "ok"
    assert {kind: kinds.count(kind) for kind in set(kinds)} == {
        "running": 7,
        "pending": 6,
        "held": 1,
        "completed": 6,
        "failed": 3,
    }


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        (CASES["bjobs-unknown"].answer, "not-found"),
        (CASES["bjobs-after-clean-period"].answer, "not-found"),
        (CASES["bjobs-array-element-unknown"].answer, "not-found"),
        (CASES["bjobs-bad-id"].answer, "fatal"),
        (CASES["bjobs-o-unsupported"].answer, "fatal"),
        (CASES["bjobs-no-config"].answer, "fatal"),
        (CASES["bjobs-mbd-down"].answer, "transient"),
        (CASES["bjobs-mbd-hung"].answer, "transient"),
        (CASES["bjobs-lim-down"].answer, "transient"),
        (CASES["bjobs-none"].answer, "ok"),
        (Answer(255, "", "No job found\n"), "ok"),
        (Answer(None, "", "No job found\n"), "transient"),
        (Answer(0, "", ""), "transient"),
        (Answer(255, "", ""), "transient"),
        (Answer(0, "\x7fELF\x01\ufffd\n", ""), "transient"),
        (Answer(255, "", "Cannot connect to LSF. Please wait ...\n"), "transient"),
    ],
)
def test_listings_without_jobs(answer: Answer, result: str) -> None:
    for dialect in DIALECTS:
        listing = dialect.read_listing(answer, PLAIN)
        assert (listing.seen, listing.result) == ((), result)


def test_the_index_may_be_part_of_the_id() -> None:
    """As with LSB_BJOBS_DISPLAY_ENH, where an index is in all three places."""
    rows = [row("7[2]", "RUN", index="2", name="x-0123456789ab[2]"), row("7[3]", "PEND", index="-")]
    assert [(one.native_id, one.tag) for one in listed(*rows)] == [("7[2]", "0123456789ab"), ("7[3]", "0123456789ab")]
    wide = WIDE + "7[2]    me      RUN   normal     a           b           x-0123456789ab[2] Nov 15 21:05\n"
    assert [one.native_id for one in LAVA.read_listing(Answer(0, wide, ""), PLAIN).seen] == ["7[2]"]


def test_a_reason_of_several_lines_is_one() -> None:
    why = "Candidate host pending reasons (0 of 4 hosts).\n\n Closed by LSF administrator: 1 host;\n 3 hosts: busy;"
    text = row("7", "PEND").replace("^-^x-", f"^{why}^x-") + row("8", "RUN")
    listing = LSF.read_listing(Answer(0, COLUMNS + text, ""), PLAIN)
    assert (listing.result, [(one.native_id, one.tag) for one in listing.seen]) == (
        "ok",
        [("7", "0123456789ab"), ("8", "0123456789ab")],
    )
    assert listing.seen[0].reason == " ".join(why.split())


def test_a_name_of_several_lines_is_nobody_elses_trouble() -> None:
    """Jobs without a name are called after their command, which can be a whole script."""
    odd = row("6", "RUN", name="#!/bin/sh\n\n#BSUB -q x\nsleep 1^2")
    listing = LSF.read_listing(Answer(0, COLUMNS + odd + row("7", "RUN"), ""), PLAIN)
    assert (listing.result, [one.native_id for one in listing.seen]) == ("ok", ["6", "7"])
    assert LSF.read_listing(Answer(0, COLUMNS + row("7", "RUN") + "sleep 1\n", ""), PLAIN).result == "partial"
    line = "6       me      RUN   normal     a           b           {} Nov 15 21:05\n"
    wide = WIDE + line.format("sh\nsleep") + line.format("x-0123456789ab").replace("6", "7", 1)
    listing = LAVA.read_listing(Answer(0, wide, ""), PLAIN)
    assert (listing.result, [one.native_id for one in listing.seen]) == ("partial", ["7"])


def test_a_waiting_job_without_a_host() -> None:
    wide = WIDE + "7       me      PEND  normal     login1                  x-0123456789ab[3] Nov 15 21:05\n"
    (seen,) = LAVA.read_listing(Answer(0, wide, ""), PLAIN).seen
    assert (seen.native_id, seen.tag, seen.kind) == ("7[3]", "0123456789ab", "pending")


def test_what_breaks_off_is_partial() -> None:
    known = LAVA.read_listing(CASES["bjobs-unknown-among-known"].answer, PLAIN)
    assert ([seen.native_id for seen in known.seen], known.result) == (["124"], "partial")
    for whole in (COLUMNS + row("7", "RUN") + row("8", "RUN"), CASES["bjobs-array"].answer.stdout):
        for cut in range(whole.index("\n") + 1, len(whole)):
            listing = LSF.read_listing(Answer(0, whole[:cut], ""), PLAIN)
            assert len(listing.seen) == whole[:cut].count("\n") - 1
            assert listing.result == ("ok" if whole[cut - 1] == "\n" else "partial")
    mixed = LSF.read_listing(Answer(0, COLUMNS + row("7", "RUN") + "\x00\ufffd\n" + row("x", "RUN"), ""), PLAIN)
    assert ([seen.native_id for seen in mixed.seen], mixed.result) == (["7"], "partial")
    late = LSF.read_listing(Answer(None, COLUMNS + row("7", "RUN"), ""), PLAIN)
    assert ([seen.native_id for seen in late.seen], late.result) == (["7"], "partial")
    notice = LSF.read_listing(Answer(0, "LSF is down. Please wait ...\n" + COLUMNS + row("7", "RUN"), ""), PLAIN)
    assert ([seen.native_id for seen in notice.seen], notice.result) == (["7"], "ok")


HISTORY = {
    "done": ("completed", 0, None, None),
    "after-clean-period": ("completed", 0, None, None),
    "killed-trapped": ("completed", 0, None, None),
    "exit3": ("failed", 3, None, None),
    "exit3-after-clean-period": ("failed", 3, None, None),
    "exit137": ("failed", 137, None, None),
    "command-not-found": ("failed", 127, None, None),
    "signal9": ("failed", 137, None, None),
    "signal11": ("failed", 139, None, None),
    "killed-usr1": ("failed", 138, None, None),
    "killed-pending": ("failed", None, None, "cancelled"),
    "killed-running": ("failed", None, 2, "cancelled"),
    "killed-s-kill": ("failed", None, 2, "cancelled"),
    "runlimit": ("failed", None, 12, "time"),
    **dict.fromkeys(("running", "mbd-down", "ususp", "ssusp", "unkwn", "requeued"), ("unsure",)),
}


@pytest.mark.parametrize("name", HISTORY)
def test_recorded_history(name: str) -> None:
    case = CASES[f"bhist-l-{name}"]
    listing = LSF.read_history(case.answer, PLAIN)
    (seen,) = listing.seen
    assert (listing.result, seen.native_id) == ("ok", case.argv[-1])
    assert told(seen) == HISTORY[name], case.truth
    assert seen.requeued == (1 if name == "requeued" else 0)
    if seen.outcome and name != "killed-pending":
        assert (seen.outcome.host, seen.outcome.cpu_s is None) in (("lava1", False), ("lava2", False))


def test_all_recorded_history_is_looked_at_and_several_jobs_are_told_apart() -> None:
    names = {name for name in CASES if name.startswith("bhist-l-")}
    assert names == {f"bhist-l-{name}" for name in HISTORY}
    together = "".join(CASES[f"bhist-l-{name}"].answer.stdout + "-" * 78 + "\n" for name in HISTORY)
    seen = LSF.read_history(Answer(0, together, ""), PLAIN).seen
    assert [told(one) for one in seen] == list(HISTORY.values())
    assert told(LSF.read_history(CASES["bhist-l-runlimit"].answer, Options(strict=True)).seen[0])[0] == "aborted"


FORCED = ("failed", None, None, "node-fail")
PLAIN_THREE = ("failed", 3, None, None)


@pytest.mark.parametrize(
    ("events", "want"),
    [
        (["Exited by signal 9. The CPU time used is 1.0 seconds;"], ("failed", None, 9, None)),
        (["Exited; job has been forced to exit;"], ("failed", None, None, None)),
        (["Exited with exit code 1. The CPU time used is 0.1 seconds;", "Pending: requeued;"], ("unsure",)),
        (["Exited with exit code 137;", "Completed <exit>; TERM_MEMLIMIT: job killed;"], ("failed", None, 9, "oom")),
        (
            [
                "Signal <REQUEUE_PEND> requested;",
                "Exited with exit code 130;",
                "Dispatched to <b>;",
                "Done successfully;",
            ],
            ("completed", 0, None, None),
        ),
        (["Unknown; unable to reach the execution host;"], ("unsure",)),
        (["Exited; job will be requeued and rerun;"], ("unsure",)),
        (["Unknown; unable to reach the execution host;", "sbatchd startup; kill ZOMBIE job;"], FORCED),
        (["Exited by LSF;", "Completed <exit>; TERM_RUNLIMIT: job killed;"], ("failed", None, None, "time")),
        (["Completed <done>;"], ("completed", 0, None, None)),
        (
            [
                "Signal <REQUEUE_PEND> requested;",
                "Pending: Requeued job is waiting for rescheduling;",
                "Dispatched to <b>;",
                "Exited with exit code 3;",
            ],
            ("failed", 3, None, None),
        ),
        (
            ["MEMLIMIT termination action initiated (actpid 7);", "Exited with exit code 137;"],
            ("failed", None, 9, "oom"),
        ),
        (["Terminated:  CPULIMIT was reached;", "Exited with exit code 152;"], ("failed", None, 24, "time")),
        (["Delete requested by user or administrator <a>;", "Exited;"], ("failed", None, None, "cancelled")),
        ([" [2] starting (Pid 7);", " [2] exited with exit code 3. The CPU time used is 1.0 seconds;"], PLAIN_THREE),
        (
            [
                "TERM_PREEMPT;",
                " [2] pending: Job has been requeued;",
                " [2] dispatched to <n3>;",
                " [2] Exited by signal 9;",
            ],
            ("failed", None, 9, None),
        ),
        (["Exited with exit code 140. The CPU time used is 0.0 seconds;"], ("failed", None, 12, "time")),
        (["Exited with exit code 138. The CPU time used is 0.0 seconds;"], ("failed", 138, None, None)),
        (
            [
                "Exited with exit code 143;",
                "TERM_PREEMPT;",
                "Pending: x;",
                "Dispatched to <b>;",
                "Exited with exit code 3;",
            ],
            ("failed", 3, None, None),
        ),
    ],
)
def test_events(events: list[str], want: tuple[object, ...]) -> None:
    lines = ["Submitted from host <login1>, to Queue <normal>;", "Dispatched 4 Task(s) on Host(s) <4*n2>;", *events]
    text = "\nJob <7[2]>, Job Name <x-0123456789ab[2]>, User <me>, Project <p>\n"
    for line in lines:
        text += f"Sun Nov 15 21:00:00: {line}"[:40] + "\n" + " " * 21 + f"Sun Nov 15 21:00:00: {line}"[40:] + "\n"
    (seen,) = LSF.read_history(Answer(0, text + "\nSummary of time in seconds\n", ""), PLAIN).seen
    assert (seen.native_id, seen.tag, told(seen)) == ("7[2]", "0123456789ab", want)
    assert LSF.read_history(Answer(0, text, ""), PLAIN)[:2] == ((), "transient"), "cut short: more may have followed"
    whole = CASES["bhist-l-done"].answer.stdout
    some = LSF.read_history(Answer(0, whole + text, ""), PLAIN)
    assert ([one.native_id for one in some.seen], some.result) == (["105"], "partial")


@pytest.mark.parametrize("seed", range(100))
def test_a_history_whose_lines_are_in_disorder_is_none(seed: int) -> None:
    lines = (CASES["bhist-l-done"].answer.stdout + CASES["bhist-l-exit3"].answer.stdout).splitlines(keepends=True)
    random.Random(seed).shuffle(lines)
    assert LSF.read_history(Answer(0, "".join(lines), ""), PLAIN).result not in ("ok", "not-found")


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        (CASES["bhist-unknown"].answer, "not-found"),
        (Answer(0, "", ""), "transient"),
        (Answer(None, "", ""), "transient"),
        (Answer(255, "", "lsb_init: Failed in an LSF library call: Unable to open file lsf.conf"), "fatal"),
    ],
)
def test_history_that_says_nothing(answer: Answer, result: str) -> None:
    listing = LSF.read_history(answer, PLAIN)
    assert (listing.seen, listing.result) == ((), result)


# Submitting


def test_what_is_submitted() -> None:
    command = LSF.submit(ask(time_s=601), PLAIN)
    assert command.argv == (
        *("bsub", "-J", "align_reads-0123456789ab", "-o", "/data/run 1/0123456789ab.0.out", "-cwd", "/data/run 1"),
        *(
            "-rn",
            "-wa",
            "USR1",
            "-wt",
            "2",
            "-M",
            "3072MB",
            "-n",
            "2",
            "-R",
            "rusage[mem=3072MB] span[hosts=1]",
            "-W",
            "11",
        ),
    )
    assert command.stdin is not None
    assert command.stdin.startswith("#!/bin/bash\nunset TZ LC_ALL\n")
    assert command.stdin.endswith("done\necho hello\n")
    plain = LAVA.submit(ask(time_s=601), PLAIN)
    assert plain.argv == (
        *("bsub", "-J", "align_reads-0123456789ab", "-o", "/data/run 1/0123456789ab.0.out", "-M", "3145728"),
        *("-n", "2", "-R", "rusage[mem=3072] span[hosts=1]", "-W", "11"),
    )
    assert plain.stdin == command.stdin


def argv(site: Options = PLAIN, dialect: Lsf = LSF, **changes: object) -> tuple[str, ...]:
    return dialect.submit(ask(**changes), site).argv


def after(words: tuple[str, ...], option: str) -> str | None:
    return words[words.index(option) + 1] if option in words else None


def test_arrays_and_sizes() -> None:
    words = argv(ids=tuple("abc"), nodes=2, tasks_per_node=4, amounts=Amounts(1500, 1, 5 << 20, 2, (("lic", 3),)))
    assert after(words, "-J") == "align_reads-0123456789ab[1-3]"
    assert after(words, "-o") == "/data/run 1/0123456789ab.%I.out"
    assert (after(words, "-n"), after(words, "-gpu")) == ("8", "num=2")
    assert after(words, "-R") == "rusage[mem=1MB,tmp=5MB,lic=3] span[ptile=4]"
    lava = argv(dialect=LAVA, amounts=Amounts(1000, 1, 5 << 20, 0, (("lic", 3),)))
    assert after(lava, "-R") == "rusage[mem=1:tmp=5:lic=3]", "OpenLava knows commas only since 3.0.1"
    small = argv(amounts=Amounts(10))
    assert (after(small, "-n"), after(small, "-R"), after(small, "-M"), after(small, "-W")) == ("1", None, None, None)
    with pytest.raises(UsageError, match="gpus"):
        argv(dialect=LAVA, amounts=Amounts(1000, gpus=1))


@pytest.mark.parametrize(("how", "wanted"), [("node", "3072MB"), ("per-cpu", "1536MB"), ("none", None)])
def test_memory_as_the_site_wants_it(how: str, wanted: str | None) -> None:
    words = argv(Options(memory_as=how))  # type: ignore[arg-type]
    assert after(words, "-R") == (f"rusage[mem={wanted}] span[hosts=1]" if wanted else "span[hosts=1]")
    assert after(words, "-M") == ("3072MB" if wanted else None)


def test_options_of_site_and_job() -> None:
    site = Options(account="lab", partition="long", reservation="r1", constraint="bigmem", requeue=True)
    words = argv(site, options=(("account", "mine"), ("-app", "mpi"), ("--sla", "gold"), ("-N", "")), exclusive=True)
    assert words[-12:] == ("-q", "long", "-P", "mine", "-U", "r1", "-x", "-app", "mpi", "-sla", "gold", "-N")
    assert after(words, "-R") == "rusage[mem=3072MB] span[hosts=1] select[bigmem]"
    assert "-r" in words
    assert "-wa" not in argv(time_s=120)
    assert "-wa" not in argv(Options(signal_s=0), time_s=9000)
    with pytest.raises(UsageError, match="-sla"):
        argv(Options(qos="high"))


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("rusage[lic=1]", "rusage[mem=3072MB,lic=1] span[hosts=1]"),
        ("select[a] rusage[lic=1] order[ut]", "rusage[mem=3072MB,lic=1] select[a] order[ut] span[hosts=1]"),
        ("span[ptile=1]", "rusage[mem=3072MB] span[ptile=1]"),
        ("mem>4000", "rusage[mem=3072MB] select[mem>4000] span[hosts=1]"),
        ("", "rusage[mem=3072MB] span[hosts=1]"),
    ],
)
def test_a_resource_requirement_is_one_string_with_each_section_once(given: str, wanted: str) -> None:
    assert after(argv(options=(("-R", given),)), "-R") == wanted
    both = argv(Options(constraint="x"), options=(("-R", "select[y]"),))
    assert after(both, "-R") == "rusage[mem=3072MB] select[(y) && (x)] span[hosts=1]"


@pytest.mark.parametrize(
    "option", ["-J", "-o", "-e", "-K", "-w", "-r", "-rn", "-n", "-I", "-cwd", "-q", "--nosuch", "app", ""]
)
def test_options_that_are_not_to_be_given(option: str) -> None:
    with pytest.raises(UsageError, match=re.escape(f"'{option}'") + ".*-app"):
        argv(options=((option, "x"),))


@pytest.mark.parametrize("value", ["a\nb", "a\0b", "\x1b[2J"])
def test_values_that_are_not_to_be_given(value: str) -> None:
    for option in ("-app", "account"):
        with pytest.raises(UsageError, match="control character"):
            argv(options=((option, value),))
    with pytest.raises(UsageError, match="plain sections"):
        argv(options=(("-R", "1*{select[a]} + 2*{select[b]}"),))


def test_lines_for_bsub_in_the_script_are_comments() -> None:
    """bsub skips blanks before and behind the `#`; one with BSUB in it and a `\\` at its end eats the next line."""
    given = "#BSUB -q root\necho '#BSUB'\n  # \tBSUB -w x\n# see BSUB \\\necho here\n#BSUB BSUB"
    text = LSF.submit(ask(script=given), PLAIN).stdin or ""
    assert "\n#B.SUB -q root\necho '#BSUB'\n  # \tB.SUB -w x\n# see B.SUB \\\necho here\n#B.SUB B.SUB\n" in text
    assert not re.search(r"^\s*#.*BSUB", text, re.MULTILINE)


@pytest.mark.parametrize(("index", "element"), [(None, "0"), ("0", "0"), ("1", "0"), ("12", "11")])
def test_the_script_knows_its_element(index: str | None, element: str, tmp_path: object) -> None:
    text = LSF.submit(ask(script="#!/bin/sh\necho $ROTA_ELEMENT $PWD", directory=str(tmp_path)), PLAIN).stdin
    env = {"PATH": "/usr/bin:/bin", **({} if index is None else {"LSB_JOBINDEX": index})}
    done = subprocess.run(["/bin/sh"], input=text, env=env, capture_output=True, text=True, check=True)
    assert done.stdout == f"{element} {tmp_path}\n"


@pytest.mark.parametrize("name", [name for name in CASES if "bsub-ok" in name or "please-wait" in name])
def test_accepted(name: str) -> None:
    answer = CASES[name].answer
    assert LSF.read_submit(ask(), answer)[:3] == (re.findall(r"\d+", answer.stdout)[0], "ok", "")


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("bsub-err-")])
def test_refused(name: str) -> None:
    submitted = LSF.read_submit(ask(), CASES[name].answer)
    assert (submitted.native_id, submitted.result) == (None, "fatal")
    assert "ob not submitted" in submitted.detail


@pytest.mark.parametrize(
    ("said", "result"),
    [
        ("Error in rusage section. Job not submitted.", "fatal"),
        ('Expected number, string, name, or "(" but found end of section. Job not submitted.', "fatal"),
        ("No such queue. Job not submitted.", "fatal"),
        ("Too many processors requested. Job not submitted.", "fatal"),
        ("x cannot be used in the resource requirement section. Job not submitted.", "fatal"),
        ("duplicate section. Job not submitted.", "fatal"),
        ("User permission denied. Job not submitted.", "fatal"),
        ("Project <x> does not exist or is disabled. Job not submitted.", "fatal"),
        ("Pending job threshold reached. Retrying in 60 seconds...", "transient"),
        ("Queue has been closed. Job not submitted.", "transient"),
        ("User has reached the per-user job limit. Job not submitted.", "transient"),
        ("LIM is down; try later", "transient"),
        ("LSF is down. Please wait ...", "transient"),
        ("Cannot connect to LSF. Please wait ...", "transient"),
        ("Request from non-LSF host rejected", "transient"),
        ("batch system daemon not responding ... still trying", "transient"),
        ("Failed in an LSF library call: Connection reset by peer", "ambiguous"),
        ("Communication time out", "ambiguous"),
        ("Failed in an LSF library call: Connection reset by peer. Job not submitted.", "ambiguous"),
        ("Contacting batch daemon: Communication timeout. Job not submitted.", "ambiguous"),
        ("Master batch daemon internal error. Job not submitted.", "ambiguous"),
        ("batch system daemon not responding ... still trying\nBroken pipe. Job not submitted.", "ambiguous"),
        ("Request from non-LSF host rejected. Job not submitted.", "transient"),
        ("Connection refused by server. Job not submitted.", "transient"),
        ("Batch service not registered. Job not submitted.", "transient"),
        ("No job Id can be used now. Job not submitted.", "transient"),
        ("night: Queue has been closed. Job not submitted.", "transient"),
        ("The destination queue has reached its job limit. Job not submitted.", "transient"),
        ("Request aborted by esub. Job not submitted.", "fatal"),
        ("Job array index too large. Job not submitted.", "fatal"),
        ("User cannot use the queue. Job not submitted.", "fatal"),
        ("something else", "ambiguous"),
        ("", "ambiguous"),
    ],
)
def test_why_not_submitted(said: str, result: str) -> None:
    submitted = LSF.read_submit(ask(), Answer(255, "", said))
    assert (submitted.native_id, submitted.result) == (None, result)
    assert " ".join(said.split()) in submitted.detail


@pytest.mark.parametrize(
    "answer",
    [
        Answer(0, text, "")
        for text in ("", "\n", "Job <0> is submitted to queue <q>.", "Job <-7> is submitted to queue <q>.")
    ]
    + [Answer(0, text, "") for text in ("Job <x> is submitted to queue <q>.", "Job <7.5> is submitted to queue <q>.")]
    + [Answer(None, "Job <7> is submitted to queue <q>.", ""), Answer(255, "Job <7> is submitted to queue <q>.", "")]
    + [CASES[name].answer for name in ("bsub-mbd-hung", "bsub-mbd-down", "bsub-lim-down")],
)
def test_doubtful_submissions(answer: Answer) -> None:
    submitted = LSF.read_submit(ask(), answer)
    assert (submitted.native_id, submitted.result) == (None, "ambiguous")


# Finding, killing, queues


def test_finding() -> None:
    text = (
        COLUMNS + row("9", "RUN", index="2") + row("8", "RUN", name="y-ffffffffffff") + row("7", "EXIT", name="other")
    )
    assert LSF.read_find("0123456789ab", Answer(0, text, "")) == ("9", "ok", "", ())
    assert LSF.read_find("0123456789ab", Answer(0, text + row("11", "PEND"), "")) == ("9", "ok", "", ("11",))
    assert LSF.read_find("000000000000", Answer(0, text, ""))[:2] == (None, "not-found")
    assert LSF.read_find("000000000000", Answer(0, text[:-2], ""))[:2] == (None, "transient")
    assert LAVA.read_find("000000000000", CASES["bjobs-after-hung"].answer).result == "not-found"
    assert LAVA.read_find("000000000000", Answer(255, "", "No job found\n")).result == "not-found"
    for name in ("bjobs-mbd-down", "bjobs-mbd-hung", "bjobs-unknown"):
        assert LAVA.read_find("000000000000", CASES[name].answer).result == "transient"
    assert LSF.find("000000000000", "me")[0].argv[:4] == ("bjobs", "-a", "-u", "me")
    assert LAVA.find("000000000000", "me")[0].argv == ("bjobs", "-a", "-w", "-u", "me")


BAD_KILLS = {
    **dict.fromkeys(("bkill-not-owner", "documented-bkill-not-owner", "bkill-bad-id"), "fatal"),
    **dict.fromkeys(("bkill-mbd-down", "bkill-lim-down"), "transient"),
}


@pytest.mark.parametrize("name", [name for name in CASES if "bkill" in name and not name.startswith("bjobs")])
def test_killed(name: str) -> None:
    assert LSF.read_kill(CASES[name].answer)[0] == BAD_KILLS.get(name, "ok"), CASES[name].truth


def test_kills() -> None:
    assert LSF.kill(["7[1]", "8"], 0).argv == ("bkill", "7[1]", "8") == LSF.kill(["7[1]", "8"], 1).argv
    assert LSF.kill(["7"], 2).argv == ("bkill", "-r", "7")
    assert LSF.read_kill(Answer(255, "", ""))[0] == "transient"
    assert LSF.read_kill(Answer(255, "", "Job <7>: User permission denied\nCommunication time out\n"))[0] == "transient"


def test_queues() -> None:
    assert LAVA.read_queues(CASES["bqueues-l"].answer) == (Queue("short", False, None, None, None, None, 60, True),)
    text = CASES["bqueues-l"].answer.stdout
    second = "\nQUEUE: night\n  -- For the night.  This is the\n default queue.\n\nPRIO STATUS\n 30 Closed:Inact -\n"
    found = LSF.read_queues(Answer(0, text + second, ""))
    assert found[1] == Queue("night", True, None, None, None, None, None, False)
    assert LSF.read_queues(CASES["bqueues-mbd-down"].answer) == () == LSF.read_queues(CASES["bqueues-unknown"].answer)


LIMITS = """
QUEUE: long
  -- For long jobs, on hosts that are lightly loaded, as there are many of them. Th
is is the default queue.

PARAMETERS/STATISTICS
PRIO NICE STATUS          MAX JL/U JL/P JL/H NJOBS  PEND   RUN SSUSP USUSP  RSV PJOBS
 30    0  Open:Active       -    -    -    -     0     0     0     0     0    0     0

DEFAULT LIMITS:
 RUNLIMIT
 30.0 min of hostA

MAXIMUM LIMITS:
 CPULIMIT                  RUNLIMIT
 900.0 min of hostA        480.0 min of hostA

 MEMLIMIT
    8 G

SCHEDULING PARAMETERS
"""


def test_the_longest_time_of_a_queue_is_not_its_usual_one() -> None:
    long = Queue("long", True, None, None, None, None, 480 * 60, True, usual_s=30 * 60)
    assert LSF.read_queues(Answer(0, LIMITS, "")) == (long,)
    only_usual = re.sub("MAXIMUM.*SCHED", "SCHED", LIMITS, flags=re.DOTALL)
    assert LSF.read_queues(Answer(0, only_usual, "")) == (long._replace(time_s=None),)
    only_most = re.sub("DEFAULT LIM.*MAX", "MAX", LIMITS, flags=re.DOTALL)
    assert LSF.read_queues(Answer(0, only_most, "")) == (long._replace(usual_s=None),)


HOSTS = """\
HOST_NAME          STATUS          JL/U    MAX  NJOBS    RUN  SSUSP  USUSP    RSV
lava1              ok                 -      4      0      0      0      0      0
lava2              ok                 -     16      3      3      0      0      0
lava3              closed_Adm         -      -      0      0      0      0      0
"""
SIZES = """\
HOST_NAME                       type       model  cpuf ncpus maxmem maxswp server RESOURCES
lava1                          linux     IntelI5 100.0     2 24103M      -    Yes (cs)
lava2                          linux     IntelI5 100.0     2   1.5T   4G    Yes (cs)
lava3                          linux     IntelI5 100.0     8      -      -    Yes ()
"""


def test_each_queue_has_its_own_hosts_time_and_users() -> None:
    block = LIMITS + "\nUSERS:  {}\nHOSTS:  {}\n"
    text = "".join(
        block.replace("long\n", f"{name}\n").replace("480.0", f"{minutes}.0").format(users, hosts)
        for name, minutes, users, hosts in [
            ("days", 14400, "all users", "all hosts used by the LSF system"),
            ("mine", 10, "me you", "lava1 lava2+3"),
            ("small", 10, "physics/ me", "lava3"),
            ("group", 10, "all", "bighosts/ lava1"),
        ]
    )
    queues = LSF.read_queues(Answer(0, text, ""))
    assert [command.argv[0] for command in LSF.queue_details(queues)] == ["bparams", "bhosts", "lshosts"]
    params = "System default queues for automatic queue selection:\n    DEFAULT_QUEUE = mine days\n\n"
    found = LSF.read_queue_details(queues, [Answer(0, each, "") for each in (params, HOSTS, SIZES)], Options())
    assert [(q.name, q.time_s, q.is_default, q.users) for q in found] == [
        ("days", 864_000, False, None),
        ("mine", 600, True, ("me", "you")),
        ("small", 600, False, None),
        ("group", 600, False, None),
    ]
    tera = int(1.5 * (1 << 40))
    assert [(q.nodes, q.cores, q.memory) for q in found] == [
        (3, 16000, tera),
        (2, 16000, tera),
        (1, 8000, None),
        (None, None, None),
    ], "a group of hosts is not known, and neither is memory that nobody tells"
    silent = [Answer(127, "", "not found")] * 3
    assert LSF.read_queue_details(queues, silent, Options()) == queues
    only = LSF.read_queue_details(
        queues, [silent[0], Answer(0, HOSTS[: HOSTS.index("lava2")], ""), silent[0]], Options()
    )
    assert (only[0].nodes, only[0].cores, only[0].memory) == (1, 4000, None)


def test_a_queue_that_starts_nothing_is_not_up() -> None:
    for status, up in (
        ("Open:Active", True),
        ("Open:Inact_Win", False),
        ("Open:Inact", False),
        ("Closed:Active", False),
    ):
        (queue,) = LSF.read_queues(Answer(0, LIMITS.replace("Open:Active", status), ""))
        assert queue.up == up, status


def test_a_history_that_this_host_does_not_have_is_silent() -> None:
    for words in ("No such file or directory", "Permission denied"):
        answer = Answer(255, "", f"/opt/openlava/work/logdir/lsb.events: {words}\n")
        assert LAVA.read_history(answer, PLAIN)[:2] == ((), "fatal")


def test_cpu_time_in_hours() -> None:
    (seen,) = listed(row("7", "DONE").replace("0.1 second(s)", "01:02:03"))
    assert seen.outcome is not None and seen.outcome.cpu_s == 3723


def test_openlava_is_a_driver_too() -> None:
    assert "openlava" in dialect_names()
    assert isinstance(load_dialect("openlava"), OpenLava)


@pytest.mark.parametrize(
    ("said", "whose"),
    [
        ("OpenLava 4.0dev4, Nov 15 2026", "openlava"),
        ("openlava project 2.2, Jun 11 2015", "openlava"),
        ("Platform Lava 1.0, Jul 1 2007\nCopyright 2007 Platform Computing Corporation", "openlava"),
        ("Platform LSF 8.0.1.0, Jun 13 2011\nCopyright 1992-2011 Platform Computing Corporation", "openlava"),
        ("Platform LSF 9.1.1.0, Mar 01 2013", "lsf"),
        ("IBM Spectrum LSF Community Edition 10.1.0.12, Jun 10 2021\nCopyright IBM Corp. 1992, 2016.", "lsf"),
        ("IBM Spectrum LSF 10.1.0.14, Jun 21 2023", "lsf"),
        ("IBM Spectrum LSF Suite 15.1.0", "lsf"),
        ("bsub: an alias of something", None),
    ],
)
def test_which_of_the_two(said: str, whose: str | None) -> None:
    answer = Answer(0, "", said)
    assert [one.name for one in (LSF, LAVA) if one.is_mine(answer)] == ([whose] if whose else [])


def test_who_it_is() -> None:
    lava, lsf = CASES["bsub-version"].answer, Answer(0, "", "IBM Spectrum LSF Standard 10.1.0.0, Jul 08 2016\n")
    assert (LAVA.is_mine(lava), LSF.is_mine(lava)) == (True, False)
    assert (LAVA.is_mine(lsf), LSF.is_mine(lsf)) == (False, True)
    assert not LSF.is_mine(Answer(127, "", "bsub: command not found"))


LINES = st.lists(
    st.one_of(
        st.text(max_size=40),
        st.sampled_from(
            [COLUMNS[:-1], WIDE[:-1], "JOBID", "JOBID|STAT", "JOBID\ufffd", "QUEUE: x", " RUNLIMIT", " 1.0 min of a"]
        ),
        st.builds(
            "{}^1^{}^{}^TERM_OWNER^^^^^^^".format,
            st.text(max_size=8),
            st.sampled_from(list(LSF.states)),
            st.text(max_size=8),
        ),
        st.builds("Job <{}>, Job Name <a>, User <b>".format, st.one_of(st.integers(0), st.text(max_size=5))),
        st.builds("Sun Nov {} 2{}:00:00: {}".format, st.integers(10, 40), st.integers(0, 9), st.text(max_size=20)),
        st.builds("7 u {} q a b {}".format, st.text(max_size=8), st.text(max_size=20)),
        st.sampled_from(["Sun Nov 15 21:00:00: Exited with exit code 140.", "Sun Nov 15 21:00:00: Dispatched to <>;"]),
    ),
    max_size=8,
).map("\n".join)
ANSWERS = st.builds(Answer, st.one_of(st.none(), st.integers(-15, 255)), LINES, LINES)


@given(ANSWERS)
def test_no_reader_raises(answer: Answer) -> None:
    for dialect in DIALECTS:
        listing = dialect.read_listing(answer, Options(strict=True))
        assert not (answer.code is None and listing.result == "ok")
        history = dialect.read_history(answer, PLAIN)
        assert not (answer.code != 0 and history.result == "ok")
        submitted = dialect.read_submit(ask(), answer)
        assert (submitted.native_id is None) == (submitted.result != "ok")
        dialect.read_find("0123456789ab", answer)
        dialect.read_kill(answer)
        dialect.read_queues(answer)
        dialect.is_mine(answer)


def test_a_job_that_heeds_the_signal_of_its_run_limit_ran_out_of_time() -> None:
    """Whatever it makes of TERM: nothing lives longer than its limit."""
    text = CASES["bhist-l-runlimit"].answer.stdout
    (seen,) = LAVA.read_history(Answer(0, text.replace("exit code 140", "exit code 1"), ""), PLAIN).seen
    assert told(seen) == ("failed", 1, None, "time")
    (seen,) = LAVA.read_history(
        Answer(0, text.replace("exit code 140", "exit code 1").replace("06:38", "06:20"), ""), PLAIN
    ).seen
    assert told(seen) == ("failed", 1, None, None)


def test_rarer_words_for_an_end() -> None:
    assert (WHY["SWAPLIMIT"], WHY["USER"], WHY["ORPHAN_SYSTEM"], WHY["DATA"]) == (
        "oom",
        "cancelled",
        "cancelled",
        "launch",
    )


def test_why_jobs_of_openlava_wait() -> None:
    wide = (
        "JOBID   USER    STAT  QUEUE      FROM_HOST   EXEC_HOST   JOB_NAME   SUBMIT_TIME\n"
        "319     me PEND  normal     vm             -        rota-b7fb9d037f70[9] Nov 16 21:49\n"
        " Job slot limit reached: 1 host;\n Not enough of memory: 2 hosts;\n"
        "108     me PEND  normal     vm                      arr[3]     Nov 15 21:05\n"
        " : 1 host;\n"
    )
    said = {"319[9]": "Job slot limit reached: 1 host; Not enough of memory: 2 hosts"}
    assert OpenLava().read_why_waiting(Answer(0, wide, "")) == said


@pytest.mark.parametrize("option", ["-app", "-sla", "-hl", "-data", "-Lp", "-ul", "-We", "-ptl", "-nnodes", "-notify"])
def test_what_only_lsf_has_is_not_sent_to_openlava(option: str) -> None:
    given = ask(options=((option, "x"),))
    assert option in Lsf().submit(given, PLAIN).argv
    with pytest.raises(UsageError, match=f"OpenLava: option '{option}' .* give one of "):
        OpenLava().submit(given, PLAIN)


def test_openlava_takes_its_own_options_and_has_no_reservations() -> None:
    for option in ("-g", "-m", "-sp", "-G", "-Jd"):
        assert option in OpenLava().submit(ask(options=((option, "x"),)), PLAIN).argv
    with pytest.raises(UsageError, match="OpenLava has no reservations"):
        OpenLava().submit(ask(options=(("reservation", "r1"),)), PLAIN)


def test_the_fake_openlava_takes_an_option_that_it_does_not_know_for_another_and_a_command() -> None:
    cluster = SimulatedCluster({"personality": "lsf", "cluster": "openlava"}, lambda *_: (1.0, 0, None))
    code, said, _ = cluster.run(["bsub", "-J", "x", "-app", "prof"], "#!/bin/sh\nexit 3\n", 0.0)
    assert code == 0 and "is submitted" in said
    (submission,) = cluster.world.submissions.values()
    assert submission.words == ["prof"], "the script is dropped"
