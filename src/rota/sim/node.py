"""A simulated runner process: the real protocol.Runner, with simulated job processes and a simulated connection."""

from typing import TYPE_CHECKING, Any

from rota.model.needs import Amounts
from rota.model.slot import parse_slot
from rota.runner.lease import Lease, ProtocolError
from rota.runner.protocol import Runner
from rota.sim.clock import RunnerClock
from rota.sim.network import Connection
from rota.sim.witness import Execution

if TYPE_CHECKING:
    from rota.sim.cluster import SimAllocation
    from rota.sim.world import World

__all__ = ["SimRunner"]

GREETING_S = 10.0
LAST_WORDS_S = 5.0
RESTLESS_MOST = 100
Key = tuple[int, int, int]


class _Process:
    """One running job."""

    __slots__ = ("dying", "execution", "lease", "over", "wall")

    def __init__(self, execution: Execution, lease: Lease, wall: float) -> None:
        self.execution = execution
        self.lease = lease
        self.wall = wall
        self.dying = False
        self.over = False


class SimRunner:
    """A runner process: what rota.runner.agent is in the real world."""

    def __init__(
        self,
        world: "World",
        name: str,
        allocation: "SimAllocation",
        capacity: Amounts,
        node: int = 0,
        replaces: str | None = None,
    ) -> None:
        self.world = world
        self.id = name
        self.allocation = allocation
        self.site = allocation.site
        self.capacity = capacity
        self.clock = RunnerClock(world.rng.uniform(0.0, 1e6), world.rng.uniform(-3600.0, 3600.0))
        self.node = node
        self.run = 0
        """In which run of its allocation it was started."""
        self.is_hole = world.holes.random() < world.hole_chance
        """Whether everything fails here at once, for reasons of the node."""
        facts: dict[str, Any] = {
            "allocation": allocation.id,
            "host": f"node-{name}" if allocation.nodes == 1 else f"node-{allocation.id}-{node}",
            "pid": 4711,
            "cores": capacity.cores,
            "memory": capacity.memory,
            "disk": capacity.disk,
            "gpus": capacity.gpus,
            "tags": [],
            "output": f"/out/{name}",
        }
        if replaces is not None:
            facts["replaces"] = replaces
        self.runner = Runner(name, facts)
        self.state = "alive"
        self.gone = False
        """Whether it is dead, and everything that it ran."""
        self.ranks: dict[Key, list[Execution]] = {}
        """Processes of gangs whose root is elsewhere."""
        self.unsent: dict[str, Any] | None = None
        """The report that it could not send, as it wrote it down when it left."""
        self.connection: Connection | None = None
        self.processes: dict[Key, _Process] = {}
        self._unseen: list[tuple[_Process, int | None, int | None]] = []
        self._mail: list[tuple[Connection, dict[str, Any]]] = []
        self._retry_s = 0.1
        self._wake = 0
        self._restless = 0
        self._alone_since = world.now
        self._connect()

    # -- the connection

    def _connect(self) -> None:
        if self.state == "dead" or self.connection is not None or self.runner.expired or self.runner.refused:
            return
        if self.state == "stopped":
            self.world.after(1.0, self._connect)
            return
        if not self.runner.occupied and self.world.now - self._alone_since > self.runner.linger_s:
            self.exit("alone")
            return
        connection = self.world.network.open(self)
        if connection is None:
            self._again()
            return
        self.connection = connection
        connection.to_manager(self.runner.greet(self.clock.mono(self.world.now)))
        self.world.after(GREETING_S, self._greeting_over, connection)
        self.pump()

    def _again(self) -> None:
        self.world.after(self._retry_s * self.world.rng.uniform(0.8, 1.2), self._connect)
        self._retry_s = min(5.0, self._retry_s * 2)

    def _greeting_over(self, connection: Connection) -> None:
        if self.connection is connection and self.runner.session is None:
            connection.runner_open = False
            self.world.after(0.05, connection.close_manager_end)
            self.disconnected(connection)

    def disconnected(self, connection: Connection) -> None:
        """The connection is gone."""
        if self.connection is connection and self.state != "dead":
            self.connection = None
            self._alone_since = self.world.now
            self.runner.lost_connection()
            if self.runner.expired or self.runner.refused:
                self._leave_soon()
            else:
                self._again()
            self.pump()

    def receive(self, connection: Connection, message: dict[str, Any]) -> None:
        """A message arrives."""
        if self.state == "dead":
            return
        if self.state == "stopped":
            self._mail.append((connection, message))
            return
        if connection is not self.connection and not self.world.faults.strikes("stale"):
            return
        self.world.say("to", self.id, message)
        before = self.runner.session
        try:
            orders = self.runner.receive(message, self.clock.mono(self.world.now))
        except ProtocolError as problem:
            # Only reordering within a connection leads here. The agent drops the connection, and all is well.
            self.world.say("dropped", self.id, problem)
            if not self.world.faults.hits.get("reorder"):
                self.world.witness.problems.append(f"the manager broke the protocol: {problem}")
            connection.runner_open = False
            self.world.after(0.05, connection.close_manager_end)
            self.disconnected(connection)
            return
        if before is None and self.runner.session is not None:
            self._retry_s = 0.1
        for order in orders:
            if order[0] == "kill":
                self._kill(order[1], order[2])
            elif order[0] == "release":
                self.world.after(self.world.rng.choice((0.0, 0.02, order[2])), self._release, order[1])
            elif order[0] != "hold":
                self._leave_soon()
        self.pump()

    # -- jobs

    def pump(self) -> None:
        """Start what may start, say what is to be said, and note when to look again."""
        if self.state != "alive":
            return
        runner, world = self.runner, self.world
        clock = self.clock.mono(world.now)
        while runner.queued:
            leases = runner.startable(clock)
            if not leases:
                break
            for lease in leases:
                self._start(lease)
        connection = self.connection
        if connection is not None:
            for message in runner.outgoing(clock):
                world.say("from", self.id, message)
                connection.to_manager(message)
        if runner.finished and not self.processes and not self.ranks:
            self.exit("finished")
            return
        deadline = runner.deadline(clock)
        if deadline is not None:
            if deadline < clock - 0.001:
                self._restless += 1
                if self._restless == RESTLESS_MOST:
                    world.witness.problems.append(f"runner {self.id} has a deadline in the past, and would never sleep")
            self._wake += 1
            world.after(max(deadline - clock, 0.0001), self._woken, self._wake)

    def _woken(self, number: int) -> None:
        if number == self._wake:
            self.pump()

    def _start(self, lease: Lease) -> None:
        world = self.world
        job, has = (lease.batch, lease.index, lease.attempt), parse_slot(lease.slot).amounts
        cores, memory = has.cores, has.memory
        execution = Execution(*job, self.id, self.site, cores, world.now, memory=memory)
        world.witness.executions.append(execution)
        world.started(execution)
        process = _Process(execution, lease, self.clock.wall(world.now))
        self.processes[lease.key] = process
        if lease.gang is not None:
            self._check_gang(lease)
            world.after(world.rng.choice((0.0, 0.05, 1.0)), self._start_ranks, process)
        self.runner.started(lease, process.wall, 1000 + len(world.witness.executions))
        seconds, code, signal = world.workload.behaviour(execution)
        if self.is_hole and world.faults.active and code == 0:
            world.faults.hit("black-hole")
            seconds, code = min(seconds, 0.05), 1
        world.after(seconds, self._process_over, process, code, signal)

    def _members(self, lease: Lease) -> "list[SimRunner]":
        """The runners of the other nodes of a gang."""
        assert lease.gang is not None
        names = [node["runner"] for node in lease.gang["nodes"][1:]]
        return [runner for runner in self.world.runners if runner.id in names]

    def _check_gang(self, lease: Lease) -> None:
        for runner in self._members(lease):
            if runner.state != "dead" and not any(hold.key == lease.key for hold in runner.runner.parts()):
                self.world.witness.problems.append(f"{lease} starts though {runner.id} does not hold its part")

    def _start_ranks(self, process: _Process) -> None:
        """The root starts ranks on the other nodes, through their runners."""
        if process.over:
            return
        for runner in self._members(process.lease):
            if runner.state == "alive":
                runner.start_rank(process.execution, process.lease.key)

    def start_rank(self, root: Execution, key: Key) -> None:
        """Start a process of a gang whose root is elsewhere, if its part is held here and not being released."""
        hold = next((hold for hold in self.runner.parts() if hold.key == key), None)
        if hold is None or key in self.runner._releasing:
            return
        has = parse_slot(hold.slot).amounts
        rank = Execution(*key, self.id, self.site, has.cores, self.world.now, memory=has.memory)
        self.world.witness.ranks.append(rank)
        self.world.say("RANK", key, "on", self.id)
        self.ranks.setdefault(key, []).append(rank)

    def _end_ranks(self, key: Key) -> None:
        for rank in self.ranks.pop(key, ()):
            rank.end = self.world.now

    def _release(self, key: Key) -> None:
        """Everything of a gang here has been ended."""
        if self.state == "dead":
            return
        if self.state == "stopped":
            self.world.after(1.0, self._release, key)
            return
        self._end_ranks(key)
        self.runner.released(key)
        self.pump()

    def _process_over(self, process: _Process, code: int | None, signal: int | None) -> None:
        """A process ends, whether its runner can see that now or not."""
        if process.over:
            return
        process.over = True
        execution = process.execution
        execution.end = self.world.now
        execution.exit_code, execution.signal = code, signal
        execution.stopped = process.dying and code != 0
        self.world.say("over", f"{execution.batch}.{execution.index}/{execution.attempt} on {self.id}: {code} {signal}")
        if self.state == "dead":
            return
        if self.state == "stopped":
            self._unseen.append((process, code, signal))
            return
        self._reap(process, code, signal)
        self.pump()

    def _reap(self, process: _Process, code: int | None, signal: int | None) -> None:
        del self.processes[process.lease.key]
        reason = None if code == 0 else "killed" if process.dying else "exit" if signal is None else "signal"
        end = self.clock.wall(process.execution.end or self.world.now)
        if reason in ("exit", "signal") and self.world.faults.strikes("out-of-memory"):
            reason = "oom"
        peak = self.world.workload.peak_memory(process.execution)
        self.runner.ended(process.lease, (code, signal, reason, None), process.wall, end, (0.01, peak, None))

    def _kill(self, lease: Lease, grace_s: float) -> None:
        process = self.processes.get(lease.key)
        if process is None or process.dying or process.over:
            return
        process.dying = True
        if self.world.faults.strikes("kill-exits-0"):
            self.world.after(0.02, self._process_over, process, 0, None)
        elif self.world.faults.strikes("kill-ignored"):
            self.world.after(grace_s, self._process_over, process, None, 9)
        else:
            self.world.after(0.02, self._process_over, process, None, 15)

    def kill_a_job(self) -> None:
        """Kill the process of a job, unknown to manager and runner."""
        running = [process for process in self.processes.values() if not process.over]
        if running:
            self._process_over(self.world.rng.choice(running), None, 9)

    # -- ends

    def _leave_soon(self) -> None:
        self.world.after(LAST_WORDS_S, self._leave)

    def _leave(self) -> None:
        if self.state == "dead":
            return
        if self.processes or self.ranks or self.state == "stopped":
            self._leave_soon()
        else:
            self.exit("told to")

    def exit(self, why: str) -> None:
        """The process ends by itself, with nothing running."""
        assert not self.processes and not self.ranks
        self.state = "dead"
        self.gone = True
        self.unsent = self.runner.unsent()
        self.world.say("exit", self.id, why)
        if self.connection is not None:
            self.connection.runner_open = False
            self.world.after(0.2, self.connection.close_manager_end)
        self.allocation.runner_left(self)

    def kill(self, why: str) -> None:
        """SIGKILL the runner. Its jobs go on until the driver, which sees that it is gone, has ended them.

        Then the allocation is over.
        """
        if self.state == "dead":
            return
        self.state = "dead"
        self.world.say("killed", self.id, why)
        if self.connection is not None:
            self.connection.runner_open = False
            self.world.after(self.world.rng.choice((0.01, 3.0)), self.connection.close_manager_end)
        self.world.after(self.world.rng.choice((0.01, 0.5, 5.0)), self._sweep, why)

    def swept_away(self, why: str) -> None:
        """The provider ends the runner and all that it ran, at once: nobody is told."""
        if self.gone:
            return
        if self.state != "dead" and self.connection is not None:
            self.connection.runner_open = False
            self.world.after(self.world.cluster.requeues.choice((0.01, 3.0, 60.0)), self.connection.close_manager_end)
        self.state = "dead"
        self.world.say("swept away", self.id, why)
        self._end_all()
        self.gone = True

    def _end_all(self) -> None:
        for process in list(self.processes.values()):
            process.dying = True
            self._process_over(process, None, 9)
        for key in list(self.ranks):
            self._end_ranks(key)

    def _sweep(self, why: str) -> None:
        if self.gone:
            return
        self._end_all()
        self.gone = True
        self.allocation.runner_swept(self, why)

    def stop(self, seconds: float) -> None:
        """SIGSTOP the runner, and SIGCONT it later."""
        if self.state == "alive":
            self.state = "stopped"
            self.world.say("stopped", self.id, f"for {seconds:.1f} s")
            self.world.after(seconds, self.go_on)

    def go_on(self) -> None:
        """SIGCONT the runner."""
        if self.state == "stopped":
            self.state = "alive"
            unseen, self._unseen = self._unseen, []
            for process, code, signal in unseen:
                self._reap(process, code, signal)
            mail, self._mail = self._mail, []
            for connection, message in mail:
                self.receive(connection, message)
            self.pump()
