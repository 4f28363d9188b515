"""OpenPBS: every state, exit status and error number; recorded outputs against what truly happened; hostile answers."""

import json
import random
import subprocess
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recordings import recorded
from rota.drivers.api import Ask, Outcome
from rota.drivers.dialect import Answer, Dialect, Listing, Options, Seen
from rota.drivers.pbs import NEGATIVE, Pbs
from rota.drivers.pbs_errors import OPENPBS, read_error
from rota.drivers.sge import Sge
from rota.drivers.torque import Torque
from rota.manager.offline.detecting import Found, config_text
from rota.model.errors import UsageError
from rota.model.needs import Amounts

PBS: Dialect = Pbs()
TAG = "0123456789ab"
PLAIN = Options()
STRICT = Options(strict=True)


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
    return " ".join(PBS.submit(ask, options).argv)


def document(*jobs: dict[str, Any]) -> str:
    """JSON as qstat writes it: tabs and all."""
    found = {job.pop("id", "17.pbs1"): {"Job_Name": f"my_batch-{TAG}", **job} for job in jobs}
    head = {"timestamp": 1, "pbs_version": "23.06.06", "pbs_server": "pbs1", "Jobs": found}
    return json.dumps(head, indent="\t", separators=(",", ":\t")) + "\n"


def history(*jobs: dict[str, Any], options: Options = PLAIN) -> Seen:
    listing = PBS.read_history(Answer(0, document(*jobs), ""), options)
    assert listing.result == "ok"
    return listing.seen[0]


def truth(case: str, options: Options = PLAIN) -> Seen:
    listing = PBS.read_history(recorded("openpbs", case), options)
    assert listing.result == "ok", listing.detail
    return listing.seen[0]


# States

TABLE = [
    ("Q", "pending", "pending"),
    ("H", "held", "pending"),
    ("W", "pending", "pending"),
    ("T", "pending", "unsure"),
    ("S", "suspended", "suspended"),
    ("U", "suspended", "suspended"),
    ("R", "running", "running"),
    ("B", "running", "running"),
    ("E", "running", "running"),
    ("F", "exited", "exited"),
    ("X", "exited", "exited"),
    ("M", "unsure", "unsure"),
    ("0", "unsure", "unsure"),
    ("Z", "unsure", "unsure"),
]


@pytest.mark.parametrize(("state", "kind", "strict"), TABLE)
def test_every_state(state: str, kind: str, strict: str) -> None:
    row = f"17.pbs1   tester   workq    nodefail      --    1   1    --    --  {state}   -- \n"
    for options, wanted in ((PLAIN, kind), (STRICT, strict), (Options(state_map=((state, "aborted"),)), "aborted")):
        listing = PBS.read_listing(Answer(0, row, ""), options)
        assert (listing.result, listing.seen[0].native_id, listing.seen[0].kind) == ("ok", "17", wanted)
    assert set(PBS.states) == {row[0] for row in TABLE if row[0] not in "0Z"}


def test_a_site_may_call_a_state_otherwise_but_not_nonsense() -> None:
    row = Answer(0, "17.pbs1 tester workq x -- 1 1 -- -- H --\n", "")
    assert PBS.read_listing(row, Options(state_map=(("H", "pending"),))).seen[0].kind == "pending"
    assert PBS.read_listing(row, Options(state_map=(("H", "nonsense"),))).seen[0].kind == "held"


# Exit statuses


@pytest.mark.parametrize("value", sorted(NEGATIVE))
def test_every_exit_status_of_its_own(value: int) -> None:
    why, words = NEGATIVE[value]
    seen = history({"job_state": "F", "substate": 93, "Exit_status": value})
    assert seen.kind == "failed"
    assert seen.outcome is not None and seen.outcome.why == why and seen.outcome.exit_code is None
    assert words in (seen.reason or "")


@pytest.mark.parametrize(
    ("value", "kind", "code", "signal"),
    [
        (0, "completed", 0, None),
        (1, "failed", 1, None),
        (137, "failed", 137, None),
        (255, "failed", 255, None),
        (256, "failed", 256, None),
        (265, "failed", None, 9),
        (271, "failed", None, 15),
        (-99, "failed", None, None),
    ],
)
def test_other_exit_statuses(value: int, kind: str, code: int | None, signal: int | None) -> None:
    seen = history({"job_state": "F", "substate": 93, "Exit_status": value})
    assert seen.outcome is not None
    assert (seen.kind, seen.outcome.exit_code, seen.outcome.signal) == (kind, code, signal)


def test_named_reasons() -> None:
    reasons = {-27: "oom", -26: "oom", -29: "time", -20: "node-fail", -2: "launch"}
    for value, why in reasons.items():
        assert NEGATIVE[value][0] == why
    strict = history({"job_state": "F", "Exit_status": -20}, options=STRICT)
    assert strict.kind == "aborted"


@pytest.mark.parametrize(
    ("substate", "kind", "why"),
    [
        (91, "aborted", "cancelled"),
        (92, "exited", None),
        (93, "failed", None),
        (94, "unsure", None),
        (7, "exited", None),
    ],
)
def test_finished_without_exit_status(substate: int, kind: str, why: str | None) -> None:
    seen = history({"job_state": "F", "substate": substate, "stime": "Sun Nov 15 20:56:11 2026"})
    assert seen.kind == kind and seen.outcome is not None and seen.outcome.why == why


def test_exiting_is_over_only_with_an_exit_status() -> None:
    assert history({"job_state": "E"}).kind == "running"
    assert history({"job_state": "E", "Exit_status": 3}).kind == "failed"


def test_a_signal_after_all_its_time_is_the_time_limit() -> None:
    limits = {"resources_used": {"walltime": "00:01:04"}, "Resource_List": {"walltime": "00:01:00"}}
    seen = history({"job_state": "F", "substate": 93, "Exit_status": 271, **limits})
    assert seen.outcome is not None and seen.outcome.why == "time"


# Error numbers


@pytest.mark.parametrize("code", sorted(OPENPBS))
def test_every_error_number(code: int) -> None:
    error = OPENPBS[code]
    answer = Answer(code, "", "qsub: some words")
    asked, words = read_error(answer, OPENPBS)
    assert asked == error.result and error.meaning in words and "some words" in words
    submitted = PBS.read_submit(make(), answer)
    assert submitted.native_id is None
    assert submitted.result == ("fatal" if error.result == "not-found" else error.submit or error.result)
    assert PBS.read_listing(answer, PLAIN).result not in ("ok", "not-found")


def test_submissions_that_may_have_worked() -> None:
    for code in (162, 163, 183, 185, 208, 255, -9):
        assert PBS.read_submit(make(), Answer(code, "", "premature end")).result == "ambiguous"
    assert PBS.read_submit(make(), Answer(None, "", "")).result == "ambiguous"
    assert PBS.read_submit(make(), Answer(0, "", "")).result == "ambiguous"
    assert PBS.read_submit(make(), Answer(0, "what is this\n", "")).result == "ambiguous"
    assert PBS.read_submit(make(), Answer(1, "17.pbs1\n", "late trouble"))[:2] == ("17", "ambiguous")
    assert PBS.read_submit(make(), recorded("openpbs", "qsub-server-hung")).result == "ambiguous"
    assert PBS.read_submit(make(), recorded("openpbs", "qsub-server-down")).result == "transient"
    for code in (171, 172, 186, 196, 198, 38, 39, 212, 13, 57, 104, 127):
        assert PBS.read_submit(make(), Answer(code, "", "")).result == "transient"
    assert PBS.read_submit(make(), Answer(199, "", "")).result == "fatal"
    for code in (1, 2, 199):
        assert PBS.read_submit(make(), Answer(code, "", "qsub: cannot connect to server pbs1")).result == "transient"


def test_a_server_that_leaves_its_name_off() -> None:
    assert PBS.read_submit(make(), Answer(0, "17\n", ""))[:2] == ("17", "ok")
    assert PBS.read_submit(make(3), Answer(0, "17[]\n", ""))[:2] == ("17[]", "ok")
    assert PBS.read_submit(make(), Answer(0, "3 jobs\n17\n", "")).result == "ambiguous"
    assert PBS.read_submit(make(), Answer(0, "1", "")).result == "ambiguous"  # of 17.pbs1, perhaps
    chatty = Answer(0, "project x is charged\n17.pbs1\n2 hours are left.\n", "")  # a hook, or a wrapper of the site
    assert PBS.read_submit(make(), chatty)[:2] == ("17", "ok")


# Submission


def test_a_plain_job() -> None:
    command = PBS.submit(make(), PLAIN)
    assert command.argv[:9] == (
        *("qsub", "-N", f"my_batch-{TAG}", "-S", "/bin/sh"),
        *("-o", "/shared/rota/", "-e", "/shared/rota/"),
    )
    text = " ".join(command.argv)
    assert "-r n" in text and "-J" not in command.argv and "-V" not in command.argv and "-m n" in text
    assert "select=1:ncpus=1" in command.argv


@pytest.mark.parametrize("dialect", [Pbs(), Torque()])
@pytest.mark.parametrize("script", ["#PBS -q other\ntrue\n", "#!/bin/sh\n#PBS -q other\ntrue\n"])
def test_no_directive_is_before_the_first_command(dialect: Dialect, script: str) -> None:
    """Then qsub does not look for any. An empty word to say so would get lost in filters of sites."""
    command = dialect.submit(make(script=script), PLAIN)
    first, second = (command.stdin or "").splitlines()[:2]
    assert first == "#!/bin/sh" and not second.startswith("#")
    assert "" not in command.argv


def test_an_array_is_rerunnable_because_it_must_be() -> None:
    command = PBS.submit(make(3), PLAIN)
    assert "-J 0-2" in " ".join(command.argv) and "-r" not in command.argv
    assert PBS.element_id("6[]", 2, 3) == "6[2]"
    assert PBS.element_id("17", 0, 1) == "17"


def test_needs_become_requests() -> None:
    ask = make(
        amounts=Amounts(7500, (1 << 30) + 1, 0, 2, (("lic", 3),)),
        nodes=2,
        tasks_per_node=4,
        time_s=3661,
        exclusive=True,
        options=(("account", "acc"), ("partition", "long"), ("constraint", "host=n1:arch=linux"), ("--P", "proj")),
    )
    text = argv(ask)
    assert "-l select=2:ncpus=8:mpiprocs=4:mem=1025mb:ngpus=2:lic=3:host=n1:arch=linux" in text
    assert "-l place=scatter:exclhost" in text and "-l walltime=01:01:01" in text
    assert "-q long" in text and "-A acc" in text and text.endswith("-P proj")
    assert "-q R12 " in argv(make(options=(("reservation", "R12"), ("partition", "long")))) + " "
    assert "mem=" not in argv(ask, Options(memory_as="none"))
    assert "-l pmem=129mb" in argv(ask, Options(memory_as="per-cpu"))
    assert "-r y" in argv(make(), Options(requeue=True))


def test_the_user_is_stronger_than_the_site() -> None:
    site = Options(account="site", partition="short", raw=(("-m", "a"), ("-l", "software=x")))
    text = argv(make(options=(("account", "mine"), ("--m", "be"), ("-l", "tmpspace=1gb"))), site)
    assert "-A mine" in text and "-q short" in text and "-m be" in text and "-m a" not in text and "-m n" not in text
    assert "-l software=x" in text and "-l tmpspace=1gb" in text


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((("--V", ""),), ["--V", "-P"]),
        ((("-N", "x"),), ["-N"]),
        ((("-W", "block=true"),), ["block"]),
        ((("-l", "walltime=1"),), ["walltime"]),
        ((("-l", "software=x,select=2"),), ["select"]),
        ((("-M", "a\nb"),), ["-M", "line break"]),
        ((("-M", "a\0b"),), ["-M", "control"]),
        ((("account", "a b"),), ["account"]),
        ((("partition", "-x"),), ["partition"]),
        ((("colour", "red"),), ["colour", "account"]),
        ((("qos", "high"),), ["qos", "OpenPBS"]),
        ((("constraint", "1+1:ncpus"),), ["constraint"]),
        ((("partition", "workq@far"),), ["workq@far", "PBS_DEFAULT"]),
        ((("reservation", "R12@far"),), ["R12@far"]),
    ],
)
def test_what_is_not_allowed_is_refused(options: tuple[tuple[str, str], ...], words: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        PBS.submit(make(options=options), PLAIN)
    for word in words:
        assert word in str(caught.value)


def test_directories_that_pbs_would_misread() -> None:
    for path in ("relative", "/a:b", "/a,b", "/a\nb", "/a^b"):
        with pytest.raises(UsageError, match="directory"):
            PBS.submit(make(directory=path), PLAIN)
    assert "'/a b'" in (PBS.submit(make(directory="/a b"), PLAIN).stdin or "")


def test_the_name_is_cut_and_the_tag_is_not() -> None:
    for name in ("x" * 500, "9lives", "", "ünïcode / name", "a b:c@d*?"):
        native = PBS.submit(make(name=name), PLAIN).argv[2]
        assert native.endswith(f"-{TAG}") and len(native) <= 64 and native[0].isalpha() and native.isascii()


@pytest.mark.parametrize("dialect", [Pbs(), Torque(), Sge()])
@pytest.mark.parametrize("script", ["#!/bin/sh\necho $ROTA_ELEMENT; pwd", "echo $ROTA_ELEMENT; pwd\n"])
def test_the_script_runs(dialect: Dialect, script: str, tmp_path: Any) -> None:
    ask = make(3, script=script, directory=str(tmp_path))
    text = dialect.submit(ask, PLAIN).stdin or ""
    assert text.startswith("#!/bin/sh\n") and text.count("#!") == 1
    names = {"pbs": "PBS_ARRAY_INDEX", "torque": "PBS_ARRAYID", "sge": "SGE_TASK_ID"}
    value = "2" if dialect.name != "sge" else "3"
    for env, element in (({names[dialect.name]: value}, "2"), ({}, "0"), ({"SGE_TASK_ID": "undefined"}, "0")):
        subprocess.run(["/bin/sh"], input=text, env=env, cwd=tmp_path, text=True, check=True)
        # Where the manager looks for why nothing came of it.
        output = tmp_path / f"{TAG}.{element}.out"
        assert output.read_text().split() == [element, str(tmp_path)]
        output.unlink()


# Recorded outputs


def test_recorded_submissions() -> None:
    def read(case: str) -> tuple[str | None, str]:
        return PBS.read_submit(make(), recorded("openpbs", case))[:2]

    assert read("qsub-ok")[1] == "ok" and (read("qsub-ok")[0] or "").isdigit()
    assert read("qsub-ok-array") == ("6[]", "ok")
    for case in ("queue", "resource", "walltime", "name", "option"):
        assert read(f"qsub-err-{case}") == (None, "fatal")
    assert "Unknown queue" in PBS.read_submit(make(), recorded("openpbs", "qsub-err-queue")).detail


def test_recorded_tables() -> None:
    table = PBS.read_listing(recorded("openpbs", "qstat-u"), PLAIN)
    states = {seen.native_id: seen.native_state for seen in table.seen}
    assert table.result == "ok" and len(states) == 14
    assert (states["0"], states["6[]"], states["16"], states["20"], states["21"]) == ("R", "B", "E", "W", "Q")
    finished = PBS.read_listing(recorded("openpbs", "qstat-x"), PLAIN)
    assert finished.result == "ok" and len(finished.seen) == 19
    assert [seen.kind for seen in finished.seen if seen.native_state == "F"] == ["exited"] * 5
    elements = PBS.read_listing(recorded("openpbs", "qstat-array-t"), PLAIN)
    assert [(seen.native_id, seen.kind) for seen in elements.seen] == [
        *(("6[]", "running"), ("6[1]", "running"), ("6[2]", "pending"), ("6[3]", "pending"), ("6[4]", "pending"))
    ]


OUTCOMES: list[tuple[str, str, Outcome | None]] = [
    ("running", "running", None),
    ("held", "held", None),
    ("waiting", "pending", None),
    ("suspended", "suspended", None),
    ("rerun-running", "running", None),
    ("node-fail-rerunnable", "pending", None),
    ("finished-ok", "completed", Outcome(exit_code=0)),
    ("finished-exit3", "failed", Outcome(exit_code=3)),
    ("finished-signal9", "failed", Outcome(exit_code=137)),
    ("finished-signal10", "failed", Outcome(signal=10)),
    ("finished-bad-interpreter", "failed", Outcome(exit_code=127)),
    ("deleted-queued", "aborted", Outcome(why="cancelled")),
    ("deleted-running", "aborted", Outcome(signal=15, why="cancelled")),
    ("deleted-trapped", "aborted", Outcome(signal=15, why="cancelled")),
    ("dependency-failed", "aborted", Outcome(why="cancelled")),
    ("node-fail", "failed", Outcome(why="node-fail")),
    ("walltime", "failed", Outcome(why="time")),
    ("memory", "failed", Outcome(why="oom")),
]


@pytest.mark.parametrize(("case", "kind", "outcome"), OUTCOMES)
def test_recorded_outcomes(case: str, kind: str, outcome: Outcome | None) -> None:
    seen = truth(f"qstat-f-json-{case}")
    assert seen.kind == kind
    if outcome is None:
        assert seen.outcome is None
    else:
        assert seen.outcome is not None
        assert (seen.outcome.exit_code, seen.outcome.signal, seen.outcome.why) == (
            *(outcome.exit_code, outcome.signal, outcome.why),
        )
    assert seen.requeued == (1 if case == "rerun-running" else 0)


def test_recorded_usage() -> None:
    outcome = truth("qstat-f-json-memory").outcome
    assert outcome is not None
    assert (outcome.host, outcome.peak_memory, outcome.cpu_s) == ("pbs1", 525452 * 1024, 0.0)
    assert outcome.started is not None and outcome.ended == outcome.started + 13 == 1794776182.0
    assert truth("qstat-f-json-held", STRICT).kind == "pending"


def test_recorded_arrays() -> None:
    finished = PBS.read_history(recorded("openpbs", "qstat-array-finished-json"), PLAIN)
    assert [seen.native_id for seen in finished.seen] == ["26[]", "26[0]", "26[1]", "26[2]", "26[3]"]
    assert all(seen.kind == "failed" and seen.outcome and seen.outcome.exit_code == 2 for seen in finished.seen[1:])
    after = {
        seen.native_id: seen for seen in PBS.read_history(recorded("openpbs", "qstat-array-t-after-qdel"), PLAIN).seen
    }
    assert (after["6[]"].kind, after["6[1]"].kind, after["6[2]"].kind) == ("running", "running", "aborted")
    assert after["6[4]"] == Seen("6[4]", "Q", "pending")  # though the record shows the array's exit status


def test_an_element_without_a_record_of_its_own() -> None:
    """The server shows the array's record with the element's state: its exit status is not the element's."""
    text = recorded("openpbs", "qstat-array-t-after-qdel").stdout
    borrowed = {**json.loads(text)["Jobs"]["6[4].pbs1"], "id": "6[4].pbs1"}
    assert "Exit_status" in borrowed and "stime" in borrowed and "array_index" not in borrowed
    for state in ("X", "F"):
        for status in (0, 1):
            seen = history({**borrowed, "job_state": state, "Exit_status": status})
            assert (seen.kind, seen.outcome) == ("aborted", Outcome(why="cancelled"))
    # Before release 20 elements that ended are shown so too, and only their own words say how.
    old = document({**borrowed, "job_state": "X", "comment": "Subjob finished"}).replace("23.06.06", "18.1.4")
    (seen,) = PBS.read_history(Answer(0, old, ""), PLAIN).seen
    assert (seen.kind, seen.outcome, seen.reason) == ("exited", Outcome(), "Subjob finished")
    (seen,) = PBS.read_history(Answer(0, old.replace("Subjob finished", "Subjob terminated"), ""), PLAIN).seen
    assert seen.kind == "aborted"


def test_several_records_are_one_question() -> None:
    """Asked one by one, some releases print only the first as JSON."""
    (command,) = PBS.history(["4", "6[2]"])
    assert command.argv == ("qstat", "-E", "-x", "-f", "-F", "json", "4", "6[2]")


def test_lists_of_jobs_that_begin_anew() -> None:
    """As releases before 18.2 print several ids: with a list for each, and too few brackets."""
    one, two = (document({"id": f"{n}.pbs1", "job_state": "F", "Exit_status": 0, "substate": 92}) for n in (1, 2))
    body = two[two.index('\t"Jobs"') :]
    for text in (one[:-4] + ",\n" + body, one.rstrip()[:-1].rstrip() + ",\n" + body):
        listing = PBS.read_history(Answer(0, text, ""), PLAIN)
        assert [seen.native_id for seen in listing.seen] == ["1", "2"]


def test_other_forms_of_full_records() -> None:
    for case in ("qstat-f-dsv-running", "qstat-f-running"):
        assert truth(case)[:3] == ("17", "R", "running")
    seen = truth("qstat-x-f-finished")
    assert seen.outcome is not None and (seen.native_id, seen.kind, seen.outcome.exit_code) == ("25", "failed", 3)


def test_no_history_is_no_evidence_of_an_end_but_an_answer() -> None:
    off = PBS.read_history(recorded("openpbs", "qstat-history-off"), PLAIN)
    assert off.result == "not-found" and "history" in off.detail and off.seen == ()
    assert PBS.read_find(TAG, recorded("openpbs", "qstat-history-off")).result == "not-found"
    # As a listing it would hide what runs: it must not pass for an empty one.
    assert PBS.read_listing(recorded("openpbs", "qstat-x-history-off"), PLAIN).result == "transient"
    assert "-x" not in PBS.listing("me").argv


def test_unknown_ids() -> None:
    assert PBS.read_history(recorded("openpbs", "qstat-x-unknown"), PLAIN).result == "not-found"
    mixed = PBS.read_history(recorded("openpbs", "qstat-unknown-among-known"), PLAIN)
    assert mixed.result == "ok" and [seen.native_id for seen in mixed.seen] == ["17"]


@pytest.mark.parametrize("case", ["qstat-x-server-down", "qstat-server-down", "qstat-server-hung"])
def test_a_server_that_is_down_says_nothing(case: str) -> None:
    answer = recorded("openpbs", case)
    for read in (PBS.read_listing(answer, PLAIN), PBS.read_history(answer, PLAIN)):
        assert read.result == "transient" and read.seen == ()
    assert PBS.read_find(TAG, answer).result == "transient"


@pytest.mark.parametrize(
    ("case", "result"),
    [
        ("qdel-running", "ok"),
        ("qdel-force", "ok"),
        ("qsig-usr1", "ok"),
        ("qdel-unknown", "ok"),
        ("qdel-finished", "ok"),
        ("qdel-two-one-unknown", "ok"),
        ("qdel-again", "transient"),
        ("qdel-server-down", "transient"),
        ("qsig-suspend-as-user", "fatal"),
    ],
)
def test_recorded_kills(case: str, result: str) -> None:
    assert PBS.read_kill(recorded("openpbs", case))[0] == result


def test_kills() -> None:
    assert PBS.kill(["1", "2[3]"], 0).argv == ("qsig", "-s", "URG", "1", "2[3]")
    assert PBS.kill(["1"], 1).argv == ("qdel", "1")
    assert PBS.kill(["1"], 2).argv == PBS.kill(["1"], 7).argv == ("qdel", "-W", "force", "1")
    for code in (35, 153, 202):
        assert PBS.read_kill(Answer(code, "", ""))[0] == "ok"
    for code in (168, 237, None):
        assert PBS.read_kill(Answer(code, "", ""))[0] == "transient"
    worse = Answer(153, "", "qdel: End of File 1.pbs1\nqdel: Unknown Job Id 2.pbs1\n")
    assert PBS.read_kill(worse)[0] == "transient"


def test_one_qdel_ends_one_thing() -> None:
    """Live 23.06 deleted `1[1]` and `1[3]` of `1[1] 1[3] 1[5]`, and its server died of `1[1] 2[1]`."""
    ids = ["10[3].s", "9[10].s", "9[2].s", "7.s", "9[9].s", "10[4].s", "10[6].s", "9[11].s", "11[1]", "8.s", "12[2].s"]
    assert PBS.kill_apart(ids, 0) == [ids]
    parts = PBS.kill_apart(ids, 1)
    assert [PBS.kill(part, 1).argv for part in parts] == [
        ("qdel", id) for id in ("7.s", "8.s", "10[3-4].s", "10[6].s", "11[1]", "12[2].s", "9[2].s", "9[9-11].s")
    ]
    assert PBS.kill_apart(ids, 2) == parts and sorted(id for part in parts for id in part) == sorted(ids)
    assert PBS.kill(parts[2], 2).argv == ("qdel", "-W", "force", "10[3-4].s")


def test_a_kill_that_can_do_nothing_makes_way_for_a_stronger_one() -> None:
    held = Answer(168, "", "qsig: Request invalid for state of job 18.pbs1\n")
    assert PBS.read_kill(held)[0] == "ok"  # the next is a qdel, which can
    assert PBS.read_kill(held._replace(stderr=held.stderr.replace("qsig", "qdel")))[0] == "transient"
    assert PBS.read_kill(Answer(222, "", "qdel: Server could not connect to MOM 1.pbs1\n"))[0] == "ok"
    ended = Answer(55, "", "qdel: Request invalid for finished array subjob 6[2].pbs1\n")
    assert PBS.read_kill(ended)[0] == PBS.read_kill(Answer(55, "", ""))[0] == "ok"
    mixed = Answer(222, "", "qdel: Server could not connect to MOM 1.pbs1\nqdel: Invalid credential 2.pbs1\n")
    assert PBS.read_kill(mixed)[0] == "transient"


def test_who_is_who() -> None:
    answers = {
        "pbs": recorded("openpbs", "qstat-version"),
        "torque": recorded("torque", "qstat-version"),
        "sge": recorded("gridengine", "qstat-help"),
    }
    for dialect in (Pbs(), Torque(), Sge()):
        assert [name for name, answer in answers.items() if dialect.is_mine(answer)] == [dialect.name]
        assert not dialect.is_mine(Answer(127, "", "sh: qstat: not found"))


def test_queues() -> None:
    (queue,) = PBS.read_queues(recorded("openpbs", "qstat-Qf-json"))
    assert (queue.name, queue.is_default, queue.up) == ("workq", True, True)
    assert PBS.read_queues(recorded("openpbs", "qstat-server-down")) == ()


def test_queues_with_their_nodes() -> None:
    flags = {"queue_type": "Execution", "enabled": "True", "started": "True"}
    found = {
        "short": {**flags, "resources_max": {"walltime": "00:10:00", "ncpus": 2, "mem": "1gb", "nodect": 2}},
        "long": {**flags, "resources_max": {"walltime": "240:00:00"}},
        "big": flags,
        "in": {**flags, "queue_type": "Route"},
        "routed": {**flags, "from_route_only": "True"},
        "theirs": {**flags, "acl_user_enable": "True", "acl_users": "ann,+bob@host"},
        "off": {**flags, "started": "False"},
    }
    queues = PBS.read_queues(Answer(0, json.dumps({"Queue": found}), ""))
    node = {"resources_available": {"host": "n1", "mem": "8gb", "ncpus": 4}}
    nodes = {
        "n1": node,
        "n2[0]": {"resources_available": {"host": "n2", "mem": "8gb", "ncpus": 4, "ngpus": 2}},
        "n2[1]": {"resources_available": {"host": "n2", "mem": "8gb", "ncpus": 4, "ngpus": 2}},
        "huge": {"queue": "big", "resources_available": {"host": "huge", "mem": "1tb", "ncpus": 64}},
        "odd": {"state": "down"},
    }
    answers = [Answer(0, "Server: pbs1\n    default_queue = long\n", ""), Answer(0, json.dumps({"nodes": nodes}), "")]
    gib = 1 << 30
    seen = PBS.read_queue_details(queues, answers, Options())
    assert [(q.name, q.is_default, q.time_s, q.up, q.users) for q in seen] == [
        ("short", False, 600, True, None),
        ("long", True, 864_000, True, None),
        ("big", False, None, True, None),
        ("in", False, None, True, None),
        ("routed", False, None, False, None),
        ("theirs", False, None, True, ("ann", "bob")),
        ("off", False, None, False, None),
    ]
    assert [q.name for q in seen if q.hidden] == ["in"]
    routed = PBS.read_queue_details(
        queues, [Answer(0, "Server: pbs1\n    default_queue = in\n", ""), answers[1]], Options()
    )
    assert [q.name for q in routed if q.is_default] == ["in"] and not any(q.hidden for q in routed)
    text = config_text([Found("pbs", "23.06", {}, routed, (), None)], [], "/")
    assert '# partition = "in"    # without it, the default is used\n' in text, "no other queue is chosen"
    assert [(q.nodes, q.cores, q.memory, q.gpus, q.nodes_most) for q in seen[:3]] == [
        (2, 2000, gib, 4, 2),
        (2, 8000, 16 * gib, 4, None),
        (1, 64000, 1024 * gib, 0, None),
    ]
    for silent in (Answer(1, "", ""), Answer(0, "{", ""), Answer(0, '{"nodes": [1]}', ""), Answer(0, "[]", "")):
        assert PBS.read_queue_details(queues, [Answer(1, "", ""), silent], Options()) == queues


def test_find() -> None:
    live, ended = PBS.find(TAG, "me")
    assert "-x" not in live.argv and "-x" in ended.argv
    mine = {"id": "9[].pbs1", "job_state": "B"}
    element = {"id": "9[0].pbs1", "job_state": "R"}
    later = {"id": "12[].pbs1", "job_state": "B"}
    other = {"id": "3.pbs1", "job_state": "R", "Job_Name": "my_batch-ffffffffffff"}
    assert PBS.read_find(TAG, Answer(0, document(other, later, mine, element), "")) == (
        "9[]",
        "ok",
        "",
        ("12[]",),
    )
    assert PBS.read_find(TAG, Answer(0, document(other), "")).result == "not-found"
    assert PBS.read_find(TAG, Answer(0, "", "")).result == "transient"
    assert PBS.read_find(TAG, Answer(0, document(other)[:-20], "")).result == "transient"
    assert PBS.read_find(TAG, Answer(None, "", "")).result == "transient"


# What other drivers fell over


def test_lines_with_too_few_words() -> None:
    for line in ("17.pbs1 name user 0 R\n", "17.pbs1\n", "17.pbs1 x\n", "a b c d e\n", "17.pbs1 a b c d e f g\n"):
        listing = PBS.read_listing(Answer(0, line, ""), PLAIN)
        assert listing.result == "transient" and listing.seen == ()
    mixed = PBS.read_listing(Answer(0, "17.pbs1 name user 0 R workq\n18.pbs1 name\n", ""), PLAIN)
    assert mixed.result == "partial" and [seen.native_id for seen in mixed.seen] == ["17"]


def test_ids_that_a_table_cut() -> None:
    rows = "1234567[100].pb* tester workq x -- 1 1 -- -- R --\n12345.server.do* t w x -- 1 1 -- -- Q --\n"
    assert [seen.native_id for seen in PBS.read_listing(Answer(0, rows, ""), PLAIN).seen] == ["1234567[100]", "12345"]
    assert PBS.read_submit(make(), Answer(0, "12345.server.domain.org\n", "")).native_id == "12345"


@pytest.mark.parametrize(
    "damage",
    [
        ('"PATH":\t"x"', '"PATH":\t"C:\\new"'),
        ('"PATH":\t"x"', '"PATH":\t"say "hello", you"'),
        ('"PATH":\t"x"', '"PATH":\t007'),
        ('"PATH":\t"x"', '"PATH":\t"tab\tbreak\x01"'),
        ('"PATH":\t"x"', '"PATH":\t,'),
    ],
)
def test_json_that_is_none(damage: tuple[str, str]) -> None:
    jobs = [
        {"id": f"{n}.pbs1", "job_state": "F", "Exit_status": n, "substate": 92, "Variable_List": {"PATH": "x"}}
        for n in range(3)
    ]
    text = document(*jobs)
    broken = text.replace(*damage, 1)
    assert broken != text
    listing = PBS.read_history(Answer(0, broken, ""), PLAIN)
    assert listing.result == "ok"
    assert [(seen.native_id, seen.kind) for seen in listing.seen] == [
        ("0", "completed"),
        ("1", "failed"),
        ("2", "failed"),
    ]


def test_an_answer_that_was_cut_off_is_partial() -> None:
    text = document(*({"id": f"{n}.pbs1", "job_state": "F", "Exit_status": 0} for n in range(3)))
    listing = PBS.read_history(Answer(0, text[: len(text) * 2 // 3], ""), PLAIN)
    assert listing.result == "partial" and 0 < len(listing.seen) < 3
    table = recorded("openpbs", "qstat-u").stdout
    cut = PBS.read_listing(Answer(0, table[: len(table) // 2], ""), PLAIN)
    assert cut.result == "partial" and 0 < len(cut.seen) < 14


def test_empty_answers() -> None:
    # A table without jobs is empty; full records never are.
    assert PBS.read_listing(Answer(0, "", ""), PLAIN) == Listing((), "ok")
    assert PBS.read_listing(Answer(0, "", "pbs_iff: cannot connect to host"), PLAIN).result == "transient"
    noise = "sh: warning: setlocale: LC_ALL: cannot change locale\n"  # of every command, on some hosts
    assert PBS.read_listing(Answer(0, "", noise), PLAIN) == Listing((), "ok")
    assert PBS.read_listing(recorded("openpbs", "qstat-u")._replace(stderr=noise), PLAIN).result == "ok"
    assert PBS.read_history(Answer(0, "", ""), PLAIN).result == "transient"
    assert PBS.read_listing(Answer(None, "", ""), PLAIN).result == "transient"
    assert PBS.history([]) == []


def test_noise_of_the_credential_daemon_is_a_failed_poll() -> None:
    noise = Answer(171, "", "pbs_iff: all reserved ports in use\nInvalid credential\n")
    assert PBS.read_listing(noise, PLAIN).result == "transient"


def read_everything(dialect: Dialect, code: int | None, stdout: str, stderr: str) -> None:
    """Every reader on one answer. None may raise, and none may take it for a success that it does not show."""
    answer = Answer(code, stdout, stderr)
    for options in (PLAIN, STRICT):
        dialect.read_listing(answer, options)
        dialect.read_history(answer, options)
    dialect.is_mine(answer)
    dialect.read_submit(make(2), answer)
    dialect.read_find(TAG, answer)
    dialect.read_kill(answer)
    dialect.read_queues(answer)


CODES = st.one_of(st.none(), st.sampled_from((0, 0, 0, 1, 35, 153, 162, 255, -9)), st.integers(0, 255))
PIECES = st.sampled_from(
    [
        *(
            "17.pbs1",
            "6[2]",
            " R ",
            "\n",
            '"Jobs":',
            "{",
            "}",
            '\t"17.pbs1":\t{',
            "pbs_version",
            "Job Id: 3.x",
            "|",
            "=",
        ),
        *(
            "<Job>",
            "</Job>",
            "<Data>",
            "</Data>",
            "<job_list>",
            "<tasks>1-99999999:1</tasks>",
            "</job_list>",
            "</job_info>",
        ),
        *(
            "<JB_job_number>4</JB_job_number>",
            "=====\n",
            "jobnumber 4\n",
            "failed 37\n",
            "exit_status 137\n",
            TAG,
            "\t",
        ),
        *(
            "Exit_status = 0\n",
            "start_time Sun Feb 31 99:99:99 2026\n",
            "<host name='x'>",
            "</host>",
            "[",
            "]",
            "²",
            "٣",
        ),
    ]
)
TEXTS = st.one_of(st.text(), st.lists(st.one_of(PIECES, st.text(max_size=5)), max_size=30).map("".join))


@given(CODES, TEXTS, TEXTS)
def test_no_reader_raises(code: int | None, stdout: str, stderr: str) -> None:
    for dialect in (Pbs(), Torque(), Sge()):
        read_everything(dialect, code, stdout, stderr)


@given(st.data())
def test_no_reader_raises_on_damaged_recordings(data: st.DataObject) -> None:
    case = data.draw(
        st.sampled_from(["qstat-u", "qstat-array-finished-json", "qstat-f-running", "qstat-f-dsv-running"])
    )
    text = recorded("openpbs", case).stdout
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 200)))
    read_everything(PBS, 0, text[:start] + data.draw(st.text(max_size=5)) + text[end:], "")


@pytest.mark.parametrize(
    "case",
    [
        "qstat-array-finished-json",
        "qstat-f-json-deleted-running",
        "qstat-f-json-walltime",
        "qstat-x-f-finished",
        "qstat-f-dsv-running",
    ],
)
def test_a_piece_of_an_answer_says_nothing_else_than_the_whole(case: str) -> None:
    answer = recorded("openpbs", case)
    whole = PBS.read_history(answer, PLAIN)
    body = answer.stdout.rstrip()
    for end in range(0, len(body), max(1, len(body) // 400)):
        piece = PBS.read_history(Answer(0, body[:end], ""), PLAIN)
        assert piece.result != "ok" and set(piece.seen) <= set(whole.seen)
    listed = recorded("openpbs", "qstat-u").stdout
    all_of_it = set(PBS.read_listing(Answer(0, listed, ""), PLAIN).seen)
    for end in range(0, len(listed), max(1, len(listed) // 400)):
        assert set(PBS.read_listing(Answer(0, listed[:end], ""), PLAIN).seen) <= all_of_it


@pytest.mark.parametrize("seed", range(200))
def test_an_answer_whose_lines_are_in_disorder_is_none(seed: int) -> None:
    states = [{"job_state": "F", "Exit_status": n % 3, "substate": 92, "Job_Owner": "me"} for n in range(6)]
    text = document(*({"id": f"{n}.pbs1", **state} for n, state in enumerate(states)))
    lines = text.splitlines(keepends=True)
    random.Random(seed).shuffle(lines)
    assert PBS.read_history(Answer(0, "".join(lines), ""), PLAIN).seen == ()
    broken = text.replace('"me"', '"say "me""')  # in order, and no JSON: nothing is lost
    assert len(PBS.read_history(Answer(0, broken, ""), PLAIN).seen) == 6


@pytest.mark.parametrize("code", [1, 2, 199])
def test_a_connection_that_broke_during_a_submission_leaves_it_open(code: int) -> None:
    assert PBS.read_submit(make(), Answer(code, "", "Connection reset by peer\n")).result == "ambiguous"
    refused = Answer(code, "", "Connection refused\nqsub: cannot connect to server pbs1 (errno=15010), timed out\n")
    assert PBS.read_submit(make(), refused).result != "ambiguous"
