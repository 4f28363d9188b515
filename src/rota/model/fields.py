"""The table of all that can be said of a job: each option once, for the command line, Python, JSON lines and changes.

What it makes: the flags of `add`, `run`, `modify` and `retry` (`rota.cli.submitting`, `rota.cli.change`), the Template
of a submission, the fields of a JSON line and the Patch of a change (`rota.submission`), the list in docs/python.md.
The types that are written out (Template, Needs, Patch, JobOptions, Changes) are compared with it by a test.
"""

from typing import Any, NamedTuple

__all__ = ["BATCH_CHANGES", "CHANGES", "FIELDS", "GROUPS", "JSON_FIELDS", "OPTIONS", "Field"]


class Field(NamedTuple):
    """One option of a job or a batch."""

    name: str
    """Its name in Python, in a JSON line, and in the Namespace of a command."""
    kind: str
    """How a user's words for it are read (`rota.submission.kinds`), and what its flag takes (`rota.cli.submitting`)."""
    place: str
    """Where it is kept: in the `template`, in its `needs`, among the `options` for a batch system, with the `batch`, or
    in a `patch` only. Empty: a flag that adds to another field."""
    metavar: str
    help: str
    change: str = ""
    """The help where it is changed; empty: the same."""
    flags: str = ""
    """Its flags on a command line; empty: `--` and its name."""
    default: Any = None
    choices: tuple[str, ...] = ()
    clears: bool = False
    """Whether a change to '' takes it away."""
    relative: bool = False
    """Whether it may be changed by an amount: `x2`, `+1G`."""
    change_metavar: str = ""
    kept_as: str = ""
    """Its name where it is kept, if that is another."""

    @property
    def target(self) -> str:
        """Its name where it is kept."""
        return self.kept_as or self.name

    @property
    def flag(self) -> list[str]:
        """Its flags on a command line."""
        return self.flags.split() or [f"--{self.name.replace('_', '-')}"]


# fmt: off
GROUPS: dict[str, tuple[Field, ...]] = {
    "what to run": (
        Field("name", "text", "batch", "NAME", "a name for the batch, for use as @NAME",
              "another name ('' takes it away)", default="", change_metavar="TEXT"),
    ),
    "what each job needs": (
        Field("cores", "cores", "needs", "N", "4, 0.5, a range 2..8 (2.., ..8), or all of a node (default 1)",
              "4, 2..8, all, x2, +1", flags="-c --cores", default="1", relative=True),
        Field("memory", "size", "needs", "SIZE", "500M, 4G", "4G, x2 (twice what it asks for now), +1G",
              flags="--memory --mem", relative=True),
        Field("time", "duration", "needs", "TIME", "the longest it may take: 90m, 1h30m, 2d, HH:MM:SS",
              "90m, x2, +1h", flags="-t --time", relative=True, kept_as="time_s"),
        Field("disk", "size", "needs", "SIZE", "10G", "10G, x2, +5G", relative=True),
        Field("gpus", "gpus", "needs", "N", "GPUs: 2; or a share of one: 0.5", default=0),
        Field("resources", "resources", "needs", "NAME=N", "a named resource", "named resources (all of them)",
              flags="--resource", default={}, clears=True, kept_as="named"),
        Field("tags", "tags", "needs", "TAG", "only where this tag is", "tags (all of them)",
              flags="--tag", default=(), clears=True),
        Field("span", "text", "needs", "HOW",
              "--cores are in all, on any number of nodes: pack, compact, tight, scatter; with ! it waits for the best",
              default="", clears=True),
        Field("variants", "variants", "needs", "K=V,…",
              "or else with these needs, as in cores=2,gpus=1 (repeat: tried in order)",
              "other needs that will do (all of them)", flags="--variant", default=(), clears=True),
        Field("bind", "bind", "needs", "",
              "on cores of its own, and on no others: cores; by memory nodes: compact, tight, scatter; with ! it waits",
              default="none",
              choices=("cores", "compact", "tight", "scatter", "compact!", "tight!", "scatter!", "none")),
        Field("on", "text", "needs", "SITE", "only at this site", clears=True, kept_as="site"),
        Field("group", "text", "template", "NAME", "learn with jobs of this group (default: the program's name)",
              "learning group"),
        Field("override", "choice", "template", "",
              "when your --memory, --time, --disk are used and not what was learned (default higher: if they are)",
              "when your figures are used, not the learned ones",
              default="higher", choices=("never", "higher", "always")),
        Field("limits", "limits", "template", "NAME[:RULE]",
              "obey a limit; with :10, :100/min or :22:00-06:00 set it as well (see rota limit --help)",
              "count against this limit too", flags="--limit", default=(), change_metavar="NAME"),
        Field("enforce", "enforce", "template", "", "what ends a job that exceeds it",
              default="time", choices=("none", "time", "memory", "both")),
        Field("grace", "duration", "template", "TIME", "from TERM to KILL (default 10s)", "from TERM to KILL",
              kept_as="grace_s"),
        Field("output_cap", "size", "template", "SIZE",
              "of each output stream, keep so much: head and tail (default 16M)",
              "of each output stream, keep so much: head and tail", kept_as="cap"),
    ),
    "where there is a batch system": (
        Field("account", "text", "options", "NAME", "account or project to charge",
              flags="-A --account", clears=True),
        Field("partition", "text", "options", "NAME", "partition or queue",
              flags="--partition --queue", clears=True),
        Field("qos", "text", "options", "NAME", "quality of service", clears=True),
        Field("reservation", "text", "options", "NAME", "use this reservation", clears=True),
        Field("constraint", "text", "options", "TEXT", "features that a node must have", clears=True),
        Field("exclusive", "switch", "options", "", "share the node with nobody", default=False),
        Field("nodes", "nodes", "needs", "N", "so many nodes at once, or 2..4; --cores and the like are per node",
              "so many nodes at once", default=1),
        Field("tasks_per_node", "count", "options", "N",
              "what the batch system is told for srun and mpirun", default=1, kept_as="tasks-per-node"),
        Field("native", "native", "options", "--KEY=VALUE", "an option of the batch system itself",
              "set an option of the batch system itself", default={}),
    ),
    "where and with what it runs": (
        Field("cwd", "directory", "template", "DIR", "working directory (default: this one)", "working directory"),
        Field("env", "variables", "template", "K=V", "set a variable; K alone passes yours on", "set a variable",
              default={}, kept_as="set"),
        Field("env_from", "choice", "template", "", "the environment to begin with",
              default="submit", choices=("submit", "site", "none")),
        Field("modules", "names", "template", "NAME", "load this environment module first",
              "environment modules (all of them)", flags="--module", default=(), clears=True),
        Field("setup", "file", "template", "FILE", "source this file first", clears=True),
        Field("stdin", "path", "template", "FILE", "standard input (default: /dev/null)", "standard input",
              clears=True),
        Field("stdout", "path", "template", "FILE", "standard output to a file; {} and {index} may be used",
              "standard output to a file", flags="-o --stdout", clears=True),
        Field("stderr", "path", "template", "FILE", "standard error to a file", flags="-e --stderr", clears=True),
        Field("workdir", "choice", "template", "", "unique: a fresh directory for each attempt",
              default="shared", choices=("shared", "unique")),
        Field("cleanup", "choice", "template", "", "when it is removed (default success)", "when that is removed",
              choices=("success", "failure", "always", "never")),
        Field("change_home", "switch", "template", "", "HOME is that directory", default=False),
        Field("model", "choice", "template", "", "start the command once, or as ranks, one per core",
              default="default", choices=("default", "threads", "openmpi", "intelmpi", "mpich", "hydra", "srunmpi")),
        Field("mpirun", "text", "template", "PATH",
              "the program that starts the ranks of --model (default: mpirun, srun …)", clears=True),
        Field("mpirun_args", "names", "template", "WORD", "a word for that program (repeat)",
              "words for that program (all of them)", flags="--mpirun-arg", default=(), clears=True),
        Field("env_style", "list", "template", "LIST",
              "whose variables tell it what it got: slurm, qcg, none (default: the site's own)", default=(),
              clears=True),
        Field("inputs", "inputs", "template", "PATH",
              "a file or directory that it reads, or s3://BUCKET/KEY; {} and * may be used (repeat)",
              "what it reads (all of it)", flags="--input", default=(), clears=True),
        Field("outputs", "outputs", "template", "PATH", "what it writes: known, and brought on, once it has succeeded",
              "what it writes (all of it)", flags="--output", default=(), clears=True),
        Field("leftovers", "choice", "template", "", "what it leaves running is ended (default), waited for, kept",
              "processes that it leaves running", default="end", choices=("end", "wait", "keep")),
        Field("container", "image", "template", "IMAGE", "run it in a container: a name, or a path (.sif, a directory)",
              "run it in a container", clears=True),
        Field("engine", "choice", "template", "", "what runs the container (default: what the node has)",
              "what runs the container", default="auto",
              choices=("auto", "podman", "docker", "apptainer", "singularity", "ch-run")),
        Field("mounts", "mounts", "template", "SRC[:DST[:ro]]", "seen inside too, besides the working directory",
              "seen inside too (all of them)", flags="--mount", default=(), clears=True),
    ),
    "when it runs, and what if it fails": (
        Field("priority", "count", "template", "N", "0 (default) to 255 (first)", "0 to 255",
              flags="-p --priority", default=0),
        Field("policy", "text", "template", "NAME", "who goes first and where, as [policy.NAME] says",
              default="default"),
        Field("after", "dependencies", "batch", "SEL", "once these have COMPLETED: 7, 7.12, @name",
              "wait for these too: 7, 7.12, @name; none: for nothing it had", default=()),
        Field("after_any", "dependencies", "batch", "SEL", "once these are settled in any way",
              "until these are settled in any way", default=()),
        Field("after_failure", "dependencies", "batch", "SEL", "once these have failed", "until these have failed",
              default=()),
        Field("each", "manner", "batch", "", "of the --after before it: job by job, each for its own number",
              "of the --after before it: job by job", default=False),
        Field("each_value", "manner", "", "", "… each for the one with its own value", flags="--each=value"),
        Field("live", "manner", "batch", "", "of the --after @NAME before it: also for new batches of that name",
              default=False),
        Field("live_rerun", "manner", "", "", "… and what has completed runs again after them", flags="--live=rerun"),
        Field("require_known", "switch", "batch", "",
              "refuse an --after @NAME that nothing has yet (default: wait)",
              "refuse an --after @NAME that nothing has yet", default=False),
        Field("not_before", "text", "batch", "WHEN", "22:30, 2030-01-31T22:30 or +2h",
              "22:30, 2030-01-31T22:30 or +2h; now: at once"),
        Field("retries", "count", "template", "N", "try again so often (default 0)", "try again so often", default=0),
        Field("retry_on", "list", "template", "LIST", "only on these exit codes and reasons: 75,time,oom", default=()),
        Field("never_retry_on", "list", "template", "LIST", "never on these", default=()),
        Field("no_retry_after", "duration", "template", "TIME", "not if it failed after so long",
              clears=True, kept_as="no_retry_after_s"),
        Field("max_failures", "text", "batch", "N|P%|off",
              "hold the rest after so many failures (default: the first 50, all)",
              "hold the rest after so many failures", change_metavar="N|P%|off|default"),
        Field("scouts", "text", "batch", "N|off",
              "the first N jobs run first: what they use decides what the rest asks for",
              "so many jobs run first; off: the rest waits for none"),
        Field("on_batch_end", "text", "batch", "COMMAND", "run this once, when all of the batch is settled",
              "run this once, when all of it is settled ('' takes it away)"),
        Field("rerunnable", "switch", "template", "", "may be started again when its runner is silent for long",
              default=False),
        Field("signal", "signal", "template", "NAME@TIME",
              "warn it so long before its time is over: USR1@120", clears=True, kept_as="warn"),
    ),
    "what comes after each job, where it ran": (
        Field("on_success", "commands", "template", "COMMAND", "run this if it succeeded (repeat)",
              "run this if it succeeded (all of them)", default=(), clears=True),
        Field("on_failure", "commands", "template", "COMMAND", "run this if it failed",
              "run this if it failed (all of them)", default=(), clears=True),
        Field("on_exit", "commands", "template", "COMMAND", "run this in any case, after those",
              "run this in any case (all of them)", default=(), clears=True),
        Field("behaviour_time", "duration", "template", "TIME",
              "the longest each of these may take (default 10m)", "the longest each of these may take",
              kept_as="behaviour_s"),
        Field("remove_on", "choice", "template", "", "forget the job once it has settled so",
              choices=("success", "failure", "exit"), clears=True),
    ),
    "": (
        Field("at_once", "text", "batch", "N|off", "at most so many of the batch at a time"),
        Field("command", "command", "patch", "TEXT", "another command"),
        Field("drop_limits", "limits", "patch", "NAME", "and not against this one any more",
              flags="--drop-limit", kept_as="limits_drop"),
        Field("unset_env", "names", "", "K", "take a variable away that --env had set"),
        Field("drop_native", "names", "", "--KEY", "take one away"),
        Field("drop_after", "names", "patch", "SEL", "and not for this any more", kept_as="after_drop"),
    ),
}
# fmt: on
"""All fields, by the groups of the help of `add` and `run`; those without a title are not among their flags."""

FIELDS = {field.name: field for fields in GROUPS.values() for field in fields}

OPTIONS = {name: field for name, field in FIELDS.items() if field.place not in ("", "patch")}
"""Fields that a submission can have."""


def _fields(names: str) -> tuple[Field, ...]:
    return tuple(FIELDS[name] for name in names.split())


JSON_FIELDS = _fields(
    "cores memory time disk gpus bind resources tags priority policy retries limits workdir cleanup change_home "
    "leftovers container engine mounts inputs outputs on_success on_failure on_exit remove_on signal group override "
    "nodes span variants model mpirun mpirun_args env_style "
    "retry_on never_retry_on no_retry_after rerunnable enforce account partition qos reservation constraint modules"
)
"""Fields of a batch that a JSON line may set for its job, besides its own command, directory, variables and files."""

CHANGES = {
    "what changes (all else stays as it is)": _fields(
        "memory time disk cores gpus bind span variants resources tags on command "
        "priority policy retries retry_on never_retry_on no_retry_after limits drop_limits cwd env unset_env modules "
        "setup stdin stdout stderr enforce grace output_cap rerunnable group override"
    ),
    "what changes around the job ('' takes away what was said)": _fields(
        "env_from workdir cleanup change_home model mpirun mpirun_args env_style inputs outputs leftovers "
        "container engine mounts on_success on_failure on_exit behaviour_time remove_on signal"
    ),
    "what changes where there is a batch system ('' as above)": _fields(
        "account partition qos reservation constraint exclusive nodes tasks_per_node native drop_native"
    ),
}
"""Fields that `retry` and `modify` change, by the groups of their help."""

BATCH_CHANGES = {
    "what changes about whole batches (SELECTOR: 7 or @name)": _fields(
        "name after after_any after_failure each live live_rerun require_known drop_after not_before at_once "
        "max_failures scouts on_batch_end"
    )
}
"""Fields of whole batches that only `modify` changes."""
