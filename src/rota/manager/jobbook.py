"""From (batch, position) to what a runner is told to run: commands, specs, environments.

Everything is worked out once per template.
"""

import hashlib
import hmac
import os
import signal
from collections import OrderedDict
from collections.abc import Collection, Mapping
from typing import Any

from rota.core.state import BatchState, State
from rota.model.batch import Value, count_of
from rota.model.command import BEHAVIOURS, CommandMaker, show_command
from rota.model.needs import Amounts
from rota.model.tables import JOB_STATES, REMOVED, SETTLED
from rota.store.api import Store
from rota.wire import auth

__all__ = ["JobBook"]

GANG_KEY = "gangs"
"""The file that has the key of all gangs; nobody is told it."""
PAGE = 4096
MAKERS = 4096
"""Compiled templates that are kept in memory."""
ALIKE = 256
"""Of these, templates that are the same for any batch."""
PAGES = 64
"""Pages of values that are kept in memory."""


class JobBook:
    """Reads values from the store, a page at a time, and fills in templates."""

    def __init__(self, store: Store, site_setup: dict[str, str | None], home: str = "") -> None:
        self._store = store
        self._home = home
        self._gang_key: str | None = None
        self._site_setup = site_setup
        self._styles: dict[str, tuple[tuple[str, ...], Mapping[str, str]]] = {}
        self._makers: dict[tuple[int, int], CommandMaker] = {}
        self._alike: dict[int, CommandMaker] = {}
        """The same for templates, by their identity, that are the same command for every job of every batch."""
        self.version = 0
        """Grows when sites are set up otherwise."""
        self._pages: OrderedDict[tuple[int, int], list[Any]] = OrderedDict()

    def set_up_site(self, site: str, setup: str | None) -> None:
        """Take note of the file that is sourced before every job at a site."""
        self._site_setup[site] = setup
        self.version += 1

    def tell(self, site: str, style: tuple[str, ...], variables: Mapping[str, str]) -> None:
        """Take note of how the jobs of a site are told what they got, and of variables that all of them have."""
        self._styles[site] = (style, variables)
        self.version += 1

    def maker(self, batch: BatchState, template: int) -> CommandMaker:
        """The compiled template."""
        given = batch.templates[template]
        maker = self._alike.get(id(given)) or self._makers.get((batch.id, template))
        if maker is None:
            maker = CommandMaker(given, batch.spec.columns, batch.id)
            if maker.is_plain and not batch.spec.columns:
                if len(self._alike) >= ALIKE:
                    self._alike.clear()
                self._alike[id(given)] = maker  # which keeps the template, so that no other has its identity
            elif batch.count > 1:  # of one job it is mostly asked once
                if len(self._makers) >= MAKERS:
                    self._makers.clear()
                self._makers[batch.id, template] = maker
        return maker

    def value(self, batch: BatchState, pos: int) -> Value:
        """The value of a job: what makes it different from its neighbours."""
        if batch.ranges is not None and not batch.spec.columns:
            return None
        key = (batch.id, pos // PAGE)
        page = self._pages.get(key)
        if page is None:
            low = pos // PAGE * PAGE
            page = self._pages[key] = self._store.values(batch.id, low, min(PAGE, batch.count - low))
            if len(self._pages) > PAGES:
                self._pages.popitem(last=False)
        value: Value = page[pos % PAGE]
        return value

    def command(self, batch: BatchState, pos: int, attempt: int) -> str:
        """The command as people see it."""
        maker = self.maker(batch, batch.template_of(pos))
        return show_command(maker.command(self.value(batch, pos), batch.index(pos), attempt))

    def path(self, batch: BatchState, pos: int, attempt: int, name: str) -> str | None:
        """`cwd`, `stdin`, `stdout` or `stderr` of a job, absolute."""
        maker = self.maker(batch, batch.template_of(pos))
        value, index = self.value(batch, pos), batch.index(pos)
        path = maker.path(name, value, index, attempt)
        if path is None or name == "cwd":
            return path
        return os.path.join(maker.path("cwd", value, index, attempt) or "/", path)

    def variant(self, batch: BatchState, pos: int, amounts: Amounts) -> int:
        """Which of a job's alternatives these amounts are: the first that they are enough for."""
        for number, needs in enumerate(batch.templates[batch.template_of(pos)].needs.alternatives()):
            same = (needs.gpus, needs.gpu_share, needs.named) == (amounts.gpus, amounts.gpu_share, amounts.named)
            if same and (needs.span or needs.whole or amounts.cores >= needs.cores):
                return number
        return 0

    def lease_row(self, batch: BatchState, pos: int, attempt: int, slot: str, cores: int) -> list[Any]:
        """One job as a lease message carries it."""
        template = batch.template_of(pos)
        maker = self.maker(batch, template)
        first = batch.spec.templates[0]
        lines = first.argv is None and first.shell is None  # then a job's own line may say more than its command
        value = None if maker.fixed and not maker.behaviours and not lines else self.value(batch, pos)
        index = batch.index(pos)
        extra: dict[str, Any] | None = None
        if maker.paths or maker.behaviours or isinstance(value, dict):
            extra = {name: maker.behaviour(name, value, index, attempt) for name in maker.behaviours}
            given = value if isinstance(value, dict) else {}
            for name in ("cwd", "stdin", "stdout", "stderr"):
                if name in maker.paths or name in given:
                    extra[name] = self.path(batch, pos, attempt, name)
            variables = maker.variables(value)
            if variables is not None:
                extra["set"] = variables
        spec = f"{batch.id}.{template}.{cores}"
        return [slot, spec, batch.id, index, attempt, maker.command(value, index, attempt), extra]

    def are_alike(self, batch: BatchState, template: int) -> bool:
        """Whether the jobs of a template are told apart by their number only: nothing of a value is in what they do."""
        maker, first = self.maker(batch, template), batch.spec.templates[0]
        lines = first.argv is None and first.shell is None
        return maker.fixed is not None and not (lines or maker.paths or maker.behaviours)

    def end_variables(self, state: State, batch: BatchState) -> dict[str, str]:
        """The variables that tell a job at the end of a batch about that batch."""
        ended = state.batches.peek(batch.spec.ends or 0)
        if ended is None:
            return {"ROTA_BATCH": str(batch.spec.ends)}
        counts = ended.counts
        by_state = {f"ROTA_{JOB_STATES[number]}": str(counts[number]) for number in range(SETTLED, REMOVED)}
        own = {"ROTA_BATCH": str(ended.id), "ROTA_BATCH_NAME": ended.name, "ROTA_JOBS": str(ended.count)}
        return own | by_state

    def spec(
        self, batch: BatchState, template: int, cores: int, site: str, host: str = "", variant: int = 0
    ) -> dict[str, Any]:
        """How the jobs of a template are run, as a lease message carries it."""
        given = batch.templates[template]
        needs = given.needs.alternatives()[variant]
        environment = None  # the runner's own
        if given.env_from != "site":
            environment = "none" if given.env_from == "none" or batch.env is None else batch.env
        out: dict[str, Any] = {
            "cwd": given.cwd,
            "env": environment,
            "set": given.set,
            "modules": list(given.modules),
            "setup": [file for file in (self._site_setup.get(site), given.setup) if file],
            "umask": given.umask,
            "time_s": needs.time_s if "time" in given.enforce else None,
            "memory": needs.memory if "memory" in given.enforce else None,
            "grace_s": given.grace_s,
            "cap": given.cap,
            "cores": cores,
            "workdir": None,
            "array": None,
        }
        if needs.bind:
            out["bind"] = needs.bind
        style, told = self._styles.get(site, ((), {}))
        if style := given.env_style or style:
            out |= {"style": list(style), "host": host}
        if told:
            out["told"] = told
        if given.needs.variants:
            out["variant"] = variant
        if given.model != "default":
            out |= {"model": given.model, "mpirun": given.mpirun, "mpirun_args": list(given.mpirun_args)}
            if given.model == "threads" and cores % 1000 == 0:
                out.setdefault("bind", "cores")
        if given.workdir == "unique":
            out |= {"workdir": "unique", "cleanup": given.cleanup or "success"}
            out |= {"home": "workdir"} if given.change_home else {}
        for name in BEHAVIOURS:
            if getattr(given, name):
                out |= {name: list(getattr(given, name)), "behaviour_s": given.behaviour_s}
        if given.leftovers != "end":
            out["leftovers"] = given.leftovers
        if given.container is not None:
            out["container"] = {"image": given.container, "engine": given.engine, "mounts": list(given.mounts)}
            if given.inputs or given.outputs:
                out["container"] |= {"inputs": list(given.inputs), "outputs": list(given.outputs)}
        if given.warn is not None:
            out["warn"] = [int(signal.Signals[f"SIG{given.warn[0]}"]), given.warn[1]]
        for name in ("stdin", "stdout", "stderr"):
            path = getattr(given, name)
            out[name] = os.path.join(given.cwd, path) if path is not None else None
        ranges = batch.spec.ranges
        if ranges is not None:
            out["array"] = {
                "first": ranges[0][0],
                "last": ranges[-1][1],
                "step": ranges[0][2],
                "count": count_of(ranges),
            }
        return out

    def gang_secret(self, batch: int, index: int, attempt: int) -> str:
        """What the nodes of an attempt know each other by: made from a key that stays with this home."""
        if self._gang_key is None:
            self._gang_key = auth.kept_secret(self._home, GANG_KEY)
        job = f"{batch}.{index}.{attempt}"
        return hmac.new(self._gang_key.encode(), job.encode(), hashlib.sha256).hexdigest()

    def environment(self, name: str) -> dict[str, str]:
        """The variables of an environment, by the name under which a runner is sent it."""
        if name == "none":
            return {
                key: os.environ[key] for key in ("HOME", "USER", "LOGNAME", "SHELL", "LANG") if key in os.environ
            } | {"PATH": "/usr/local/bin:/usr/bin:/bin"}
        return self._store.environment(name)

    def forget(self) -> None:
        """Drop what was read (after the state was reloaded)."""
        self._makers.clear()
        self._alike.clear()
        self._pages.clear()

    def drop(self, numbers: Collection[int]) -> None:
        """Drop what was read of batches that were pruned."""
        for kept in (self._makers, self._pages):
            for key in [key for key in kept if key[0] in numbers]:
                del kept[key]
