"""TORQUE: every state, exit status and error number; recorded outputs against what truly happened."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recordings import recorded
from rota.drivers.api import Ask, Outcome
from rota.drivers.dialect import Answer, Dialect, Listing, Options, Seen
from rota.drivers.pbs_errors import OPENPBS, TORQUE, read_error
from rota.drivers.torque import NEGATIVE, Torque
from rota.model.errors import UsageError
from rota.model.needs import Amounts

TRQ: Dialect = Torque()
TAG = "0123456789ab"
PLAIN = Options()
STRICT = Options(strict=True)


def make(count: int = 1, **fields: Any) -> Ask:
    given: dict[str, Any] = {
        "tag": TAG,
        "name": "my batch",
        "ids": tuple(f"a{number}" for number in range(count)),
        "amounts": Amounts(cores=1000),
        "script": "exit 0\n",
        "directory": "/shared/rota",
    }
    return Ask(**(given | fields))


def argv(ask: Ask, options: Options = PLAIN) -> str:
    return " ".join(TRQ.submit(ask, options).argv)


def record(**fields: object) -> Seen:
    options = fields.pop("options", PLAIN)
    assert isinstance(options, Options)
    inner = "".join(f"<{key}>{value}</{key}>" for key, value in fields.items())
    text = f"<Data><Job><Job_Id>20.trq1</Job_Id>{inner}</Job></Data>\n"
    listing = TRQ.read_history(Answer(0, text, ""), options)
    assert listing.result == "ok"
    return listing.seen[0]


def truth(case: str, options: Options = PLAIN) -> Seen:
    listing = TRQ.read_history(recorded("torque", case), options)
    assert listing.result == "ok", listing.detail
    return listing.seen[0]


TABLE = [
    ("Q", "pending", "pending"),
    ("R", "running", "running"),
    ("H", "held", "pending"),
    ("W", "pending", "pending"),
    ("T", "pending", "unsure"),
    ("S", "suspended", "suspended"),
    ("E", "running", "running"),
    ("C", "exited", "exited"),
    ("X", "unsure", "unsure"),
    ("?", "unsure", "unsure"),
]


@pytest.mark.parametrize(("state", "kind", "strict"), TABLE)
def test_every_state(state: str, kind: str, strict: str) -> None:
    row = f"20.trq1  tester      batch    run              20148     1      1       --   01:00:00 {state}  00:00:01\n"
    for options, wanted in ((PLAIN, kind), (STRICT, strict), (Options(state_map=((state, "failed"),)), "failed")):
        listing = TRQ.read_listing(Answer(0, row, ""), options)
        assert (listing.result, listing.seen[0].native_id, listing.seen[0].kind) == ("ok", "20", wanted)
    assert set(TRQ.states) == {row[0] for row in TABLE if row[0] not in "X?"}


@pytest.mark.parametrize("value", sorted(NEGATIVE))
def test_every_exit_status_of_its_own(value: int) -> None:
    why, words = NEGATIVE[value]
    seen = record(job_state="C", exit_status=value)
    assert seen.kind == "failed" and words in (seen.reason or "")
    assert seen.outcome is not None and seen.outcome.why == why and seen.outcome.exit_code is None


@pytest.mark.parametrize(
    ("value", "kind", "strict", "outcome"),
    [
        (0, "completed", "completed", Outcome(exit_code=0)),
        (3, "failed", "failed", Outcome(exit_code=3)),
        (137, "failed", "failed", Outcome(exit_code=137)),
        (265, "failed", "failed", Outcome(signal=9)),
        (271, "failed", "aborted", Outcome(signal=15, why="cancelled")),
        (-4, "failed", "aborted", Outcome(why="node-fail")),
    ],
)
def test_other_exit_statuses(value: int, kind: str, strict: str, outcome: Outcome) -> None:
    seen = record(job_state="C", exit_status=value)
    assert (seen.kind, seen.outcome) == (kind, outcome)
    assert record(job_state="C", exit_status=value, options=STRICT).kind == strict


def test_complete_without_exit_status() -> None:
    never = record(job_state="C")
    assert never.kind == "aborted" and never.outcome == Outcome(why="cancelled")
    ran = record(job_state="C", start_time=5, exec_host="n1/0+n1/1+n2/0")
    assert ran.kind == "exited" and ran.outcome == Outcome(host="n1,n2", started=5.0)


def test_exiting_is_over_only_with_an_exit_status() -> None:
    assert record(job_state="E").kind == "running"
    assert record(job_state="E", exit_status=0).kind == "completed"


@pytest.mark.parametrize("code", sorted(TORQUE))
def test_every_error_number(code: int) -> None:
    error = TORQUE[code]
    answer = Answer(code, "", "qsub: some words")
    asked, words = read_error(answer, TORQUE)
    assert asked == error.result and error.meaning in words
    submitted = TRQ.read_submit(make(), answer)
    assert submitted.result == ("fatal" if error.result == "not-found" else error.submit or error.result)


def test_the_numbers_are_not_those_of_openpbs() -> None:
    both = [code for code in TORQUE.keys() & OPENPBS.keys() if code >= 160]
    assert {162, 168, 170, 172, 173, 185, 188} <= set(both)
    assert read_error(Answer(162, "", ""), TORQUE)[0] == "fatal"
    assert read_error(Answer(162, "", ""), OPENPBS)[0] == "transient"
    assert TRQ.read_submit(make(), Answer(168, "", "")).result == "fatal"


def test_submission() -> None:
    text = argv(make())
    assert text.startswith(f"qsub -N my-{TAG} -S /bin/sh -o /shared/rota/ -e /shared/rota/ -r n -l nodes=1:ppn=1")
    assert len(TRQ.submit(make(name="x" * 99), PLAIN).argv[2]) == 15
    assert "-t 0-2" in argv(make(3)) and "-r n" in argv(make(3))
    ask = make(
        amounts=Amounts(4000, 3 << 30, 1 << 30, 1),
        nodes=2,
        time_s=90,
        exclusive=True,
        options=(
            ("partition", "q1"),
            ("account", "acc"),
            ("qos", "high"),
            ("constraint", "fast:ib"),
            ("reservation", "r7"),
        ),
    )
    text = argv(ask)
    for part in (
        "-l nodes=2:ppn=4:gpus=1:fast:ib",
        "-l mem=6144mb",
        "-l file=1024mb",
        "-l walltime=00:01:30",
        " -n ",
        "-q q1",
        "-A acc",
        "-l qos=high",
        "-W x=FLAGS:ADVRES:r7",
    ):
        assert part in text
    assert "-l pmem=768mb" in argv(ask, Options(memory_as="per-cpu"))
    assert "mem=" not in argv(ask, Options(memory_as="none"))
    assert TRQ.element_id("7[]", 4, 5) == "7[4]" and TRQ.element_id("7", 0, 1) == "7"


@pytest.mark.parametrize(
    "options",
    [
        *((("-V", ""),), (("-t", "1-9"),), (("-J", "1-9"),), (("-l", "nodes=9"),), (("-W", "depend=afterok:1"),)),
        *((("constraint", "ppn=9"),), (("-I", ""),), (("-P", "root"),), (("partition", "batch@far"),)),
    ],
)
def test_what_is_not_allowed_is_refused(options: tuple[tuple[str, str], ...]) -> None:
    with pytest.raises(UsageError, match=f"{options[0][0]}|{options[0][1] or 'x'}"):
        TRQ.submit(make(options=options), PLAIN)


def test_recorded_submissions() -> None:
    def read(case: str) -> tuple[str | None, str]:
        return TRQ.read_submit(make(), recorded("torque", case))[:2]

    assert read("qsub-ok")[1] == "ok"
    assert read("qsub-ok-array") == ("7[]", "ok")
    for case in ("err-queue", "err-resource", "err-walltime", "err-array", "impossible-ppn", "root-refused"):
        assert read(f"qsub-{case}") == (None, "fatal")
    assert read("qsub-server-down") == (None, "transient")
    assert read("qsub-server-hung") == (None, "ambiguous")


def test_recorded_tables() -> None:
    table = TRQ.read_listing(recorded("torque", "qstat-u"), PLAIN)
    states = {seen.native_id: seen.native_state for seen in table.seen}
    assert table.result == "ok" and len(states) == 18
    assert (states["7[]"], states["20"], states["23"], states["5"]) == ("R", "R", "W", "C")
    expanded = TRQ.read_listing(recorded("torque", "qstat-t"), PLAIN)
    assert expanded.result == "ok" and {"7[1]", "7[5]"} <= {seen.native_id for seen in expanded.seen}
    after = {
        seen.native_id: seen.kind
        for seen in TRQ.read_listing(recorded("torque", "qstat-array-t-after-qdel"), PLAIN).seen
    }
    assert after == {"7[1]": "running", "7[2]": "running", "7[3]": "held", "7[4]": "exited", "7[5]": "exited"}


@pytest.mark.parametrize(
    ("case", "kind", "outcome"),
    [
        ("running", "running", None),
        ("held", "held", None),
        ("waiting", "pending", None),
        ("suspended", "suspended", None),
        ("rerun", "running", None),
        ("node-cut", "running", None),
        ("completed-ok", "completed", (0, None, None)),
        ("completed-exit3", "failed", (3, None, None)),
        ("completed-signal9", "failed", (137, None, None)),
        ("completed-signal10", "failed", (None, 10, None)),
        ("completed-bad-interpreter", "failed", (127, None, None)),
        ("deleted-held", "aborted", (None, None, "cancelled")),
        ("deleted-running", "failed", (None, 15, "cancelled")),
        ("deleted-trapped", "failed", (None, 15, "cancelled")),
        ("dependency-failed", "failed", (None, 15, "cancelled")),
        ("walltime", "failed", (None, None, "time")),
        ("memory", "failed", (1, None, None)),
    ],
)
def test_recorded_outcomes(case: str, kind: str, outcome: tuple[int | None, int | None, str | None] | None) -> None:
    seen = truth(f"qstat-xml-{case}")
    assert seen.kind == kind
    if outcome is None:
        assert seen.outcome is None
    else:
        assert seen.outcome is not None
        assert (seen.outcome.exit_code, seen.outcome.signal, seen.outcome.why) == outcome
    if case == "deleted-running":
        assert truth(f"qstat-xml-{case}", STRICT).kind == "aborted"


def test_recorded_usage() -> None:
    outcome = truth("qstat-xml-walltime").outcome
    assert outcome is not None and outcome.ended == 1794776451.0
    assert (outcome.host, outcome.peak_memory, outcome.cpu_s) == ("trq1", 6536 * 1024, 0.0)


def test_all_jobs_on_one_line() -> None:
    listing = TRQ.read_history(recorded("torque", "qstat-xml-all"), PLAIN)
    assert listing.result == "ok" and len(listing.seen) == 18
    array = TRQ.read_history(recorded("torque", "qstat-array-xml"), PLAIN)
    assert [seen.native_id for seen in array.seen] == [f"7[{number}]" for number in range(1, 6)]


def test_text_records() -> None:
    listing = TRQ.read_history(recorded("torque", "qstat-array-completed-f1"), PLAIN)
    assert [(seen.native_id, seen.kind) for seen in listing.seen] == [(f"27[{n}]", "failed") for n in range(4)]
    assert truth("qstat-f1-completed-exit3").kind == "failed"
    assert truth("qstat-f-running")[:3] == ("20", "R", "running")


def test_unknown_ids() -> None:
    assert TRQ.read_history(recorded("torque", "qstat-xml-unknown"), PLAIN).result == "not-found"
    mixed = TRQ.read_history(recorded("torque", "qstat-xml-unknown-among-known"), PLAIN)
    assert mixed.result == "ok" and [seen.native_id for seen in mixed.seen] == ["20"]


@pytest.mark.parametrize("case", ["qstat-server-down", "qstat-xml-server-down", "qstat-server-hung"])
def test_a_server_that_is_down_says_nothing(case: str) -> None:
    answer = recorded("torque", case)
    for read in (TRQ.read_listing(answer, PLAIN), TRQ.read_history(answer, PLAIN)):
        assert read.result == "transient" and read.seen == ()
    assert TRQ.read_find(TAG, answer).result == "transient"


@pytest.mark.parametrize(
    ("case", "result"),
    [
        ("qdel-running", "ok"),
        ("qdel-again", "ok"),
        ("qdel-completed", "ok"),
        ("qdel-unknown", "ok"),
        ("qdel-two-one-unknown", "ok"),
        ("qdel-node-cut", "ok"),  # the server knows, and the node never will: what is next is to do without it
        ("qdel-server-down", "transient"),
        ("qsig-suspend-as-user", "fatal"),
    ],
)
def test_recorded_kills(case: str, result: str) -> None:
    assert TRQ.read_kill(recorded("torque", case))[0] == result


def test_kills() -> None:
    assert TRQ.kill(["1", "2[3]"], 0).argv == ("qsig", "-s", "URG", "1", "2[3]")
    assert TRQ.kill(["1"], 1).argv == ("qdel", "1")
    assert TRQ.kill(["1"], 2).argv == ("qdel", "-p", "1")
    assert TRQ.read_kill(Answer(204, "", ""))[0] == "ok"
    assert TRQ.read_kill(Answer(170, "", "qdel: Request invalid for state of job 3.x"))[0] == "transient"
    for code in (234, 238):
        assert TRQ.read_kill(Answer(code, "", ""))[0] == "ok"


def test_a_held_job_takes_no_signal_and_is_deleted_next() -> None:
    text = "qsig: Request invalid for state of job MSG=invalid state for job - HELD 21.trq1\n"
    assert TRQ.read_kill(Answer(170, "", text))[0] == "ok"


def test_a_user_with_too_many_jobs_may_come_again() -> None:
    words = (
        "qsub: submit error (Maximum number of jobs already in queue for user MSG=total number of current user's jobs)"
    )
    for code in (228, 226, 200):
        assert TRQ.read_submit(make(), Answer(code, "", words)).result == "transient"
    for code in (10, 210, 247, 251):
        assert TRQ.read_submit(make(), Answer(code, "", "qsub: submit error (some words)")).result == "ambiguous"


def test_a_server_that_leaves_its_name_off() -> None:
    assert TRQ.read_submit(make(), Answer(0, "17\n", ""))[:2] == ("17", "ok")
    assert TRQ.read_submit(make(3), Answer(0, "17[]\n", ""))[:2] == ("17[]", "ok")
    row = "17[2]      tester      batch    x                  --      1      1       --   01:00:00 Q       -- \n"
    assert TRQ.read_listing(Answer(0, row, ""), PLAIN).seen[0].native_id == "17[2]"


def test_directories_that_torque_would_misread() -> None:
    for path in ("relative", "/a:b", "/a,b", "/a\nb", "/a b"):
        with pytest.raises(UsageError, match="directory"):
            TRQ.submit(make(directory=path), PLAIN)


def test_one_document_for_each_id() -> None:
    """As it answers several ids."""
    several = "".join(
        recorded("torque", f"qstat-xml-{case}").stdout for case in ("completed-ok", "walltime", "running")
    )
    listing = TRQ.read_history(Answer(0, several, ""), PLAIN)
    assert listing.result == "ok" and [seen.native_id for seen in listing.seen] == ["5", "2", "20"]


def test_empty_answers() -> None:
    # Without jobs qstat prints nothing; of an id that was asked for, nothing is no answer.
    assert TRQ.read_listing(Answer(0, "", ""), PLAIN) == Listing((), "ok")
    assert TRQ.read_history(Answer(0, "", ""), PLAIN).result == "transient"
    assert TRQ.read_find(TAG, Answer(0, "", "")).result == "not-found"
    assert TRQ.read_find(TAG, Answer(0, "", "trqauthd: some trouble\n")).result == "transient"
    noise = "sh: warning: setlocale: LC_ALL: cannot change locale\n"  # of every command, on some hosts
    assert TRQ.read_find(TAG, Answer(0, "", noise)).result == "not-found"
    assert TRQ.read_kill(Answer(153, "", f"{noise}qdel: nonexistent job id: 7\n"))[0] == "ok"
    assert TRQ.read_kill(Answer(111, "", noise))[0] == "transient"
    assert TRQ.read_find(TAG, Answer(0, "<Data></Data>\n", "")).result == "not-found"


def test_find() -> None:
    def job(native: str, name: str) -> str:
        return f"<Job><Job_Id>{native}</Job_Id><Job_Name>{name}</Job_Name><job_state>R</job_state></Job>"

    mine = job("30[].trq1", f"my-{TAG}") + job("31[0].trq1", f"my-{TAG}-0") + job("2.trq1", "other")
    assert TRQ.read_find(TAG, Answer(0, f"<Data>{mine}</Data>", "")) == ("30[]", "ok", "", ("31[]",))
    assert TRQ.read_find(TAG, recorded("torque", "qstat-xml-all")).result == "not-found"
    assert TRQ.read_find(TAG, Answer(0, f"<Data>{job('2.trq1', 'other')}<Job><Job_Id>3", "")).result == "transient"
    assert [command.argv for command in TRQ.find(TAG, "me")] == [("qstat", "-x"), ("qstat", "-u", "me")]
    table = recorded("torque", "qstat-u").stdout
    assert TRQ.read_find(TAG, Answer(0, table, "")).result == "not-found"
    assert TRQ.read_find(TAG, Answer(0, f"7[].trq1 me batch my-{TAG} -- 1 1 -- 01:00:00 R 01:00\n", ""))[:2] == (
        "7[]",
        "ok",
    )
    assert TRQ.read_find(TAG, Answer(0, table[: len(table) // 2], "")).result == "transient"
    # The light table shows the tag too, of elements with an index behind it.
    row = f"31[10].trq1 me batch my-{TAG}- -- 1 1 -- 01:00:00 Q --\n"
    assert TRQ.read_listing(Answer(0, row, ""), PLAIN).seen[0].tag == TAG


def test_xml_that_was_cut_off_is_partial() -> None:
    text = recorded("torque", "qstat-xml-all").stdout
    listing = TRQ.read_history(Answer(0, text[: len(text) // 2], ""), PLAIN)
    assert listing.result == "partial" and 0 < len(listing.seen) < 18


def test_xml_that_is_broken_into_lines() -> None:
    answer = recorded("torque", "qstat-xml-all")
    whole = TRQ.read_history(answer, PLAIN)
    for width in (7, 80, 1023):
        pieces = [answer.stdout[at : at + width] for at in range(0, len(answer.stdout), width)]
        assert TRQ.read_history(Answer(0, "\n".join(pieces), ""), PLAIN) == whole


def test_entities_in_xml() -> None:
    seen = record(job_state="C", exit_status=1, comment="a &lt;b&gt; &amp; c")
    assert "a <b> & c" in (seen.reason or "")


def test_queues() -> None:
    (queue,) = TRQ.read_queues(recorded("torque", "qstat-Qf"))
    assert (queue.name, queue.is_default, queue.up) == ("batch", True, True)
    assert TRQ.read_queues(recorded("torque", "qstat-server-down")) == ()
    nodes = (
        "trq1\n     state = free\n     np = 4\n     gpus = 2\n     status = opsys=linux,physmem=24682416kb,ncpus=2\n\n"
    )
    nodes += "trq2\n     state = down\n     np = 16\n     ntype = cluster\n\n"
    server = "Server: trq1\n    server_state = Active\n    default_queue = other\n"
    found = TRQ.read_queue_details((queue,), [Answer(0, server, ""), Answer(0, nodes, "")], Options())
    assert [(q.is_default, q.nodes, q.cores, q.memory, q.gpus) for q in found] == [(False, 2, 16000, 24682416 << 10, 2)]
    assert TRQ.read_queue_details((queue,), [Answer(1, "", ""), Answer(1, "", "")], Options()) == (queue,)


@given(st.data())
def test_no_reader_raises_on_damaged_recordings(data: st.DataObject) -> None:
    case = data.draw(st.sampled_from(["qstat-u", "qstat-array-xml", "qstat-f-running", "qstat-Qf"]))
    text = recorded("torque", case).stdout
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 200)))
    answer = Answer(
        data.draw(st.sampled_from((0, 153, 111))), text[:start] + data.draw(st.text(max_size=5)) + text[end:], ""
    )
    for options in (PLAIN, STRICT):
        TRQ.read_listing(answer, options)
        TRQ.read_history(answer, options)
    TRQ.read_find(TAG, answer)
    TRQ.read_queues(answer)
    TRQ.read_kill(answer)


@pytest.mark.parametrize("case", ["qstat-xml-all", "qstat-array-xml", "qstat-array-completed-f1", "qstat-xml-walltime"])
def test_a_piece_of_an_answer_says_nothing_else_than_the_whole(case: str) -> None:
    answer = recorded("torque", case)
    whole = TRQ.read_history(answer, PLAIN)
    body = answer.stdout.rstrip()
    for end in range(0, len(body), max(1, len(body) // 400)):
        piece = TRQ.read_history(Answer(0, body[:end], ""), PLAIN)
        assert set(piece.seen) <= set(whole.seen)
        assert piece.result != "ok" or case == "qstat-array-completed-f1"  # Text has no end of its own.
    listed = recorded("torque", "qstat-u").stdout
    all_of_it = set(TRQ.read_listing(Answer(0, listed, ""), PLAIN).seen)
    for end in range(0, len(listed), max(1, len(listed) // 400)):
        assert set(TRQ.read_listing(Answer(0, listed[:end], ""), PLAIN).seen) <= all_of_it
