"""The Python API against a real manager."""

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import rota as package
from rota.manager.daemon import runs
from rota.model.errors import NotFoundError, UsageError
from rota.wire.client import NoManagerError

sys.path.insert(0, str(Path(__file__).parent))
from cli_support import rota_home, until


@pytest.fixture(scope="module")
def rota():
    with rota_home() as rota:
        rota("up")
        yield rota


@pytest.fixture
def client(rota):
    with package.Client(str(rota.home)) as client:
        yield client


def test_one_job(client):
    batch = client.submit("echo hello", name="one")
    assert batch.wait(60) and batch.size == len(batch) == 1 and batch.name == "one"
    (job,) = batch.jobs()
    assert job.ok and job.settled and job.exit_code == 0 and job.id == f"{batch.id}.1" and job.log() == "hello\n"
    assert repr(job) == f"<Job {batch.id}.1 COMPLETED>"
    assert batch.counts() == {"COMPLETED": 1} and batch.status()["jobs"] == 1
    assert client.batch(batch.id).name == "one"
    assert client.wait(batch) and client.wait([batch, job], 60), "what was given back is taken again"
    assert [each.id for each in client.jobs(job)] == [job.id]


def test_values_params_lines_and_arrays(client):
    made = [
        client.submit(["echo", "{}"], values=["a b", "c"]),
        client.submit("echo {x}-{y}", params={"x": ["1", "2"], "y": ["u"]}),
        client.submit(lines=["echo l1", {"command": ["echo", "l 2"], "env": {"A": "1"}, "cores": 1}]),
        client.submit("echo {index}", array=range(3, 8, 2)),
    ]
    assert client.wait([batch.id for batch in made], 60)
    printed = [[job.log().strip() for job in batch.jobs()] for batch in made]
    assert printed == [["a b", "c"], ["1-u", "2-u"], ["l1", "l 2"], ["3", "5", "7"]]


def test_failures(client):
    batch = client.submit("echo bad >&2; exit {}", values=["0", "4"])
    assert batch.wait(60) is False
    (job,) = batch.jobs("failed")
    assert job.exit_code == 4 and job.log(stderr=True) == "bad\n"
    assert batch.summary()["failures"][0]["stderr_tail"] == "bad\n"
    assert batch.retry() == 1 and batch.wait(60) is False
    assert batch.job(2).attempt == 2


def test_as_completed_gives_every_job_once(client):
    batch = client.submit("sleep 0.{index}", array="1-3")
    assert sorted(job.id for job in batch.as_completed()) == [f"{batch.id}.{number}" for number in (1, 2, 3)]
    assert len(list(batch.as_completed())) == 3, "also when all is over"


def test_hold_release_kill_remove(client):
    batch = client.submit("true", not_before="+1h")
    assert batch.hold() == 1 and batch.release() == 1 and batch.kill() == 1
    assert batch.wait(60) is False and batch.counts() == {"ABORTED": 1}
    assert batch.remove() == 1


def test_a_timeout_is_a_timeout(client):
    batch = client.submit("sleep 60")
    with pytest.raises(TimeoutError):
        batch.wait(0.1)
    assert client.explain(f"{batch.id}.1")["state"] in ("PENDING", "STARTING", "RUNNING")
    batch.kill()


def test_errors_are_of_their_class(client, tmp_path):
    with pytest.raises(UsageError, match="nothing uses the values"):
        client.submit("echo", values=["a"])
    with pytest.raises(TypeError):
        client.submit("echo", core=3)
    with pytest.raises(NotFoundError):
        client.log("999999.1")
    with pytest.raises(NoManagerError):
        package.Client(str(tmp_path / "none"), start=False)


def test_what_the_command_line_can_do(client, tmp_path):
    """History, search, what was learned, pauses, backups and pruning; and the same names with asyncio."""
    batch = client.submit("exit 9", name="doomed", group="doom")
    assert batch.wait(60) is False
    (attempt,) = client.history("@doomed", exit_code=9)
    assert (attempt["id"], attempt["state"]) == (f"{batch.id}.1", "FAILED")
    assert [job.id for job in client.jobs(command="exit 9", since=1.0)] == [f"{batch.id}.1"]
    assert not list(client.jobs(command="no such thing")) and not list(client.history(batch.id, exit_code=3))
    assert batch.retry(command="true") == 1 and batch.wait(60)
    assert "doom" in [row["group"] for row in client.learned()]
    assert client.pause("test", "why not")["pauses"][0]["as"] == "test"
    assert batch.modify(priority=7) == 0 and client.resume("nobody")["state"] == "paused"
    assert client.resume("test")["state"] == "serving"
    path = client.backup(str(tmp_path / "copy.db"))
    assert Path(path).stat().st_size > 0
    assert client.prune(batch.id, older_than="1h") == 0
    assert client.prune("@doomed") == 1
    with pytest.raises(NotFoundError, match="was pruned"):
        batch.counts()
    for sync, other in ((package.Client, package.aio.Client), (package.Batch, package.aio.Batch)):
        assert {n for n in dir(sync) if n[0] != "_"} - {"manager"} == {n for n in dir(other) if n[0] != "_"}


def test_many_values_are_staged(client):
    batch = client.submit("echo {}", values=[str(number) for number in range(50_000)], not_before="+1h")
    assert batch.size == 50_000 and batch.job(50_000).command == "echo 49999"
    assert batch.kill() == 50_000


def test_several_threads_share_a_client(client):
    found = {}

    def work(number):
        batch = client.submit(f"echo {number}")
        batch.wait(60)
        found[number] = batch.job(1).log()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: f"{number}\n" for number in range(5)}


def test_a_client_finds_a_manager_that_was_restarted(rota):
    with package.Client(str(rota.home)) as client:
        batch = client.submit("echo kept")
        batch.wait(60)
        rota("down")
        rota("up")
        assert batch.counts() == {"COMPLETED": 1} and client.submit("true").wait(60)


def test_asyncio(rota):
    async def work():
        async with package.aio.Client(str(rota.home)) as client:
            go = rota.cwd / "go-on"
            command = f"test {{}} = quick || until [ -e {go} ]; do sleep 0.05; done; echo {{}}"
            first, second = await asyncio.gather(
                client.submit(command, values=["slow", "quick"]), client.submit("exit 3", name="bad")
            )
            order = []
            async for job in first.as_completed():
                order.append((job.id, await job.log()))
                go.touch()
            assert order == [(f"{first.id}.2", "quick\n"), (f"{first.id}.1", "slow\n")]
            assert await first.wait(60) and not await second.wait(60)
            (job,) = [job async for job in second.jobs("failed")]
            assert job.exit_code == 3 and (await second.summary())["name"] == "bad"
            with pytest.raises(UsageError):
                await client.submit("echo", values=["a"])
            slow = await client.submit("sleep 60")
            with pytest.raises(TimeoutError):
                await slow.wait(0.05)
            assert await slow.kill() == 1
            many = await client.submit("echo {}", values=[str(n) for n in range(50_000)], not_before="+1h")
            assert many.size == 50_000 and await many.kill() == 50_000

    asyncio.run(work())


def test_what_a_blocking_client_iterates_over_outlives_an_event_loop(client, monkeypatch):
    """The loop of a notebook or of `asyncio.run` ends the asynchronous generators that it knows."""
    monkeypatch.setattr("rota.questions.PAGE", 2)
    batch = client.submit("true", array="1-5", not_before="+1h")

    async def begin():
        jobs = batch.jobs()
        return next(jobs), jobs

    first, rest = asyncio.run(begin())
    assert [job.id for job in (first, *rest)] == [f"{batch.id}.{number}" for number in range(1, 6)]
    assert batch.kill() == 5


def test_local_is_ten_lines_and_leaves_nothing(rota):
    script = """
import rota, os
with rota.local() as client:
    home = client.manager["home"]
    batch = client.submit("echo {}", values=["a", "b"])
    for job in batch.as_completed():
        assert job.ok
    print([job.log().strip() for job in batch.jobs()])
print(os.path.exists(home))
forgotten = rota.local()
forgotten.submit("sleep 60")
print(forgotten.manager["pid"])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, env=rota.environ)
    assert done.returncode == 0, done.stderr
    printed, exists, pid = done.stdout.splitlines()
    assert printed == "['a', 'b']" and exists == "False"
    until(lambda: not Path(f"/proc/{pid}").exists())


def test_local_with_a_home_keeps_it(tmp_path):
    import tempfile

    with tempfile.TemporaryDirectory(prefix="rl-") as base:
        home = f"{base}/h"
        with package.local(home) as client:
            number = client.submit("echo kept").id
            client.wait()
        with package.local(home) as client:
            assert client.batch(number).job(1).log() == "kept\n"


def test_a_manager_that_ended_is_gone_even_if_nobody_has_reaped_it():
    """As in a container whose first process reaps nothing."""
    ended = subprocess.Popen(["true"])
    until(lambda: not runs(ended.pid))
    assert Path(f"/proc/{ended.pid}").exists(), "it is there for whoever started it"
    ended.wait()
