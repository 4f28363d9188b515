"""`rota show`: everything of a job's specification."""

from rota.cli.explain import JOB
from rota.cli.link import look
from rota.cli.show import clean, print_json, size, when
from rota.model.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any

    from rota.cli.parser import Parser

SHOWN = 8
"""Variables of the submitter's environment that are named."""


def configure(parser: "Parser", command: str) -> None:
    """The options of `show`."""
    parser.add_argument("job", metavar="JOB", help="a job, as in 7.12, or a batch or @name of one job")
    parser.add_argument("--env", action="store_true", help="with all variables of the environment it was submitted in")
    parser.json("one object with all fields")
    parser.examples("rota show 7.12", "rota show @report", "rota show 7.12 --env", "rota show 7.12 --json")


def execute(args: "argparse.Namespace") -> int:
    """Print all that is known of how a job is run."""
    with look(args) as connection:
        answer = connection.ask("show", job=args.job if JOB.fullmatch(args.job) else only_job(connection, args.job))
    if args.json:
        print_json(answer)
        return 0
    for title, text in lines(answer, args.env):
        if text not in (None, "", [], {}):
            print(f"{title:<14} {clean(text)}")
    return 0


def only_job(connection: "Any", word: str) -> str:
    """The one job that a batch or a name means."""
    found = connection.ask("jobs", sel=[word], limit=2)["jobs"]
    if len(found) != 1:
        several = f" has several: name one, as in {found[0]['id']}" if found else " means no job"
        raise UsageError(f"{word}{several}")
    return str(found[0]["id"])


def lines(row: "dict[str, Any]", whole_environment: bool) -> "list[tuple[str, Any]]":
    """(title, text) of everything; empty ones are not printed."""
    name = f" ({row['name']})" if row["name"] else ""
    tries = f"{row['attempts']} attempt{'' if row['attempts'] == 1 else 's'}"
    after = [
        f"{each['target']} {each.get('condition', 'success')}{', job by job' if each.get('each') else ''}"
        f"{', live' if each.get('live') else ''} ({each['stands']})"
        for each in row["after"]
    ]
    asks = row["asks_now"] if row["asks_now"] != row["needs_words"] else ""
    out: list[tuple[str, Any]] = [
        ("job", f"{row['job']} of batch {row['batch']}{name}, {row['state']}, {tries}"),
        ("submitted", f"{when(row['submitted'])} by {row['by']}"),
        ("command", row["command"]),
        ("values", ", ".join(f"{key}={value}" for key, value in (row["values"] or {}).items())),
        ("directory", row["cwd"]),
        ("stdin", row["stdin"]),
        ("stdout", row["stdout"]),
        ("stderr", row["stderr"]),
        ("needs", row["needs_words"]),
        ("asks for", asks),
        *(("learned", text) for text in row["learned"]),
        ("group", row["group"]),
        ("priority", f"{row['priority']}, policy {row['policy']}"),
        ("limits", ", ".join(row["limits"])),
        ("at once", row["at_once"]),
        ("retries", retries(row)),
        ("max failures", row["max_failures"]),
        ("scouts", row["scouts"] or None),
        ("after", "; ".join(after)),
        ("not before", when(row["not_before"])),
        ("ended if over", ", ".join(row["enforce"]) + f"; KILL {row['grace_s']} s after TERM"),
        ("output kept", f"{size(row['output_cap'])} of each stream"),
        ("own directory", f"cleanup: {row['cleanup'] or 'success'}" if row["workdir"] == "unique" else ""),
        ("modules", " ".join(row["modules"])),
        ("setup", row["setup"]),
        *((f"{title.replace('_', ' ')}", "; ".join(texts)) for title, texts in row["behaviours"].items()),
        *(("set", f"{key}={value}") for key, value in sorted(row["set"].items())),
        ("environment", environment(row, whole_environment)),
    ]
    if whole_environment:
        out += [("", f"{key}={value}") for key, value in sorted(row["environment"].items())]
    out += [("changed", f"{field}: {old} → {new}") for field, (old, new) in row["changes"].items()]
    return out


def retries(row: "dict[str, Any]") -> str:
    """The rules by which it is tried again."""
    words = [str(row["retries"])]
    words += [f"only on {', '.join(row['retry_on'])}"] if row["retry_on"] else []
    words += [f"never on {', '.join(row['never_retry_on'])}"] if row["never_retry_on"] else []
    words += [f"not after {row['no_retry_after_s']} s"] if row["no_retry_after_s"] is not None else []
    words += ["may be run twice"] if row["rerunnable"] else []
    return ", ".join(words)


def environment(row: "dict[str, Any]", whole: bool) -> str:
    """Where its variables come from."""
    if row["environment_from"] != "submit":
        return "that of the site" if row["environment_from"] == "site" else "none but the usual"
    names = sorted(row["environment"])
    more = f", … ({len(names)}; --env shows them)" if len(names) > SHOWN and not whole else ""
    return "that of the submitter: " + ("" if whole else ", ".join(names[:SHOWN])) + more
