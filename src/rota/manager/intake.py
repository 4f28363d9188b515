"""Taking submissions in: staged values, environments, and the checks that need neither the core nor the disk."""

import asyncio
import hashlib
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import lru_cache, partial
from typing import Any

import msgspec

from rota.manager.writer import Writer
from rota.model.batch import MAX_COMMAND, BatchSpec, check_value
from rota.model.errors import NoSpaceError, RefusedError, UsageError
from rota.model.graph import Graph, pack_links
from rota.store.api import Store
from rota.wire import messages

__all__ = ["Intake"]

log = logging.getLogger("rota")

SPARE = 64 << 20
"""No new work is taken with less space than this, so that accepted work can be finished."""
MAX_ENV = 1 << 20
MAX_STAGES = 1_000
"""Submissions that are begun and not made; then the first of them is forgotten."""
MAX_STAGED = 256 << 20
"""Bytes of links that are kept for submissions to come."""
ALIKE = 64
"""Different submissions, each without its values, that are not decoded again."""
ALIKE_BYTES = 8192
"""The largest of these."""
_SPEC = msgspec.json.Decoder(BatchSpec)
_decode_alike = lru_cache(ALIKE)(_SPEC.decode)
"""Submissions that are alike share one spec, so that what follows from it is worked out once."""
_ENVIRONMENT = msgspec.json.Decoder(dict[str, str])


class Intake:
    """Prepares a submission: when it is done, everything but the decision is on disk."""

    def __init__(self, store: Store, writer: Writer) -> None:
        self._store = store
        self._writer = writer
        self.trouble: str | None = None
        """Why no new work is taken since the disk was full, or None."""
        self.stuck = False
        """Whether the last turn could not be written down at all, as what was set aside for that is used up."""
        self._kinds: dict[str, set[str]] = {}
        """The sorts of values that were staged under a name."""
        self._taken: dict[str, asyncio.Event] = {}
        """Stages that a submission has been given: nothing changes in them any more, and nobody else gets them."""
        self._links: dict[str, dict[int, tuple[bytes, bytes]]] = {}
        """Stage → position of the first → links of values that were staged."""
        self._env_names: set[str] = set()
        self._last_env: tuple[bytes, str | None] = (b"null", None)
        """Submissions that follow each other mostly come from one environment."""

    def check_space(self) -> None:
        """Refuse new work before the disk is full, not when it is."""
        free = self._store.free_bytes()
        if free < SPARE:
            raise NoSpaceError(
                f"only {free >> 20} MiB are left where rota keeps its queue: no new work is taken until at least "
                f"{SPARE >> 20} MiB are free; what was accepted goes on"
            )

    def refusal(self) -> str | None:
        """Why new work would be refused now, or None."""
        try:
            self.check_space()
        except NoSpaceError as error:
            return self.trouble or str(error)
        return self.trouble

    def refuse(self, error: NoSpaceError) -> NoSpaceError:
        """The disk is full: take no new work until `try_again` finds space; the refusal, in words."""
        log.error("%s", error)
        self.trouble = f"{error}; no new work is taken until then, what was accepted goes on"
        return NoSpaceError(self.trouble)

    def try_again(self) -> None:
        """Take new work again if the disk was full and has space now."""
        if self.trouble is None:
            return
        restore_reserve = getattr(self._store, "restore_reserve", None)
        try:
            self.check_space()
        except NoSpaceError as error:
            self.trouble = str(error)
            return
        if restore_reserve is None or restore_reserve():
            log.info("there is space again: new work is taken")
            self.trouble = None

    async def stage(self, args: messages.Stage) -> dict[str, Any]:
        """Keep a chunk of values."""
        self.check_space()
        if args.stage in self._taken:
            raise RefusedError("what was staged under this name is being submitted: use another name")
        values = _decode_values(bytes(args.values))
        self._kinds.setdefault(args.stage, set()).update(_kinds(values, args.first))
        await self._writer.run(lambda: self._store.stage(args.stage, args.first, values, args.templates))
        while len(self._kinds) > MAX_STAGES and (old := self._oldest()) is not None:
            self._links.pop(old, None)
            del self._kinds[old]
            await self._writer.run(partial(self._store.unstage, old))
        if args.links is not None:
            if len(args.links) != len(values):
                raise UsageError(f"{len(values)} values came with links of {len(args.links)}")
            self._links.setdefault(args.stage, {})[args.first] = pack_links(args.links)
            while sum(len(links) for rows in self._links.values() for _, links in rows.values()) > MAX_STAGED:
                del self._links[next(iter(self._links))]
        return {"staged": args.first + len(values)}

    def _oldest(self) -> str | None:
        return next((name for name in self._kinds if name not in self._taken), None)

    @asynccontextmanager
    async def taking(self, stage: str | None) -> AsyncIterator[None]:
        """Give a stage to one submission at a time, until its batch has the values or was refused."""
        while stage is not None and (other := self._taken.get(stage)) is not None:
            await other.wait()
        over = asyncio.Event()
        if stage is not None:
            self._taken[stage] = over
        try:
            yield
        finally:
            if stage is not None:
                del self._taken[stage]
            over.set()

    def graph(self, args: messages.Submit, count: int) -> Graph | None:
        """The graph of a submission, if its jobs have links."""
        pieces = self._links.pop(args.stage or "", {})
        if args.links is not None:
            pieces = {0: pack_links(args.links)}
        if args.graph is None and not pieces:
            return None
        rows = [pieces[first] for first in sorted(pieces)]
        degrees, links = b"".join(row[0] for row in rows), b"".join(row[1] for row in rows)
        if len(degrees) != 4 * count:
            raise UsageError(f"{len(degrees) // 4:,} of {count:,} jobs came with links: add it again")
        head = args.graph or messages.GraphHead()
        return Graph(degrees, links, tuple(head.names), tuple(head.after))

    def plain(self, args: messages.Submit) -> tuple[BatchSpec, str | None] | None:
        """(spec, environment) of a submission of which nothing has to be kept before it is decided; None: something."""
        if args.stage is not None or bytes(args.values) != b"null" or args.once is not None:
            return None
        if args.graph is not None or args.links is not None:
            return None
        env = bytes(args.env)
        if env not in (b"null", self._last_env[0]):
            return None
        spec = decode_spec(bytes(args.batch))
        if spec.columns or len(spec.templates) != 1 or any(dependency.each for dependency in spec.after):
            return None
        if spec.templates[0].argv is None and spec.templates[0].shell is None:
            return None
        self.check_space()
        return spec, None if env == b"null" else self._last_env[1]

    async def prepare(self, args: messages.Submit) -> tuple[BatchSpec, str | None, str | None, list[int] | None]:
        """Check a submission, and keep its values and environment; (spec, stage, environment, runs)."""
        self.check_space()
        spec = decode_spec(bytes(args.batch))
        spec.check()
        stage, runs = args.stage, None
        values = _decode_values(bytes(args.values)) if bytes(args.values) != b"null" else None
        lines = any(template.argv is None and template.shell is None for template in spec.templates)
        numbered = spec.ranges is not None and len(spec.templates) > 1  # only their templates tell them apart
        wants_values = lines or numbered or bool(spec.columns)
        if lines and spec.columns:
            raise UsageError("jobs that are whole command lines have no parameters")
        if wants_values != (stage is not None or values is not None):
            raise UsageError("this batch needs values" if wants_values else "this batch takes no values")
        if values is not None and wants_values:
            for number, value in enumerate(values, 1):
                _check_value(number, value, spec.columns, lines)
            stage = f"s-{args.key}"
            chosen = list(values)
            await self._writer.run(lambda: self._store.stage(f"s-{args.key}", 0, chosen, args.templates))
        elif stage is not None:
            self._check_kinds(stage, spec, lines)
        if stage is not None:
            await self._writer.run(lambda: None)  # chunks sent before this are written before it
            staged = self._store.staged(stage)
            if staged.count != spec.count:
                raise UsageError(f"{staged.count} values were sent for {spec.count} jobs")
            runs = staged.runs
            if runs is not None and max(runs[::2]) >= len(spec.templates):
                raise UsageError(f"a value names template {max(runs[::2])}, but there are {len(spec.templates)}")
            self._kinds.pop(stage, None)
        if len(spec.templates) > 1 and runs is None:
            raise UsageError("several templates are given, but no value says which is its")
        return spec, stage, await self._environment(bytes(args.env)), runs

    def _check_kinds(self, stage: str, spec: BatchSpec, lines: bool) -> None:
        kinds = self._kinds.get(stage)
        if kinds is None:
            raise UsageError("nothing was staged under this name (was the manager restarted meanwhile?): add it again")
        plain = len(spec.columns) == 1 or spec.ranges is not None
        allowed = {"text", "object"} if lines else {"text"} if plain else {f"row of {len(spec.columns)}"}
        if kinds - allowed:
            raise UsageError(
                f"the values are {', '.join(sorted(kinds))}, but this batch takes {' or '.join(sorted(allowed))}"
            )

    async def _environment(self, raw: bytes) -> str | None:
        if raw == b"null":
            return None
        if raw == self._last_env[0]:
            return self._last_env[1]
        variables = _decode_environment(raw)
        for key, value in variables.items():
            if not key or "=" in key or "\0" in key or "\0" in value:
                raise UsageError(
                    f"the environment: {key!r:.100} cannot be a variable (no '=' or NUL in names, no NUL in values)"
                )
        body = json.dumps(variables, sort_keys=True)
        if len(body) > MAX_ENV:
            raise UsageError(
                f"the environment has {len(body):,} bytes; the most is {MAX_ENV:,}: use --env-from none and --env"
            )
        name = hashlib.sha256(body.encode("utf-8", "surrogatepass")).hexdigest()[:32]
        if name not in self._env_names:
            await self._writer.run(lambda: self._store.keep_environment(name, variables))
            self._env_names.add(name)
        self._last_env = (raw, name)
        return name


def _decode_environment(raw: bytes) -> dict[str, str]:
    try:
        return _ENVIRONMENT.decode(raw)
    except (msgspec.MsgspecError, ValueError) as error:  # ValueError: not UTF-8
        raise UsageError(f"the environment: {error}") from None


def decode_spec(raw: bytes) -> BatchSpec:
    """A BatchSpec from JSON; an error names the field."""
    try:
        return _decode_alike(raw) if len(raw) <= ALIKE_BYTES else _SPEC.decode(raw)
    except msgspec.MsgspecError as error:
        raise UsageError(f"the batch: {error}") from None


def _decode_values(raw: bytes) -> list[Any]:
    try:
        try:
            return msgspec.json.decode(raw, type=list[str] | None) or []
        except msgspec.ValidationError:
            return msgspec.json.decode(raw, type=list[Any])
    except msgspec.MsgspecError as error:
        raise UsageError(f"the values: {error}") from None


def _kinds(values: list[Any], first: int) -> set[str]:
    """The sorts of values that there are; refuses a value that no process could be given."""
    kinds = set()
    for number, value in enumerate(values, first + 1):
        if isinstance(value, str):
            kinds.add("text")
            if "\0" in value or len(value) > MAX_COMMAND // 4:
                _check_value(number, value, ("",), False)
        elif isinstance(value, list):
            kinds.add(f"row of {len(value)}")
            _check_value(number, value, tuple(str(column) for column in range(len(value))), False)
        elif isinstance(value, dict):
            kinds.add("object")
            _check_value(number, value, (), True)
        else:
            raise UsageError(f"value {number} is neither text, a list of texts, nor an object")
    return kinds


def _check_value(number: int, value: Any, columns: tuple[str, ...], lines: bool) -> None:
    try:
        check_value(value, columns, lines)
    except UsageError as error:
        raise UsageError(f"value {number}: {error}") from None
