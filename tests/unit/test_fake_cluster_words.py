"""The fake cluster's answers against recordings of real ones, word for word unless they depend on the machine."""

import json
import os
import re
import xml.etree.ElementTree as ET

import pytest

from fake_recordings import HERE, START, Recording, cases, cluster, ends
from recordings import recorded

SYSTEMS = {"slurm": "slurm", "openpbs": "pbs", "torque": "torque", "openlava": "lsf", "gridengine": "sge"}
SLURM_QUEUES = [
    {"name": "main", "default": True, "time_s": None},
    {"name": "short", "default": False, "time_s": 600},
]
SETTINGS = {
    "slurm": {"accounts": ["default"], "queues": SLURM_QUEUES, "max_array": 10001, "memory_mb": 2000, "nodes": 4},
    "pbs": {},
    "torque": {},
    "lsf": {
        "cluster": "openlava",
        "queues": [{"name": "normal", "default": True, "time_s": None}, {"name": "short", "time_s": 60}],
    },
    "sge": {},
}


def plain(text):
    """Without what differs from machine to machine."""
    text = text.replace("/opt/openlava/", "/opt/lsf/")
    return re.sub(r'host "ge1"', 'host "n1"', text)


@pytest.fixture
def scripts(tmp_path):
    for name in ("ok.sh", "long.sh", "fail.sh"):
        (tmp_path / name).write_text("#!/bin/bash\ntrue\n")
    (tmp_path / "noshebang.sh").write_text("true\n")
    return str(tmp_path)


REFUSED = [
    (system, case)
    for system in SYSTEMS
    for case in cases(system, r"(sbatch|qsub|bsub)-(err|rejected|impossible|version).*"
                              r"|.*(unknown|bad-id|unknown-id)(-short)?|.*-(down|field)|squeue-two-unknown|.*-history-off")
    if (system, case) != ("openpbs", "qstat-server-down")  # its empty JSON has the server's version in it
]  # fmt: skip


@pytest.mark.parametrize(("system", "case"), REFUSED)
def test_what_is_refused_is_refused_in_the_same_words(system, case, scripts):
    recording, personality = Recording(system, case), SYSTEMS[system]
    settings = dict(SETTINGS[personality])
    if case.endswith("-history-off"):
        settings["history"] = False
    fake = cluster(personality, directory=scripts, **settings)
    if case.endswith("two-one-unknown"):  # the second one is there
        fake.world.next_number = int(recording.argv[2].partition(".")[0])
        fake.run(["bsub" if system == "openlava" else "qsub", "-h" if system != "openlava" else "-H"], "true\n", START)
    if case.endswith("-down"):
        fake.world.down = "refused"
    code, out, err = fake.run(recording.argv, recording.stdin, START)
    said = re.sub(r'"timestamp":\t\d+', '"timestamp":\t0', plain(out))
    heard = re.sub(r'"timestamp":\t\d+', '"timestamp":\t0', plain(recording.out))
    assert (code, said, plain(err)) == (recording.exit, heard, plain(recording.err))


@pytest.mark.parametrize(("system", "case"), [(s, c) for s in SYSTEMS for c in cases(s, r"(sbatch|qsub|bsub)-ok.*")])
def test_what_is_accepted_is_answered_in_the_same_shape(system, case, scripts):
    recording, personality = Recording(system, case), SYSTEMS[system]
    fake = cluster(personality, directory=scripts, **SETTINGS[personality])
    number = int(re.search(r"\d+", recording.out)[0])
    fake.world.next_number = number
    code, out, err = fake.run(recording.argv, recording.stdin, START)
    assert (code, out, err) == (0, recording.out, "")


# ---- Slurm -----------------------------------------------------------------------------------------------------------

SQUEUE = "%i|%F|%K|%T|%r|%M|%l|%N|%j"


def in_slurm_state(case):
    """A job that has gone the way of the recorded one; its id."""
    kinds = {
        "completed": (0, None),
        "failed-exit3": (3, None),
        "failed-exit137": (137, None),
        "failed-signal9": (None, 9),
    }
    lasts = ends(1.0, *kinds[case]) if case in kinds else ends(1e9)
    fake = cluster("slurm", lasts, nodes=4, queues=SLURM_QUEUES)
    more = {"timeout": ["-t", "1"], "node-fail": ["--no-requeue"], "pending-held-user": ["-H"]}.get(case, [])
    fake.run(["sbatch", "-J", "x", "--mem=50", *more, "-o", "/dev/null", "--wrap", "true"], None, START)
    job = fake.world.jobs[0]
    if case == "out-of-memory":
        fake.world.run_out_of_memory(fake, job)
    elif case == "node-fail":
        fake.world.fail_node(fake, job.nodes[0])
    elif case.startswith("cancelled"):
        fake.run(["scancel", "1"], None, START + 1)
    elif case == "suspended":
        fake.world.suspend(fake, job)
    fake.advance(START + 100)
    return fake


SLURM_CASES = [case.partition("-")[2].removesuffix("-settled") for case in cases("slurm", r"(squeue|sacct)-[a-z].*")]
SLURM_CASES = sorted({case for case in SLURM_CASES if not re.search(r"unknown|bad|down|hung|array|two|err", case)})


@pytest.mark.parametrize("case", SLURM_CASES)
def test_slurm_states_are_told_as_recorded(case):
    fake = in_slurm_state(case)
    for name in cases("slurm", rf"squeue-{case}"):
        heard = Recording("slurm", name).out.strip().split("|")
        said = fake.run(["squeue", "-h", "-t", "all", "-j", "1", "-o", SQUEUE], None, START + 100)[1].strip().split("|")
        assert len(said) == len(heard)
        assert said[3:5] == heard[3:5], name  # state and reason
        assert (said[2], bool(said[7])) == (heard[2], bool(heard[7])), name
    for name in cases("slurm", rf"sacct-{case}(-settled)?"):
        recording = Recording("slurm", name)
        words = [word if not word.isdigit() else "1" for word in recording.argv]
        heard = recording.out.strip().split("|")
        said = fake.run(words, None, START + 100)[1].strip().split("|")
        assert len(said) == len(heard)
        assert said[4:7] == heard[4:7], name  # State, ExitCode, DerivedExitCode
        assert [re.sub(r"\d", "9", text) for text in said[7:10]] == [re.sub(r"\d", "9", text) for text in heard[7:10]]


SLURM_ROWS = {
    "1": "completed",
    "2": "failed-exit3",
    "4": "failed-signal9",
    "6": "out-of-memory",
    "8": "timeout",
    "9": "cancelled-running",
    "13": "suspended",
    "17": "node-fail",
}


def test_slurm_prints_columns_of_fixed_width_as_recorded():
    with open(os.path.join(os.path.dirname(HERE), "slurm", "recorded.jsonl")) as file:
        heard = {case["case"]: case for case in map(json.loads, file)}
    wanted = ["squeue", *heard["own-squeue-all"]["argv"][1:]]
    wanted[wanted.index("root")] = "tester"
    rows = {line[:24].strip(): line for line in heard["own-squeue-all"]["stdout"].splitlines()}
    for native, case in SLURM_ROWS.items():
        fake = in_slurm_state(case)
        head, said = fake.run(wanted, None, START + 100)[1].splitlines()
        assert head == heard["own-squeue-all"]["stdout"].splitlines()[0]
        assert [said[a:b] for a, b in ((24, 58), (130, 194))] == [rows[native][a:b] for a, b in ((24, 58), (130, 194))]
        assert re.sub(r"\d", "9", said[58:78]) == "9999-99-99T99:99:99 "
        assert len(said) == len(rows[native])
    nobody = fake.run([word if word != "tester" else "nosuch" for word in wanted], None, START + 100)
    recorded = heard["own-squeue-nosuch-user"]
    assert nobody == (recorded["exit"], recorded["stdout"], recorded["stderr"])


@pytest.mark.parametrize("case", ["squeue-array-collapsed", "squeue-array-expanded"])
def test_slurm_arrays(case):
    recording = Recording("slurm", case)
    fake = cluster("slurm", nodes=4, first_id=31)
    fake.run(["sbatch", "-J", "arr", "-a", "1-9%2", "--wrap", "true"], None, START)
    said = fake.run(recording.argv, None, START + 3)[1].splitlines()

    def comparable(lines):
        return {tuple(line.split("|")[:3]) + tuple(line.split("|")[4:6]) for line in lines}

    assert comparable(said) == comparable(recording.out.splitlines())
    raw = [line.split("|")[3] for line in said if "RUNNING" in line]
    assert len(set(raw)) == 2 and "31" not in raw


@pytest.mark.parametrize("case", ["running", "completed"])
def test_scontrol_shows_the_same_lines_and_fields(case):
    heard = Recording("slurm", f"scontrol-show-job-{case}").out
    fake = cluster("slurm", ends(1.0) if case == "completed" else ends(1e9), nodes=4)
    fake.run(["sbatch", "-J", "x", "--mem=50", "--wrap", "true"], None, START)
    said = fake.run(["scontrol", "show", "job", "1"], None, START + 10)[1]

    def names(text):
        return [re.findall(r"(\S+?)=", line)[:1] for line in text.splitlines()]

    assert names(said) == names(heard)
    assert said.endswith("   Power=\n   \n\n") and heard.endswith("   Power=\n   \n\n")


def test_every_native_state_can_be_shown():
    for personality in ("slurm", "pbs", "torque", "lsf", "sge"):
        fake = cluster(personality)
        submit = {
            "slurm": ["sbatch", "--wrap", "true"],
            "lsf": ["bsub", "true"],
        }.get(personality, ["qsub", "-N", "x"])
        fake.run(submit, "#!/bin/sh\ntrue\n", START)
        from rota.testing.fake_cluster.personality import native

        names = native(fake.world)
        for code in names.STATES:
            fake.world.jobs[0].forced = code
            listing = {
                "slurm": ["squeue", "-h", "-t", "all", "-o", "%i|%t"],
                "pbs": ["qstat", "-x"],
                "torque": ["qstat"],
                "lsf": ["bjobs", "-noheader", "-a", "-o", "jobid stat delimiter='|'"],
                "sge": ["qstat", "-xml", "-u", "*"],
            }[personality]
            status, out, err = fake.run(listing, None, START + 1)
            assert status == 0, (personality, code, err)
            assert re.search(rf"(?<![A-Za-z]){code}(?![A-Za-z])", out), (personality, code, out)


def test_slurm_prints_named_fields_with_a_header():
    """As seen of a running 22.05: EXIT_CODE is the status of wait(2), and a header is cut to its width."""
    fake = in_slurm_state("failed-exit3")
    words = ["squeue", "-r", "-t", "all", "-O", "JobArrayID:8,State:8,exit_code:10,RestartCnt:8,BatchHost:6"]
    assert fake.run(words, None, START + 100)[1] == (
        "JOBID   STATE   EXIT_CODE RESTART_EXEC_H\n1       FAILED  768       0       n1    \n"
    )
    assert fake.run([*words, "-u", "nobody"], None, START + 100)[1].count("\n") == 1
    assert fake.run(["scancel", "-f", "-s", "KILL", "1", "99"], None, START + 100) == (
        1,
        "",
        "scancel: error: Kill job error on job id 1: Invalid job id specified\n"
        "scancel: error: Kill job error on job id 99: Invalid job id specified\n",
    )


# ---- OpenPBS ---------------------------------------------------------------------------------------------------------


def pbs_end(fake, case):
    job = fake.world.jobs[0]
    if case in ("deleted-running", "deleted-held"):
        fake.run(["qdel", "0"], None, START + 2)
    elif case == "memory":
        fake.world.run_out_of_memory(fake, job)
    elif case == "node-fail":
        fake.world.fail_node(fake, job.nodes[0])
    elif case == "suspended":
        fake.world.suspend(fake, job)


ENDINGS = {"finished-exit3": (3, None), "completed-exit3": (3, None), "finished-signal9": (None, 9),
           "completed-signal9": (None, 9)}  # fmt: skip


def pbs_cluster(personality, case):
    fake = cluster(personality, ends(1.0, *ENDINGS[case]) if case in ENDINGS else ends(1e9), first_id=0)
    more = {"walltime": ["-l", "walltime=3"], "held": ["-h"], "deleted-held": ["-h"], "node-fail": ["-r", "n"]}
    fake.run(["qsub", "-N", "x", *more.get(case, [])], "#!/bin/sh\ntrue\n", START)
    pbs_end(fake, case)
    fake.advance(START + 20)
    return fake


@pytest.mark.parametrize("case", [name[13:] for name in cases("openpbs", r"qstat-f-json-.*")])
def test_openpbs_records_have_the_same_fields(case):
    heard = next(iter(json.loads(Recording("openpbs", f"qstat-f-json-{case}").out)["Jobs"].values()))
    fake = pbs_cluster("pbs", case)
    code, out, _ = fake.run(["qstat", "-x", "-f", "-F", "json", "0"], None, START + 20)
    said = json.loads(out)["Jobs"]["0.pbs1"]
    assert code == 0
    for name in ("job_state", "Exit_status", "Hold_Types"):
        assert said.get(name) == heard.get(name), name
    if heard["job_state"] != "R":
        assert said["substate"] == heard["substate"]
    # jobdir, session_id and depend belong to the machine and to other jobs
    ours = [
        name for name in said if name not in ("jobdir", "session_id", "resources_used", "comment", "Stageout_status")
    ]
    theirs = [name for name in heard if name in ours]
    assert [name for name in ours if name in heard] == theirs
    assert set(heard) - set(said) <= {"jobdir", "session_id", "depend", "resources_used", "comment", "etime",
                                      "Stageout_status", "executable", "argument_list"}  # fmt: skip


def test_openpbs_prints_tables_and_text_as_recorded():
    recording = Recording("openpbs", "qstat-default")
    fake = cluster("pbs", nodes=2, first_id=17)
    fake.run(["qsub", "-N", "run"], "#!/bin/sh\ntrue\n", START)
    head = recording.out.splitlines()[:2]
    line = next(line for line in recording.out.splitlines() if line.startswith("17."))
    said = fake.run(["qstat"], None, START + 1)[1].splitlines()
    assert said[:2] == head
    assert said[2] == line.replace("       0 R", "00:00:00 R")
    text = fake.run(["qstat", "-f", "17"], None, START + 1)[1].splitlines()
    heard = Recording("openpbs", "qstat-f-running").out.splitlines()
    assert text[:3] == heard[:3]
    assert {line.split(" = ")[0] for line in heard if " = " in line} - {line.split(" = ")[0] for line in text} == {
        "    depend"
    }


def test_openpbs_arrays_have_parents_and_elements():
    recording = Recording("openpbs", "qstat-array-t")
    fake = cluster("pbs", nodes=1, first_id=6)
    fake.run(["qsub", "-N", "arr", "-J", "1-4", "-l", "select=1:ncpus=4"], "#!/bin/sh\ntrue\n", START)
    said = fake.run(recording.argv, None, START + 1)[1]

    def comparable(text):
        return [(line.split()[0], line.split()[-2]) for line in text.splitlines()[2:]]

    assert comparable(said) == comparable(recording.out)


def waiting_pbs():
    """Two arrays and a job, all of which wait."""
    fake = cluster("pbs", nodes=1, first_id=6, latency_s=900)
    for more in (("-J", "1-9"), ("-J", "1-9"), ()):
        fake.run(["qsub", "-N", "arr", *more], "#!/bin/sh\ntrue\n", START)
    return fake


@pytest.mark.parametrize(
    ("ids", "deleted"),
    [
        (["6[1]", "6[2]", "6[4]"], {"6[1]", "6[2]", "6[4]"}),
        (["6[1]", "6[3]", "6[5]", "6[7]", "6[8]"], {"6[1]", "6[3]"}),
        (["6[2-4]"], {"6[2]", "6[3]", "6[4]"}),
        (["99", "8"], {"8"}),
    ],
)
def test_openpbs_deletes_the_first_two_ranges_of_an_array(ids, deleted):
    fake = waiting_pbs()
    fake.run(["qdel", *ids], None, START + 1)
    assert fake.world.down is None
    over = [(fake.world.of(job), job) for job in fake.world.jobs if job.state == "over"]
    assert {f"{whole.number}[{job.index}]" if whole.array else str(whole.number) for whole, job in over} == deleted


@pytest.mark.parametrize("ids", [["8", "99"], ["6[1]", "7[1]"], ["6[1]", "6[2]", "7[1]"]])
def test_the_server_of_openpbs_dies_of_a_list_that_goes_on_behind_the_last_that_it_noted(ids):
    fake = waiting_pbs()
    assert fake.run(["qdel", *ids], None, START + 1) == (0, "", "")
    assert fake.run(["qstat"], None, START + 2)[0] == 255


def test_openpbs_shows_the_record_of_the_array_for_an_element_that_never_ran():
    """As recorded of 23.06: with an exit status, though it waits."""
    heard = json.loads(recorded("openpbs", "qstat-array-t-after-qdel").stdout)["Jobs"]["6[4].pbs1"]
    fake = cluster("pbs", nodes=1, first_id=6)
    fake.run(["qsub", "-N", "arr", "-J", "1-4", "-l", "select=1:ncpus=4"], "#!/bin/sh\ntrue\n", START)
    fake.run(["qdel", "6[1]"], None, START + 1)
    fake.advance(START + 60)

    def said(element, now):
        out = fake.run(["qstat", "-x", "-f", "-F", "json", f"6[{element}]"], None, now)[1]
        return json.loads(out)["Jobs"][f"6[{element}].pbs1"]

    waiting = said(4, START + 60)
    assert waiting["job_state"] == "Q" and waiting["Exit_status"] == heard["Exit_status"] == 1
    assert "array_index" not in waiting and set(heard) - set(waiting) <= {"etime", "comment"}
    fake.run(["qdel", "6[4]"], None, START + 61)
    assert said(4, START + 61)["job_state"] == "X" and "Exit_status" in said(4, START + 61)
    assert said(1, START + 61)["array_index"] == 1


# ---- TORQUE ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", [name[9:] for name in cases("torque", r"qstat-f1-.*")])
def test_torque_records_have_the_same_fields(case):
    heard = dict(
        line.strip().split(" = ", 1)
        for line in Recording("torque", f"qstat-f1-{case}").out.splitlines()
        if " = " in line
    )
    fake = pbs_cluster("torque", case)
    code, out, _ = fake.run(["qstat", "-f", "-1", "0"], None, START + 20)
    said = dict(line.strip().split(" = ", 1) for line in out.splitlines() if " = " in line)
    assert code == 0 and out.startswith("Job Id: 0.trq1\n") and out.endswith("\n\n")
    for name in ("job_state", "exit_status", "Hold_Types"):
        assert said.get(name) == heard.get(name), name
    assert set(heard) - set(said) <= {"depend", "etime", "session_id", "comment", "Walltime.Remaining", "start_count",
                                      "exec_host", "start_time", "x"} or case == "suspended"  # fmt: skip
    assert set(said) - set(heard) <= {"etime", "Walltime.Remaining", "Resource_List.walltime", "comment"}


def test_torque_prints_xml_and_tables_as_recorded():
    heard = ET.fromstring(Recording("torque", "qstat-xml-completed-exit3").out)
    fake = pbs_cluster("torque", "completed-exit3")
    said = ET.fromstring(fake.run(["qstat", "-x"], None, START + 20)[1])
    assert [each.tag for each in said[0]] == [each.tag for each in heard[0]]
    table = fake.run(["qstat"], None, START + 20)[1].splitlines()
    recorded = Recording("torque", "qstat-default").out.splitlines()
    assert table[:2] == recorded[:2]
    completed = next(line for line in recorded if line.startswith("16."))
    assert re.sub(r"^\S+\s+x   ", "", table[2]) == re.sub(r"^\S+\s+fail", "", completed)


def test_torque_prints_the_table_of_a_user_as_recorded():
    recording = Recording("torque", "qstat-u")
    fake = cluster("torque", first_id=3)
    fake.run(["qsub", "-N", "mem", "-l", "mem=100mb"], "true\n", START)
    fake.run(["qsub", "-N", "vmem"], "true\n", START)
    said = fake.run(["qstat", "-u", "tester"], None, START + 2)[1].splitlines()
    heard = recording.out.splitlines()
    assert said[:5] == heard[:5]
    first = next(line for line in heard if line.startswith("1.trq1"))
    mine = said[6].replace("4.trq1", "1.trq1").replace("vmem       ", "noderequeue")
    assert mine.replace("20148", "20039") == first
    assert said[5][82:92] == next(line for line in heard if line.startswith("3.trq1"))[82:92]


# ---- LSF -------------------------------------------------------------------------------------------------------------


def lsf_cluster(**settings):
    """101 runs, 102 is done, 103 ended with 3, 104 was killed, 105 used too much memory, 106 too much time."""
    endings = {"done": (1.0, 0, None), "fail": (1.0, 3, None)}
    fake = cluster(
        "lsf", lambda submission, job: endings.get(submission.name, (1e9, 0, None)), first_id=101, nodes=2, **settings
    )
    for name in ("run", "done", "fail", "killed", "memory", "time"):
        more = ["-W", "1"] if name == "time" else []
        fake.run(["bsub", "-J", name, *more, "true"], None, START)
    fake.run(["bkill", "104"], None, START + 1)
    fake.world.run_out_of_memory(fake, fake.world.jobs[4])
    fake.advance(START + 100)
    return fake


@pytest.mark.parametrize("case", cases("lsf-documented", r"bjobs-o-.*"))
def test_lsf_formats_as_documented(case):
    recording = Recording("lsf-documented", case)
    fake = lsf_cluster()
    if case == "bjobs-o-json-empty":
        fake = cluster("lsf")
    if case == "bjobs-o-json-array":
        spans = {1: (1.0, 0, None)}
        fake = cluster("lsf", lambda submission, job: spans.get(job.index, (1e9, 0, None)), first_id=107, cores=1)
        fake.run(["bsub", "-J", "arr[1-3]", "true"], None, START)
    code, out, err = fake.run(recording.argv, None, START + 100)
    hosts = re.compile(r"\bn[12]\b")
    assert (code, hosts.sub("n", out), err) == (recording.exit, hosts.sub("n", recording.out), recording.err)


def test_openlava_lists_as_recorded():
    fake = cluster("lsf", cluster="openlava", nodes=2, first_id=124)
    fake.run(["bsub", "-J", "run", "true"], None, START)
    heard = Recording("openlava", "bjobs-aw-running").out.splitlines()
    said = fake.run(["bjobs", "-a", "-w", "124"], None, START + 1)[1].splitlines()
    assert said[0] == heard[0]
    assert [len(word) > 0 for word in said[1].split()] == [len(word) > 0 for word in heard[1].split()]
    assert said[1].split()[:4] == heard[1].split()[:4] and said[1].split()[6] == "run"
    assert fake.run(["bjobs", "-o", "jobid"], None, START + 1)[0] == 255


@pytest.mark.parametrize(("case", "code"), [("bhist-l-done", 0), ("bhist-l-exit3", 3)])
def test_history_has_the_same_events(case, code):
    heard = Recording("openlava", case).out
    fake = cluster("lsf", ends(1.0, code), cluster="openlava")
    fake.run(["bsub", "-J", "fail", "exit 3"], None, START)
    said = fake.run(["bhist", "-l", "1"], None, START + 5)[1]

    def events(text):
        found = [
            line[21:].split()[0].rstrip(".;") for line in text.splitlines() if re.match(r"\w{3} \w{3} .\d \S+: ", line)
        ]
        return [event for event in found if event != "Post"]

    assert events(said) == events(heard)
    assert said.splitlines()[-4:-1] == [
        line for line in said.splitlines() if "PEND" in line or "Summary" in line or re.match(r"  \d", line)
    ]


# ---- Grid Engine -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", cases("gridengine", r"qacct-(ok|exit3|signal9|h_rt|deleted-running)"))
def test_gridengine_accounts_as_recorded(case):
    kinds = {"qacct-ok": (1.0, 0, None), "qacct-exit3": (1.0, 3, None), "qacct-signal9": (1.0, None, 9)}
    fake = cluster("sge", lambda submission, job: kinds.get(case, (1e9, 0, None)))
    more = ["-l", "h_rt=3"] if case == "qacct-h_rt" else []
    fake.run(["qsub", "-N", "x", *more], "#!/bin/sh\ntrue\n", START)
    if case == "qacct-deleted-running":
        fake.run(["qdel", "1"], None, START + 1)

    def rows(text):
        return dict(line.split(None, 1) for line in text.splitlines()[1:])

    said = rows(fake.run(["qacct", "-j", "1"], None, START + 30)[1])
    heard = rows(Recording("gridengine", case).out)
    for name in ("failed", "exit_status", "taskid", "category", "project"):
        assert said[name].rstrip() == heard[name].rstrip(), name
    assert [name for name in heard if name in said] == list(said)


def test_gridengine_lists_as_recorded():
    heard = ET.fromstring(Recording("gridengine", "qstat-xml-running").out)
    fake = cluster("sge", first_id=6, cores=2)
    fake.run(["qsub", "-N", "arr", "-t", "1-6"], "#!/bin/sh\ntrue\n", START)
    fake.run(["qsub", "-N", "held", "-h"], "#!/bin/sh\ntrue\n", START)
    said = ET.fromstring(fake.run(["qstat", "-xml", "-u", "tester"], None, START + 1)[1])

    def shapes(tree):
        return {(entry.get("state"), tuple(each.tag for each in entry)) for entry in tree.iter("job_list")}

    assert shapes(said) <= shapes(heard)
    assert [(each.findtext("state"), each.findtext("tasks")) for each in said.iter("job_list")] == [
        ("r", "1"),
        ("r", "2"),
        ("qw", "3-6:1"),
        ("hqw", None),
    ]
    text = fake.run(["qstat"], None, START + 1)[1].splitlines()
    recorded = Recording("gridengine", "qstat-default").out.splitlines()
    assert text[:2] == recorded[:2]
    varies = r"\d\.\d+|\d+/\d+/\d+ \S+|all.q@\S+ *"
    assert len(text[2]) == len(recorded[2])
    assert re.sub(varies, "#", text[2]) == re.sub(varies, "#", recorded[2]).replace(" 4", " 1")


@pytest.mark.parametrize(("code", "state"), [(99, "Rr"), (100, "Eqw")])
def test_gridengine_takes_two_exit_statuses_for_itself(code, state):
    fake = cluster("sge", lambda submission, job: (1.0, code, None) if not job.restarts else (1e9, 0, None))
    fake.run(["qsub", "-N", "x"], "#!/bin/sh\ntrue\n", START)
    fake.advance(START + 5)
    assert f"<state>{state}</state>" in fake.run(["qstat", "-xml"], None, START + 5)[1]


@pytest.mark.parametrize("case", cases("gridengine", r"qdel-(pending|running|again|array-task)"))
def test_gridengine_deletes_in_the_same_words(case):
    recording = Recording("gridengine", case)
    number = int(recording.argv[1])
    fake = cluster("sge", first_id=number)
    fake.run(["qsub", "-N", "x", *(["-h"] if "pending" in case else []), *(["-t", "1-6"] if "task" in case else [])],
             "#!/bin/sh\ntrue\n", START)  # fmt: skip
    if case == "qdel-array-task":
        fake.world.settings["cores"] = 8
        fake.advance(START + 1)
    if case == "qdel-again":
        fake.world.jobs[0].state = "ending"
    code, out, err = fake.run(recording.argv, None, START + 1)
    assert (code, out, err) == (recording.exit, recording.out, recording.err)
