"""Messages of peers: the manager's ear. Each becomes a stimulus or a question; nothing is decided here."""

import json
import logging
import os
import socket
import time
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from rota import __version__
from rota.core.decide.ends import find_live
from rota.core.decide.greeting import rivals, stranger
from rota.core.stimuli import (
    At,
    Disconnected,
    Ended,
    Greet,
    Held,
    Left,
    Released,
    Report,
    RunnerBye,
    Started,
    Touch,
    Used,
)
from rota.manager.job_tokens import attempt_lives, job_access
from rota.model.errors import DeniedError, RotaError
from rota.model.needs import Amounts
from rota.wire import auth, messages
from rota.wire.peer import Peer
from rota.wire.tokens import JOB

if TYPE_CHECKING:
    from rota.manager.service import Manager

__all__ = ["Inbound", "now", "report_rows"]

log = logging.getLogger("rota")


def now() -> At:
    """The time on both clocks."""
    wall = time.time()
    return At(wall, time.monotonic(), _utc_offset(int(wall // 60)))


@lru_cache(1)
def _utc_offset(minute: int) -> int:
    """Seconds that local time is ahead of UTC in a minute of the wall clock. To find it out looks at a file."""
    return time.localtime(minute * 60).tm_gmtoff


class Inbound:
    """Takes what comes over every connection, of clients and of runners."""

    def __init__(self, manager: "Manager") -> None:
        self._manager = manager
        self.clients: set[Peer] = set()
        self._jobs: set[Peer] = set()
        """Those that came with the token of a job."""

    def on_client(self, peer: Peer, message: messages.Hello) -> None:
        """Welcome a client."""
        manager = self._manager
        self.clients.add(peer)
        if peer.token is not None:
            manager.tokens.used(peer.token)
            if peer.token.startswith(JOB):
                self._jobs.add(peer)
            manager.audit.few(peer.token, peer.principal, peer.address, "greet", f"token {peer.token}", "ok")
        about = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "version": __version__,
            "home": manager.home,
            "started": manager.started.wall,
        }
        peer.send({"t": "welcome", "version": messages.VERSION, "manager": about})

    def on_ask(self, peer: Peer, ask_id: int, op: str, body: bytes) -> None:
        """Take a client's request; a job's only while its attempt lasts."""
        if peer in self._jobs and not attempt_lives(self._manager.state, peer.token or ""):
            raise DeniedError(f"the token '{peer.token}' is over, as the attempt is that it was for")
        self._manager.answers.ask(peer, ask_id, op, messages.decode_ask(op, body))

    def on_runner(self, peer: Peer, message: messages.Greet | messages.RunnerMessage) -> None:
        """Take a runner's message; over a connection that is not its present one it is dropped."""
        manager, at = self._manager, now()
        runner, by = peer.runner_id, peer.principal
        assert runner is not None
        if isinstance(message, messages.Greet):
            self._greet(peer, message)
            return
        outbound, running = manager.outbound, manager.answers.running
        if outbound.peers.get(runner) is not peer and outbound.greeting.get(runner, (None, 0))[0] is not peer:
            return
        if isinstance(message, messages.Report):
            known = manager.state.runners.get(runner)
            output = known.output if known is not None else ""
            running.started(self._own(runner, message.started), output)
            if running:
                running.ended(self._own(runner, message.ended))
            report = Report(
                at=at,
                by=by,
                runner=runner,
                session=message.session,
                seq=message.seq,
                got=message.got,
                clock=message.clock,
                started=[Started(*row[:4]) for row in message.started],
                ended=report_rows(message.ended, output),
                disclaimed=message.disclaimed,
            )
            manager.tell(report)
            manager.staging.begun(message.started)
        elif isinstance(message, messages.Tail):
            manager.answers.output.told(runner, message)
        elif isinstance(message, messages.Touch):
            session, got, clock = message.session, message.got, message.clock
            if message.live and runner in manager.state.runners:
                running.touched(self._own(runner, message.live), manager.state.runners[runner].output)
            used = [Used(b, i, a, told, cpu_s, memory) for b, i, a, cpu_s, memory, _, _, _, told in message.live]
            touch = Touch(
                at=at,
                by=by,
                runner=runner,
                session=session,
                got=got,
                clock=clock,
                held=message.held,
                used=used,
                left=[Left(*row) for row in message.left],
                holds=message.holds,
            )
            manager.tell(touch)
            if manager.staging.phases and runner in manager.state.runners:
                manager.staging.touched(manager.state, manager.state.runners[runner])
        elif isinstance(message, messages.Held):
            manager.tell(Held(at=at, by=by, runner=runner, session=message.session, holds=message.holds))
        elif isinstance(message, messages.Released):
            manager.tell(Released(at=at, by=by, runner=runner, session=message.session, jobs=message.jobs))
        elif isinstance(message, messages.Bye):
            manager.tell(RunnerBye(at=at, by=by, runner=runner, session=message.session, reason=message.reason))

    def _own(self, runner: str, rows: list[Any]) -> list[Any]:
        """The rows of a message that are about attempts which this runner has: nothing else is shown of them."""
        state = self._manager.state
        return [row for row in rows if find_live(state, runner, (row[0], row[1], row[2])) is not None]

    def _greet(self, peer: Peer, message: messages.Greet) -> None:
        state = self._manager.state
        why = stranger(state, message.allocation, message.runner, message.replaces) or self._misplaced(message)
        if why is not None:
            log.warning("a greeting of %s is refused: %s", peer.principal, why)
            target = f"allocation {message.allocation}"
            self._manager.audit.few("", peer.principal, peer.address, "greet", target, f"refused: {why}")
            self._note(message.allocation, f"a greeting from {peer.address} was refused: {why}")
            raise DeniedError(why)
        self._manager.outbound.greeting[message.runner] = (peer, message.connect)
        at = now()
        greeting = Greet(
            at=at,
            by=peer.principal,
            runner=message.runner,
            allocation=message.allocation,
            connect=message.connect,
            clock=message.clock,
            host=message.host,
            pid=message.pid,
            capacity=Amounts(message.cores, message.memory, message.disk, message.gpus),
            tags=tuple(message.tags),
            until=at.wall + message.until_s if message.until_s is not None else None,
            output=message.output,
            held=message.held,
            holds=message.holds,
            gangs=message.gangs,
            replaces=message.replaces,
            challenged=peer.challenged,
        )
        if message.replaces is None and (message.runner in state.runners or not rivals(state, greeting)):
            self._manager.tell(greeting)
        else:
            self._manager.observer.collect_replaced(state, greeting)

    def _misplaced(self, message: messages.Greet) -> str | None:
        """Why a new runner cannot have its output where it says: what is there is shown to whoever may read logs."""
        state = self._manager.state
        known = state.allocations.get(message.allocation or "")
        site = None if known is None else self._manager.sites.get(known.site)
        if known is None or site is None or message.runner in state.runners:
            return None
        place, output = os.path.normpath(site.output_of(known.tag, message.runner)), message.output
        if os.path.normpath(output) == output and f"{output}/".startswith(f"{place}/"):
            return None
        return f"a runner of allocation {known.id} has its output in {place}, not in {output}"

    def on_gone(self, peer: Peer) -> None:
        """Note that a connection is over: no evidence about the runner behind it, but the moment to ask the driver."""
        manager = self._manager
        outbound = manager.outbound
        self.clients.discard(peer)
        self._jobs.discard(peer)
        manager.answers.watchers.gone(peer)
        runner = peer.runner_id
        if runner is not None and outbound.peers.get(runner) is peer:
            del outbound.peers[runner]
            known = manager.state.runners.get(runner)
            if known is not None:
                manager.tell(Disconnected(at=now(), by=peer.principal, runner=runner, session=known.session))
        if runner is not None and outbound.greeting.get(runner, (None, 0))[0] is peer:
            del outbound.greeting[runner]

    def on_refused(self, peer: Peer, action: str, target: str, error: RotaError) -> None:
        """Write down what somebody was refused."""
        token = "" if peer.role is None else peer.token or ""
        self._manager.audit.few(token, peer.principal, peer.address, action, target, f"refused: {error}")

    def on_locked(self, address: str, allocation: str | None) -> None:
        """Write down that an address is told no more for a while."""
        name = "no allocation" if allocation is None else f"allocation {allocation}"
        log.warning("%s has failed to greet too often (%s): it is told no more for a minute", address, name)
        self._manager.audit.few("", "manager", address, "lock-out", name, "refused: too many failed greetings")
        self._note(allocation, f"{address} was locked out: too many failed greetings for {name}")

    def _note(self, allocation: str | None, words: str) -> None:
        """Show some words with the site of an allocation, if there is one of that name."""
        known = self._manager.state.allocations.get(allocation or "")
        site = None if known is None else self._manager.sites.get(known.site)
        if site is not None:
            site.note(words)

    def end_jobs(self) -> None:
        """Close the connections of jobs whose attempt is over."""
        for token in {peer.token or "" for peer in self._jobs}:
            if not attempt_lives(self._manager.state, token):
                self.close_sessions(token)

    def close_sessions(self, token: str) -> int:
        """Close the connections of everybody who came with this token; how many those are."""
        over = [peer for peer in self.clients if peer.token == token]
        for peer in over:
            peer.refuse(None, DeniedError(f"the token '{token}' opens nothing any more"))
            peer.close()
        return len(over)

    def access_for(self, name: str) -> auth.Access | None:
        """What a client's token opens."""
        if name.startswith(JOB):
            return job_access(self._manager.state, self._manager.outbound.job_secret, name)
        return self._manager.tokens.access(name)

    def token_for(self, allocation: str) -> str | None:
        """The token of an allocation that is alive."""
        known = self._manager.state.allocations.get(allocation)
        if known is not None and not known.state.endswith("ING"):
            return None
        return auth.find_token(self._manager.home, allocation)


def report_rows(rows: list[Any], output: str) -> list[Ended]:
    """Rows of a report as the core takes them; where the output is becomes text: directory, then the eight figures."""
    prefix = ""
    out = []
    for row in rows:
        place = row[10]
        if place is not None:
            prefix = prefix or json.dumps(output)
            name, at, size, cut, error, error_at, error_size, error_cut = place
            name = "null" if name is None else f'"{name}"'
            error = "null" if error is None else f'"{error}"'
            place = f"[{prefix},{name},{at},{size},{cut},{error},{error_at},{error_size},{error_cut}]"
        out.append(Ended._make((*row[:10], place, row[11], row[12] if len(row) > 12 else None)))
    return out
