"""Slurm's dialect against recordings of the real one: every state, every way to end, every error."""

import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recorded import recorded
from rota.drivers.api import Ask, Outcome
from rota.drivers.dialect import Answer, Dialect, Options, Queue, Seen
from rota.drivers.slurm import COLUMNS, Slurm
from rota.model.errors import UsageError
from rota.model.needs import Amounts

SLURM = Slurm()
A_DIALECT: Dialect = SLURM
CASES = recorded("slurm")
PLAIN = Options()


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
    job: str,
    state: str,
    status: str = "0",
    restarts: str = "0",
    reason: str = "None",
    host: str = "n1",
    name: str = "x-0123456789ab",
) -> str:
    cells = (job, state, status, restarts, "2026-11-15T20:50:14", "2026-11-15T20:51:42", host, reason, name)
    return "".join(f"{cell:<{width}}"[:width] for cell, (_, width) in zip(cells, COLUMNS, strict=True)) + "\n"


HEADING = row("JOBID", "STATE", "EXIT_CODE", "RESTART_", "REASON", "EXEC_HOST", "NAME")


def listed(*rows: str, options: Options = PLAIN) -> list[Seen]:
    listing = SLURM.read_listing(Answer(0, HEADING + "".join(rows), ""), options)
    assert listing.result == "ok", listing.detail
    return list(listing.seen)


# long form, compact form, kind, kind if strict, why
STATES = [
    ("BOOT_FAIL", "BF", "aborted", "aborted", "launch"),
    ("CANCELLED", "CA", "aborted", "aborted", "cancelled"),
    ("COMPLETED", "CD", "completed", "completed", None),
    ("CONFIGURING", "CF", "pending", "pending", None),
    ("COMPLETING", "CG", "running", "running", None),
    ("DEADLINE", "DL", "aborted", "aborted", "deadline"),
    ("EXPEDITING", "EXPEDITING", "pending", "pending", None),
    ("FAILED", "F", "failed", "failed", None),
    ("NODE_FAIL", "NF", "aborted", "aborted", "node-fail"),
    ("OUT_OF_MEMORY", "OOM", "aborted", "failed", "oom"),
    ("PENDING", "PD", "pending", "pending", None),
    ("PREEMPTED", "PR", "aborted", "aborted", "preempt"),
    ("RUNNING", "R", "running", "running", None),
    ("RESV_DEL_HOLD", "RD", "unsure", "pending", None),
    ("REQUEUE_FED", "RF", "unsure", "unsure", None),
    ("REQUEUE_HOLD", "RH", "unsure", "unsure", None),
    ("REQUEUED", "RQ", "unsure", "unsure", None),
    ("RESIZING", "RS", "unsure", "running", None),
    ("REVOKED", "RV", "unsure", "unsure", None),
    ("SIGNALING", "SI", "unsure", "running", None),
    ("SPECIAL_EXIT", "SE", "failed", "failed", None),
    ("STAGE_OUT", "SO", "running", "running", None),
    ("STOPPED", "ST", "suspended", "running", None),
    ("SUSPENDED", "S", "suspended", "running", None),
    ("TIMEOUT", "TO", "aborted", "failed", "time"),
    ("LAUNCH_FAILED", "LAUNCH_FAILED", "unsure", "unsure", None),
    ("POWER_UP_NODE", "POWER_UP_NODE", "pending", "pending", None),
    ("RECONFIG_FAIL", "RECONFIG_FAIL", "unsure", "unsure", None),
    ("UPDATE_DB", "UPDATE_DB", "unsure", "unsure", None),
    ("?", "?", "unsure", "unsure", None),
    ("INVENTED_LATER", "XX", "unsure", "unsure", None),
]


@pytest.mark.parametrize(("long", "short", "kind", "strict", "why"), STATES)
def test_every_state(long: str, short: str, kind: str, strict: str, why: str | None) -> None:
    for form in (long, short):
        (seen,) = listed(row("7", form))
        assert (seen.kind, seen.native_state) == (kind, form)
        assert seen.held == (long == "SPECIAL_EXIT")
        assert (seen.outcome.why if seen.outcome else None) == why
        (seen,) = listed(row("7", form), options=Options(strict=True))
        assert seen.kind == strict


def test_the_table_has_no_other_states() -> None:
    assert set(SLURM.states) == {form for one in STATES[:-1] for form in one[:2]}


@pytest.mark.parametrize("state", [form for one in STATES if one[2] != "completed" for form in one[:2]])
def test_no_state_but_completed_is_a_success(state: str) -> None:
    for seen in listed(row("7", state, "0"), row("7", state, "0:0")):
        assert seen.outcome is None or seen.outcome.exit_code is None


def test_a_site_has_the_last_word_about_a_state() -> None:
    wish = Options(
        state_map=(("PR", "unsure"), ("SUSPENDED", "running"), ("S", "running"), ("R", "nonsense")), strict=True
    )
    kinds = {
        seen.native_state: seen.kind for seen in listed(*(row("7", s) for s in ("PREEMPTED", "S", "R")), options=wish)
    }
    assert kinds == {"PREEMPTED": "unsure", "S": "running", "R": "running"}


def test_where_requeueing_is_allowed_a_lost_node_is_not_yet_the_end() -> None:
    rows = [row("7", "NODE_FAIL"), row("8", "PREEMPTED"), row("9", "TIMEOUT")]
    assert [seen.kind for seen in listed(*rows)] == ["aborted"] * 3
    assert [seen.kind for seen in listed(*rows, options=Options(requeue=True))] == ["unsure", "unsure", "aborted"]


@pytest.mark.parametrize(
    ("status", "code", "signal", "why"),
    [
        ("768", 3, None, None),
        ("35072", 137, None, None),
        ("9", None, 9, None),
        ("139", None, 11, None),
        ("3:0", 3, None, None),
        ("0:9", None, 9, None),
        ("4021", None, None, "launch"),
        ("0:53", None, None, "launch"),
        ("junk", None, None, None),
        ("", None, None, None),
        ("0:125", None, None, None),
    ],
)
def test_exit_status(status: str, code: int | None, signal: int | None, why: str | None) -> None:
    (seen,) = listed(row("7", "FAILED", status))
    assert seen.outcome is not None
    assert (seen.outcome.exit_code, seen.outcome.signal, seen.outcome.why) == (code, signal, why)


def test_one_recorded_listing_of_everything() -> None:
    listing = SLURM.read_listing(CASES["own-squeue-all"].answer, PLAIN)
    assert (listing.result, len(listing.seen)) == ("ok", 28)
    seen = {one.native_id: one for one in listing.seen}
    got = {
        job: (one.kind, *((one.outcome.exit_code, one.outcome.signal, one.outcome.why) if one.outcome else ()))
        for job, one in seen.items()
    }
    assert got == {
        "1": ("completed", 0, None, None),
        "2": ("failed", 3, None, None),
        "3": ("failed", 137, None, None),
        "4": ("failed", None, 9, None),
        "5": ("failed", None, 11, None),
        "6": ("aborted", None, None, "oom"),
        "7": ("failed", None, None, "launch"),
        "8": ("aborted", None, 15, "time"),
        "9": ("aborted", None, 15, "cancelled"),
        "10": ("aborted", None, None, "cancelled"),
        "11": ("aborted", None, None, "cancelled"),
        "12": ("pending",),
        "13": ("suspended",),
        "14": ("running", None, None, None),
        "15": ("unsure",),
        "16": ("failed", None, None, None),
        "17": ("aborted", None, None, "node-fail"),
        "18_0": ("completed", 0, None, None),
        "18_1": ("failed", 7, None, None),
        "18_2": ("aborted", None, 15, "cancelled"),
        **dict.fromkeys(("18_3", "18_4", "18_5"), ("aborted", None, None, "node-fail")),
        **dict.fromkeys(("19_0", "19_1", "19_2", "19_4"), ("aborted", None, None, "cancelled")),
        "20": ("pending",),
    }
    assert seen["14"].requeued == 2
    assert seen["14"].outcome == Outcome(host="da1", started=1794794357.0)
    assert (seen["8"].outcome, seen["8"].tag) == (
        Outcome(None, 15, "time", "da1", 1794794212.0, 1794794300.0),
        "000000000008",
    )
    assert seen["11"].outcome == Outcome(why="cancelled", ended=1794794216.0), "it never ran"
    assert seen["12"].reason == "BeginTime"
    assert seen["16"].held
    assert seen["20"].reason == "Nodes required for job are DOWN, DRAINED or reserved for jobs in"


# What squeue said of one job at a time, in columns other than ours: state and reason are what counts.
TOLD = {
    "running": ("running", None),
    "suspended": ("suspended", None),
    "completing": ("running", None),
    "completed": ("completed", None),
    "failed-exit3": ("failed", None),
    "failed-exit137": ("failed", None),
    "failed-signal9": ("failed", None),
    "failed-signal11": ("failed", None),
    "failed-bad-interpreter": ("failed", None),
    "failed-command-not-found": ("failed", None),
    "failed-output-dir-missing": ("failed", None),
    "out-of-memory": ("aborted", "oom"),
    "oom-child-script-exit0": ("aborted", "oom"),
    "timeout": ("aborted", "time"),
    "preempted": ("aborted", "preempt"),
    "node-fail": ("aborted", "node-fail"),
    "node-fail-requeued": ("pending", None),
    "cancelled-running": ("aborted", "cancelled"),
    "cancelled-pending": ("aborted", "cancelled"),
    "cancelled-trapped": ("aborted", "cancelled"),
    "cancelled-dependency": ("aborted", "cancelled"),
    "after-scancel-s-kill": ("aborted", "cancelled"),
    "requeued-pending": ("pending", None),
    "requeued-running": ("running", None),
    "requeued-held": ("running", None),
    "requeued-held-settled": ("unsure", None),
    "pending-held-admin": ("held", None),
    "pending-held-user": ("held", None),
    "steps-failed-script-ok": ("completed", None),
    "odd-name": ("running", None),
    **dict.fromkeys(
        [
            "pending-begintime",
            "pending-dependency",
            "pending-dependency-never",
            "pending-partition-down",
            "pending-partition-time-limit",
        ],
        ("pending", None),
    ),
}


def in_our_columns(name: str) -> list[str]:
    case = CASES[f"squeue-{name}"]
    columns = case.argv[case.argv.index("-o") + 1].split("|")
    out = []
    for line in case.answer.stdout.splitlines():
        cells = dict(zip(columns, line.split("|", len(columns) - 1), strict=True))
        named = cells.get("%j", "")
        out.append(row(cells["%i"], cells["%T"], reason=cells.get("%r", "None"), host=cells.get("%N", ""), name=named))
    return out


@pytest.mark.parametrize("name", TOLD)
def test_recorded_states(name: str) -> None:
    (seen,) = listed(*in_our_columns(name))
    assert (seen.kind, seen.outcome.why if seen.outcome else None) == TOLD[name], CASES[f"squeue-{name}"].truth
    assert seen.tag is None


def test_every_recording_of_one_job_is_looked_at() -> None:
    wanted = {
        name for name, case in CASES.items() if name.startswith("squeue-") and "%i|%F|%K|%T|%r|%M" in str(case.argv)
    }
    assert wanted
    assert wanted <= {f"squeue-{name}" for name in TOLD}


@pytest.mark.parametrize(
    ("name", "waiting"),
    [("array-collapsed", range(3, 10)), ("array-expanded", range(3, 10)), ("array-with-holes", (3, 4, 6, 9))],
)
def test_elements_of_an_array(name: str, waiting: list[int]) -> None:
    kinds = {seen.native_id: seen.kind for seen in listed(*in_our_columns(name))}
    assert kinds == {"31_1": "running", "31_2": "running"} | {f"31_{number}": "pending" for number in waiting}
    assert {SLURM.element_id("31", number, 10) for number in waiting} <= set(kinds)
    assert SLURM.element_id("31", 0, 1) == "31"


@pytest.mark.parametrize(("elements", "mine", "others"), [("0-9", 10, 10), ("0-9999", 10_000, 1)])
def test_large_arrays_of_others_are_not_expanded(elements: str, mine: int, others: int) -> None:
    assert len(listed(row(f"7_[{elements}]", "PENDING", name="rota-0123456789ab"))) == mine
    assert len(listed(row(f"7_[{elements}]", "PENDING", name="theirs"))) == others


def test_a_cancelled_array_that_waited() -> None:
    kinds = {seen.native_id: seen.kind for seen in listed(*in_our_columns("array-cancelled"))}
    assert kinds == {"31_1": "running", "31_2": "running"} | dict.fromkeys(("31_3", "31_4", "31_6", "31_9"), "aborted")


def test_jobs_of_other_kinds_do_not_spoil_a_listing() -> None:
    """Parts of a heterogeneous job, and a name of several lines, as somebody may have them beside ours."""
    odd = row("5", "RUNNING", name="two\nlines")
    seen = listed(row("3+0", "RUNNING", name="het"), row("3+1", "PENDING", name="het"), odd, row("7", "RUNNING"))
    assert [one.native_id for one in seen] == ["3+0", "3+1", "5", "7"]
    assert SLURM.read_listing(Answer(0, HEADING + row("7", "RUNNING") + "lines\n", ""), PLAIN).result == "partial"
    assert SLURM.read_listing(Answer(0, HEADING + odd + "9_\n", ""), PLAIN).result == "partial"


def test_a_name_that_is_cut_has_no_tag() -> None:
    (seen,) = listed(row("7", "RUNNING", name="x" * 70 + "-0123456789ab"))
    assert seen.tag is None


# Answers that are less than a listing


def test_complaints_that_have_nothing_to_do_with_it() -> None:
    noise = "squeue: error: Cannot create context for mpi/pmix_v4\n"
    assert SLURM.read_listing(Answer(0, HEADING + row("7", "RUNNING"), noise), PLAIN).result == "ok"


def test_nothing_is_only_nothing_below_a_heading() -> None:
    assert SLURM.read_listing(CASES["own-squeue-none"].answer, PLAIN) == ((), "ok", "")
    empty = SLURM.read_listing(Answer(0, "", ""), PLAIN)
    assert (empty.seen, empty.result) == ((), "transient")
    wrong = SLURM.read_listing(CASES["own-squeue-nosuch-user"].answer, PLAIN)
    assert wrong.result == "partial"
    assert "Invalid user: nosuch" in wrong.detail


def test_what_breaks_off_is_partial() -> None:
    whole = HEADING + row("7", "RUNNING") + row("8", "RUNNING")
    for cut in range(len(HEADING) + 1, len(whole)):
        listing = SLURM.read_listing(Answer(0, whole[:cut], ""), PLAIN)
        complete = (cut - len(HEADING)) // len(HEADING)
        assert [seen.native_id for seen in listing.seen] == ["7", "8"][:complete]
        at_a_line_end = (cut - len(HEADING)) % len(HEADING) == 0
        assert listing.result == ("ok" if at_a_line_end else "partial")
    timed_out = SLURM.read_listing(Answer(None, whole[:-5], ""), PLAIN)
    assert (len(timed_out.seen), timed_out.result) == (1, "partial")
    failed = SLURM.read_listing(Answer(1, whole, "squeue: error: something"), PLAIN)
    assert (len(failed.seen), failed.result) == (2, "partial")


@pytest.mark.parametrize(
    ("case", "result"),
    [
        ("squeue-ctld-down", "transient"),
        ("squeue-ctld-hung", "transient"),
        ("squeue-purged", "not-found"),
        ("squeue-unknown-id", "not-found"),
        ("squeue-bad-id", "fatal"),
        ("squeue-two-unknown", "transient"),
        ("squeue-purged-two", "transient"),
        ("squeue-finished-default-states", "transient"),
    ],
)
def test_listings_that_say_nothing(case: str, result: str) -> None:
    listing = SLURM.read_listing(CASES[case].answer, PLAIN)
    assert (listing.seen, listing.result) == ((), result)


def test_noise_and_garbage() -> None:
    noisy = SLURM.read_listing(Answer(0, "Welcome to login1\n\n" + HEADING + row("7", "RUNNING"), ""), PLAIN)
    assert ([seen.native_id for seen in noisy.seen], noisy.result) == (["7"], "ok")
    mixed = SLURM.read_listing(
        Answer(0, HEADING + row("7", "RUNNING") + "\x00\ufffd\x07\n" + row("x", "RUNNING"), ""), PLAIN
    )
    assert ([seen.native_id for seen in mixed.seen], mixed.result) == (["7"], "partial")
    garbage = SLURM.read_listing(Answer(0, "\x7fELF\x02\x01\ufffd\ufffd\n" * 9, ""), PLAIN)
    assert (garbage.seen, garbage.result) == ((), "transient")
    assert garbage.detail.isprintable()


# History

SACCT = {
    "completed": ("completed", 0, None, None),
    "failed-exit3": ("failed", 3, None, None),
    "failed-exit137": ("failed", 9, None, None),
    "failed-signal9": ("failed", None, 9, None),
    "failed-signal11": ("failed", None, 11, None),
    "failed-bad-interpreter-settled": ("failed", 2, None, None),
    "failed-command-not-found-settled": ("failed", 127, None, None),
    "failed-output-dir-missing-settled": ("failed", None, None, "launch"),
    "out-of-memory": ("aborted", None, None, "oom"),
    "oom-child-script-exit0": ("aborted", None, None, "oom"),
    "timeout": ("aborted", None, None, "time"),
    "preempted": ("aborted", None, None, "preempt"),
    "node-fail": ("aborted", None, None, "node-fail"),
    "after-scancel-s-kill": ("aborted", None, None, "cancelled"),
    "steps-failed-script-ok": ("completed", 0, None, None),
    **{
        f"cancelled-{how}{later}": ("aborted", None, None, "cancelled")
        for how in ("pending", "running", "trapped", "dependency")
        for later in ("", "-settled")
    },
    **dict.fromkeys(("suspended", "requeued-pending", "requeued-held", "requeued-settled"), ("unsure",)),
    **dict.fromkeys(("node-fail-requeued", "odd-name"), ("unsure",)),
}


def with_heading(name: str) -> Answer:
    """As it would have been with the heading that we ask for."""
    case = CASES[name]
    wanted = next(word for word in case.argv if word.startswith("--format=")).removeprefix("--format=")
    return case.answer._replace(stdout=wanted.replace(",", "|") + "\n" + case.answer.stdout)


def told(seen: Seen) -> tuple[object, ...]:
    out = seen.outcome
    return (seen.kind, out.exit_code, out.signal, out.why) if out else (seen.kind,)


@pytest.mark.parametrize("name", SACCT)
def test_recorded_history(name: str) -> None:
    listing = SLURM.read_history(with_heading(f"sacct-{name}"), PLAIN)
    assert listing.result == "ok"
    assert [told(seen) for seen in listing.seen] == [SACCT[name]], CASES[f"sacct-{name}"].truth


def test_every_recorded_piece_of_history_is_looked_at() -> None:
    asked = {
        n
        for n, case in CASES.items()
        if n.startswith("sacct-") and "JobIDRaw,JobName" in str(case.argv) and "-X" in case.argv
    }
    early = {f"sacct-failed-{how}" for how in ("bad-interpreter", "command-not-found", "output-dir-missing")}
    assert asked - {f"sacct-{name}" for name in SACCT} == early | {"sacct-array-cancelled"}
    for name in early:
        assert SLURM.read_history(with_heading(name), PLAIN) == ((), "ok", ""), "it is seconds late"


@pytest.mark.parametrize(
    "name", [name for name in CASES if name.startswith("sacct-steps-") and "-X" not in CASES[name].argv]
)
def test_recorded_history_with_steps(name: str) -> None:
    listing = SLURM.read_history(CASES[name].answer, PLAIN)
    (seen,) = listing.seen
    assert listing.result == "ok"
    assert told(seen)[0] in ("completed", "failed", "aborted")
    assert seen.outcome is not None
    assert (seen.outcome.peak_memory is None) == (name == "sacct-steps-node-fail")


def test_history_has_usage() -> None:
    seen = {one.native_id: one for one in SLURM.read_history(CASES["own-sacct-all"].answer, PLAIN).seen}
    assert seen["1"].outcome == Outcome(0, None, None, "da1", 1794794212.0, 1794794212.0, 0.004, 1076 << 10)
    assert told(seen["18_4"]) == ("aborted", None, None, "node-fail")
    assert {job for job, one in seen.items() if one.kind == "unsure"} == {"12", "13", "14", "15", "16", "20"}
    assert "18_0" in seen
    assert all(one.tag for one in seen.values())


def test_history_of_elements_that_waited() -> None:
    gone = SLURM.read_history(CASES["own-sacct-array-cancelled"].answer, PLAIN)
    assert {one.native_id: told(one) for one in gone.seen} == dict.fromkeys(
        ("19_0", "19_1", "19_2", "19_4"), ("aborted", None, None, "cancelled")
    )
    waiting = SLURM.read_history(CASES["own-sacct-waiting-array"].answer, PLAIN)
    assert [one.kind for one in waiting.seen] == ["unsure"] * 4
    cancelled = SLURM.read_history(with_heading("sacct-array-cancelled"), PLAIN)
    assert {one.native_id for one in cancelled.seen} == {f"31_{number}" for number in range(1, 10)}
    assert [one.kind for one in SLURM.read_history(with_heading("sacct-array-pending"), PLAIN).seen] == ["unsure"] * 9


def test_a_list_of_elements_that_is_cut() -> None:
    heading = "JobID|State|ExitCode|Start|End|NodeList|TotalCPU|MaxRSS|JobName\n"
    for cut in ("1,3,5-6,...", "1,3,5-6,7..."):
        line = f"31_[{cut}]|CANCELLED by 0|0:0|None|2026-11-15T20:51:42|None assigned|00:00:00||x-0123456789ab\n"
        listing = SLURM.read_history(Answer(0, heading + line, ""), PLAIN)
        assert (listing.result, [one.native_id for one in listing.seen]) == ("ok", ["31_1", "31_3", "31_5", "31_6"])


def test_history_is_asked_by_whole_array_and_in_one_command() -> None:
    (command,) = SLURM.history(["7_1", "7_2", "8", "9_0"])
    assert command.argv[:4] == ("sacct", "-P", "-j", "7,8,9")
    assert SLURM.history([]) == []


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        (CASES["sacct-dbd-down"].answer, "transient"),
        (CASES["sacct-ctld-and-dbd-down"].answer, "transient"),
        (CASES["sacct-err-field"].answer, "fatal"),
        (CASES["own-sacct-unknown"].answer, "ok"),
        (CASES["sacct-unknown"].answer, "transient"),
        (Answer(1, "", "Slurm accounting storage is disabled\n"), "fatal"),
        (Answer(None, "", ""), "transient"),
        (Answer(0, "", ""), "transient"),
    ],
)
def test_history_that_says_nothing(answer: Answer, result: str) -> None:
    listing = SLURM.read_history(answer, PLAIN)
    assert (listing.seen, listing.result) == ((), result)


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        ("CANCELLED by 1000", "aborted"),
        ("CANCELLED+", "aborted"),
        ("CANCELLE+", "aborted"),
        ("OUT_OF_ME+", "aborted"),
        ("COMPLETED", "completed"),
        ("COMPLE+", "unsure"),
        ("CD", "completed"),
        ("", "unsure"),
        ("+", "unsure"),
    ],
)
def test_forms_of_a_state_in_history(state: str, kind: str) -> None:
    (seen,) = SLURM.read_history(Answer(0, f"JobID|State|ExitCode\n7|{state}|0:0\n", ""), PLAIN).seen
    assert seen.kind == kind


def test_of_several_records_the_last_counts() -> None:
    text = "JobID|State|ExitCode\n7|NODE_FAIL|0:0\n7|COMPLETED|0:0\n7_[3-1]|FAILED|1:0\n7_[0-999999999]|FAILED|1:0\n"
    assert [one.kind for one in SLURM.read_history(Answer(0, text, ""), PLAIN).seen] == ["completed"]


# Submitting


def test_what_is_submitted() -> None:
    command = SLURM.submit(ask(time_s=90061), PLAIN)
    assert command.argv == (
        "sbatch",
        "--parsable",
        "--job-name=align_reads-0123456789ab",
        "--chdir=/data/run 1",
        "--output=/data/run 1/0123456789ab.0.out",
        "--open-mode=append",
        "--export=ALL",
        "--no-requeue",
        "--nodes=1",
        "--ntasks-per-node=1",
        "--cpus-per-task=2",
        "--mem=3072M",
        "--time=1-01:01:01",
        "--signal=B:USR1@120",
    )
    assert command.stdin is not None
    lines = command.stdin.splitlines()
    assert (lines[0], lines[-1]) == ("#!/bin/bash", "echo hello")
    assert "ROTA_ELEMENT=$((${SLURM_ARRAY_TASK_ID:-0}))" in lines
    assert "until cd -- '/data/run 1' 2>/dev/null; do" in lines


def argv(site: Options = PLAIN, **changes: object) -> tuple[str, ...]:
    return SLURM.submit(ask(**changes), site).argv


def test_arrays_and_sizes() -> None:
    words = argv(ids=tuple("abc"), nodes=2, tasks_per_node=3, amounts=Amounts(4500, 1, 5 << 20, 2, (("fpga", 1),)))
    assert {"--array=0-2", "--nodes=2", "--ntasks-per-node=3", "--cpus-per-task=2", "--mem=1M"} <= set(words)
    assert {"--tmp=5M", "--gres=fpga:1,gpu:2", "--output=/data/run 1/0123456789ab.%a.out"} <= set(words)
    assert not [word for word in argv(amounts=Amounts(10)) if word.startswith(("--mem", "--tmp", "--gres", "--time"))]
    assert "--cpus-per-task=1" in argv(amounts=Amounts(10))
    assert "--output=/a%%b/0123456789ab.0.out" in argv(directory="/a%b")


@pytest.mark.parametrize(
    ("how", "wanted"), [("node", "--mem=3072M"), ("per-cpu", "--mem-per-cpu=1536M"), ("none", None)]
)
def test_memory_as_the_site_wants_it(how: str, wanted: str | None) -> None:
    words = argv(Options(memory_as=how))  # type: ignore[arg-type]
    assert [word for word in words if word.startswith("--mem")] == ([wanted] if wanted else [])


RAW = (("--mail-type", "FAIL"), ("--nice", "5"))


def test_options_of_site_and_job() -> None:
    site = Options(
        account="lab", partition="long", qos="low", raw=(("--mail-type", "FAIL"), ("--nice", "5")), requeue=True
    )
    mine = (("account", "mine"), ("--nice", "9"), ("--contiguous", ""), ("constraint", "a&b"), ("--qos", "high"))
    words = argv(site, options=mine, exclusive=True, time_s=240)
    assert words[-7:] == (
        *("--account=mine", "--partition=long", "--qos=high", "--constraint=a&b"),
        *("--mail-type=FAIL", "--nice=9", "--contiguous"),
    )
    assert {"--requeue", "--exclusive", "--signal=B:USR1@120"} <= set(words)
    assert not [word for word in argv(Options(signal_s=0), time_s=600) if "signal" in word]
    assert not [word for word in argv(time_s=200) if "signal" in word], "it could come when the script has only begun"
    assert "--signal=B:USR1@125" in argv(Options(signal_s=300), time_s=250), "not in the first half"
    assert "--gres=gpu:a100:2" in argv(amounts=Amounts(1000, gpus=2), options=(("--gres", "gpu:a100:2"),))


OURS = (
    "array chdir dependency error export job-name kill-on-invalid-dep no-requeue open-mode output parsable requeue wrap"
)


@pytest.mark.parametrize(
    "option", [f"--{word}" for word in OURS.split()] + ["-o", "output", "--nosuch", "--mem;rm", ""]
)
def test_options_that_are_not_to_be_given(option: str) -> None:
    with pytest.raises(UsageError, match=re.escape(f"'{option}'") + ".*--mail-type"):
        argv(options=((option, "x"),))


@pytest.mark.parametrize("value", ["a\nb", "a\0b", "\x1b[2J", "a\rb"])
def test_values_that_are_not_to_be_given(value: str) -> None:
    for option in ("--comment", "account"):
        with pytest.raises(UsageError, match="control character"):
            argv(options=((option, value),))
    with pytest.raises(UsageError, match="directory"):
        argv(directory="/" + value)
    with pytest.raises(UsageError, match="no name"):
        argv(Options(account="--uid=0"))


def test_lines_for_sbatch_in_the_script_come_too_late() -> None:
    text = SLURM.submit(ask(script="#SBATCH --uid=0\ntrue"), PLAIN).stdin or ""
    assert text.startswith("#!/bin/sh\nunset ")
    assert text.endswith("#SBATCH --uid=0\ntrue\n")


@pytest.mark.parametrize("index", [None, "0", "11"])
def test_the_script_knows_its_element(index: str | None, tmp_path: Path) -> None:
    wanted = ask(script="echo $ROTA_ELEMENT ${TZ-unset}; kill -USR1 $$; pwd", directory=str(tmp_path))
    text = SLURM.submit(wanted, PLAIN).stdin
    env = {"PATH": "/usr/bin:/bin", "TZ": "UTC", **({} if index is None else {"SLURM_ARRAY_TASK_ID": index})}
    done = subprocess.run(["/bin/sh"], input=text, env=env, capture_output=True, text=True, check=True)
    assert done.stdout == f"{index or 0} unset\n{tmp_path}\n"


ACCEPTED = {name: case for name, case in CASES.items() if name.startswith("sbatch-") and case.answer.code == 0}
REFUSED = {name for name in CASES if re.match("sbatch-(err|rejected)-", name)}


@pytest.mark.parametrize("name", sorted(set(ACCEPTED) - {"sbatch-test-only"}))
def test_accepted(name: str) -> None:
    submitted = SLURM.read_submit(ask(), ACCEPTED[name].answer)
    assert submitted[:3] == (re.findall(r"\d+", ACCEPTED[name].answer.stdout)[0], "ok", "")


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_refused(name: str) -> None:
    submitted = SLURM.read_submit(ask(), CASES[name].answer)
    assert (submitted.native_id, submitted.result) == (None, "fatal")
    assert "sbatch: " in submitted.detail


POLICY = (
    "Batch job submission failed: Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"
)


@pytest.mark.parametrize(
    ("lines", "result"),
    [
        (["QOSMaxWallDurationPerJobLimit", POLICY], "fatal"),
        (["AssocMaxCpuPerJobLimit", POLICY], "fatal"),
        (["QOSMinCpuNotSatisfied", POLICY], "fatal"),
        (["QOSMaxGRESPerNode", POLICY], "fatal"),
        (["QOSMaxSubmitJobPerUserLimit", POLICY], "transient"),
        (["AssocGrpSubmitJobsLimit", POLICY], "transient"),
        (["QOSGrpGRES", POLICY], "transient"),
        (["fetch_config: DNS SRV lookup failed", "Could not establish a configuration source"], "transient"),
        (["Munge encode failed: Unable to access the socket", "Batch job submission failed: Nothing"], "transient"),
        (["AssocMaxCpuPerJobLimit", "Batch job submission failed: Socket timed out on send/recv"], "ambiguous"),
    ],
)
def test_what_is_said_before_the_failure_counts(lines: list[str], result: str) -> None:
    answer = Answer(1, "", "".join(f"sbatch: error: {line}\n" for line in lines))
    assert SLURM.read_submit(ask(), answer).result == result


@pytest.mark.parametrize(
    ("said", "result"),
    [
        ("Socket timed out on send/recv operation", "ambiguous"),
        ("Zero Bytes were transmitted or received", "ambiguous"),
        ("Unable to contact slurm controller (connect failure)", "transient"),
        ("Unable to contact slurm controller (send failure)", "ambiguous"),
        ("Unable to contact slurm controller (receive failure)", "ambiguous"),
        ("Unable to contact slurm controller", "ambiguous"),
        ("Slurm backup controller in standby mode", "transient"),
        ("Controller is in standby mode", "transient"),
        ("Slurm temporarily unable to accept job, sleeping and retrying", "transient"),
        ("Unable to create job record, try again", "transient"),
        ("Resource temporarily unavailable", "transient"),
        ("Communication connection failure", "transient"),
        ("Message send/receive failure", "ambiguous"),
        ("System submissions disabled", "transient"),
        ("Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)", "transient"),
        ("Invalid partition name specified", "fatal"),
        ("Invalid qos specification", "fatal"),
        ("Invalid account or account/partition combination specified", "fatal"),
        ("Requested node configuration is not available", "fatal"),
        ("Access/permission denied", "fatal"),
        ("More processors requested than permitted", "fatal"),
        ("Memory required by task is not available", "fatal"),
        ("Pathname of a file, directory or other parameter too long", "fatal"),
        ("Node count specification invalid", "fatal"),
        ("Requested time limit is invalid (missing or exceeds some limit)", "fatal"),
        ("Required partition not available (inactive or drain)", "transient"),
        ("Unspecified error", "ambiguous"),
        ("Incompatible versions of client and server code", "transient"),
    ],
)
def test_why_not_submitted(said: str, result: str) -> None:
    answer = Answer(1, "", f"sbatch: error: Batch job submission failed: {said}\n")
    submitted = SLURM.read_submit(ask(), answer)
    assert submitted.result == result
    assert said in submitted.detail


@pytest.mark.parametrize(
    "answer",
    [Answer(0, text, "") for text in ("", "\n", "0\n", "-7\n", "seven\n", "7.5\n", "7x\n", "Submitted batch job\n")]
    + [Answer(None, "", ""), Answer(None, "7\n", ""), Answer(1, "7\n", ""), Answer(255, "", ""), Answer(-9, "", "")]
    + [Answer(255, "", "client_loop: send disconnect: Broken pipe"), CASES["sbatch-test-only"].answer]
    + [CASES["sbatch-ctld-hung"].answer],
)
def test_doubtful_submissions(answer: Answer) -> None:
    submitted = SLURM.read_submit(ask(), answer)
    assert (submitted.native_id, submitted.result) == (None, "ambiguous")


def test_a_controller_that_is_down_took_nothing() -> None:
    assert SLURM.read_submit(ask(), CASES["sbatch-ctld-down"].answer).result == "transient"
    assert SLURM.read_submit(ask(), Answer(127, "", "sh: 1: sbatch: command not found")).result == "transient"


# Finding, killing, queues


def test_finding() -> None:
    answer = CASES["own-squeue-find"].answer
    assert SLURM.read_find("000000000012", answer) == ("18", "ok", "", ())
    assert SLURM.read_find("000000000001", answer)[:2] == ("1", "ok")
    assert SLURM.read_find("00000000ffff", answer)[:2] == (None, "not-found")
    assert SLURM.read_find("00000000ffff", answer._replace(stdout=answer.stdout[:-3]))[:2] == (None, "transient")
    assert SLURM.read_find("000000000012", CASES["own-squeue-none"].answer).result == "not-found"
    for name in ("squeue-ctld-down", "squeue-ctld-hung", "own-squeue-nosuch-user", "squeue-two-unknown"):
        assert SLURM.read_find("000000000012", CASES[name].answer)[:2] == (None, "transient")
    twice = answer.stdout + f"{'9000_[0-4]':<24}{'array-000000000012':<80}\n"
    assert SLURM.read_find("000000000012", Answer(0, twice, "")) == ("18", "ok", "", ("9000",))
    live, past = SLURM.find("000000000012", "me")
    assert live.argv[0] == "squeue" and past.argv[0] == "sacct" and "me" in past.argv
    heading, body = "JobID|JobName\n", "17|other-00000000ffff\n18_[0-4]|array-000000000012\n"
    assert SLURM.read_find("000000000012", Answer(0, heading + body, ""))[:2] == ("18", "ok")
    assert SLURM.read_find("00000000eeee", Answer(0, heading + body, "")).result == "not-found"
    heading, body = "JobID|State|NodeList|JobName\n", "18_[0-4]|PENDING|None assigned|array-000000000012\n"
    assert SLURM.read_find("000000000012", Answer(0, heading + body, ""))[:2] == ("18", "ok")
    for words in ("Slurm accounting storage is disabled\n", "sacct: error: Problem talking to the database\n"):
        assert SLURM.read_find("000000000012", Answer(1, "", words)).result == "not-found"


def test_how_large_an_array_may_be() -> None:
    said = "MailProg = /bin/true\nMaxArraySize            = 11\nMaxDBDMsgs = 20012\n"
    assert SLURM.read_array_limit(Answer(0, said, "")) == 11
    assert SLURM.read_array_limit(Answer(0, said.replace("= 11", "= 0"), "")) == 1
    assert SLURM.read_array_limit(Answer(1, "", "slurm_load_ctl_conf error: no controller")) is None


def test_what_was_refused_is_not_found_though_a_record_of_it_is_kept() -> None:
    """Both as Slurm 22.05 prints them after `Requested node configuration is not available`."""
    row = f"{'2':<24}{'rota-000000000012':<80}{'BadConstraints':<64}\n"
    answer = Answer(0, f"{'JOBID':<24}{'NAME':<80}{'REASON':<64}\n{row}", "")
    assert SLURM.read_find("000000000012", answer).result == "not-found"
    live = answer._replace(stdout=answer.stdout.replace("BadConstraints", "Resources     "))
    assert SLURM.read_find("000000000012", live)[:2] == ("2", "ok")
    past = "JobID|State|NodeList|JobName\n2|FAILED|None assigned|rota-000000000012\n"
    assert SLURM.read_find("000000000012", Answer(0, past, "")).result == "not-found"
    ran = past.replace("None assigned", "n1")
    assert SLURM.read_find("000000000012", Answer(0, ran, ""))[:2] == ("2", "ok")


@pytest.mark.parametrize(
    ("name", "result"),
    [(name, "ok") for name in CASES if "scancel-" in name and CASES[name].answer.code == 0]
    + [("own-scancel-force-unknown", "ok"), ("scancel-ctld-down", "transient")]
    + [("scancel-bad-id", "fatal"), ("own-scancel-bad-id", "fatal")],
)
def test_killed(name: str, result: str) -> None:
    assert SLURM.read_kill(CASES[name].answer)[0] == result


def test_kills_that_did_not_work() -> None:
    error = "scancel: error: Kill job error on job id {}: {}\n".format
    gone, denied = error(7, "Invalid job id specified"), error(8, "Access/permission denied")
    busy = error(9, "Job can not be altered now, try again later")
    assert SLURM.read_kill(Answer(1, "", gone))[0] == "ok"
    assert SLURM.read_kill(Answer(1, "", gone + denied))[0] == "fatal"
    assert SLURM.read_kill(Answer(228, "", gone + busy))[0] == "transient"
    for silent in (Answer(None, "", ""), Answer(1, "", ""), Answer(None, "", gone)):
        assert SLURM.read_kill(silent)[0] == "transient"
    assert SLURM.kill(["7_1", "8"], 0).argv == ("scancel", "7_1", "8") == SLURM.kill(["7_1", "8"], 1).argv
    assert SLURM.kill(["7"], 2).argv == ("scancel", "-f", "-s", "KILL", "7")


def test_queues() -> None:
    found = SLURM.read_queues(CASES["own-sinfo"].answer)
    assert found == (
        Queue("main", True, 2, 12000, 2000 << 20, 0, None, True),
        Queue("short", False, 2, 12000, 2000 << 20, 0, 600, True),
    )
    text = "gpu|up|1-00:00:00|3|64|512000|gpu:a100:4(S:0-1),shard:8\n"
    text += "gpu|up|1-00:00:00|1|32|9000|(null)\nold|down|infinite|x|1|1|\n"
    assert SLURM.read_queues(Answer(0, text, "")) == (Queue("gpu", False, 4, 64000, 512000 << 20, 4, 86400, True),)
    assert SLURM.read_queues(CASES["sinfo-ctld-down"].answer) == ()
    text = "a*|up|infinite|1|1|1|(null)|1|all|5:00\nb|up|1:00:00|1|1|1|(null)|1|all|n/a\n"
    assert [(q.time_s, q.usual_s) for q in SLURM.read_queues(Answer(0, text, ""))] == [(None, 300), (3600, None)]


def test_partitions_for_others_and_hidden_ones() -> None:
    """What sinfo shows without -a says whose groups may use a partition; its own limits come with each."""
    text = "short*|up|10:00|4|4|2000|(null)|1-2|all\nlong|up|10-00:00:00|2|64+|9000+|(null)|1-infinite|all\n"
    text += "physics|up|infinite|2|8|2000|(null)|1-infinite|phys,chem\nsecret|up|infinite|2|8|2000|(null)|4|all\n"
    queues = SLURM.read_queues(Answer(0, text, ""))
    assert [(q.name, q.time_s, q.nodes_most, q.cores) for q in queues] == [
        ("short", 600, 2, 4000),
        ("long", 864_000, None, 64000),
        ("physics", None, None, 8000),
        ("secret", None, 4, 8000),
    ]
    found = SLURM.read_queue_details(queues, [Answer(0, "short\nlong\n", "")], Options())
    assert [(q.up, q.hidden) for q in found] == [(True, False), (True, False), (False, False), (True, True)]
    for silent in (Answer(1, "", "error"), Answer(None, "", ""), Answer(0, "", "")):
        assert all(
            q.up and not q.hidden and q.users is None for q in SLURM.read_queue_details(queues, [silent], Options())
        )


def test_who_it_is() -> None:
    assert SLURM.is_mine(CASES["own-version"].answer)
    assert SLURM.is_mine(Answer(0, "Welcome to this host\nslurm 24.11.3\n", ""))
    assert not SLURM.is_mine(Answer(0, "pbs_version = 23", ""))
    assert not SLURM.is_mine(Answer(127, "", "sbatch: command not found"))


LINES = st.lists(
    st.one_of(
        st.text(max_size=40),
        st.sampled_from([HEADING.rstrip("\n"), row("7_[1-3]", "RUNNING")[:-1], "JobID|State|ExitCode", "7|FAILED|1:0"]),
        st.builds("{}|{}|{}".format, st.text(max_size=8), st.sampled_from(list(SLURM.states)), st.text(max_size=8)),
        st.builds(row, st.text(max_size=30), st.text(max_size=20), st.text(max_size=12), st.text(max_size=9)),
    ),
    max_size=6,
).map("\n".join)
ANSWERS = st.builds(Answer, st.one_of(st.none(), st.integers(-15, 255)), LINES, LINES)


@given(ANSWERS)
def test_no_reader_raises(answer: Answer) -> None:
    listing = SLURM.read_listing(answer, Options(strict=True))
    assert not (answer.code != 0 and listing.result == "ok")
    history = SLURM.read_history(answer, PLAIN)
    assert not (answer.code != 0 and history.result == "ok")
    submitted = SLURM.read_submit(ask(), answer)
    assert (submitted.native_id is None) == (submitted.result != "ok")
    SLURM.read_find("0123456789ab", answer)
    SLURM.read_kill(answer)
    SLURM.read_queues(answer)
    SLURM.is_mine(answer)
