"""A fake cluster in a directory: commands for PATH, and the hand of a test on it."""

import json
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from rota.testing.fake_cluster.faults import KINDS
from rota.testing.fake_cluster.personality import native
from rota.testing.fake_cluster.processes import Processes, end_all
from rota.testing.fake_cluster.state_file import opened
from rota.testing.fake_cluster.world import Job, World

__all__ = ["VERBS", "FakeCluster"]

SHIM = """\
#!{python} -IS
import sys
sys.path.insert(0, {source!r})
from rota.testing.fake_cluster.command import main
sys.exit(main({directory!r}, [{name!r}, *sys.argv[1:]]))
"""
SRUN = """\
#!{python} -IS
import sys
sys.path.insert(0, {source!r})
from rota.testing.fake_cluster.srun import main
sys.exit(main(sys.argv[1:]))
"""
VERBS = (
    "hold",
    "release",
    "suspend",
    "resume",
    "requeue",
    "restart-node",
    "preempt",
    "cancel",
    "out-of-memory",
    "out-of-time",
    "force-state",
    "fail-node",
    "mend-node",
    "stop-daemon",
    "hang-daemon",
    "start-daemon",
    "next-id",
    "set",
    "jobs",
)


class FakeCluster:
    """`FakeCluster(directory, personality="slurm", nodes=2, cores=4, …)`: `bin/` in it is for PATH.

    An id is what the submit command printed (an array: all of its elements), or `ID[INDEX]` for one element.
    """

    def __init__(self, directory: str | os.PathLike[str], **settings: Any) -> None:
        self.directory = os.path.abspath(directory)
        self._processes = Processes(self.directory)
        world = World(settings)
        for name in ("bin", "jobs"):
            os.makedirs(os.path.join(self.directory, name), exist_ok=True)
        with open(os.path.join(self.directory, "world.json"), "w") as file:
            json.dump(world.data(), file)
        source = os.path.abspath(__file__).rpartition("/rota/testing/")[0]
        shims = {
            name: SHIM.format(python=sys.executable, source=source, directory=self.directory, name=name)
            for name in native(world).COMMANDS
        }
        if world.settings["personality"] == "slurm":
            shims["srun"] = SRUN.format(python=sys.executable, source=source)
        for name, text in shims.items():
            path = os.path.join(self.bin, name)
            with open(path, "w") as file:
                file.write(text)
            os.chmod(path, 0o755)

    @classmethod
    def at(cls, directory: str | os.PathLike[str]) -> "FakeCluster":
        """The fake cluster that is installed in a directory."""
        made = cls.__new__(cls)
        made.directory = os.path.abspath(directory)
        made._processes = Processes(made.directory)
        return made

    @property
    def bin(self) -> str:
        """The directory of the cluster's commands."""
        return os.path.join(self.directory, "bin")

    @property
    def path(self) -> str:
        """PATH with the cluster's commands first."""
        return f"{self.bin}:{os.environ.get('PATH', '/usr/bin:/bin')}"

    def __enter__(self) -> "FakeCluster":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self, remove: bool = False) -> None:
        """End every process of the cluster's jobs; raises if one stays."""
        left = end_all(self.directory)
        if left:
            raise RuntimeError(f"the fake cluster in {self.directory} cannot end its processes {left}")
        if remove:
            shutil.rmtree(self.directory, ignore_errors=True)

    def faults(self, plan: Sequence[Mapping[str, Any]]) -> None:
        """Let these go wrong from now on (see the module faults); an empty plan: nothing."""
        for rule in plan:
            if rule.get("do") not in KINDS:
                raise ValueError(f"a fault plan knows no {rule.get('do')!r}; it knows {', '.join(KINDS)}")
        path = os.path.join(self.directory, "faults.json")
        with open(path + ".new", "w") as file:
            json.dump(list(plan), file)
        os.rename(path + ".new", path)

    @contextmanager
    def world(self) -> Iterator[World]:
        """The world as it is now, locked: look at it or change it."""
        with opened(self.directory) as world:
            world.advance(self._processes, time.time())
            yield world

    def set(self, **settings: Any) -> None:
        """Change settings."""
        with self.world() as world:
            World(settings)  # refuses unknown ones
            world.settings.update(settings)

    def tick(self) -> None:
        """Let what is due happen, without a command."""
        with self.world():
            pass

    def calls(self, command: str) -> int:
        """How often a command was called."""
        with self.world() as world:
            return world.calls.get(command, 0)

    # ---- verbs -----------------------------------------------------------------------------------------------------

    def _each(self, text: str) -> Iterator[tuple[World, Job]]:
        """The jobs with this id, each with its world."""
        digits = "".join(letter if letter.isdigit() else " " for letter in str(text).partition(".")[0]).split()
        with self.world() as world:
            found = world.find(int(digits[0]), int(digits[1]) if len(digits) > 1 else None) if digits else []
            if not found:
                raise ValueError(f"the fake cluster in {self.directory} has no job {text!r}")
            yield from ((world, job) for job in found)

    def jobs(self) -> list[dict[str, Any]]:
        """What is true of every job, oldest first."""
        with self.world() as world:
            names = ("index", "state", "why", "code", "signal", "nodes", "restarts", "forced", "by", "hold", "handle")
            return [
                {"id": world.of(job).number, "name": world.of(job).name, **{name: getattr(job, name) for name in names}}
                for job in world.jobs
            ]

    def hold(self, text: str) -> None:
        for _, job in self._each(text):
            job.hold = "admin"

    def release(self, text: str) -> None:
        for _, job in self._each(text):
            job.hold = None
        self.tick()

    def suspend(self, text: str) -> None:
        for world, job in self._each(text):
            world.suspend(self._processes, job)

    def resume(self, text: str) -> None:
        for world, job in self._each(text):
            world.resume(self._processes, job)

    def requeue(self, text: str) -> None:
        for world, job in self._each(text):
            world.requeue(self._processes, job)

    def preempt(self, text: str) -> None:
        for world, job in self._each(text):
            world.preempt(self._processes, job)

    def cancel(self, text: str) -> None:
        """Kill jobs, as an administrator does."""
        for world, job in self._each(text):
            world.cancel(self._processes, job, "admin")

    def out_of_memory(self, text: str) -> None:
        for world, job in self._each(text):
            world.run_out_of_memory(self._processes, job)

    def out_of_time(self, text: str) -> None:
        for world, job in self._each(text):
            world.run_out_of_time(self._processes, job)

    def force_state(self, text: str, code: str | None) -> None:
        """Show this native state for a job, whatever is true; None or `-`: the truth again."""
        for _, job in self._each(text):
            job.forced = None if code in (None, "-") else code

    def fail_node(self, name: str) -> None:
        with self.world() as world:
            world.fail_node(self._processes, name)

    def restart_node(self, name: str) -> None:
        """Kill a node's daemon, which is back at once and begins its jobs anew."""
        with self.world() as world:
            world.restart_node(self._processes, name)

    def mend_node(self, name: str) -> None:
        with self.world() as world:
            world.mend_node(name)

    def stop_daemon(self) -> None:
        """Let the daemon refuse connections."""
        with self.world() as world:
            world.down = "refused"

    def hang_daemon(self) -> None:
        """Let the daemon take connections, and answer nothing."""
        with self.world() as world:
            world.down = "hung"

    def start_daemon(self) -> None:
        with self.world() as world:
            world.down = None

    def next_id(self, number: int | str) -> None:
        """Set the id of the next submission: an older one may have had it."""
        with self.world() as world:
            world.next_number = int(number)
