"""QCG's requests: every rule of its format, and what breaks one is named by its path."""

import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.model.errors import UsageError
from rota.qcg.files import check_requests, read_file
from rota.qcg.requests import Iteration, Size, WrongRequestError, read_request, request_variables
from rota.qcg.translating import Room, make_submission, too_large, translate

ROOM = Room((4, 4), "/usr")
VARIABLES = request_variables(7, datetime.datetime(2026, 1, 2, 3, 4, 5))


def job(**more: Any) -> dict[str, Any]:
    return {"name": "a", "execution": {"exec": "true"}, **more}


def submit(*jobs: Any) -> Any:
    return read_request({"request": "submit", "jobs": list(jobs)}, VARIABLES)


def size(given: Any, **more: Any) -> Size:
    found = submit(job(resources={"numCores": given}, **more)).jobs[0].cores
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("description", "said"),
    [
        (7, "jobs[0]: a job must be an object, not a number"),
        ({"execution": {"exec": "true"}}, "jobs[0].name: is missing"),
        (job(name="a:b"), "jobs[0].name: 'a:b': a name must have no ':'"),
        (job(name="a b"), "jobs[0].name: 'a b' has ' ', or an unknown variable"),
        (job(name="a${nope}"), "jobs[0].name: 'a${nope}' has '$'"),
        ({"name": "a"}, "jobs[0].execution: is missing"),
        (job(options={}), "jobs[0].options: is unknown; there are name, execution"),
        (job(execution={}), "jobs[0].execution: has neither exec nor script"),
        (job(execution={"exec": "x", "script": "y"}), "jobs[0].execution.script: cannot be given with exec"),
        (job(execution={"script": "y", "env": {"A": "1"}}), "jobs[0].execution.script: cannot be given with exec"),
        (job(execution={"exec": "x", "args": "y"}), "jobs[0].execution.args: must be a list, not a string"),
        (job(execution={"exec": "x", "args": [[]]}), "jobs[0].execution.args[0]: must be a word, not a list"),
        (job(execution={"exec": "x", "env": []}), "jobs[0].execution.env: must be an object, not a list"),
        (job(execution={"exec": "x", "model": "pvm"}), "jobs[0].execution.model: 'pvm' is unknown"),
        (job(execution={"exec": "x", "model_opts": 1}), "jobs[0].execution.model_opts: must be an object"),
        (job(execution={"exec": "x", "cwd": "/"}), "jobs[0].execution.cwd: is unknown"),
        (job(execution={"exec": 7}), "jobs[0].execution.exec: must be a string, not a number"),
        (job(resources={}), "jobs[0].resources: has neither numCores nor numNodes"),
        (job(resources={"numCores": "2"}), "jobs[0].resources.numCores: must be a number or an object"),
        (job(resources={"numCores": -1}), "jobs[0].resources.numCores.exact: must be a whole number from 0, not -1"),
        (job(resources={"numCores": {"min": 3, "max": 2}}), "min is 3, and max 2: min must not be above max"),
        (job(resources={"numCores": {"exact": 3, "max": 2}}), "exact cannot be given with min, max or scheduler"),
        (job(resources={"numCores": {}}), "jobs[0].resources.numCores: has none of exact, min, max"),
        (job(resources={"numCores": 1, "wt": "0s"}), "jobs[0].resources.wt: '0s' is no time above 0"),
        (job(resources={"numCores": 1, "wt": "soon"}), "jobs[0].resources.wt: 'soon' is no time above 0"),
        (job(resources={"numCores": 1, "nodeCrs": {"gpu": 1}}), "jobs[0].resources.nodeCrs: is per node"),
        (job(resources={"numNodes": 1, "nodeCrs": {"fpga": 1}}), "nodeCrs.fpga: is unknown; there are gpu and mem"),
        (job(resources={"numNodes": 1, "nodeCrs": {"GPU": 0}}), "nodeCrs.GPU: must be a number of at least 1, not 0"),
        (job(iteration=3), "jobs[0].iteration: must be an object, not a number"),
        (job(iteration={"start": 1}), "jobs[0].iteration: must have either stop or values"),
        (job(iteration={"stop": 2, "values": [1]}), "jobs[0].iteration: must have either stop or values"),
        (job(iteration={"start": 2, "stop": 2}), "start is 2, and stop 2: start must be below stop"),
        (job(iteration={"values": []}), "jobs[0].iteration.values: must be a list of at least one value"),
        (job(dependencies={"before": []}), "jobs[0].dependencies.before: is unknown; there are after"),
        (job(attributes=[]), "jobs[0].attributes: must be an object, not a list"),
        (
            job(
                resources={"numCores": {"min": 1, "max": 2, "scheduler": {"name": "split-into"}}}, iteration={"stop": 2}
            ),
            "max cannot be given with a scheduler",
        ),
        (
            job(resources={"numCores": {"scheduler": {"name": "best"}}}, iteration={"stop": 2}),
            "numCores.scheduler.name: 'best' is unknown; the schedulers are maximum-iters and split-into",
        ),
        (job(resources={"numCores": {"scheduler": {"name": "split-into"}}}), "divides among iterations"),
    ],
)
def test_what_breaks_a_rule_is_named_by_its_path(description: Any, said: str) -> None:
    with pytest.raises(WrongRequestError) as error:
        submit(description)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        ([], "a request must be an object, not a list"),
        ({}, "request: is missing; the requests are submit, listJobs"),
        ({"request": "dance"}, "request: 'dance' is unknown"),
        ({"request": "register"}, "'register' is for QCG's governor"),
        ({"request": "submit"}, "jobs: must be a list of at least one job"),
        ({"request": "jobStatus", "jobNames": []}, "jobNames: must be a list of at least one name"),
        ({"request": "cancelJob", "jobNames": [3]}, "jobNames[0]: must be a string, not a number"),
        ({"request": "control", "command": "go"}, "command: must be 'finishAfterAllTasksDone'"),
        ({"request": "submit", "jobs": [job(), job()]}, "jobs[1].name: 'a' is the name of jobs[0] too"),
    ],
)
def test_wrong_requests_are_named_too(request_: Any, said: str) -> None:
    with pytest.raises(WrongRequestError) as error:
        read_request(request_, VARIABLES)
    assert said in str(error.value)


def test_sizes_in_every_combination() -> None:
    assert size(3) == size({"exact": 3}) == Size(3, 3)
    assert size({"min": 2, "max": 5}) == Size(2, 5)
    assert size({"min": 2}) == Size(2, None), "min alone: as much as there is"
    assert size({"max": 5}) == Size(1, 5), "max alone: from one on"
    shared = {"min": 2, "scheduler": {"name": "Split-Into", "params": {"parts": 3}}}
    assert size(shared, iteration={"stop": 4}) == Size(2, None, "split-into", 3)
    assert submit(job()).jobs[0].cores == Size(1, 1)
    read = submit(job(resources={"numNodes": {"max": 2}, "wt": "1h2m3s", "nodeCrs": {"GPU": 2, "mem": 10}})).jobs[0]
    assert (read.cores, read.nodes, read.time_s, read.gpus, read.memory_mb) == (None, Size(1, 2), 3723, 2, 10)


@pytest.mark.parametrize("name", ["split-into", "maximum-iters"])
def test_the_wall_time_survives_what_a_scheduler_makes_of_the_size(name: str) -> None:
    resources = {"numCores": {"min": 1, "scheduler": {"name": name}}, "wt": "90s"}
    made = translate(submit(job(resources=resources, iteration={"stop": 3})).jobs, ROOM, lambda _: None)
    assert {template.needs.time_s for template in made.templates} == {90}


def test_what_asks_for_too_much_is_refused_or_named_to_fail() -> None:
    jobs = submit(job(resources={"numCores": 9}), job(name="b", resources={"numCores": 8})).jobs
    with pytest.raises(WrongRequestError, match="Not enough resources for job a: 9 cores"):
        translate(jobs, ROOM, lambda _: None)
    assert too_large(jobs, ROOM) == {}
    fail = too_large(jobs, ROOM._replace(too_large="fail"))
    assert list(fail) == ["a"] and "the allocation has 2 nodes and 8 cores" in fail["a"]


def test_iterations() -> None:
    assert submit(job(iteration={"start": 3, "stop": 5})).jobs[0].iteration == Iteration(3, 2)
    read = submit(job(iteration={"values": ["x", 2]})).jobs[0].iteration
    assert read == Iteration(0, 2, ("x", "2"))


def test_variables_of_both_passes() -> None:
    args = ["${rcnt}", "${sname}", "${jname}", "${it}=${itval}", "${root_wd}", "${ncores}", "$HOME", "${other}"]
    description = job(
        name="j${rcnt}",
        execution={"exec": "echo", "args": args, "wd": "d/${jname}", "stdout": "${it}.out", "env": {"V": "${itval}"}},
        iteration={"values": ["x", "y"]},
    )
    made = translate(submit(description).jobs, ROOM, lambda _: None)
    assert made.values[1] == {
        "command": ["echo", "7", "local", "j7", "1=y", "/usr", "1", "$HOME", "${other}"],
        "cwd": "/usr/d/j7",
        "env": {"V": "y"},
        "stdout": "/usr/d/j7/1.out",
    }
    assert [line.id for line in made.lines] == ["j7:0", "j7:1"]


def test_what_is_known_only_at_the_start_is_put_in_by_a_shell_then() -> None:
    execution = {"exec": "run", "args": ["-n", "${ncores}", "on ${nlist}"]}
    resources = {"numNodes": 2, "numCores": {"min": 1, "max": 2}}
    (value,) = translate(submit(job(execution=execution, resources=resources)).jobs, ROOM, lambda _: None).values
    assert value["command"][:2] == ["bash", "-c"]
    assert "$QCG_PM_NPROCS" in value["command"][2]
    assert value["command"][3:] == ["bash", "run", "-n", "${ncores}", "on ${nlist}"]
    execution = {"exec": "run", "stdout": "${nlist}"}
    with pytest.raises(WrongRequestError, match=r"stdout: \$\{nlist\} is known only when the job starts"):
        translate(submit(job(execution=execution)).jobs, ROOM, lambda _: None)


@pytest.mark.parametrize(
    "resources",
    [{"numCores": 9}, {"numNodes": 3}, {"numNodes": 2, "numCores": 5}, {"numNodes": {"min": 3}}],
)
def test_what_never_fits_is_refused_with_the_numbers(resources: Any) -> None:
    with pytest.raises(WrongRequestError, match=r"Not enough resources for job a: .*has 2 nodes and 8 cores"):
        translate(submit(job(resources=resources)).jobs, ROOM, lambda _: None)


def test_chains_of_iterations_and_of_whole_jobs_become_links() -> None:
    first = job(iteration={"stop": 2})
    second = job(name="b", iteration={"stop": 2}, dependencies={"after": ["a:${it}"]})
    third = job(name="c", dependencies={"after": ["b", "before"]})
    made = translate(submit(first, second, third).jobs, ROOM, lambda word: "3.1-4" if word == "before" else None)
    assert [line.after for line in made.lines] == [None, None, ("a:0",), ("a:1",), ("@b", "3.1-4")]
    requests = list(make_submission("qcg-1", made).requests())
    assert requests[-1]["graph"]["names"] == ["a", "b", "c"]
    assert [dependency["target"] for dependency in requests[-1]["graph"]["after"]] == ["3.1-4"]


def test_a_file_is_checked_as_a_whole(tmp_path: Any) -> None:
    path = tmp_path / "f.json"
    path.write_text('{"request": "submit"}')
    with pytest.raises(UsageError, match=r"f.json: the file must be a JSON list of requests"):
        read_file(str(path))
    path.write_text('[{"request": "submit", "jobs": [}]')
    with pytest.raises(UsageError, match=r"f.json: it is not JSON: .*byte 32"):
        read_file(str(path))
    path.write_text("[" * 10_000 + "]" * 10_000)
    with pytest.raises(UsageError, match="nested too deeply"):
        read_file(str(path))
    data = [{"request": "submit", "jobs": [job()]}, {"request": "submit", "jobs": [job(name="b"), job()]}]
    with pytest.raises(UsageError, match=r"f.json: \[1\].jobs\[1\].name: 'a' is the name of \[0\].jobs\[0\] too"):
        check_requests("f.json", data, ROOM)


_anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)
_keys = ["name", "execution", "resources", "iteration", "dependencies", "attributes"]


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(_keys, _anything)))
def test_whatever_comes_is_read_or_refused(description: Any) -> None:
    try:
        submit({**job(), **description})
    except WrongRequestError as error:
        assert str(error).startswith("jobs[0]")
