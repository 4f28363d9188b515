"""What people ask about data: `rota data`, and what `rota explain` says of a job's files."""

import asyncio
import fnmatch
import glob
from collections.abc import Iterable
from typing import Any

from msgspec.structs import asdict, replace

from rota.core.state import BatchState, State
from rota.manager.data.places import S3, check_answer
from rota.manager.data.staging import Staging
from rota.model.data import URL, Replica
from rota.model.errors import NotFoundError, RotaError, UsageError
from rota.model.tables import STARTING

__all__ = ["answer_data", "explain_data"]


async def answer_data(staging: Staging, args: Any) -> dict[str, Any]:
    """Answer `data`: do what is asked with replicas, then tell of those that are concerned."""
    if args.action == "add":
        return {"replicas": [_row(row) for row in await _add(staging, args.paths, args.location, args.checksum)]}
    chosen = list(_chosen(staging, args.paths, args.location))
    if args.action == "list":
        return {"replicas": [_row(row) for row in chosen], **_shown(staging)}
    if args.paths and not chosen:
        where = f" at {args.location}" if args.location is not None else ""
        raise NotFoundError(f"nothing is known of {', '.join(args.paths)}{where}: rota data list shows what is")
    if args.action == "drop":
        if args.files:
            await _remove(staging, chosen)
        staging.files.registry.drop([row.key for row in chosen])
        return {"replicas": [_row(row) for row in chosen]}
    found = await asyncio.gather(*(_verify(staging, row) for row in chosen))
    return {"replicas": [_row(row) for row in found]}


def _row(row: Replica) -> dict[str, Any]:
    return asdict(row)


def _chosen(staging: Staging, paths: Iterable[str], location: str | None) -> Iterable[Replica]:
    wanted = list(paths)
    for row in staging.files.registry.all():
        if location not in (None, row.location, row.location.partition("/")[0]):
            continue
        below = any(row.path == path or row.path.startswith(path.rstrip("/") + "/") for path in wanted)
        if not wanted or below or any(glob.has_magic(path) and fnmatch.fnmatch(row.path, path) for path in wanted):
            yield row


async def _add(staging: Staging, paths: list[str], location: str | None, checksum: bool) -> list[Replica]:
    """Register files at a place, by default where they are found."""
    places = staging.files.places()
    if location is not None and location not in places:
        raise UsageError(f"there is no place '{location}'; the places are {', '.join(places)}")
    if not paths:
        raise UsageError("data add: which files?")
    found = []
    for path in paths:
        asked = [S3] if path.startswith(URL) else [location] if location is not None else [*places][:-1]
        for name in asked:
            place = places[name]
            if place.why_not is not None and location is None:
                continue
            info = check_answer(await place.ask("files", paths=[path])).get("files", {}).get(path)
            if info is None:
                continue
            row = Replica(path, name, info["size"], info["mtime"])
            if checksum:
                row = replace(row, checksum=check_answer(await place.ask("checksum", path=path))["sha256"])
            found.append(row)
        if not any(row.path == path for row in found):
            raise NotFoundError(f"{path} is not there: looked at {', '.join(asked)}")
    staging.files.registry.keep(*found)
    return found


async def _verify(staging: Staging, row: Replica) -> Replica:
    """Look at a replica: whether it is there, as large as it was, and with the digest that it had."""
    place = staging.files.places().get(row.location)
    try:
        if place is None:
            raise RotaError("there is no such place any more")
        if row.path.startswith(URL) and place.name != S3:
            return row
        info = check_answer(await place.ask("files", paths=[row.path])).get("files", {}).get(row.path)
        if info is None:
            new = replace(row, valid=False, why="it is not there any more")
        elif info["size"] != row.size:
            new = replace(row, valid=False, why=f"it has {info['size']} bytes now, and had {row.size}")
        elif row.checksum is not None and place.name != S3:
            digest = check_answer(await place.ask("checksum", path=row.path))["sha256"]
            same = digest == row.checksum
            new = replace(row, valid=same, why="" if same else "its digest is another than it was")
        else:
            new = replace(row, valid=True, why="")
    except RotaError as error:
        return replace(row, why=f"not looked at: {error}")
    staging.files.registry.keep(new)
    return new


async def _remove(staging: Staging, rows: list[Replica]) -> None:
    """Remove the files that rota brought; those of somebody else are refused."""
    own = [row for row in rows if not row.cached]
    if own:
        raise UsageError(f"{own[0].path} at {own[0].location} was not brought there by rota: remove it yourself")
    places = staging.files.places()
    for row in rows:
        if row.location in places:
            await staging.files.remove(places[row.location], [row])


def _shown(staging: Staging) -> dict[str, Any]:
    """Transfers and caches."""
    transfers = [asdict(each) for each in (*staging.files.transfers.live, *reversed(staging.files.transfers.past))]
    caches = []
    for name, place in staging.files.places().items():
        rows = staging.files.registry.cached(name)
        if name != S3:
            used = sum(row.size for row in rows if staging.files.is_used(row))
            most = staging.files.cache_most(name)
            size = sum(row.size for row in rows)
            row = {"place": name, "files": len(rows), "bytes": size, "most": most, "in_use": used}
            caches.append({**row, "away": place.why_not})
    moved = [
        {"source": a, "target": b, "bytes": size} for (a, b), size in sorted(staging.files.transfers.moved.items())
    ]
    outputs = [{**asdict(owed), "job": owed.name} for owed in staging.outputs.owed.values()]
    return {"transfers": transfers, "caches": caches, "moved": moved, "outputs": outputs}


def explain_data(staging: Staging, state: State, batch: BatchState, pos: int) -> dict[str, Any] | None:
    """Which of a job's files are where, by place, and what is being brought; None: it reads and writes none."""
    template = batch.template(pos)
    if not template.inputs and not template.outputs:
        return None
    at, total = staging.files.bytes_at(template.inputs)
    files = []
    for path in template.inputs:
        rows = [row for row in staging.files.registry.of(path) if row.valid]
        size = max((row.size for row in rows), default=None)
        files.append({"path": path, "bytes": size, "at": sorted(row.location for row in rows)})
    live, index = batch.live.get(pos), batch.index(pos)
    words = staging.told((batch.id, index, live.attempt)) if live is not None else None
    choice = staging.choices.get((batch.id, index, batch.attempts[pos]))
    chosen = {"place": choice.place, "why": choice.words()} if choice is not None else None
    return {
        "files": files,
        "bytes": total,
        "places": [{"place": name, "bytes": count} for name, count in sorted(at.items(), key=lambda row: -row[1])],
        "chosen": chosen,
        "staging": words if live is not None and batch.states[pos] == STARTING else None,
        "outputs": list(template.outputs),
        "unwritten": staging.outputs.told((batch.id, index, batch.attempts[pos])),
    }
