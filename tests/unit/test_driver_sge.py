"""Grid Engine: every combination of letters, every `failed` code; recorded outputs against what truly happened."""

import itertools
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recordings import recorded
from rota.drivers.api import Ask
from rota.drivers.dialect import Answer, Dialect, Options, Seen
from rota.drivers.sge import AGAIN, FAILED, LAUNCH, NODE_FAIL, Sge
from rota.model.errors import UsageError
from rota.model.needs import Amounts

SGE: Dialect = Sge()
TAG = "0123456789ab"
PLAIN = Options()
STRICT = Options(strict=True)
PE = Options(parallel_environment="smp")


def make(count: int = 1, **fields: Any) -> Ask:
    given: dict[str, Any] = {
        "tag": TAG,
        "name": "my batch",
        "ids": tuple(f"a{number}" for number in range(count)),
        "amounts": Amounts(cores=1000),
        "script": "#!/bin/sh\nexit 0\n",
        "directory": "/shared/rota",
    }
    return Ask(**(given | fields))


def argv(ask: Ask, options: Options = PLAIN) -> str:
    return " ".join(SGE.submit(ask, options).argv)


def listing(*jobs: str) -> str:
    inner = "".join(f"<job_list state='x'>{job}</job_list>" for job in jobs)
    return f"<?xml version='1.0'?>\n<job_info><queue_info></queue_info><job_info>{inner}</job_info>\n</job_info>\n"


def job(state: str, number: int = 31, more: str = "", name: str = f"my_batch-{TAG}") -> str:
    return f"<JB_job_number>{number}</JB_job_number><JB_name>{name}</JB_name><state>{state}</state>{more}"


def kind_of(state: str, options: Options = PLAIN) -> Seen:
    found = SGE.read_listing(Answer(0, listing(job(state)), ""), options)
    assert found.result == "ok" and found.seen[0].native_id == "31"
    return found.seen[0]


def account(**fields: object) -> str:
    given = {"jobnumber": 3, "taskid": "undefined", "jobname": f"my_batch-{TAG}", "hostname": "ge1"} | fields
    given = {"qname": "all.q", "cpu": "0.010s", "ru_minflt": 563, "ru_maxrss": "4.480KB", "maxvmem": "10.367MB"} | given
    return "=" * 62 + "\n" + "".join(f"{key:12} {value}\n" for key, value in given.items())


def ended(*records: str, options: Options = PLAIN) -> Seen:
    found = SGE.read_history(Answer(0, "".join(records), ""), options)
    assert found.result == "ok"
    return found.seen[0]


def truth(case: str, options: Options = PLAIN) -> Seen:
    found = SGE.read_history(recorded("gridengine", case), options)
    assert found.result == "ok", found.detail
    return found.seen[0]


# States

TABLE = [
    *((state, "pending", "pending") for state in ("qw", "Rq")),
    *((state, "held", "held") for state in ("hqw", "hRwq", "hRqw")),
    *((state, "running", "running") for state in ("r", "t", "hr", "Rr", "Rt")),
    *((state, "suspended", "suspended") for state in ("s", "ts", "S", "tS", "T", "tT")),
    *((state, "suspended", "suspended") for state in ("Rs", "Rts", "RS", "RtS", "RT", "RtT")),
    *((state, "failed", "failed") for state in ("Eqw", "Ehqw", "EhRqw")),
    *((state, "unsure", "running") for state in ("dr", "dt", "dRr", "dRt", "ds", "dS", "dT", "dRs", "dRS", "dRT")),
    ("z", "exited", "exited"),
]


@pytest.mark.parametrize(("state", "kind", "strict"), TABLE)
def test_every_state(state: str, kind: str, strict: str) -> None:
    assert kind_of(state).kind == kind
    assert kind_of(state, STRICT).kind == strict
    assert kind_of(state, Options(state_map=((state, "aborted"),))).kind == "aborted"
    assert set(SGE.states) == {row[0] for row in TABLE}


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        *(
            ("wq", "pending"),
            ("hrR", "running"),
            ("qwE", "failed"),
            ("rd", "unsure"),
            ("dqw", "unsure"),
            ("h", "held"),
        ),
        *(("N", "suspended"), ("rP", "suspended"), ("", "unsure"), ("y", "unsure"), ("r!", "unsure"), ("R", "unsure")),
    ],
)
def test_other_combinations_by_their_letters(state: str, kind: str) -> None:
    assert kind_of(state).kind == kind


def test_the_order_of_letters_does_not_matter() -> None:
    for state, kind, _ in TABLE:
        for mixed in itertools.permutations(state):
            assert kind_of("".join(mixed)).kind == kind


def test_the_error_state_has_failed_and_must_be_killed() -> None:
    seen = kind_of("Eqw")
    assert seen.outcome is not None and seen.outcome.why == "launch" and seen.held
    assert "until it is deleted" in (seen.reason or "")
    assert not kind_of("qw").held and kind_of("Rr").requeued == 1
    assert [kind_of(state).reason for state in ("s", "hqw", "dr", "r")] == [
        "state s",
        "state hqw",
        "is being deleted",
        None,
    ]


# What the accounting says


@pytest.mark.parametrize("failed", sorted(FAILED))
def test_failed_is_never_a_success(failed: int) -> None:
    record = account(failed=f"{failed}  : some words", exit_status=0)
    found = SGE.read_history(Answer(0, record, ""), PLAIN)
    if failed in AGAIN:
        assert found.result == "not-found" and found.seen == ()
        return
    (seen,) = found.seen
    assert seen.kind == ("completed" if failed == 0 else "failed")
    assert seen.outcome is not None
    wanted = "launch" if failed in LAUNCH else "node-fail" if failed in NODE_FAIL else "time" if failed == 37 else None
    assert seen.outcome.why == wanted
    if failed:
        assert FAILED[failed] in (seen.reason or "")


@pytest.mark.parametrize(
    ("failed", "status", "kind", "code", "signal"),
    [
        (0, 0, "completed", 0, None),
        (0, 3, "failed", 3, None),
        (0, 137, "failed", 137, None),
        (100, 137, "failed", None, 9),
        (17, 143, "failed", None, 15),
        (100, 0, "failed", 0, None),
        (30, 100, "failed", 100, None),
        (15, 0, "failed", 0, None),
        (37, 137, "failed", None, 9),
        (200, 0, "failed", 0, None),
    ],
)
def test_exit_statuses(failed: int, status: int, kind: str, code: int | None, signal: int | None) -> None:
    seen = ended(account(failed=failed, exit_status=f"{status}   (Killed)"))
    assert seen.outcome is not None
    assert (seen.kind, seen.outcome.exit_code, seen.outcome.signal) == (kind, code, signal)


@pytest.mark.parametrize(
    ("category", "wall", "why"),
    [
        ("-l h_rt=3", "4s", "time"),
        ("-l h_vmem=200M", "4s", "oom"),
        ("-l h_rt=600,h_vmem=200M", "4s", "oom"),
        ("-l h_rt=3,h_vmem=200M", "4s", "time"),
        ("NONE", "4s", "time"),
    ],
)
def test_which_limit(category: str, wall: str, why: str) -> None:
    seen = ended(account(failed=37, exit_status=137, category=category, ru_wallclock=wall))
    assert seen.outcome is not None and seen.outcome.why == why


def test_deleted_by() -> None:
    seen = ended(account(failed=100, exit_status=137, deleted_by="root@ge1"))
    assert seen.kind == "aborted" and seen.outcome is not None and seen.outcome.why == "cancelled"
    assert "root@ge1" in (seen.reason or "")
    assert ended(account(failed=0, exit_status=0, deleted_by="NONE")).kind == "completed"


def test_a_lost_host() -> None:
    assert ended(account(failed=19, exit_status=0)).kind == "failed"
    assert ended(account(failed=19, exit_status=0), options=STRICT).kind == "aborted"


def test_the_processes_of_a_parallel_job_do_not_count() -> None:
    whole = account(failed=0, exit_status=3, pe_taskid="NONE")
    assert ended(whole, account(failed=0, exit_status=0, pe_taskid="1.ge2")).kind == "failed"


def test_corrupt_records_are_partial() -> None:
    good, bad = account(failed=0, exit_status=0), account(jobnumber="x\x00", failed=0, exit_status=0)
    found = SGE.read_history(Answer(0, good + bad, ""), PLAIN)
    assert found.result == "partial" and len(found.seen) == 1
    assert ended(account(failed="junk", exit_status=0)).kind == "unsure"


@pytest.mark.parametrize("seed", range(100))
def test_accounting_whose_lines_are_in_disorder_is_none(seed: int) -> None:
    lines = recorded("gridengine", "qacct-a3").stdout.splitlines(keepends=True)
    random.Random(seed).shuffle(lines)
    assert SGE.read_history(Answer(0, "".join(lines), ""), PLAIN).seen == ()


# Submission


def test_a_plain_job() -> None:
    text = argv(make())
    assert text.startswith(f"qsub -terse -N my_batch-{TAG} -C  -S /bin/sh -b n -j n -wd /shared/rota")
    assert "-r n" in text and "-V" not in text.split() and "-t" not in text.split() and "-pe" not in text.split()
    assert "-t 1-3" in argv(make(3)) and "-r y" in argv(make(), Options(requeue=True))
    assert SGE.element_id("6", 0, 3) == "6.1" and SGE.element_id("6", 0, 1) == "6"


def test_needs_become_requests() -> None:
    ask = make(
        amounts=Amounts(3200, (4 << 30) + 1, 0, 1, (("lic", 2),)),
        time_s=3600,
        exclusive=True,
        options=(("partition", "all.q"), ("account", "proj"), ("reservation", "7"), ("constraint", "arch=lx-amd64")),
    )
    text = argv(ask, PE)
    assert "-l h_rt=3600,s_rt=3480,h_vmem=1025M,gpu=1,lic=2,exclusive=true,arch=lx-amd64" in text
    assert "-pe smp 4" in text and "-q all.q" in text and "-P proj" in text and "-ar 7" in text
    assert "h_vmem" not in argv(ask, Options(parallel_environment="smp", memory_as="none"))
    assert "s_rt" not in argv(make(time_s=130)), "a job that has two minutes would be ended after ten seconds"
    assert "s_rt" not in argv(make(time_s=60)) and "s_rt" not in argv(make(time_s=600), Options(signal_s=0))
    assert "-pe smp 8" in argv(make(amounts=Amounts(cores=4000), nodes=2), PE)
    with pytest.raises(UsageError, match="parallel_environment"):
        SGE.submit(ask, PLAIN)


@pytest.mark.parametrize(
    "options",
    [
        *((("-V", ""),), (("-t", "1-9"),), (("-sync", "y"),), (("-l", "h_rt=9"),), (("-r", "y"),), (("-pe", "x 2"),)),
        *((("qos", "high"),), (("-M", "a\nb"),), (("-terse", ""),), (("-notify", ""),)),
    ],
)
def test_what_is_not_allowed_is_refused(options: tuple[tuple[str, str], ...]) -> None:
    with pytest.raises(UsageError, match=options[0][0]):
        SGE.submit(make(options=options), PLAIN)


def test_directories_that_it_would_misread() -> None:
    for path in ("/a:b", "/a,b", "/$HOME"):
        with pytest.raises(UsageError, match="directory"):
            SGE.submit(make(directory=path), PLAIN)


@pytest.mark.parametrize(("code", "wanted"), [(0, 0), (3, 3), (99, 98), (100, 98), (255, 255)])
def test_a_script_cannot_have_itself_run_again(code: int, wanted: int, tmp_path: Path) -> None:
    for script in (f"exit {code}", f"#!/bin/sh\nexec sh -c 'exit {code}'\n"):
        text = SGE.submit(make(script=script), PLAIN).stdin
        assert subprocess.run(["/bin/sh"], input=text, text=True, cwd=tmp_path, check=False).returncode == wanted


def test_the_warning_does_not_end_the_script(tmp_path: Path) -> None:
    script = "#!/bin/sh\ntrap 'echo warned' USR1\nkill -USR1 0\nsleep 0.1\necho on\n"
    text = SGE.submit(make(script=script), PLAIN).stdin
    path = tmp_path / "script"
    path.write_text(text or "")
    subprocess.run(["/bin/sh", str(path)], start_new_session=True, cwd=tmp_path, check=True)
    assert (tmp_path / f"{TAG}.0.out").read_text().split() == ["warned", "on"]


def test_recorded_submissions() -> None:
    def read(case: str) -> tuple[str | None, str]:
        return SGE.read_submit(make(), recorded("gridengine", case))[:2]

    assert read("qsub-ok") == ("3", "ok") and read("qsub-ok-terse") == ("4", "ok")
    assert read("qsub-ok-array") == ("5", "ok") and read("qsub-ok-array-terse") == ("6", "ok")
    for case in ("queue", "resource", "project", "pe", "option", "name"):
        assert read(f"qsub-err-{case}") == (None, "fatal")
    assert read("qsub-master-down") == (None, "transient")
    assert read("qsub-master-hung") == (None, "ambiguous")
    assert read("qstat-no-root") == (None, "transient")


def test_submissions_that_may_have_worked() -> None:
    for answer in (Answer(0, "", ""), Answer(0, "hello\n", ""), Answer(None, "", ""), Answer(255, "", "ssh: reset")):
        assert SGE.read_submit(make(), answer).result == "ambiguous"
    late = Answer(1, "", "Unable to run job: unable to send message to qmaster: got send timeout error.\nExiting.")
    assert SGE.read_submit(make(), late).result == "ambiguous"
    full = Answer(
        1, "", "Unable to run job: job rejected: Only 100 jobs are allowed per user (current job count: 100)."
    )
    assert SGE.read_submit(make(), full).result == "transient"


# Recorded outputs


def test_recorded_listing() -> None:
    found = SGE.read_listing(recorded("gridengine", "qstat-g-d-xml"), PLAIN)
    kinds = {seen.native_id: (seen.native_state, seen.kind) for seen in found.seen}
    assert found.result == "ok" and len(kinds) == 13
    assert kinds["31"] == ("r", "running") and kinds["6.4"] == kinds["6.5"] == ("r", "running")
    assert kinds["6.6"] == ("qw", "pending") and kinds["27"] == ("Eqw", "failed") and kinds["32"] == ("hqw", "held")


@pytest.mark.parametrize(
    ("case", "native", "state", "kind"),
    [
        ("qstat-xml-hr", "36", "hr", "running"),
        ("qstat-xml-suspended", "36", "s", "suspended"),
        ("qstat-xml-queue-suspended", "36", "S", "suspended"),
        ("qstat-xml-rescheduled", "36", "Rr", "running"),
        ("qstat-xml-dr", "6", "dr", "unsure"),
        ("qstat-xml-pe", "43", "r", "running"),
    ],
)
def test_recorded_states(case: str, native: str, state: str, kind: str) -> None:
    found = SGE.read_listing(recorded("gridengine", case), PLAIN)
    assert found.result == "ok"
    assert (state, kind) in {(seen.native_state, seen.kind) for seen in found.seen if seen.native_id == native}


def test_ranges_of_waiting_tasks() -> None:
    found = SGE.read_listing(recorded("gridengine", "qstat-xml-pending-range"), PLAIN)
    assert [seen.native_id for seen in found.seen] == ["15.1", "15.3", "15.5", "15.7", "15.9"]
    assert {seen.tag for seen in found.seen} == {TAG}
    more = listing(job("qw", 6, "<tasks>2,5-9:1,12</tasks>"))
    ids = [seen.native_id for seen in SGE.read_listing(Answer(0, more, ""), PLAIN).seen]
    assert ids == ["6.2", "6.5", "6.6", "6.7", "6.8", "6.9", "6.12"]


@pytest.mark.parametrize(
    ("case", "kind", "outcome"),
    [
        ("ok", "completed", (0, None, None)),
        ("master-down", "completed", (0, None, None)),
        ("exit3", "failed", (3, None, None)),
        ("signal9", "failed", (None, 9, None)),
        ("signal11", "failed", (None, 11, None)),
        ("deleted-running", "failed", (None, 9, None)),
        ("h_rt", "failed", (None, 9, "time")),
        ("h_vmem", "failed", (1, None, None)),
        ("exit100", "failed", (100, None, None)),
        ("exit99-rescheduled", "completed", (0, None, None)),
        ("eqw", "failed", (None, None, "launch")),
        ("forced-delete", "exited", (None, None, None)),
    ],
)
def test_recorded_outcomes(case: str, kind: str, outcome: tuple[int | None, int | None, str | None]) -> None:
    seen = truth(f"qacct-{case}")
    assert seen.kind == kind and seen.outcome is not None
    assert (seen.outcome.exit_code, seen.outcome.signal, seen.outcome.why) == outcome
    assert seen.requeued == (1 if case == "exit99-rescheduled" else 0)


def test_recorded_usage() -> None:
    outcome = truth("qacct-ok").outcome
    assert outcome is not None and outcome.host == "ge1" and outcome.cpu_s == 0.01
    assert outcome.started == 1794777129.0 and outcome.ended == 1794777130.0
    assert outcome.peak_memory == 4480 * 1024


def test_the_tasks_of_an_array() -> None:
    found = SGE.read_history(recorded("gridengine", "qacct-a3"), PLAIN)
    assert {seen.native_id: seen.kind for seen in found.seen} == {"5.1": "failed", "5.3": "failed", "5.2": "completed"}
    assert [command.argv for command in SGE.history(["5.1", "5.2", "7"])] == [
        ("qacct", "-j", "5"),
        ("qacct", "-j", "7"),
    ]


def test_a_run_that_was_started_again_has_not_ended() -> None:
    found = SGE.read_history(recorded("gridengine", "qacct-rescheduled"), PLAIN)
    assert (found.result, found.seen) == ("not-found", ())


def test_what_is_not_there() -> None:
    for case in ("qacct-unknown", "qacct-running"):
        assert SGE.read_history(recorded("gridengine", case), PLAIN).result == "not-found"
    nobody = SGE.read_listing(recorded("gridengine", "qstat-xml-u-nobody"), PLAIN)
    assert (nobody.result, nobody.seen) == ("ok", ())


@pytest.mark.parametrize("case", ["qstat-xml-master-down", "qstat-master-hung", "qstat-no-root"])
def test_a_master_that_is_down_says_nothing(case: str) -> None:
    answer = recorded("gridengine", case)
    for read in (SGE.read_listing(answer, PLAIN), SGE.read_history(answer, PLAIN)):
        assert read.result == "transient" and read.seen == ()
    assert SGE.read_find(TAG, answer).result == "transient"


def test_empty_and_cut_answers() -> None:
    assert SGE.read_listing(Answer(0, "", ""), PLAIN).result == "transient"
    assert SGE.read_history(Answer(0, "", ""), PLAIN).result == "transient"
    assert SGE.read_find(TAG, Answer(0, "", "")).result == "transient"
    text = recorded("gridengine", "qstat-g-d-xml").stdout
    cut = SGE.read_listing(Answer(0, text[: len(text) // 2], ""), PLAIN)
    assert cut.result == "partial" and 0 < len(cut.seen) < 13
    accounted = recorded("gridengine", "qacct-a3").stdout
    assert SGE.read_history(Answer(0, accounted[: len(accounted) // 2], ""), PLAIN).result == "partial"


@pytest.mark.parametrize(
    ("case", "result"),
    [
        ("qdel-running", "ok"),
        ("qdel-again", "ok"),
        ("qdel-unknown", "ok"),
        ("qdel-finished", "ok"),
        ("qdel-two-one-unknown", "ok"),
        ("qdel-array-task-dot", "ok"),
        ("qdel-f", "ok"),
        ("qdel-f-as-user", "ok"),
        ("qdel-not-owner", "fatal"),
        ("qdel-master-down", "transient"),
        ("qdel-master-hung", "transient"),
    ],
)
def test_recorded_kills(case: str, result: str) -> None:
    assert SGE.read_kill(recorded("gridengine", case))[0] == result


def test_kills() -> None:
    assert SGE.kill(["6.5", "7"], 0).argv == SGE.kill(["6.5", "7"], 1).argv == ("qdel", "6.5", "7")
    assert SGE.kill(["7"], 2).argv == ("qdel", "-f", "7")
    assert SGE.read_kill(Answer(0, "", ""))[0] == "transient"


def test_find() -> None:
    live, finished = SGE.find(TAG, "me")
    assert live.argv == ("qstat", "-xml", "-u", "me") and finished.argv == ("qacct", "-j", f"*-{TAG}")
    both = listing(job("r", 9), job("qw", 4), job("r", 2, name="other"))
    assert SGE.read_find(TAG, Answer(0, both, "")) == ("4", "ok", "", ("9",))
    assert SGE.read_find(TAG, Answer(0, listing(job("r", 2, name="other")), "")).result == "not-found"
    assert SGE.read_find(TAG, Answer(0, account(failed=0, exit_status=0), "")) == ("3", "ok", "", ())
    assert SGE.read_find(TAG, Answer(1, "", f"error: job name *-{TAG} not found\n")).result == "not-found"
    assert SGE.read_find(TAG, Answer(1, "", "error opening accounting file: No such file")).result == "not-found"
    assert SGE.read_find(TAG, Answer(0, both[:-12].replace(TAG, "f" * 12), "")).result == "transient"


def test_queues() -> None:
    (queue,) = SGE.read_queues(recorded("gridengine", "qhost-q-xml"))
    assert (queue.name, queue.nodes, queue.cores, queue.up) == ("all.q", 2, 4000, True), "as many as it has slots"
    assert queue.memory == int(23.5 * (1 << 30))
    assert SGE.read_queues(recorded("gridengine", "qstat-xml-master-down")) == ()


def test_limits_of_queues() -> None:
    (queue,) = SGE.read_queues(recorded("gridengine", "qhost-q-xml"))
    queues = (queue, queue._replace(name="long.q"), queue._replace(name="odd.q"))
    assert SGE.queue_details(queues)[0].argv == ("qconf", "-sq", "all.q,long.q,odd.q")
    text = (
        "qname                 all.q\npe_list               make mpi,[ge1=smp]\nh_rt                  00:10:00\n\n"
        "qname                 long.q\npe_list               NONE\nh_rt                  240:00:00,[ge1=01:00:00], \\\n"
        "                      [ge2=02:00:00]\n\n"
        "qname                 odd.q\npe_list               smp\nh_rt                  3600,[ge1=INFINITY]\n"
    )
    found = SGE.read_queue_details(queues, [Answer(0, text, "")], Options(parallel_environment="smp"))
    assert [(q.time_s, q.cores, q.nodes_most) for q in found] == [
        (600, 4000, None),
        (864_000, 1000, 1),
        (None, 4000, None),
    ]
    assert SGE.read_queue_details(queues, [Answer(1, "", "denied")], Options()) == queues


@given(st.data())
def test_no_reader_raises_on_damaged_recordings(data: st.DataObject) -> None:
    case = data.draw(st.sampled_from(["qstat-g-d-xml", "qacct-a3", "qacct-exit99-rescheduled", "qhost-q-xml"]))
    text = recorded("gridengine", case).stdout
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 200)))
    answer = Answer(
        data.draw(st.sampled_from((0, 1, None))), text[:start] + data.draw(st.text(max_size=5)) + text[end:], ""
    )
    for options in (PLAIN, STRICT):
        SGE.read_listing(answer, options)
        SGE.read_history(answer, options)
    SGE.read_find(TAG, answer)
    SGE.read_queues(answer)
    SGE.read_kill(answer)


@pytest.mark.parametrize("case", ["qacct-signal9", "qacct-h_rt", "qacct-exit99-rescheduled", "qacct-a3"])
def test_a_piece_of_an_answer_says_nothing_else_than_the_whole(case: str) -> None:
    answer = recorded("gridengine", case)
    whole = SGE.read_history(answer, PLAIN)
    body = answer.stdout.rstrip()
    for end in range(0, len(body), max(1, len(body) // 400)):
        piece = SGE.read_history(Answer(0, body[:end], ""), PLAIN)
        assert set(piece.seen) <= set(whole.seen)
        assert piece.result != "ok" or len(piece.seen) == len(whole.seen)
    listed = recorded("gridengine", "qstat-g-d-xml").stdout
    all_of_it = set(SGE.read_listing(Answer(0, listed, ""), PLAIN).seen)
    for end in range(0, len(listed), max(1, len(listed) // 400)):
        assert set(SGE.read_listing(Answer(0, listed[:end], ""), PLAIN).seen) <= all_of_it


def test_a_cluster_on_which_no_job_has_ended_yet_has_no_accounting():
    said = "/sge/default/common/accounting: No such file or directory\n"
    missing = Answer(1, "no jobs running since startup\n", said)
    assert Sge().read_history(missing, Options()).result == "not-found"


def detail(number: int, *said: str) -> str:
    """What `qstat -j` says of a job."""
    lines = [f"job_number:                 {number}", "owner:                      tester"]
    lines += [f"{'' if place else 'scheduling info:':<28}{words}" for place, words in enumerate(said)]
    return "=" * 62 + "\n" + "\n".join(lines) + "\n"


def test_why_a_job_waits_is_in_what_the_scheduler_said() -> None:
    text = detail(32, "Job is in hold state") + detail(33) + detail(7, "a", "b", "c", "d", "e")
    said = Sge().read_why_waiting(Answer(0, text, ""))
    assert said == {"32": "Job is in hold state", "7": "a; b; c; and 2 more"}
    off = detail(7, "(Collecting of scheduler job information is turned off)")
    assert Sge().read_why_waiting(Answer(0, off, "")) == {}
    asked = Sge().why_waiting("me", [f"{number}.1" for number in range(50)]).argv
    assert asked[:2] == ("qstat", "-j") and len(asked[2].split(",")) == 20
