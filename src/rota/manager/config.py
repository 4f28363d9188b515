"""The configuration file: `$ROTA_HOME/config.toml`, no code in it.

Every setting has a default, so that no file is needed on one machine. An unknown key is an error that names it: a
typo must not silently mean the default.
"""

import difflib
import math
import os
import tomllib
from collections import Counter
from collections.abc import Iterator
from importlib.metadata import entry_points
from typing import Any, Literal, get_args, get_origin

import msgspec
from msgspec import Struct, field

from rota.manager.brokering import broker_facts
from rota.manager.site_files import read_sites
from rota.model.amounts import parse_cores, parse_duration, parse_size
from rota.model.errors import NotFoundError, UsageError
from rota.model.needs import NAME, Needs
from rota.plugins import load_plugins
from rota.schedule.broker.shares import share_tree
from rota.schedule.policy import NEVER, POLICIES, Policy, check_policy_names

__all__ = ["Config", "SiteConfig", "find_batch_site", "is_cloud", "load_config", "settings"]

TIMES = ("touch", "missing_after", "start_by", "rerun_after", "backoff_first", "backoff_most", "backoff_jitter")
RESOURCES = ("resources", "node_resources", "native_resources")
CLOUD_KEYS = (
    "cloud", "image", "network", "public_network", "flavors", "flavor_sets", "prices", "key", "key_file", "user",
    "security_groups", "user_data", "volume", "zone", "system_memory", "files", "start_script", "end_script",
    "max_servers", "max_cores", "max_cost_per_day", "keep_alive", "dead_after", "spawns", "spawn_delay", "boot_within",
)  # fmt: skip
SITE_TIMES = (
    "warn", "allocation_time", "job_time", "longest", "poll", "poll_least", "vanished_after", "report_within",
    "keep_alive", "spawn_delay", "boot_within",
)  # fmt: skip


FILES = ("hosts_file", "key_file", "user_data", "start_script", "end_script")
"""Keys of a site that name files of this machine."""


class SiteConfig(Struct, forbid_unknown_fields=True, rename={"memory_text": "memory", "cores_text": "cores"}):
    """One `[site.NAME]` table."""

    driver: str = "local"
    mode: Literal["runners", "direct"] = "runners"
    cores_text: str | int | None = None
    """The cores of a node that rota may use; None: as many as the driver finds."""
    memory_text: str | None = None
    tags: list[str] = field(default_factory=list)
    resources: dict[str, int] = field(default_factory=dict)
    """Named resources that the whole site has, such as licences."""
    node_resources: dict[str, int] = field(default_factory=dict)
    """Named resources that each of its nodes has."""
    native_resources: dict[str, int] = field(default_factory=dict)
    """Named resources of each node that the batch system counts: it is asked for them."""
    setup: str | None = None
    """A file sourced before every job there."""
    linger: str | None = None
    """How long a runner with nothing to do stays; default 2s here, 120s at a batch system, where it had to queue."""
    launcher: Literal["auto", "none"] = "auto"
    options: dict[str, Any] = field(default_factory=dict)
    """Options that only the driver knows."""
    account: str | None = None
    partition: str | None = None
    """The partition or queue of a batch system."""
    queues: list[str] | None = None
    """The queues for jobs that name none; None: the partition, or if none is named all that are open."""
    qos: str | None = None
    reservation: str | None = None
    constraint: str | None = None
    native: dict[str, str | int | bool] = field(default_factory=dict)
    """Native options for every submission: `"--licenses" = "matlab"`."""
    memory_as: Literal["node", "per-cpu", "none"] = "node"
    parallel_environment: str | None = None
    requeue: bool = False
    warn: str = "120s"
    """How long before the end of its time limit a job is warned."""
    strict: bool = False
    states: dict[str, str] = field(default_factory=dict)
    """Native state → its meaning, where that differs from what the dialect says."""
    ssh: str | None = None
    """The host on which the batch system's commands are run."""
    hosts: list[str] = field(default_factory=list)
    """Of the driver ssh: its hosts, each with what is to be said of it."""
    hosts_file: str | None = None
    """A file with more of them, one on a line."""
    ssh_options: list[str] = field(default_factory=list)
    """Words for every ssh to its hosts."""
    via: list[str] = field(default_factory=list)
    """Words before every command, such as `["docker", "exec", "-i", "login"]`."""
    python: str | None = None
    directory: str | None = None
    """A directory that the nodes share; default: below the home."""
    most: int | None = None
    """How many allocations there may be at once."""
    cache: str | None = None
    """How many bytes of what was brought there are kept on each of its places; None: as many as fit."""
    array_most: int | None = None
    allocation_time: str | None = None
    job_time: str | None = None
    longest: str | None = None
    whole_nodes: bool = False
    poll: str = "30s"
    poll_least: str = "2s"
    vanished_after: str = "5m"
    report_within: str = "60s"
    """How long a direct job's report may take to be seen here once the batch system says that the job ended."""
    cloud: str | None = None
    """Of a cloud: its name in the configuration of its own tools (clouds.yaml); None: as the environment says."""
    image: str | None = None
    """The name of the image that servers are made from."""
    network: str | list[str] | None = None
    """The networks that servers are in."""
    public_network: str | None = None
    """The network that servers get a second address from, by which they are reached."""
    flavors: str | list[str] | None = None
    """Regular expressions for the names of flavors that may be used; None: all."""
    flavor_sets: list[list[str]] = field(default_factory=list)
    """Sets of flavors (regular expressions), in order: the next is used where the cloud has no hardware for one."""
    prices: dict[str, float] = field(default_factory=dict)
    """Flavor → what a server costs for an hour, in any money."""
    key: str | None = None
    """The name of a key pair; None: rota makes one of its own."""
    key_file: str | None = None
    """The private key to it; None: whatever ssh finds."""
    user: str | None = None
    """The user of the image that ssh logs in as."""
    security_groups: list[str] = field(default_factory=list)
    user_data: str | None = None
    """A file that cloud-init gets."""
    volume: str | None = None
    """The size of a disk that servers boot from; None: the flavor's own."""
    zone: str | None = None
    system_memory: str | None = None
    """How much memory of each server is not for jobs."""
    files: dict[str, str] = field(default_factory=dict)
    """File here → absolute path on each server."""
    start_script: str | None = None
    """A shell script that is run on each server before its runner starts."""
    end_script: str | None = None
    """One that is run before it is destroyed."""
    max_servers: int | None = None
    max_cores: int | None = None
    max_cost_per_day: float | None = None
    """The most money for all servers in any 24 hours."""
    keep_alive: str = "120s"
    """How long a server with nothing to do stays."""
    dead_after: str = "30m"
    """A server that was silent for so long is destroyed; `off`: never by itself."""
    spawns: int = 10
    """How many servers may be in the making at once."""
    spawn_delay: str = "0s"
    """The time between two requests for a server."""
    boot_within: str = "15m"
    """A server whose runner does not run so long after it was asked for is destroyed."""
    cost: float = 0.0
    """What a core costs there for an hour: cheaper sites are asked for more."""
    paused: bool = False
    """Nothing is asked of the site, and what waits there is let be."""
    reassign: bool = True
    """Whether jobs that wait there for long may go to another site."""

    @property
    def cores(self) -> int | None:
        """The cores of a node in millicores, if they are given."""
        return None if self.cores_text is None else parse_cores(str(self.cores_text))[0]

    @property
    def memory(self) -> int | None:
        """The memory of a node in bytes, if it is given."""
        return None if self.memory_text is None else parse_size(self.memory_text)

    @property
    def linger_s(self) -> int:
        """Seconds that an idle runner stays."""
        if self.linger is None:
            return 2 if self.driver == "local" else 120
        return parse_duration(self.linger)

    def seconds(self, name: str) -> int | None:
        """A duration of the site in seconds; None: not given."""
        text = getattr(self, name)
        return None if text is None else parse_duration(text)


class PolicyConfig(Struct, forbid_unknown_fields=True):
    """One `[policy.NAME]` table: what is not said is as in the policy of that name, or as in the default one."""

    order: str | None = None
    """Whose jobs go first."""
    filters: list[str] | None = None
    """All filters, in order."""
    filters_add: list[str] = field(default_factory=list)
    """Filters beside those that there are, asked last but for `room`."""
    filters_drop: list[str] = field(default_factory=list)
    scorers: dict[str, float] | None = None
    """Scorer → weight."""
    pick: str | None = None
    """Which of the places that are left gets the next job."""
    relax: list[str] | None = None
    """Filters that are dropped, in this order, when no place is left."""
    share_by: Literal["submitter", "name", "account"] | None = None
    half_life: str | None = None
    """Time after which use counts half, if the order is `fair_share`."""
    split: str | None = None
    """The pick of queues, if it is another than that of nodes."""
    keep_after: str | None = None
    """A job that found no room for so long gets a place kept for it; `off`: never; None: as `backfill_after` says."""
    home_first: bool | None = None
    """Whether what is free at a place goes to jobs for which that place is the best, before others get it."""

    def applied(self, base: Policy, what: str) -> Policy:
        """A policy with what the table says; `what` is how it is called in the words of a UsageError."""
        given: dict[str, Any] = {
            name: value
            for name in ("order", "scorers", "pick", "relax", "share_by", "split", "home_first")
            if (value := getattr(self, name)) is not None
        }
        if self.filters is not None and (self.filters_add or self.filters_drop):
            raise UsageError(f"{what}: give filters (all of them), or filters_add and filters_drop")
        filters = list(self.filters if self.filters is not None else base.filters)
        for name in self.filters_drop:
            if name not in filters:
                raise UsageError(f"{what}: filters_drop names '{name}', which is not one of {', '.join(filters)}")
            filters.remove(name)
        last = filters.index("room") if "room" in filters else len(filters)
        filters[last:last] = self.filters_add
        if self.half_life is not None:
            try:
                given["half_life_s"] = parse_duration(self.half_life)
            except UsageError as error:
                raise UsageError(f"{what} half_life: {error}") from None
        if self.keep_after is not None:
            try:
                given["keep_after_s"] = NEVER if self.keep_after == "off" else parse_duration(self.keep_after)
            except UsageError as error:
                raise UsageError(f"{what} keep_after: {error}") from None
        policy = msgspec.structs.replace(base, filters=tuple(filters), **given)
        check_policy_names(policy, what)
        return policy


class SecretsConfig(Struct, forbid_unknown_fields=True):
    """Which variables of a submitter's environment stay with him: patterns of names, as a shell has them."""

    names: list[str] = field(default_factory=list)
    """Not sent, beside those that look secret."""
    keep: list[str] = field(default_factory=list)
    """Sent, though they look secret."""


class BrokerConfig(Struct, forbid_unknown_fields=True):
    """The table `[broker]`: how tasks are brokered to queues."""

    profile: Literal["doc", "code", "modern"] = "doc"
    """Which reading of the rules."""
    thresholds: dict[str, bool | int | float] = field(default_factory=dict)
    """Name → value, where that is not the profile's."""
    queues: str | None = None
    """A JSON file that describes queues, with what is known of them; below the home, or an absolute path."""
    task: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Learning group → what its jobs are, in the words of the brokerage."""


class Config(Struct, forbid_unknown_fields=True):
    """The whole configuration file."""

    touch: str = "15s"
    missing_after: str = "60s"
    start_by: str = "45s"
    """A lease that a runner could not start for so long is given back; three quarters of `missing_after` at most."""
    losses: int = 5
    """How often a job may be lost with its runner before it counts as failed."""
    rerun_after: str = "10m"
    """Silence after which a job marked rerunnable is started again."""
    backoff_first: str = "30s"
    backoff_most: str = "30m"
    backoff_jitter: str = "30s"
    backfill_after: str = "10m"
    """A job that found no room for so long gets a place kept for it; `off`: never."""
    rebroker_after: str = "10m"
    """What has waited at a site for so long may go to another where it would start sooner; `off`: never."""
    listen: str | None = None
    """`host:port` for runners and clients elsewhere (TLS); None: this machine only."""
    keep_entries: int = 1_000_000
    backup_every: str | None = None
    """The time between two regular backups; None: only when asked for."""
    backup_keep: int = 5
    """How many regular backups are kept."""
    keep_settled: str | None = None
    """Batches that have been settled for so long are pruned; None: never."""
    shares: dict[str, Any] = field(default_factory=dict)
    """The tree of shares, for policies with the order `shares`: name → value, or a table."""
    sites_file: str | None = None
    """A JSON file of more sites, below the home or absolute."""
    site: dict[str, SiteConfig] = field(default_factory=lambda: {"local": SiteConfig()})
    policy: dict[str, PolicyConfig] = field(default_factory=dict)
    secrets: SecretsConfig = field(default_factory=SecretsConfig)
    broker: BrokerConfig = field(default_factory=BrokerConfig)

    @property
    def backfill_after_s(self) -> int | None:
        """The setting `backfill_after` in seconds; None: never."""
        return None if self.backfill_after == "off" else parse_duration(self.backfill_after)

    @property
    def rebroker_after_s(self) -> int | None:
        """The setting `rebroker_after` in seconds; None: never."""
        return None if self.rebroker_after == "off" else parse_duration(self.rebroker_after)

    def seconds(self, name: str) -> int:
        """A duration setting in seconds."""
        return parse_duration(getattr(self, name))

    def policies(self) -> dict[str, Policy]:
        """All policies by name: those that rota and plugins bring, as changed, and those of the file."""
        load_plugins()
        out = dict(POLICIES)
        if sum(site.driver != "local" for site in self.site.values()) > 1:
            out["default"] = out["sites"]
        for name in sorted(self.policy, key=lambda name: name != "default"):  # the others build on it
            if not NAME.fullmatch(name):
                raise UsageError(f"[policy.{name}]: a name of letters, digits, '_', '.', '-'")
            out[name] = self.policy[name].applied(out.get(name, out["default"]), f"[policy.{name}]")
        return out


def load_config(home: str) -> Config:
    """Read `config.toml`; a missing file means all defaults."""
    path = os.path.join(home, "config.toml")
    try:
        with open(path, "rb") as file:
            raw = tomllib.load(file)
    except FileNotFoundError:
        return Config()
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path}: {error}") from None
    try:
        if isinstance(file_name := raw.get("sites_file"), str):
            _add_sites(raw, os.path.join(home, file_name))
        config = msgspec.convert(raw, Config)
        for name in TIMES:
            config.seconds(name)
        for name in ("backup_every", "keep_settled"):
            if getattr(config, name) is not None and config.seconds(name) < 60:
                raise UsageError(f"{name} '{getattr(config, name)}': give a minute or more")
        if config.backup_keep < 1:
            raise UsageError(f"backup_keep {config.backup_keep}: give 1 or more")
        _ = config.backfill_after_s, config.rebroker_after_s, share_tree(config.shares)
        if config.policy:
            config.policies()
        if config.broker != BrokerConfig():
            broker_facts(config.broker, home)
        for name, site in config.site.items():
            _anchor(site, home)
            _check_amounts(name, site)
        for name, site in config.site.items():
            if site.mode == "direct" and site.driver == "local":
                raise UsageError(f"[site.{name}] mode 'direct' is for batch systems; the driver local has runners")
            if site.mode == "direct" and site.driver == "ssh":
                raise UsageError(f"[site.{name}] mode 'direct' is for batch systems; the driver ssh has runners")
            _check_cloud(name, site)
            if site.ssh is not None and site.mode == "runners" and config.listen is None:
                raise UsageError(f'[site.{name}] its runners call back: set listen = "HOST:PORT" before all tables')
    except msgspec.ValidationError as error:
        raise UsageError(f"{path}: {_wrong(raw, str(error))}") from None
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None
    if not config.site:
        config.site["local"] = SiteConfig()
    return config


def _anchor(site: SiteConfig, home: str) -> None:
    """Take files that a site names to be below the home, wherever the manager was started."""

    def at(path: str) -> str:
        return os.path.join(home, os.path.expanduser(path))

    for key in FILES:
        if (path := getattr(site, key)) is not None:
            setattr(site, key, at(path))
    site.files = {at(path): there for path, there in site.files.items()}


def _add_sites(raw: dict[str, Any], path: str) -> None:
    """Add the sites of a file; what the configuration says of a site itself counts more."""
    tables = raw.setdefault("site", {})
    for name, table in read_sites(path).items():
        if isinstance(tables, dict) and isinstance(tables.get(name, {}), dict):
            tables[name] = {**table, **tables.get(name, {})}


def settings(home: str) -> list[dict[str, Any]]:
    """Every setting as {key, value, source}: `default`, or the file that says it."""
    config = load_config(home)
    path = os.path.join(home, "config.toml")
    raw: dict[str, Any] = {}
    if os.path.exists(path):
        with open(path, "rb") as file:
            raw = tomllib.load(file)

    def rows(table: Struct, given: dict[str, Any], before: str) -> Iterator[dict[str, Any]]:
        for name, key in zip(table.__struct_fields__, table.__struct_encode_fields__, strict=True):
            if name not in ("site", "policy", "secrets", "broker"):
                source = path if key in given else "default"
                yield {"key": before + key, "value": getattr(table, name), "source": source}

    out = [*rows(config, raw, ""), *rows(config.secrets, raw.get("secrets", {}), "secrets.")]
    out += rows(config.broker, raw.get("broker", {}), "broker.")
    for name, site in config.site.items():
        out += rows(site, raw.get("site", {}).get(name, {}), f"site.{name}.")
    for name, policy in config.policies().items():
        table = raw.get("policy", {}).get(name, {})
        seconds = {"half_life": "half_life_s", "keep_after": "keep_after_s"}
        said = {seconds.get(key) or key.partition("_")[0] for key in table}
        said |= {"share_by", "home_first"} & table.keys()
        out += rows(policy, dict.fromkeys(said), f"policy.{name}.")
    return out


def find_batch_site(config: Config, path: str, name: str, here: str) -> SiteConfig:
    """A site that has a batch system; `path` is the configuration's, `here` says what to do on this machine instead."""
    site = config.site.get(name)
    if site is None:
        raise NotFoundError(f"there is no site '{name}' in {path}; there are {', '.join(config.site)}")
    if site.driver == "local":
        raise UsageError(f"site {name} is this machine: {here}")
    if site.driver == "ssh":
        raise UsageError(f"site {name} is a farm of hosts, and has no batch system: {here}")
    if is_cloud(site.driver):
        raise UsageError(f"site {name} is a cloud, and has no batch system: {here}")
    return site


def is_cloud(driver: str) -> bool:
    """Whether a driver's name is that of a cloud: rota's own, or one of another package."""
    return driver == "openstack" or bool(entry_points(group="rota.clouds", name=driver))


def _check_cloud(name: str, site: SiteConfig) -> None:
    """Refuse what a cloud cannot have, and settings of clouds elsewhere."""
    if not is_cloud(site.driver):
        plain = SiteConfig()
        given = [key for key in CLOUD_KEYS if getattr(site, key) != getattr(plain, key)]
        if given:
            raise UsageError(f"[site.{name}] {', '.join(given)}: this is for clouds; the driver is {site.driver}")
        return
    if site.mode == "direct":
        raise UsageError(f"[site.{name}] mode 'direct' is for batch systems; a cloud has runners")
    for key in ("max_servers", "max_cores", "spawns"):
        if (count := getattr(site, key)) is not None and count < 1:
            raise UsageError(f"[site.{name}] {key} {count}: give 1 or more; paused = true lets the site be")
    if site.max_cost_per_day is not None and not (math.isfinite(site.max_cost_per_day) and site.max_cost_per_day > 0):
        raise UsageError(f"[site.{name}] max_cost_per_day {site.max_cost_per_day:g}: give more than 0")
    for flavor, price in site.prices.items():
        if not (math.isfinite(price) and price >= 0):
            raise UsageError(f"[site.{name}] prices: {flavor}: {price:g}: give 0 or more, for an hour")
    for key in ("volume", "system_memory"):
        if (text := getattr(site, key)) is not None:
            try:
                parse_size(text)
            except UsageError as error:
                raise UsageError(f"[site.{name}] {key}: {error}") from None
    if site.dead_after != "off":
        try:
            site.seconds("dead_after")
        except UsageError as error:
            raise UsageError(f"[site.{name}] dead_after: {error}, or off") from None


def _check_amounts(name: str, site: SiteConfig) -> None:
    """Refuse sizes and durations of a site that cannot be read, naming the key."""
    for key in ("cores", "memory", "linger", "cache", *SITE_TIMES):
        try:
            if key == "cache":
                parse_size(site.cache or "0")
                continue
            if key in SITE_TIMES:
                site.seconds(key)
            else:
                getattr(site, "linger_s" if key == "linger" else key)
        except UsageError as error:
            raise UsageError(f"[site.{name}] {key}: {error}") from None
    for key in RESOURCES:
        try:
            Needs(named=tuple(getattr(site, key).items())).check()
        except UsageError as error:
            raise UsageError(f"[site.{name}] {key}: {error}") from None
    given = Counter(word for key in RESOURCES for word in getattr(site, key))
    if twice := ", ".join(sorted(word for word, count in given.items() if count > 1)):
        raise UsageError(
            f"[site.{name}] {twice}: give it in resources (of all nodes together), in node_resources (of each) "
            "or in native_resources (of each, asked of the batch system)"
        )
    if site.driver == "local" and site.native_resources:
        raise UsageError(f"[site.{name}] native_resources: this machine has no batch system to ask: use node_resources")
    if not (math.isfinite(site.cost) and site.cost >= 0):
        raise UsageError(f"[site.{name}] cost {site.cost:g}: give 0 or more, of any money for a core and an hour")
    if site.directory is not None and not os.path.isabs(site.directory):
        raise UsageError(f"[site.{name}] directory '{site.directory}': give an absolute path, the same on all nodes")


def _wrong(raw: dict[str, Any], text: str) -> str:
    """What is wrong with the file: msgspec's words, with the site and with what could stand there instead."""
    kind: type[Struct] = Config
    where = ""
    for word, of_table in (("site", SiteConfig), ("policy", PolicyConfig)):
        tables = raw.get(word)
        for name, table in tables.items() if isinstance(tables, dict) and not where else ():
            try:
                msgspec.convert(table, of_table)
            except msgspec.ValidationError as error:
                kind, text = of_table, str(error)
                where = f"[{word}.{name}] "
                break
    if not where and isinstance(table := raw.get("broker"), dict):
        try:
            msgspec.convert(table, BrokerConfig)
        except msgspec.ValidationError as error:
            kind, text, where = BrokerConfig, str(error), "[broker] "
    what, _, path = text.partition(" - at `$")
    key = path.rstrip("`").lstrip(".")
    names = sorted(kind.__struct_encode_fields__)
    if "unknown field" in what:
        wrong = what.rpartition("unknown field `")[2].rstrip("`")
        near = difflib.get_close_matches(wrong, names, 1)
        hint = f": did you mean '{near[0]}'?" if near else "."
        if kind is SiteConfig and wrong == "gpus":
            hint = ": of a local site write options = {gpus = 2}."
        return f"{where}there is no key '{wrong}'{hint} The keys are: {', '.join(names)}"
    text = f"{where}{key}: {what[:1].lower()}{what[1:]}" if key else f"{where}{what}"
    given = kind.__annotations__.get(key)
    return f"{text}; give one of {', '.join(map(repr, get_args(given)))}" if get_origin(given) is Literal else text
