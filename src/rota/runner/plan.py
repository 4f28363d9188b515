"""How to run the jobs of one spec: everything that does not change from job to job, worked out once."""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence, Tuple

from rota.runner.contained import SPARED
from rota.runner.environment import Environment
from rota.runner.lease import Lease

if TYPE_CHECKING:
    from rota.runner.credentials import Credentials
    from rota.runner.devices import Gpus

__all__ = ["DEFAULT_CAP", "Plan", "Plans", "StartError"]

DEFAULT_CAP = 64 << 20
DEFAULT_UMASK = 0o022
DEFAULT_BEHAVIOUR_S = 600.0
BEHAVIOURS = ("on_success", "on_failure", "on_exit")
MODULES = "type module >/dev/null 2>&1 || . /etc/profile.d/modules.sh"


class StartError(Exception):
    """A job could not be started; the note is for the person whose job it is."""

    def __init__(self, reason: str, note: str, exit_code: Optional[int] = None) -> None:
        super().__init__(note)
        self.reason = reason
        self.note = note
        self.exit_code = exit_code


class Plan:
    """One spec (with one job's overrides, if it has any), ready to be used."""

    __slots__ = (
        "_words",
        "behaviour_s",
        "behaviours",
        "bind",
        "cap",
        "cleanup",
        "container",
        "cores",
        "cwd",
        "env",
        "env_of",
        "grace_s",
        "home",
        "leftovers",
        "memory",
        "plain",
        "preamble",
        "ranked",
        "shared",
        "shell",
        "spared",
        "spec",
        "special",
        "stderr",
        "stdin",
        "stdout",
        "time_s",
        "umask",
        "warn",
        "workdir",
    )

    def __init__(
        self,
        spec: Dict[str, Any],
        env: Optional[Dict[str, str]],
        own: Dict[bytes, bytes],
        runner_id: str,
        gpus: Optional[Gpus] = None,
    ) -> None:
        self.spec = spec
        self.env_of = env
        self.env = Environment(spec, env, own, runner_id, gpus)
        self.cwd: str = spec.get("cwd") or "/"
        self.cores: int = int(spec.get("cores") or 1000)
        self.bind: str = spec.get("bind") or ""
        self.workdir: bool = spec.get("workdir") == "unique"
        self.cleanup: str = spec.get("cleanup") or "success"
        self.home: bool = spec.get("home") == "workdir"
        self.behaviours: Dict[str, List[str]] = {name: spec[name] for name in BEHAVIOURS if spec.get(name)}
        self.behaviour_s: float = spec.get("behaviour_s") or DEFAULT_BEHAVIOUR_S
        self.container: Optional[Dict[str, Any]] = spec.get("container")
        self.spared: Sequence[str] = SPARED if self.container else ()
        # There is more to do than to start and reap it.
        self.leftovers: str = spec.get("leftovers") or "end"
        self.special = bool(self.workdir or self.behaviours or self.leftovers == "wait" or self.container)
        warn = spec.get("warn")
        self.warn: Optional[Tuple[int, float]] = (int(warn[0]), float(warn[1])) if warn else None
        self.stdin: Optional[str] = spec.get("stdin")
        self.stdout: Optional[str] = spec.get("stdout")
        self.stderr: Optional[str] = spec.get("stderr")
        self.time_s: Optional[float] = spec.get("time_s")
        self.memory: Optional[int] = spec.get("memory")
        self.grace_s: Optional[float] = spec.get("grace_s")
        cap = spec.get("cap")
        self.cap: int = DEFAULT_CAP if cap is None else max(0, int(cap))
        umask = spec.get("umask")
        self.umask: int = DEFAULT_UMASK if umask is None else int(umask) & 0o777
        self.shell: Optional[str] = spec.get("shell")
        self.preamble = _preamble(spec)
        self.ranked: bool = spec.get("model", "threads") != "threads"
        self._words: Optional[List[str]] = None
        self.shared = False  # used for more than one job
        # Nothing to open: the usual case.
        self.plain = self.stdin is None and self.stdout is None and self.stderr is None

    def argv(self, command: Any) -> List[str]:
        """The words to execute; the first is still to be looked up in the job's PATH."""
        if isinstance(command, list):
            if not command or not all(isinstance(word, str) for word in command):
                raise StartError("start", "the command is empty or not a list of words")
            if not self.preamble:
                return command
            return [*self.shell_words(), self.preamble + 'exec "$@"', "rota", *command]
        return [*self.shell_words(), self.preamble + command]

    def shell_words(self) -> List[str]:
        """The words before a command line that a shell is to run."""
        if self._words is None:
            self._words = self._interpreter()
        return self._words

    def _interpreter(self) -> List[str]:
        if self.shell:
            return [*shlex.split(self.shell), "-c"]
        path = os.fsdecode(self.env.path)
        if any(os.access(os.path.join(part or ".", "bash"), os.X_OK) for part in path.split(":")):
            return ["bash", "-o", "pipefail", "-c"]
        if os.access("/bin/bash", os.X_OK):  # a PATH without a shell in it must not keep a command line from running
            return ["/bin/bash", "-o", "pipefail", "-c"]
        return ["/bin/sh", "-c"]


def _preamble(spec: Dict[str, Any]) -> str:
    lines = []
    modules = spec.get("modules")
    if modules:
        lines.append(MODULES)
        lines.append("module load %s || exit 1" % " ".join(shlex.quote(name) for name in modules))
    setup = spec.get("setup") or []
    for name in [setup] if isinstance(setup, str) else setup:
        lines.append(". %s || exit 1" % shlex.quote(os.path.join(spec.get("cwd") or "/", name)))
    return "".join(line + "\n" for line in lines)


class Plans:
    """The plans of the specs in use, found by the identity of the spec: a dict look-up per job."""

    def __init__(self, own: Dict[bytes, bytes], runner_id: str, gpus: Optional[Gpus] = None) -> None:
        self._own = own
        self._gpus = gpus
        self._runner_id = runner_id
        self.credentials: Optional[Credentials] = None
        self._known: Dict[int, Plan] = {}

    def gpu_variables(self, slot: str) -> Dict[bytes, bytes]:
        """What is to be told of the gpus of a slot."""
        return {} if self._gpus is None else self._gpus.variables(slot)

    def of(self, lease: Lease) -> Plan:
        """The plan for the job of a lease: that of its spec, or one of its own if it has overrides."""
        spec = lease.spec
        if lease.extra:
            return self._with_credentials(
                Plan({**spec, **lease.extra}, lease.env, self._own, self._runner_id, self._gpus)
            )
        plan = self._known.get(id(spec))
        if plan is None or plan.spec is not spec or plan.env_of is not lease.env:
            if len(self._known) > 1000:
                self._known.clear()
            plan = Plan(spec, lease.env, self._own, self._runner_id, self._gpus)
            self._known[id(spec)] = self._with_credentials(plan)
            plan.shared = True
        return plan

    def _with_credentials(self, plan: Plan) -> Plan:
        plan.env.credentials = self.credentials
        return plan
