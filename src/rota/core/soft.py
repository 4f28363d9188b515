"""Soft state: what the manager knows and does not keep. After a start all of it is told or found anew.

It lies apart from the durable state (`State`), which only `evolve` writes. Each part here has one writer:

- `contacts`, `idle`, `quiet`, `sites`, `queues`, `possible`, `accepted`, `weather`, `facts`,
  `waits`, `fares`: `core/notes.py`, from the notes that a decision carries, from what follows from events, and from
  the passing of time; `chance` by whoever asked it, once it is used;
- `planning`: the scheduling pass (`core/plan`); what has changed since (`Changes`) is told where it happens.
"""

import math
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct, field

from rota.core.earliest import Earliest
from rota.core.stimuli import AllocationSeen, Left
from rota.model.batch import BatchSpec
from rota.model.needs import Needs
from rota.model.shape import Shape
from rota.model.site import SiteFacts
from rota.model.slot import Slot
from rota.schedule.broker.sites import Fare
from rota.schedule.facts import Facts
from rota.schedule.pipeline import Memo
from rota.schedule.places import Places
from rota.schedule.queue_memo import QueueMemo
from rota.schedule.queues import Claim
from rota.schedule.view import Place
from rota.schedule.waiting import Waiting

if TYPE_CHECKING:
    from rota.core.plan.backfill import Reservation, Soonest
    from rota.core.state import Settings

__all__ = [
    "Changes", "Condition", "Contact", "HostRecord", "Member", "Planning", "Sent", "ShapeMemo", "SiteWeather", "Soft",
    "Times", "Weather", "chance_at",
]  # fmt: skip

Key = tuple[int, int, int]
"""(batch, index, attempt), as runners name a job."""
LeasedJob = tuple[int, int, int, Slot]
"""(batch, position, attempt, slot)."""


Times = tuple[dict[str, int], dict[tuple[str, str], tuple[int, int]], dict[str, str]]
"""As in a View: `job_times`, `longest` and `own_queues`."""


class Member(NamedTuple):
    """A node of a gang, as its root is told."""

    runner: str
    host: str
    address: str
    """HOST:PORT where ranks are started there; empty: not told."""
    slot: Slot


class Sent(Struct):
    """A lease message that its runner has not confirmed."""

    at: float
    """Monotonic time."""
    jobs: list[LeasedJob]
    slots: dict[Slot, int]
    gangs: dict[tuple[int, int], tuple[Member, ...]] = {}
    """(batch, position) → the nodes of each gang among the jobs, its root first."""


class Usage(NamedTuple):
    """What a running attempt has used so far."""

    attempt: int
    started: float | None
    cpu_s: float | None = None
    memory: int | None = None
    left: Left | None = None
    """What is waited for, since its command is over."""


class Contact:
    """The connection to one runner: what was heard, and what waits for an answer. Times are monotonic."""

    __slots__ = (
        "clock", "confirmed", "connected", "given_up", "got", "greeted", "heard", "idle_since", "lease_n",
        "releasing", "since", "strange", "unacked", "usage",
    )  # fmt: skip

    def __init__(self, at: float = 0.0, connected: bool = False) -> None:
        self.connected = connected
        self.heard = at
        """When the runner last gave a sign of life."""
        self.idle_since = at
        """Since when it has had no job."""
        self.greeted = 0.0
        """When its last greeting was accepted; 0: not in this life of the manager."""
        self.clock = 0.0
        """The newest reading of the runner's own clock."""
        self.lease_n = 0
        """Number of the newest lease message of this session."""
        self.got = 0
        """Number of the newest lease message that the runner has confirmed."""
        self.given_up: dict[Key, None] = {}
        """Attempts that were given up in this session: should the runner still hold them, it is to end them."""
        self.confirmed: dict[Key, str] = {}
        """Parts of gangs that the runner says it holds, and where ranks are started there."""
        self.strange: frozenset[Key] = frozenset()
        """Those of them that it should not hold: it gets no jobs until they are released."""
        self.releasing: dict[tuple[int, int, int], float] = {}
        """(batch, position, attempt) → since when the runner is to release its part."""
        self.unacked: dict[int, Sent] = {}
        """Lease messages that the runner has not confirmed, by number."""
        self.since: dict[tuple[int, int], float] = {}
        """(batch, position) → time of the lease, or of the manager's start."""
        self.usage: dict[tuple[int, int], Usage] = {}
        """(batch, position) → what the runner last told of a running attempt."""


class SiteWeather(Struct):
    """How a site is doing."""

    closed_until: float = 0
    """Monotonic time before which nothing is asked of the site."""
    failures: int = 0
    """Submissions in a row that came to nothing."""
    why: str | None = None
    """Why the last of them did."""
    failed_tag: str = ""
    """Tag of the submission that failed last: an array that fails is one failure."""
    takes: int | None = None
    """The most allocations to ask for at once, because the site has just refused more; None: as many as it says."""
    takes_until: float = 0
    """Monotonic time at which it is asked for more again."""
    takes_why: str | None = None


class Refusal(Struct, frozen=True):
    """A provider does not want allocations of a certain shape."""

    until: float
    """Monotonic time of the next try."""
    tries: int
    why: str


class HostRecord(Struct, frozen=True):
    """What is held against a host: jobs that failed there at once and alike, in a row. Times are monotonic."""

    jobs: tuple[tuple[int, int, int], ...]
    """(batch, position, attempt) of the failures."""
    shapes: tuple[int, ...]
    how: str
    """How they failed."""
    since: float
    count: int = 0
    """How many jobs failed."""
    suspected: float | None = None
    """Since when it is suspected; None: it is not yet."""
    trial: str = ""
    """The runner that may have one job at a time; empty: none may have any yet."""
    next_at: float = 0.0
    """When the next trial is due."""
    trials: int = 0
    acquitted: bool = False
    """It was suspected without there being another host: only one that does well lets it be suspected again."""


class Weather:
    """How sites and hosts are doing."""

    def __init__(self) -> None:
        self.sites: dict[str, SiteWeather] = {}
        self.refused: dict[tuple[str, int], Refusal] = {}
        """(site, shape) → the refusal."""
        self.hosts: dict[tuple[str, str], HostRecord] = {}
        """(site, host) → what is held against it."""
        self.good_hosts: dict[int, tuple[tuple[str, float], ...]] = {}
        """Shape → the last two hosts where a job of it succeeded, and when."""
        self.bad_hosts: dict[tuple[str, str], tuple[float, str]] = {}
        """(site, host) → until when it gets no jobs, and why."""

    def of(self, site: str) -> SiteWeather:
        """How a site is doing; for reading."""
        return self.sites.get(site, _FAIR)


_FAIR = SiteWeather()


class ShapeMemo(Struct):
    """What the scheduling pass remembers of a shape."""

    asked: Shape
    """The shape as it is scheduled: with what was learned where the user gave nothing (or is overridden)."""
    learned: tuple[object, ...] = ()
    """What `asked` was worked out from: what was learned, and the largest node."""
    mean_s: float | None = None
    """Recent mean wall time: a hint for leases ahead."""


class Changes:
    """What has changed since the last pass, besides what the ledger says: the pass empties it."""

    __slots__ = ("everything", "groups", "limits", "quicker", "runners", "shapes", "slots")

    def __init__(self) -> None:
        self.everything = True
        """What the pass knows is to be worked out anew: at a start, and when nobody can say what is concerned."""
        self.shapes: set[int] = set()
        """Shapes whose ready jobs are others."""
        self.runners: dict[str, None] = {}
        """Runners that came, went, or take jobs again or no more, as they came."""
        self.limits: set[str] = set()
        self.groups: set[str] = set()
        """Groups of which something was learned."""
        self.quicker: set[int] = set()
        """Shapes whose jobs are taken to need less time: more may be leased ahead."""
        self.slots: dict[Slot, dict[str, None]] = {}
        """Slot → runners where jobs in such a slot were leased or have ended."""


class Alone(NamedTuple):
    """Where one job of a shape that was alone was placed: with the same places it is there again."""

    places: Places
    changes: int
    """Of the places."""
    want: tuple[int, int, Shape]
    """Which shape, how many jobs were ready, and what was asked."""
    place: Place
    cores: int


class Planning:
    """What the scheduling pass remembers until the next."""

    def __init__(self) -> None:
        self.wanted = True
        """Something changed that the scheduler should look at."""
        self.changed = Changes()
        self.places: Places | None = None
        """The places in trees; None: they are to be put there anew."""
        self.waiting = Waiting()
        """The shapes that wait, in forests."""
        self.touched: set[str] = set()
        """Limits that have changed since the queue level was last told what is left over."""
        self.again: set[int] = set()
        """Shapes to look at in the next pass, whatever changes: they were not given all that limits leave."""
        self.short: dict[int, dict[tuple[str, Slot], None]] = {}
        """Shape → (runner, slot) where leases ahead may be missing."""
        self.enough: dict[int, Earliest[tuple[str, Slot]]] = {}
        """Shape → (runner, slot) where none are, each with the mean time of a job, negated, at which some will be."""
        self.alone: Alone | None = None
        """The last placement of a shape that was alone."""
        self.found: dict[str, tuple[int | None, int | None, int | None]] = {}
        """Learning group → the figures that it last had (`Group.found`)."""
        self.unasked: set[int] | None = None
        """Shapes of which the queue level does not know what is left over now; None: all."""
        self.told: dict[str, set[int]] = {}
        """Limit that lets few of its shapes start → those of which the queue level knows that some is left over."""
        self.wall = -math.inf
        """Wall-clock time of the last pass."""
        self.memo: Memo = {}
        """Answers of filters that the full pass keeps; `backfill_memo`: those for the places that are not kept."""
        self.backfill_memo: Memo = {}
        self.place_classes: dict[tuple[object, ...], int] = {}
        """What places can differ in while empty → number of the class (`Place.class_number`), for the full pass."""
        self.times: Times | None = None
        """What is known of how long jobs and allocations may take, while the sites say what they said."""
        self.fair = False
        """Whether the order of any policy looks at who used how much."""
        self.safety_at = 0.0
        """Monotonic time at which it looks again even if nothing happened."""
        self.shapes: dict[int, ShapeMemo] = {}
        self.reserved: Reservation | None = None
        """The place that the last pass kept for a job that has waited for long."""
        self.soonest: Soonest | None = None
        """When the shape that it is kept for could start on each runner …"""
        self.stale: set[str] = set()
        """… but for these, where something has happened since."""
        self.queues = QueueMemo()
        """What the queue level remembers."""
        self.surplus_since: dict[Claim, float] = {}
        """(site, queue, shape) → since when more allocations are on their way than are needed."""
        self.window_at = math.inf
        """Wall-clock time at which a window opens that jobs wait for."""
        self.rate_at = math.inf
        """Monotonic time at which a rate lets jobs start that wait for it."""
        self.steady_less_mono: float | None = None
        """How many seconds the steady clock (`State.steady`) is ahead of the monotonic one; None: not yet known."""


class Waits(Struct):
    """The allocations that wait at a queue, and those that run there."""

    since: dict[str, float] = field(default_factory=dict)
    """Allocation → wall-clock time of its submission, oldest first."""
    running: set[str] = field(default_factory=set)
    """Those that run."""


class Ending(NamedTuple):
    """An allocation that its driver says is over, and whose last words are awaited."""

    seen: AllocationSeen
    """The driver's word."""
    asked: float
    """Monotonic time at which its last words were asked for."""
    tries: int = 1
    """How often they were asked for."""


class Condition(NamedTuple):
    """What keeps an allocation from running though it is not over: its provider holds it, or has suspended it."""

    kind: str
    """held or suspended."""
    words: str | None
    """The provider's own."""


class Soft:
    """The whole soft state."""

    def __init__(self, seed: int = 1) -> None:
        self.contacts: dict[str, Contact] = {}
        """Runner → the connection to it."""
        self.idle = Earliest[str]()
        """Runners that serve and have no jobs, and the monotonic time at which each has lingered long enough."""
        self.quiet = Earliest[str]()
        """Runners that should be heard of, each with a monotonic time since which it was heard, perhaps again later."""
        self.sites: dict[str, SiteFacts] = {}
        """Site → what it offers, as it last said."""
        self.queues: dict[str, tuple[Place, ...]] = {}
        """Site → itself and its queues as places."""
        self.possible: set[Needs] = set()
        """Needs of which it was found, since sites last said what they offer, that some queue could run them."""
        self.accepted: dict[int, tuple[BatchSpec, Settings]] = {}
        """Identity of a spec that waits for nothing and names no limit → itself, and by which settings it was accepted
        since sites last said what they offer. Clients that submit the same again and again share one."""
        self.queue_classes: dict[tuple[object, ...], int] = {}
        """What queues can differ in while nothing is known of them → number of the class."""
        self.facts = Facts()
        """What policies may look at beside jobs and places."""
        self.waits: dict[tuple[str, str], Waits] = {}
        """(site, queue; "": its own) → how long allocations wait there."""
        self.made: dict[str, tuple[str, bool]] = {}
        """Allocation that waits or runs for jobs of a share → (share, whether it runs)."""
        self.fares: dict[tuple[int, str], Fare] = {}
        """(batch, site) → how its jobs fared there, where there are several sites."""
        self.weather = Weather()
        self.ending: dict[str, Ending] = {}
        """Allocation → its end, while its last words are awaited."""
        self.conditions: dict[str, Condition] = {}
        """Allocation → what its provider does with it; of all others it says nothing of the kind."""
        self.unsent: dict[tuple[int, int], None] = {}
        """(batch, position) of live gangs whose root has certainly not been sent its lease."""
        self.sent: dict[tuple[int, int], None] = {}
        """Those whose root has. Of one that is in neither nobody knows, since a restart, until its root greets."""
        self.killing: dict[tuple[int, int], float] = {}
        """(batch, position) → monotonic time at which its live attempt was asked to end."""
        self.planning = Planning()
        self.worth: dict[tuple[str, str], float] = {}
        """(policy, share) → what was used, as its policy values it (`rota.core.shares`)."""
        self.disabled: dict[tuple[str, str], str] = {}
        """(kind, name) of parts of policies that failed when they were asked, and why: nobody asks them again."""
        self.chance = seed & _MASK or 1
        """State of the core's own generator (splitmix64): time and chance come in as data."""


_MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15


def chance_at(chance: int, number: int) -> float:
    """The `number`-th (from 1) of the next numbers in [0, 1) of a generator in this state."""
    mixed = (chance + number * _GOLDEN) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return float((mixed ^ (mixed >> 31)) >> 11) / float(1 << 53)


def chance_after(chance: int, drawn: int) -> int:
    """The state of the generator once so many numbers have been drawn."""
    return (chance + drawn * _GOLDEN) & _MASK
