"""Answers to clients: every op of the protocol."""

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from rota import __version__
from rota.core.decide.modes import pause_rows
from rota.core.step import Step
from rota.core.stimuli import ChangeJobs, Cover, EndAllocation, SetLimits, SetMode, Submit
from rota.manager.answers.attempts import Attempts
from rota.manager.answers.explaining import Explaining
from rota.manager.answers.failures import Failures
from rota.manager.answers.jobs import Jobs
from rota.manager.answers.limits import limit_rows
from rota.manager.answers.live import Live
from rota.manager.answers.output import Output
from rota.manager.answers.places import allocation_rows, runner_rows, site_row
from rota.manager.answers.policies import plugin_rows, policy_rows
from rota.manager.answers.running import Running
from rota.manager.answers.search import Search
from rota.manager.answers.showing import batches_of, show, totals
from rota.manager.answers.status import count_jobs, status
from rota.manager.answers.usage import ENTRIES, usage_page
from rota.manager.answers.waits import Watchers
from rota.manager.audit import target_of
from rota.manager.data.answers import answer_data
from rota.manager.inbound import now
from rota.manager.intake import decode_spec
from rota.manager.once import Duplicates
from rota.manager.once_rest import named, rest
from rota.manager.pairing import pair
from rota.manager.paths import Paths
from rota.model.allocation import Allocation, Waiting
from rota.model.batch import BatchSpec
from rota.model.errors import NoSpaceError, NotFoundError, RotaError, StoreError, UsageError
from rota.model.patch import decode_patch
from rota.model.selector import parse_selector
from rota.model.tables import RUNNING, STARTING
from rota.schedule.estimate import Group
from rota.wire.peer import Peer
from rota.wire.tokens import allows

if TYPE_CHECKING:
    from rota.manager.service import Manager

__all__ = ["Answers"]

log = logging.getLogger("rota")

MODES = {"pause": "paused", "resume": "serving", "drain": "draining"}
CHANGES = ("modify", "kill", "hold", "release", "retry", "remove")

NO_SITE = "there is no site"
"""In the words of a refusal that a change of the configuration may have to do with."""
UNAUDITED = ("stage", "live", "log", "jobs", "history", "failures", "totals", "usage")
"""What is answered later and changes nothing that anybody would want to know of."""

Answer = dict[str, Any]


class Answers:
    """Answers requests: questions from durable state, changes once they are durable."""

    def __init__(self, manager: "Manager") -> None:
        self._manager = manager
        store, book = manager.store, manager.book
        self.running = running = Running()
        self._jobs = Jobs(store, book, running)
        self.output = Output(store, book, running, manager.outbound, manager.sites.values, Paths(manager.home).output)
        self._attempts = Attempts(store, self._jobs, self.output)
        self._explaining = Explaining(
            store, book, self.output, self._waits, self._trouble, lambda: (manager.intake.trouble, manager.intake.stuck)
        )
        self._explaining.staging = manager.staging
        self._live = Live(book, running, self.output)
        self._search = Search(store, self._jobs, lambda: manager.state)
        self._failures = Failures(store, self.output, lambda: manager.state)
        self.watchers = Watchers(self._jobs, lambda: manager.state)
        self._duplicates = Duplicates(store)
        self._work: set[asyncio.Task[None]] = set()
        self._answered: set[Peer] = set()
        """Peers to whom the present turn has said something that has not left yet."""

    def ask(self, peer: Peer, ask_id: int, op: str, args: Any) -> None:
        """Answer one request, now or later."""
        manager = self._manager
        if op in ("wait", "follow"):
            timeout = args.timeout_s if op == "wait" else None
            wait = partial(self.watchers.add, peer, ask_id, args.sel, op == "follow", args.held, timeout)
            manager.when_durable(self._guard(peer, ask_id, wait))
        elif op == "submit" and (plain := self._plain(peer, args)) is not None:
            manager.tell(plain, partial(self._told, peer, ask_id, args))
        elif (work := self._work_for(peer, op, args)) is not None:
            self._later(peer, ask_id, op, args, work)
        else:
            manager.when_durable(self._guard(peer, ask_id, lambda: peer.answer(ask_id, self._look_up(op, args))))
            if op == "down":
                manager.audit.note(peer.principal, peer.address, op, "--kill" if args.kill else "", "ok")
                manager.taken_down = True
                manager.stop(args.kill)

    def _work_for(self, peer: Peer, op: str, args: Any) -> Awaitable[Answer] | None:
        """The work behind an op that changes something or may take a while; None: the op is answered at once."""
        housekeeping = self._manager.housekeeping
        if op in CHANGES:
            return self._manager.told(_change(peer, op, args))
        if op in MODES:
            return self._manager.told(_mode(peer, op, args))
        if op == "limit":
            return self._limit(peer, args)
        if op in ("submit", "stage"):
            return self._take_in(peer, op, args)
        if op == "data":
            return answer_data(self._manager.staging, args)
        if op == "token":
            return self._token(args)
        if op == "reload":
            return self._reload()
        if op == "clean":
            return self._clean(args.sites)
        if op == "end":
            return self._end(peer, args.ids)
        if op == "backup":
            return housekeeping.backup(args.path, args.redact)
        if op == "prune":
            return housekeeping.prune(args, peer.principal)
        if op in ("live", "log", "failures", "totals", "usage") or (op in ("jobs", "history") and args.searches):
            return self._look(op, args)
        return self._look(op, args) if op == "history" and (args.sel or args.states) else None

    # ---- how answers get to clients ---------------------------------------------------------------------------------

    def _later(self, peer: Peer, ask_id: int, op: str, args: Any, work: Awaitable[Answer]) -> None:
        """Answer when the work is done, which may take a while, and write down what was changed, and by whom."""
        audited = op not in UNAUDITED and not getattr(args, "dry_run", False)

        async def answer() -> None:
            outcome, result = "ok", None
            try:
                result = await work
                peer.answer(ask_id, result)
            except Exception as error:
                outcome = f"refused: {error}"
                self._failed(peer, ask_id, error)
            if audited:
                target = target_of(op, args, result)
                self._manager.audit.note(peer.principal, peer.address, op, target, outcome)

        task = self._manager.loop.create_task(answer())
        self._work.add(task)
        task.add_done_callback(self._work.discard)

    def _told(self, peer: Peer, ask_id: int, args: Any, outcome: Step | RotaError) -> None:
        """Answer a submission that nothing but the core had to do with, as soon as that is durable."""
        words, result = "ok", None
        if isinstance(outcome, RotaError):
            words = f"refused: {outcome}"
            self._failed(peer, ask_id, outcome)
        else:
            result = outcome.reply
            peer.answer(ask_id, result, flushed=True)
            self._answered.add(peer)
        self._manager.audit.note(peer.principal, peer.address, "submit", target_of("submit", args, result), words)

    def flush(self) -> None:
        """Let all that was answered by `_told` leave."""
        answered, self._answered = self._answered, set()
        for peer in answered:
            peer.flush()

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
            if NO_SITE in str(error) and (stale := self._stale()):
                error = type(error)(f"{error}; {stale}")
            peer.refuse(ask_id, error)
        else:
            log.exception("a request failed", exc_info=error)
            peer.refuse(ask_id, RotaError(f"the manager failed at this: {type(error).__name__}; see its log"))
        if isinstance(error, StoreError):
            self._manager.fail(error)

    def _stale(self) -> str | None:
        """That the configuration was changed and not read again."""
        reloader = self._manager.reloader
        return None if reloader is None else reloader.changed

    # ---- changes ----------------------------------------------------------------------------------------------------

    async def _token(self, args: Any) -> Answer:
        """Do something with the tokens of clients. Who came with one that is no longer good is shown out."""
        tokens = self._manager.tokens
        if args.action == "list":
            return {"tokens": tokens.rows()}
        if args.name is None:
            raise UsageError(f"token {args.action}: which? give a name")
        if args.action == "new":
            return tokens.new(args.name, args.scope, args.lifetime_s)
        made = tokens.rotate(args.name, args.lifetime_s) if args.action == "rotate" else {"name": args.name}
        if args.action == "revoke":
            tokens.revoke(args.name)
        return {**made, "closed": self._manager.inbound.close_sessions(args.name)}

    async def _reload(self) -> Answer:
        """Read the configuration again."""
        if self._manager.reloader is None:
            raise UsageError("this manager has no configuration file")
        return await self._manager.reloader.reload()

    async def _clean(self, names: list[str]) -> Answer:
        """Have clouds destroy servers of ours that are of no allocation; what went, and what is kept."""
        sites = self._manager.sites
        for name in names:
            if name not in sites:
                raise NotFoundError(f"there is no site '{name}'; the sites are: {', '.join(sites)}")
        rows = [(name, found) for name, site in sites.items() if (found := site.cleaned(self._tags(name))) is not None]
        if names and not any(name in names for name, _ in rows):
            raise UsageError(f"{', '.join(names)}: there is nothing to clean but servers of clouds")
        answer: dict[str, list[Any]] = {"deleted": [], "kept": []}
        for name, found in rows:
            if names and name not in names:
                found.close()
                continue
            for what, servers in (await found).items():
                answer[what] += [{"site": name, **server} for server in servers]
        return answer

    def _tags(self, site: str) -> set[str]:
        live = self._manager.state.allocations.values()
        return {row.tag for row in live if row.site == site and row.state.endswith("ING")}

    async def _end(self, peer: Peer, ids: list[str]) -> Answer:
        """End allocations: their jobs run again elsewhere once they are over."""
        if not ids:
            raise UsageError("which allocations? rota allocations --live lists them")
        wanted = [EndAllocation(at=now(), by=peer.principal, id=id) for id in ids]
        return {"allocations": [await self._manager.told(each) for each in wanted]}

    def _limit(self, peer: Peer, args: Any) -> Awaitable[Answer]:
        """Change limits, then list them."""
        change = SetLimits(at=now(), by=peer.principal, counts=args.set)
        return self._manager.told(change, lambda _: {"limits": limit_rows(self._manager.state, now())})

    def _plain(self, peer: Peer, args: Any) -> Submit | None:
        """A submission of which nothing has to be kept before it is decided; None: something has, or it is refused."""
        intake = self._manager.intake
        try:
            found = intake.plain(args) if intake.trouble is None else None
            if found is not None and found[0].templates[0].inputs:
                return None
            return None if found is None else _submit(peer, args, found[0], None, found[1], None)
        except RotaError:
            return None

    async def _take_in(self, peer: Peer, op: str, args: Any) -> Answer:
        manager = self._manager
        if manager.intake.trouble is not None:
            raise NoSpaceError(manager.intake.trouble)
        if op == "stage":
            return await manager.intake.stage(args)
        async with manager.intake.taking(args.stage):
            return await self._add(peer, args)

    async def _add(self, peer: Peer, args: Any) -> Answer:
        if args.key in self._manager.state.keys:  # its values are the batch's by now
            return await self._manager.told(_submit(peer, args, decode_spec(bytes(args.batch)), None, None, None))
        if args.once is not None:
            return await self._once(peer, args)
        new, warnings = await self._submission(peer, args)
        answer = await self._manager.told(new)
        return {**answer, "warnings": [*answer["warnings"], *warnings]} if warnings else answer

    async def _once(self, peer: Peer, args: Any) -> Answer:
        """Add what is not there already. One at a time, so that no two find the same job missing."""
        manager, duplicates = self._manager, self._duplicates
        async with duplicates.lock:
            new, warnings = await self._submission(peer, args)
            batches = list(manager.state.batches.rows())
            found = await asyncio.to_thread(duplicates.compare, batches, new.spec, new.stage, new.runs, args.once)
            names = {new.spec.name: found.by_batch()}
            if new.graph is not None and found.duplicates:
                names |= named(new.graph, new.spec.count, found.there)
            if found.duplicates and not args.rerun:
                if found.duplicates == new.spec.count:
                    if new.stage is not None:
                        await manager.writer.run(partial(manager.store.unstage, new.stage))
                    await self._cover(peer, names)
                    return {"batch": None, "jobs": 0, "warnings": [], **found.words()}
                graph, count = new.graph, new.spec.count
                if graph is not None and found.repeated:
                    raise UsageError(
                        f"{found.repeated:,} jobs of this workflow are the same as others of it, and with --once would "
                        "not run: make them differ (an argument, a directory), or add it without --once"
                    )
                new.spec, new.stage, new.runs = await duplicates.keep_new(manager.writer, new.spec, new.stage, found)
                new.graph = rest(graph, count, found.there) if graph is not None else None
            new.at = now()
            answer = await self._manager.told(new)
            if not args.rerun:
                await self._cover(peer, names)
            return {**answer, "warnings": [*answer["warnings"], *warnings], **found.words()}

    async def _cover(self, peer: Peer, names: dict[str, dict[int, list[int]]]) -> None:
        """Give jobs that are there already the names of the submission, so that nobody waits for these in vain."""
        for name, there in names.items():
            if name and there:
                await self._manager.told(Cover(at=now(), by=peer.principal, name=name, jobs=there))

    async def _submission(self, peer: Peer, args: Any) -> tuple[Submit, list[str]]:
        """What a client adds, and warnings."""
        manager = self._manager
        spec, stage, env, runs = await manager.intake.prepare(args)
        if any(template.inputs for template in spec.templates):
            await manager.staging.submitted(manager.state, spec.templates)
        new = _submit(peer, args, spec, stage, env, runs)
        new.graph = manager.intake.graph(args, spec.count)
        warnings: list[str] = []
        if any(dependency.each for dependency in spec.after) and args.key not in manager.state.keys:
            warnings = await asyncio.to_thread(pair, manager.state, manager.store, new)
        return new, warnings

    # ---- questions --------------------------------------------------------------------------------------------------

    async def _look(self, op: str, args: Any) -> Answer:
        """Answer a question that may take a while."""
        manager = self._manager
        await manager.durable()
        if op == "log":
            return await self.output.log(manager.state, args)
        if op == "live":
            await self.running.measure(manager.state)
            return await self._live.rows(manager.state, args.sel, args.limit, now().wall)
        if op == "failures":
            return await self._failures.answer(args.sel)
        if op == "totals":
            sums = await asyncio.to_thread(manager.store.sums, batches_of(manager.state, args.sel))
            return totals(manager.state, args.sel, sums)
        if op == "usage":
            entries = await asyncio.to_thread(manager.store.entries, args.after, ENTRIES)
            return usage_page(manager.state, entries, True)
        return await (self._search.jobs(args) if op == "jobs" else self._search.attempts(args))

    def _look_up(self, op: str, args: Any) -> Answer:
        """Answer a question about jobs."""
        state, at = self._manager.state, now()
        if op == "status":
            return status(state, args, at, self._explaining.records(state))
        if op == "jobs":
            return self._jobs.page(state, args.sel, args.after, args.limit, args.newest)
        if op == "count":
            return count_jobs(state, args.sel)
        if op == "explain":
            return self._explaining.answer(state, args, at)
        if op == "show":
            return show(state, self._manager.store, self._manager.book, args.job)
        if op == "history":
            return self._attempts.history(state, args.after, args.limit)
        if op == "summary":
            return self._attempts.summary(state, args.batch, args.failures, args.slowest, at.wall)
        return self._about(op)

    def _about(self, op: str) -> Answer:
        """Answer a question about the manager or its places."""
        manager, state, at = self._manager, self._manager.state, now()
        running = sum(batch.counts[RUNNING] + batch.counts[STARTING] for batch in state.batches.open())
        if op == "ping":
            return {
                "pid": os.getpid(),
                "host": socket.gethostname(),
                "version": __version__,
                "state": "stopping" if manager.stopping else state.mode,
                "uptime_s": at.mono - manager.started.mono,
                "store": manager.intake.refusal() or "ok",
                "running": running,
                "pauses": pause_rows(state.pauses),
                "config": self._stale(),
            }
        if op == "down":
            return {"running": running}
        if op == "learning":
            return {"groups": [_learned(name, group) for name, group in sorted(state.groups.items())]}
        if op == "plugins":
            return {"plugins": plugin_rows(state), "policies": policy_rows(state)}
        if op == "sites":
            rows = [site_row(state, manager.sites[name], at) for name in state.soft.sites if name in manager.sites]
            return {"sites": rows, "config": self._stale()}
        if op == "costs":
            return {"servers": [{"site": name, **row} for name, site in manager.sites.items() for row in site.costs()]}
        if op == "runners":
            return {"runners": runner_rows(state, at)}
        if op == "allocations":
            return {"allocations": allocation_rows(state, self._waits, at)}
        raise UsageError(f"no such op: {op}")

    def _waits(self, allocation: Allocation) -> Waiting | None:
        """Why an allocation does not run yet, in the words of its site."""
        site = self._manager.sites.get(allocation.site)
        return None if site is None else site.waits(allocation)

    def _trouble(self, allocation: Allocation) -> str | None:
        """That the site of an allocation does not answer, and since when."""
        site = self._manager.sites.get(allocation.site)
        return None if site is None else site.trouble(now().wall)


def _submit(
    peer: Peer, args: Any, spec: BatchSpec, stage: str | None, env: str | None, runs: list[int] | None
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
        may_limit=allows(peer.access.scope, "limit"),
        then=decode_spec(bytes(args.end)) if bytes(args.end) != b"null" else None,
    )


def _change(peer: Peer, op: str, args: Any) -> ChangeJobs:
    return ChangeJobs(
        at=now(),
        by=peer.principal,
        what=op,
        selector=parse_selector(args.sel),
        everything=args.all,
        dry_run=args.dry_run,
        stop=getattr(args, "stop", False),
        confirm_dead=getattr(args, "confirm_dead", False),
        patch=decode_patch(bytes(args.changes)) if hasattr(args, "changes") else None,
    )


def _mode(peer: Peer, op: str, args: Any) -> SetMode:
    return SetMode(
        at=now(),
        by=peer.principal,
        mode=MODES[op],
        holder=getattr(args, "holder", ""),
        reason=getattr(args, "reason", ""),
        everyone=getattr(args, "all", False),
    )


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
