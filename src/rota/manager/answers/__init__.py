"""What clients ask: every op of the protocol, and what answers it."""

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

from rota import __version__
from rota.core.decide.modes import pause_rows
from rota.core.step import Step
from rota.core.stimuli import ChangeJobs, SetLimits, SetMode, Submit
from rota.manager.answers.jobs import log_answer
from rota.manager.answers.limits import limit_rows
from rota.manager.answers.live import LINE, last_line
from rota.manager.answers.places import allocation_rows, runner_rows, site_row
from rota.manager.answers.running import measure_sessions
from rota.manager.inbound import now
from rota.manager.intake import decode_spec
from rota.model.batch import BatchSpec
from rota.model.errors import NoSpaceError, NotFoundError, RotaError, StoreError, UsageError
from rota.model.patch import decode_patch
from rota.model.selector import parse_selector
from rota.model.tables import RUNNING, STARTING
from rota.schedule.estimate import Group
from rota.wire.peer import Peer

if TYPE_CHECKING:
    from rota.manager.service import Manager

__all__ = ["Asking"]

log = logging.getLogger("rota")

TAILS_AT_ONCE = 100
"""Jobs on other hosts whose last lines are asked for in a live view."""
MODES = {"pause": "paused", "resume": "serving", "drain": "draining"}


class Asking:
    """Answers asks. Questions are answered from durable state; changes once they are durable."""

    def __init__(self, manager: "Manager") -> None:
        self._manager = manager
        self._work: set[asyncio.Task[None]] = set()

    def ask(self, peer: Peer, ask_id: int, op: str, args: Any) -> None:
        """Answer one, now or later."""
        manager = self._manager
        if op in ("submit", "stage"):
            task = manager.loop.create_task(self._take_in(peer, ask_id, op, args))
            self._work.add(task)
            task.add_done_callback(self._work.discard)
        elif op in ("modify", "kill", "hold", "release", "retry", "remove"):
            self._change(peer, ask_id, op, args)
        elif op in MODES:
            mode = SetMode(
                at=now(),
                by=peer.principal,
                mode=MODES[op],
                holder=getattr(args, "holder", ""),
                reason=getattr(args, "reason", ""),
                everyone=getattr(args, "all", False),
            )
            manager.tell(mode, self._answer(peer, ask_id))
        elif op == "backup":
            self._later(peer, ask_id, manager.upkeep.backup(args.path))
        elif op == "prune":
            self._later(peer, ask_id, manager.upkeep.prune(args, peer.principal))
        elif op == "live":
            self._later(peer, ask_id, self._live(args))
        elif op == "log":
            self._later(peer, ask_id, self._log(args))
        elif op in ("jobs", "history") and (args.searches or (op == "history" and (args.sel or args.states))):
            self._later(peer, ask_id, self._search(op, args))
        elif op == "limit":
            self._limit(peer, ask_id, args)
        elif op in ("wait", "follow"):
            timeout = args.timeout_s if op == "wait" else None
            wait = lambda: manager.watchers.add(peer, ask_id, args.sel, op == "follow", args.held, timeout)  # noqa: E731
            manager.when_durable(self._guard(peer, ask_id, wait))
        else:
            manager.when_durable(self._guard(peer, ask_id, lambda: peer.answer(ask_id, self._look_up(op, args))))
            if op == "down":
                manager.taken_down = True
                manager.stop(args.kill)

    def _later(self, peer: Peer, ask_id: int, work: Coroutine[Any, Any, dict[str, Any]]) -> None:
        """Answer when the work is done, which may take a while."""

        async def answer() -> None:
            try:
                peer.answer(ask_id, await work)
            except Exception as error:
                self._failed(peer, ask_id, error)

        task = self._manager.loop.create_task(answer())
        self._work.add(task)
        task.add_done_callback(self._work.discard)

    async def _search(self, op: str, args: Any) -> dict[str, Any]:
        """Look in a thread, then make rows of what was found."""
        manager = self._manager
        await manager.upkeep.durable()
        searching = manager.searching
        if op == "jobs":
            found, after = await asyncio.to_thread(searching.jobs(manager.state, args))
            found = [(batch, pos) for batch, pos in found if manager.state.batches.get(batch.id) is batch]
            rows = manager.queries.rows(manager.state, found)
            return {"jobs": rows, "next": after}
        results, after = await asyncio.to_thread(searching.attempts(manager.state, args))
        batches = manager.state.batches
        attempts = [manager.queries.attempt_row(batches[row.batch], row) for row in results if row.batch in batches]
        return {"attempts": attempts, "next": after}

    async def _live(self, args: Any) -> dict[str, Any]:
        """Jobs of this host are measured now, others are as their runners last told."""
        manager = self._manager
        await manager.upkeep.durable()
        here = manager.running.here(manager.state)
        used = await asyncio.to_thread(measure_sessions, list(here.values()))
        manager.running.measured(here, used)
        found = manager.live.rows(manager.state, args.sel, args.limit, now().wall)
        asked: list[tuple[dict[str, Any], Coroutine[Any, Any, bytes]]] = []
        for row in found["jobs"]:
            there = manager.queries.elsewhere(manager.state, row["id"], row["attempt"], "stdout")
            if there is not None and len(asked) < TAILS_AT_ONCE:
                asked.append((row, manager.tails.ask(*there, "stdout", -LINE, LINE)))
        ends = await asyncio.gather(*(question for _, question in asked))
        for (row, _), data in zip(asked, ends, strict=True):
            row["last_line"] = last_line(data)
        return found

    async def _log(self, args: Any) -> dict[str, Any]:
        """From a file; or, of a job that runs on another host, from its runner."""
        manager = self._manager
        await manager.upkeep.durable()
        queries = manager.queries
        there = queries.elsewhere(manager.state, args.job, args.attempt, args.stream)
        if there is None:
            return queries.log(manager.state, args.job, args.attempt, args.stream, args.offset, args.limit)
        data = await manager.tails.ask(*there, args.stream, args.offset, args.limit)
        return log_answer(data, args.offset, False, 0, None)

    def _guard(self, peer: Peer, ask_id: int, question: Callable[[], None]) -> Callable[[], None]:
        """A question that is answered whatever happens, and never harms the loop that it runs in."""

        def run() -> None:
            try:
                question()
            except Exception as error:
                self._failed(peer, ask_id, error)

        return run

    def _failed(self, peer: Peer, ask_id: int, error: Exception) -> None:
        if isinstance(error, RotaError):
            peer.refuse(ask_id, error)
        else:
            log.exception("a request failed", exc_info=error)
            peer.refuse(ask_id, RotaError(f"the manager failed at this: {type(error).__name__}; see its log"))
        if isinstance(error, StoreError):
            self._manager.fail(error)

    def _answer(self, peer: Peer, ask_id: int) -> Callable[[Step | RotaError], None]:
        def done(outcome: Step | RotaError) -> None:
            if isinstance(outcome, RotaError):
                peer.refuse(ask_id, outcome)
            else:
                peer.answer(ask_id, outcome.reply)

        return done

    async def _take_in(self, peer: Peer, ask_id: int, op: str, args: Any) -> None:
        manager = self._manager
        try:
            if manager.trouble is not None:
                raise NoSpaceError(manager.trouble)
            if op == "stage":
                peer.answer(ask_id, await manager.intake.stage(args))
                return
            if args.once is not None and args.key not in manager.state.keys:
                peer.answer(ask_id, await self._once(peer, args))
                return
            spec, stage, env, runs = await manager.intake.prepare(args)
            then = decode_spec(bytes(args.end)) if bytes(args.end) != b"null" else None
        except Exception as error:
            self._failed(peer, ask_id, error)
            return
        manager.tell(self._submission(peer, args, spec, stage, env, runs, then), self._answer(peer, ask_id))

    @staticmethod
    def _submission(
        peer: Peer,
        args: Any,
        spec: BatchSpec,
        stage: str | None,
        env: str | None,
        runs: list[int] | None,
        then: BatchSpec | None,
    ) -> Submit:
        return Submit(
            at=now(),
            by=peer.principal,
            spec=spec,
            key=args.key,
            stage=stage,
            env=env,
            runs=runs,
            limits=args.limits,
            then=then,
        )

    async def _once(self, peer: Peer, args: Any) -> dict[str, Any]:
        """Add what is not there already. One at a time, so that no two find the same job missing."""
        manager = self._manager
        async with manager.twins.lock:
            spec, stage, env, runs = await manager.intake.prepare(args)
            then = decode_spec(bytes(args.end)) if bytes(args.end) != b"null" else None
            batches = list(manager.state.batches.values())
            found = await asyncio.to_thread(manager.twins.compare, batches, spec, stage, runs, args.once)
            if found.duplicates and not args.rerun:
                if found.duplicates == spec.count:
                    if stage is not None:
                        await manager.writer.run(partial(manager.store.unstage, stage))
                    return {"batch": None, "jobs": 0, "warnings": [], **found.words()}
                spec, stage, runs = await manager.twins.keep_new(manager.writer, spec, stage, found)
            future: asyncio.Future[dict[str, Any]] = manager.loop.create_future()

            def done(outcome: Step | RotaError) -> None:
                if isinstance(outcome, RotaError):
                    future.set_exception(outcome)
                else:
                    future.set_result(outcome.reply)

            manager.tell(self._submission(peer, args, spec, stage, env, runs, then), done)
            return {**await future, **found.words()}

    def _limit(self, peer: Peer, ask_id: int, args: Any) -> None:
        """Change limits, then list them."""
        for name, setting in args.set.items():
            limit = self._manager.state.limits.get(name)
            is_set = limit is not None and (limit.count is not None or name in self._manager.state.timed)
            if setting is None and (not is_set or "<" in name):
                raise NotFoundError(f"there is no limit '{name}' that could be removed: see rota limit")

        def done(outcome: Step | RotaError) -> None:
            if isinstance(outcome, RotaError):
                peer.refuse(ask_id, outcome)
                return
            peer.answer(ask_id, {"limits": limit_rows(self._manager.state, now())})

        self._manager.tell(SetLimits(at=now(), by=peer.principal, counts=args.set), done)

    def _change(self, peer: Peer, ask_id: int, op: str, args: Any) -> None:
        selector = parse_selector(args.sel)
        if selector.empty and not args.all:
            raise UsageError(f"which jobs? Name some (7, 7.12, @name, :failed), or give --all to {op} everything")
        self._manager.tell(
            ChangeJobs(
                at=now(),
                by=peer.principal,
                what=op,
                selector=selector,
                dry_run=args.dry_run,
                stop=getattr(args, "stop", False),
                confirm_dead=getattr(args, "confirm_dead", False),
                patch=decode_patch(bytes(args.changes)) if hasattr(args, "changes") else None,
            ),
            self._answer(peer, ask_id),
        )

    def _look_up(self, op: str, args: Any) -> dict[str, Any]:
        manager, state = self._manager, self._manager.state
        queries, at = manager.queries, now()
        if op == "status":
            return queries.status(state, args.sel)
        if op == "jobs":
            return queries.jobs(state, args.sel, args.after, args.limit, args.newest)
        if op == "count":
            return queries.count(state, args.sel)
        if op == "explain":
            return queries.explain(state, args.job, at)
        if op == "history":
            return queries.history(state, args.sel, args.after, args.limit)
        if op == "summary":
            return queries.summary(state, args.batch, args.failures, args.slowest, at.wall)
        return self._about(op)

    def _about(self, op: str) -> dict[str, Any]:
        """The manager and its places."""
        manager, state, at = self._manager, self._manager.state, now()
        running = sum(batch.counts[RUNNING] + batch.counts[STARTING] for batch in state.batches.values())
        if op == "ping":
            return {
                "pid": os.getpid(),
                "host": socket.gethostname(),
                "version": __version__,
                "state": "stopping" if manager.stopping else state.mode,
                "uptime_s": at.mono - manager.started.mono,
                "store": manager.trouble or "ok",
                "running": running,
                "pauses": pause_rows(state.pauses),
            }
        if op == "down":
            return {"running": running}
        if op == "learning":
            return {"groups": [_learned(name, group) for name, group in sorted(state.groups.items())]}
        if op == "sites":
            return {"sites": [site_row(manager, name, at) for name in state.soft.sites]}
        if op == "runners":
            return {"runners": runner_rows(manager, at)}
        if op == "allocations":
            return {"allocations": allocation_rows(manager, at)}
        raise UsageError(f"no such op: {op}")


def _learned(name: str, group: Group) -> dict[str, Any]:
    memory, disk, time_s = group.found()
    kinds = {"memory": group.memory, "disk": group.disk, "time": group.time_s}
    units = {"memory": "memory_bytes", "disk": "disk_bytes", "time": "time_s"}
    return {
        "group": name,
        "memory_bytes": memory,
        "disk_bytes": disk,
        "time_s": time_s,
        "samples": {kind: samples.seen for kind, samples in kinds.items()},
        "largest": {units[kind]: samples.values[-1] if samples.values else None for kind, samples in kinds.items()},
    }
