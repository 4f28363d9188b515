"""Performing effects: messages to runners, requests to drivers. Called only once the facts behind them are durable."""

import asyncio
import json
import logging
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from rota.core import effects as ef
from rota.core.slots import slot_cores
from rota.core.state import State
from rota.core.stimuli import AllocationSeen, Ended, Report, SiteSeen, Stimulus
from rota.drivers.api import Ask, Driver, Known
from rota.drivers.submitting import FullError
from rota.manager.inbound import now, report_rows
from rota.manager.jobbook import JobBook
from rota.manager.sites.batch import FULL_S, Cluster
from rota.model.allocation import Allocation, Outcome
from rota.model.errors import BusyError, RefusedError, RotaError, UsageError
from rota.wire.peer import Peer

__all__ = ["Performer", "stopped_for"]

log = logging.getLogger("rota")
POLL_S = 1.0
RESTING_POLL_S = 5.0
LAST_WORDS_S = 1.0


class Performer:
    """Knows the peers and the drivers; carries out what the core decided."""

    def __init__(
        self,
        book: JobBook,
        drivers: dict[str, Driver],
        tell: Callable[[Stimulus], None],
        welcome: dict[str, Any],
        clusters: Mapping[str, Cluster],
    ) -> None:
        self.book = book
        self.drivers = drivers
        self.clusters = clusters
        """Those of the sites that have a batch system."""
        self._tell = tell
        self._welcome = welcome
        self.peers: dict[str, Peer] = {}
        """The runners in session."""
        self.greeting: dict[str, tuple[Peer, int]] = {}
        """Runners whose greeting is being made durable."""
        self._newest: dict[str, int] = {}
        """Number of the newest lease message that a runner was sent in this session."""
        self._sent: dict[str, set[str]] = {}
        """Names of specs and environments that a runner has in this session."""
        self._jobs: set[asyncio.Task[None]] = set()
        self._checking: set[str] = set()
        self._polling: set[str] = set()
        self.woken = asyncio.Event()
        """Something was submitted, or a runner here has ended: there is something to look at."""

    def perform(self, state: State, effect: ef.Effect) -> None:
        """Carry out one effect."""
        if isinstance(effect, ef.Lease):
            self._lease(state, effect)
        elif isinstance(effect, ef.Ack):
            peer = self.peers.get(effect.runner) or self.greeting.get(effect.runner, (None, 0))[0]
            if peer is not None:
                peer.ack(effect.seq)
        elif isinstance(effect, ef.Order):
            self._order(state, effect)
        elif isinstance(effect, ef.Welcome):
            self._greet(effect, state)
        else:
            self._start(self._allocate(state, effect))

    def _greet(self, effect: ef.Welcome, state: State) -> None:
        found = self.greeting.pop(effect.runner, None)
        if found is None or found[1] != effect.connect:
            return
        old = self.peers.get(effect.runner)
        if old is not None and old is not found[0]:
            old.close()
        self.peers[effect.runner] = found[0]
        self._sent[effect.runner] = set()
        self._newest[effect.runner] = 0
        facts = state.soft.sites.get(state.runners[effect.runner].site)
        linger = {"linger_s": facts.linger_s} if facts is not None else {}
        found[0].send({"t": "welcome", "connect": effect.connect, "session": effect.session, **self._welcome, **linger})

    def _order(self, state: State, effect: ef.Order) -> None:
        if effect.what == "expired":
            found = self.greeting.get(effect.runner)
            if found is not None:
                found[0].send({"t": "expired", "connect": found[1], "reason": effect.reason})
            return
        peer = self.peers.get(effect.runner)
        if peer is None:
            return
        message: dict[str, Any] = {"t": effect.what, "session": effect.session}
        if effect.what in ("kill", "recall"):
            message["jobs"] = effect.jobs
            if effect.what == "kill":
                for grace, jobs in self._by_grace(state, effect.jobs).items():
                    peer.send({**message, "jobs": jobs, "grace_s": grace})
                return
        peer.send(message)

    def _by_grace(self, state: State, jobs: list[tuple[int, int, int]]) -> dict[int, list[tuple[int, int, int]]]:
        out: dict[int, list[tuple[int, int, int]]] = {}
        for job in jobs:
            batch = state.batches.get(job[0])
            pos = batch.position(job[1]) if batch is not None else None
            grace = batch.template(pos).grace_s if batch is not None and pos is not None else 10
            out.setdefault(grace, []).append(job)
        return out

    def _lease(self, state: State, effect: ef.Lease) -> None:
        peer = self.peers.get(effect.runner)
        runner = state.runners[effect.runner]
        if peer is None or runner.session != effect.session:
            return
        sent = self._sent[effect.runner]
        if effect.n <= self._newest.get(effect.runner, 0):
            sent.clear()  # a repeat: what came with it the first time may not have arrived either
        self._newest[effect.runner] = max(effect.n, self._newest.get(effect.runner, 0))
        peer.send(self._lease_message(state, effect, runner.site, sent))

    def _lease_message(self, state: State, effect: ef.Lease, site: str, sent: set[str]) -> dict[str, Any]:
        """A lease with all that the runner needs for it and does not have yet."""
        specs: dict[str, Any] = {}
        envs: dict[str, Any] = {}
        rows = []
        for number, pos, attempt, slot in effect.jobs:
            batch = state.batches[number]
            cores = slot_cores(slot)
            row = self.book.lease_row(batch, pos, attempt, slot, cores)
            if batch.spec.ends is not None:
                row[6] = {**(row[6] or {}), "own": self.book.end_variables(state, batch)}
            name = row[1]
            if name not in sent:
                template = batch.template_of(pos)
                specs[name] = self.book.spec(batch, template, cores, site)
                sent.add(name)
                environment = specs[name]["env"]
                if environment is not None and environment not in sent:
                    sent.add(environment)
                    envs[environment] = self.book.environment(environment)
            rows.append(row)
        message: dict[str, Any] = {
            "t": "lease",
            "session": effect.session,
            "n": effect.n,
            "clock": effect.clock,
            "slots": list(effect.slots.items()),
            "jobs": rows,
        }
        if specs:
            message["specs"] = specs
        if envs:
            message["envs"] = envs
        return message

    def _start(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._jobs.add(task)
        task.add_done_callback(self._jobs.discard)

    async def _allocate(self, state: State, effect: ef.Allocate) -> None:
        driver = self.drivers.get(effect.site)
        if driver is None or effect.id not in state.allocations:
            return
        try:
            if effect.what in ("submit", "find"):
                await self._submit(state, driver, effect)
            elif effect.what == "terminate":
                await driver.terminate(_known(state.allocations[effect.id]))
            else:
                await self.check(state, effect.site, [_known(state.allocations[effect.id])])
        except RotaError as error:
            log.warning("%s %s: %s", effect.what, effect.id, error)
            if isinstance(error, FullError) and effect.site in self.clusters:
                self._full(state, effect)
            if effect.what in ("submit", "find"):
                refused = Outcome(why="refused") if isinstance(error, RefusedError | UsageError) else None
                for name in effect.ids:
                    self._see(name, "fail", None, str(error), refused)

    def _full(self, state: State, effect: ef.Allocate) -> None:
        """A site takes no more for now: ask for less, and some time later for more again."""
        cluster = self.clusters[effect.site]
        there = [a for a in state.allocations.values() if a.site == effect.site and a.native_id is not None]
        cluster.full(sum(a.state.endswith("ING") for a in there), len(effect.ids))
        self._tell(SiteSeen(at=now(), site=effect.site, facts=cluster.facts()))

        def forget() -> None:
            cluster.takes = None
            self._tell(SiteSeen(at=now(), site=effect.site, facts=cluster.facts()))

        asyncio.get_running_loop().call_later(FULL_S, forget)

    async def _submit(self, state: State, driver: Driver, effect: ef.Allocate) -> None:
        """Submit an array. After a restart look for it first: it may have been submitted."""
        allocations = [state.allocations[name] for name in effect.ids]
        cluster = self.clusters.get(effect.site)
        count = allocations[0].elements or len(allocations)
        found = await driver.find(effect.tag, count) if effect.what == "find" else None
        if found is None and effect.what == "find" and count != len(allocations):
            raise BusyError(f"{effect.tag} was never submitted, and a part of it is over: the rest is asked for anew")
        if found is None:
            if cluster is None:
                ask = Ask(effect.tag, "rota", effect.ids, allocations[0].capacity, "", "/")
            else:
                ask = cluster.ask(effect.tag, allocations)
                await cluster.prepare(ask, self._direct_leases(state, allocations))
            found = await driver.submit(ask)
        self.woken.set()
        for allocation in allocations:
            native = found[allocation.element]
            if allocation.state == "SUBMITTING" or allocation.native_id is None:
                self._see(allocation.id, "run" if cluster is None else "pend", native, None)

    def _direct_leases(self, state: State, allocations: list[Allocation]) -> dict[int, dict[str, Any]]:
        """Element → lease message, for direct jobs that are still wanted."""
        out = {}
        for allocation in allocations:
            for runner in state.direct_runners(allocation):
                for number, pos in runner.jobs:
                    live = state.batches[number].live[pos]
                    lease = ef.Lease(runner.id, 1, 1, 0.0, [(number, pos, live.attempt, live.slot)], {live.slot: 1})
                    out[allocation.element] = self._lease_message(state, lease, runner.site, set())
        return out

    async def check(self, state: State, site: str, known: list[Known]) -> None:
        """Ask a driver about allocations. One that is over first has its last reports read."""
        known = [item for item in known if item.id not in self._checking]
        by_id = {item.id: item for item in known}
        self._checking.update(by_id)
        cluster = self.clusters.get(site)
        try:
            for seen in await self.drivers[site].poll(known):
                allocation = state.allocations.get(seen.id)
                host, reason, outcome = None, seen.reason, seen.outcome
                if allocation is not None and seen.verb in ("complete", "fail", "abort"):
                    if allocation.direct and cluster is not None:
                        reported = await self._read_report(state, cluster, allocation, outcome)
                        if not reported and await cluster.was_restarted(_known(allocation)):
                            outcome, reason = Outcome(why="requeue"), f"{reason}; the cluster had started it again"
                    else:
                        await self._last_words(state, seen.id)
                        self._read_unsent(state, seen.id)
                    if cluster is not None:
                        cluster.shut(seen.id)
                        reason = await self._told(state, cluster, allocation, reason)
                elif allocation is not None and seen.verb == "run" and allocation.direct and cluster is not None:
                    host = await cluster.host_of(_known(allocation))
                if seen.verb != "run" or (
                    allocation is not None and (allocation.state != "RUNNING" or allocation.unsure)
                ):
                    self._see(seen.id, seen.verb, seen.native_id, reason, outcome, host)
        finally:
            self._checking.difference_update(by_id)

    async def _told(self, state: State, cluster: Cluster, allocation: Allocation, reason: str | None) -> str | None:
        """The reason, with the last line of the native output if no runner ever came of it."""
        if allocation.direct or any(runner.allocation == allocation.id for runner in state.runners.values()):
            return reason
        line = await cluster.last_output(_known(allocation))
        return reason if line is None else f"{reason}; its output ends with: {line}"

    async def poll(self, state: State) -> None:
        """Look at every live allocation, one call per site; sites do not wait for each other."""
        sites: dict[str, list[Known]] = {}
        for allocation in state.allocations.values():
            if allocation.state in ("PENDING", "RUNNING", "KILLING"):
                sites.setdefault(allocation.site, []).append(_known(allocation))
        waiting = []
        for site, known in sites.items():
            if site in self.clusters:
                if site not in self._polling:
                    self._polling.add(site)
                    self._start(self._poll_site(state, site, known))
            elif site in self.drivers:
                waiting.append(self.check(state, site, known))
        for work in waiting:
            await work

    async def _poll_site(self, state: State, site: str, known: list[Known]) -> None:
        """A batch system may take its time; nobody waits for that."""
        try:
            await self.check(state, site, known)
        except RotaError as error:
            log.warning("site %s: %s", site, error)
        except Exception:
            log.exception("polling the site %s failed", site)
        finally:
            self._polling.discard(site)

    async def _read_report(
        self, state: State, cluster: Cluster, allocation: Allocation, outcome: Outcome | None
    ) -> bool:
        """A direct job that ended has left a report; False: there is none (that can be read)."""
        known = _known(allocation)
        runner = state.runners.get(f"{known.tag}.{known.element}")
        if runner is None or not runner.jobs:
            return True
        try:
            found = await cluster.report_of(known)
            if found is None:
                return False
            directory, report = found
            host = await cluster.host_of(known)
            rows = report_rows(report.get("ended", []), directory)
            if allocation.state != "KILLING" and outcome is not None:
                rows = stopped_for(rows, outcome)
            stimulus = Report(
                at=now(),
                by=f"allocation {known.id} by file",
                runner=runner.id,
                session=runner.session,
                seq=runner.seq + 1,
                got=0,
                clock=0.0,
                ended=rows,
                disclaimed=[(int(a), int(b), int(c), str(d)) for a, b, c, d in report.get("disclaimed", [])],
                host=host,
            )
        except (RotaError, ValueError, TypeError, IndexError, AttributeError) as error:
            log.warning("allocation %s left a report that cannot be read: %s", known.id, error)
            return False
        self._tell(stimulus)
        return True

    def _see(
        self,
        allocation: str,
        verb: str,
        native: str | None,
        reason: str | None,
        outcome: Outcome | None = None,
        host: str | None = None,
    ) -> None:
        seen = AllocationSeen(
            at=now(),
            by="driver",
            id=allocation,
            verb=verb,
            native_id=native,
            reason=reason,
            outcome=outcome,
            host=host,
        )
        self._tell(seen)

    async def _last_words(self, state: State, allocation: str) -> None:
        """What a runner sent before it died counts: read its connection to the end, for a moment."""
        deadline = time.monotonic() + LAST_WORDS_S
        runners = [runner.id for runner in state.runners.values() if runner.allocation == allocation]
        while any(runner in self.peers for runner in runners) and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.005)

    def _read_unsent(self, state: State, allocation: str) -> None:
        """A runner that had to exit wrote down what it could not report."""
        for runner in state.runners.values():
            if runner.allocation != allocation or runner.state in ("CLOSED", "EXPIRED"):
                continue
            path = os.path.join(runner.output, "unsent.json")
            try:
                with open(path, "rb") as file:
                    unsent = json.load(file)
                stimulus = Report(
                    at=now(),
                    by=f"runner {runner.id} by file",
                    runner=runner.id,
                    session=runner.session,
                    seq=runner.seq + 1,
                    got=state.soft.contacts[runner.id].got,
                    clock=state.soft.contacts[runner.id].clock,
                    ended=report_rows(unsent.get("ended", []), runner.output),
                    disclaimed=[(int(a), int(b), int(c), str(d)) for a, b, c, d in unsent.get("disclaimed", [])],
                )
                os.rename(path, path + ".read")
            except FileNotFoundError:
                continue
            except (OSError, ValueError, TypeError, IndexError) as error:
                log.warning("runner %s left reports that cannot be read (%s): %s", runner.id, path, error)
                continue
            self._tell(stimulus)

    async def close(self) -> None:
        """Let running requests to drivers finish."""
        if self._jobs:
            await asyncio.wait(self._jobs, timeout=5)


def _known(allocation: Allocation) -> Known:
    submitted, elements = allocation.submitted or 0.0, allocation.elements
    return Known(allocation.id, allocation.tag, allocation.native_id, allocation.element, submitted, elements)


def stopped_for(rows: list[Ended], outcome: Outcome) -> list[Ended]:
    """Rows of a job that the batch system stopped: what for, it alone knows.

    One that it took the node from is no report of a failure: it is left out, and counts as lost.
    """
    out = []
    for row in rows:
        if row.reason != "runner-stopped" or outcome.why is None:
            out.append(row)
        elif outcome.why in ("cancelled", "deadline", "oom", "time"):
            out.append(row._replace(reason=outcome.why))
    return out
