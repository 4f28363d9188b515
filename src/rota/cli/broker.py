"""`rota broker`: why a task goes to which queues, what would change that, and whether decisions are as pinned."""

from rota.cli.show import Table, clean, print_json
from rota.model.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping
    from typing import Any

    from rota.cli.parser import Parser
    from rota.schedule.broker.config import Thresholds

ACTIONS = ("explain", "try", "verify", "config")
SHOWN = 20
"""Differences of one case that are shown."""


def configure(parser: "Parser", command: str) -> None:
    """The options of `broker`."""
    parser.add_argument("action", choices=ACTIONS, help="what to do")
    parser.add_argument(
        "names",
        nargs="*",
        metavar="FILE|NAME",
        help="verify: vectors; try: a saved state; config: only these thresholds",
    )
    parser.add_argument("--task", metavar="FILE", help="JSON of a task, with its chunk and files")
    parser.add_argument("--queues", metavar="FILE", help="JSON of queues, with what is known of them")
    parser.add_argument("--software", metavar="FILE", help="JSON of what queues publish of their software")
    parser.add_argument("--flow", metavar="NAME", help="production, analysis, … (default: by the task's label)")
    parser.add_argument(
        "--profile", choices=("doc", "code", "modern"), help="which reading of the rules (default: as configured, doc)"
    )
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="change a threshold")
    parser.add_argument("--save", metavar="FILE", help="explain: write task and queues there, for rota broker try")
    parser.json("explain: the decision; try: before and after; verify: each case; config: each threshold")
    parser.examples(
        "rota broker explain --task task.json --queues queues.json",
        "rota broker explain --task task.json --queues queues.json --save state.json",
        "rota broker try state.json --set NQUEUED_SAT_CAP=300 --set NW_ACTIVE=false",
        "rota broker verify vectors.json",
        "rota broker config IO_INTENSITY_CUTOFF",
    )


def execute(args: "argparse.Namespace") -> int:
    """Do it; exit status 1 if no queue is left, or a vector differs."""
    if args.action == "config":
        return _config(args)
    if args.action == "verify":
        return _verify(args)
    if args.action == "try":
        return _try(args)
    return _explain(args)


def _thresholds(args: "argparse.Namespace", also: "Mapping[str, Any] | None" = None) -> "Thresholds":
    """The thresholds to go by: the configuration's, then those of the document, then those of --set."""
    from rota.manager.config import load_config
    from rota.manager.paths import Paths
    from rota.schedule.broker.config import Thresholds

    configured = load_config(Paths(args.home).home).broker
    changed = {**configured.thresholds, **(also or {}), **_set(args)}
    return Thresholds(args.profile or configured.profile, changed)


def _set(args: "argparse.Namespace") -> "dict[str, Any]":
    found: dict[str, Any] = {}
    for text in args.set:
        name, sign, value = text.partition("=")
        if not sign:
            raise UsageError(f"--set {text}: give NAME=VALUE")
        found[name.strip()] = _value(name, value.strip())
    return found


def _value(name: str, text: str) -> "bool | int | float | None":
    words: dict[str, bool | None] = {"true": True, "yes": True, "false": False, "no": False, "none": None, "": None}
    if text.lower() in words:
        return words[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    raise UsageError(f"--set {name}={text}: give a number, true, false or none")


def _read(path: str) -> "Any":
    """A JSON file; UsageError says what is wrong with it, and where."""
    import json

    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    except ValueError as error:
        raise UsageError(f"{path}: {error}") from None
    except RecursionError:
        raise UsageError(f"{path}: it is nested too deeply") from None


def _document(args: "argparse.Namespace") -> "dict[str, Any]":
    """Task and queues in one document."""
    if args.task is None or args.queues is None:
        raise UsageError("give --task FILE and --queues FILE")
    task, queues = _read(args.task), _read(args.queues)
    for path, what in ((args.task, task), (args.queues, queues)):
        if not isinstance(what, dict):
            raise UsageError(f"{path}: an object is expected")
    found: dict[str, Any] = dict(task) if isinstance(task.get("task"), dict) else {"task": task}
    found.update(queues if "queues" in queues else {"queues": queues})
    if args.software is not None:
        found["extra"] = {**(found.get("extra") or {}), "software": _read(args.software)}
    return found


def _explain(args: "argparse.Namespace") -> int:
    from rota.cli.broker_show import as_json, print_decision
    from rota.plugins import load_plugins
    from rota.schedule.broker.flows import broker
    from rota.schedule.broker.funnel import lint_queues
    from rota.schedule.broker.reading import read_task, read_world

    load_plugins()
    document = _document(args)
    thresholds = _thresholds(args, (document.get("extra") or {}).get("config"))
    task, world = read_task(document), read_world(document)
    decision = broker(task, world, thresholds, args.flow)
    if args.save is not None:
        _write(args.save, document)
    oddities = lint_queues(world.queues)
    if args.json:
        print_json(as_json(decision, oddities))
    else:
        print_decision(decision, oddities)
    return int(decision.status != "SUCCEEDED")


def _write(path: str, document: "dict[str, Any]") -> None:
    import json

    try:
        with open(path, "w", encoding="utf-8") as file:
            json.dump(document, file, indent=1)
            file.write("\n")
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None


def _try(args: "argparse.Namespace") -> int:
    """Broker the tasks of a saved state twice: as it is, and with changed thresholds."""
    from rota.cli.broker_show import compare_json, print_comparison
    from rota.plugins import load_plugins
    from rota.schedule.broker.flows import broker
    from rota.schedule.broker.reading import read_task, read_world

    if len(args.names) != 1:
        raise UsageError("rota broker try FILE: give one saved state, as rota broker explain --save writes it")
    changes = _set(args)
    if not changes and args.profile is None:
        raise UsageError("what is to be tried? --set NAME=VALUE, or --profile NAME")
    state = _read(args.names[0])
    if not isinstance(state, dict):
        raise UsageError(f"{args.names[0]}: an object is expected")
    load_plugins()
    world = read_world(state)
    tasks = state.get("tasks") or [{key: state[key] for key in ("task", "chunk", "files") if key in state}]
    said = (state.get("extra") or {}).get("config")
    after = _thresholds(args, said)
    args.set, args.profile = [], None
    before = _thresholds(args, said)
    differ = []
    for number, one in enumerate(tasks):
        if not isinstance(one, dict):
            raise UsageError(f"{args.names[0]}: tasks[{number}]: an object is expected")
        task = read_task({"extra": state.get("extra"), **(one if isinstance(one.get("task"), dict) else {"task": one})})
        name = str(task.task_id if task.task_id is not None else number)
        differ.append((name, broker(task, world, before, args.flow), broker(task, world, after, args.flow)))
    if args.json:
        print_json([compare_json(*row) for row in differ])
    else:
        for row in differ:
            print_comparison(*row)
    return 0


def _verify(args: "argparse.Namespace") -> int:
    """Run vectors; print what differs, and how many passed."""
    from rota.schedule.broker.config import PROFILES
    from rota.schedule.broker.verify import check_format, verify

    if not args.names:
        raise UsageError("rota broker verify FILE …: give files of vectors")
    documents = [(path, _read(path)) for path in args.names]
    for path, document in documents:
        try:
            check_format(document)
        except UsageError as error:
            raise UsageError(f"{path}: {error}") from None
    passed = failed = 0
    profiles = PROFILES if args.profile is None else (args.profile,)
    for _, document in documents:
        for verdict in verify(document, profiles):
            if args.json:
                row = {"id": verdict.id, "profile": verdict.profile, "passed": not verdict.differences}
                print_json({**row, "differences": list(verdict.differences)})
            elif verdict.differences:
                print(f"{clean(verdict.id)} ({verdict.profile}) differs:")
                for words in verdict.differences[:SHOWN]:
                    print(f"  {clean(words)}")
                if len(verdict.differences) > SHOWN:
                    print(f"  and {len(verdict.differences) - SHOWN} more")
            passed, failed = passed + (not verdict.differences), failed + bool(verdict.differences)
    if args.json:
        print_json({"passed": passed, "failed": failed})
    else:
        print(f"{passed} passed, {failed} failed")
    return int(failed > 0 or not passed)


def _config(args: "argparse.Namespace") -> int:
    """Print thresholds: name, value, unit, where the value comes from, what it means."""
    from rota.model.errors import NotFoundError
    from rota.schedule.broker.config import SETTINGS

    thresholds = _thresholds(args)
    rows = []
    for name in args.names or sorted(thresholds, key=_position):
        bases = [base for base, each in SETTINGS.items() if each.suffix and name.startswith(f"{base}_")]
        if name not in thresholds and not bases:
            raise NotFoundError(f"there is no threshold '{name}'; rota broker config lists them all")
        setting = SETTINGS.get(name) or SETTINGS[max(bases, key=len)]
        rows.append(
            {
                "name": name,
                "value": thresholds[name if name in thresholds else setting.name],
                "unit": setting.unit,
                "source": setting.source,
                "set": "changed" if name in thresholds.changed else f"profile {thresholds.profile}",
                "profiles": {"doc": setting.doc, "code": setting.code, "modern": setting.modern},
                "what": setting.what,
            }
        )
    if args.json:
        print_json({"profile": thresholds.profile, "thresholds": rows})
        return 0
    table = Table("NAME", "VALUE", "UNIT", "FROM", "SOURCE", "MEANING")
    table.print(
        [(row["name"], _shown(row["value"]), row["unit"], row["set"], row["source"], row["what"]) for row in rows]
    )
    return 0


def _position(name: str) -> "tuple[int, str]":
    """Where a threshold stands in the list: those for one share after the common one."""
    from rota.schedule.broker.config import SETTINGS

    names = list(SETTINGS)
    base = name if name in SETTINGS else max((one for one in names if name.startswith(one + "_")), key=len)
    return names.index(base), name


def _shown(value: "Any") -> str:
    return "unset" if value is None else "yes" if value is True else "no" if value is False else f"{value:g}"
