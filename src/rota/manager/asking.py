"""What clients ask: every op of the protocol, and what answers it."""

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rota import __version__
from rota.core.step import Step
from rota.core.stimuli import ChangeJobs, SetLimits, SetMode, Submit
from rota.core.tables import RUNNING, STARTING
from rota.manager.performing import now
from rota.model.errors import NoSpaceError, NotFoundError, RotaError, StoreError, UsageError
from rota.model.patch import decode_patch
from rota.model.selector import parse_selector
from rota.schedule.estimate import Group
from rota.wire.peer import Peer

if TYPE_CHECKING:
    from rota.manager.service import Manager

__all__ = ["Asking"]

log = logging.getLogger("rota")

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
            manager.tell(SetMode(at=now(), by=peer.principal, mode=MODES[op]), self._answer(peer, ask_id))
        elif op == "limit":
            self._limit(peer, ask_id, args)
        elif op in ("wait", "follow"):
            timeout = args.timeout_s if op == "wait" else None
            wait = lambda: manager.watchers.add(peer, ask_id, args.sel, op == "follow", args.held, timeout)  # noqa: E731
            manager.when_durable(self._guard(peer, ask_id, wait))
        else:
            manager.when_durable(self._guard(peer, ask_id, lambda: peer.answer(ask_id, self._look_up(op, args))))
            if op == "down":
                manager.stop(args.kill)

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
            spec, stage, env, runs = await manager.intake.prepare(args)
        except Exception as error:
            self._failed(peer, ask_id, error)
            return
        manager.tell(
            Submit(
                at=now(),
                by=peer.principal,
                spec=spec,
                key=args.key,
                stage=stage,
                env=env,
                runs=runs,
                limits=args.limits,
            ),
            self._answer(peer, ask_id),
        )

    def _limit(self, peer: Peer, ask_id: int, args: Any) -> None:
        """Change limits, then list them."""
        for name, count in args.set.items():
            if count is None and name not in self._manager.state.limits:
                raise NotFoundError(f"there is no limit '{name}'")

        def done(outcome: Step | RotaError) -> None:
            if isinstance(outcome, RotaError):
                peer.refuse(ask_id, outcome)
                return
            limits = sorted(self._manager.state.limits.items())
            rows = [
                {"name": name, "count": limit.count, "used": limit.used}
                for name, limit in limits
                if not name.startswith("#") and (limit.count is not None or limit.used)
            ]
            peer.answer(ask_id, {"limits": rows})

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
            return queries.explain(state, args.job, at.wall)
        if op == "history":
            return queries.history(state, args.sel, args.after, args.limit)
        if op == "log":
            return queries.log(state, args.job, args.attempt, args.stream, args.offset, args.limit)
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
            }
        if op == "down":
            return {"running": running}
        if op == "learning":
            return {"groups": [_learned(name, group) for name, group in sorted(state.groups.items())]}
        if op == "sites":
            return {"sites": [self._site(name) for name in state.sites]}
        if op == "runners":
            return {
                "runners": [
                    {
                        "id": runner.id,
                        "state": runner.state,
                        "site": runner.site,
                        "host": runner.host,
                        "pid": runner.pid,
                        "allocation": runner.allocation,
                        "connected": runner.connected,
                        "cores": runner.capacity.cores / 1000,
                        "memory": runner.capacity.memory,
                        "jobs": len(runner.jobs),
                        "slots": sum(runner.slots.values()),
                        "silent_s": round(at.mono - runner.contact, 3),
                        "reason": runner.why if runner.state != "SERVING" else None,
                    }
                    for runner in state.runners.values()
                ]
            }
        if op == "allocations":
            return {
                "allocations": [
                    {
                        "id": a.id,
                        "site": a.site,
                        "state": a.state,
                        "native_id": a.native_id,
                        "tag": a.tag,
                        "reason": a.reason,
                        "submitted": a.submitted,
                        "cores": a.capacity.cores / 1000,
                        "memory": a.capacity.memory,
                    }
                    for a in state.allocations.values()
                ]
            }
        raise UsageError(f"no such op: {op}")

    def _site(self, name: str) -> dict[str, Any]:
        state = self._manager.state
        site = state.sites[name]
        used = state.ledger.used.get(name)
        live = [a for a in state.allocations.values() if a.site == name and a.state.endswith("ING")]
        return {
            "name": name,
            "cores": site.node.cores / 1000,
            "memory": site.node.memory,
            "gpus": site.node.gpus,
            "tags": list(site.tags),
            "cores_used": used.cores / 1000 if used is not None else 0,
            "memory_used": used.memory if used is not None else 0,
            "allocations": len(live),
            "state": "failing" if site.why else "ok",
            "why": site.why,
        }


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
