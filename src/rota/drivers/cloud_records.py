"""What is written down of servers, before they are asked for and for as long as they count; and how they are made."""

import os
from typing import Any

import msgspec
from msgspec import Struct

from rota.model.needs import Amounts

__all__ = ["CloudSettings", "Cost", "Kept", "MemoryRecords", "Records"]

DAY_S = 86400.0
COSTS = "costs.jsonl"


class CloudSettings(Struct, frozen=True):
    """How servers are made and ended."""

    owner: str
    name: str
    """The beginning of their names."""
    image: str = ""
    networks: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    key: str | None = None
    user_data: str = ""
    volume: int = 0
    zone: str | None = None
    public: str | None = None
    """The network that servers get an address from by which we reach them; None: by their own."""
    spawns_most: int = 10
    spawn_delay_s: float = 0.0
    boot_s: float = 900.0
    """How long it may take from when a server is asked for until its runner is started."""
    settle_s: float = 60.0
    """How long after an answer was lost a server may still come to be."""
    no_hardware_s: float = 900.0
    """How long a size is left alone that the cloud has no hardware for."""
    poll_s: float = 30.0
    poll_busy_s: float = 5.0
    again_s: float = 3.0
    """The time between two tries to reach a new server."""
    servers_most: int | None = None
    cores_most: int | None = None
    money_most: float | None = None
    """Of a day."""
    paid_s: int = 900
    """Seconds beyond its time that a server is paid for, until it is there and until it is gone."""
    day_s: float = DAY_S
    files: tuple[tuple[str, bytes, int], ...] = ()
    """What is copied to each server before its runner starts: (path, content, mode)."""
    start_script: str = ""
    """What is run there then, once."""
    end_script: str = ""
    """What is run there before it is destroyed."""
    script_s: float = 900.0
    end_again_s: float = 300.0
    """After how long the cloud is asked again to destroy a server that it says it is destroying."""
    last_s: float = 60.0
    """How long a server that is to end is given for its runner to report."""


class Kept(Struct, frozen=True):
    """What is written down of a server."""

    tag: str
    allocation: str
    size: str
    node: Amounts
    price: float = 0.0
    time_s: int = 0
    """How long it was asked for; 0: it does not end."""
    asked: float = 0.0
    """Wall-clock time at which the cloud was asked."""
    server: str = ""
    image: str = ""
    address: str = ""
    directory: str = ""
    pid: int = 0
    start: int = 0
    boot: str = ""
    up: float = 0.0
    """Wall-clock time at which its runner was started."""
    verb: str = ""
    """How it ends, once that is known: it is to be destroyed, or is gone."""
    why: str = ""
    """Why, in words."""
    kind: str = ""
    """Why, as an outcome has it."""
    ending: float = 0.0
    """Wall-clock time since when it is to end."""
    gone: float = 0.0
    """Wall-clock time since when it is known to be gone."""

    @property
    def runner(self) -> dict[str, Any]:
        """Its runner, as its host knows it."""
        return {"pid": self.pid, "start": self.start, "boot": self.boot}

    def cost(self, since: float, now: float, paid_s: float) -> float:
        """Its price from a moment on: what it has cost if it is gone, else what is put aside for it."""
        if not self.asked:
            return 0.0
        asked = min(self.asked, now)  # the clock may have been set
        begin, end = max(asked, since), min(self.gone or now, now)
        if not self.gone:
            end = max(end, asked + self.time_s + paid_s)
        return self.price * max(0.0, end - begin) / 3600


class Cost(Struct, frozen=True):
    """What a server has cost."""

    tag: str
    allocation: str
    flavor: str
    price: float
    begin: float
    """Wall-clock time."""
    end: float
    cost: float

    @classmethod
    def of(cls, kept: Kept, end: float) -> "Cost":
        """What a server has cost up to some time."""
        cost = kept.price * max(0.0, end - kept.asked) / 3600
        return cls(kept.tag, kept.allocation, kept.size, kept.price, kept.asked, end, cost)


class Records:
    """Files, one for each tag: written whole and at once, read when the driver is made."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self.all: dict[str, Kept] = {}
        for name in sorted(os.listdir(directory)):
            if name.endswith(".server.json"):
                with open(os.path.join(directory, name), "rb") as file:
                    kept = msgspec.json.decode(file.read(), type=Kept)
                self.all[kept.tag] = kept

    def live(self) -> list[Kept]:
        """Servers that are asked for, and not known to be gone."""
        return [kept for kept in self.all.values() if not kept.gone]

    def _path(self, tag: str) -> str:
        return os.path.join(self._directory, f"{tag}.server.json")

    def keep(self, kept: Kept) -> Kept:
        """Write down, durably."""
        path = self._path(kept.tag)
        with open(f"{path}.new", "wb") as file:
            file.write(msgspec.json.encode(kept))
            file.flush()
            os.fsync(file.fileno())
        os.replace(f"{path}.new", path)
        self.all[kept.tag] = kept
        return kept

    def account(self, kept: Kept) -> None:
        """Write down for good what a server has cost that is gone."""
        with open(os.path.join(self._directory, COSTS), "ab") as file:
            file.write(msgspec.json.encode(Cost.of(kept, kept.gone)) + b"\n")

    def costs(self, now: float) -> list["Cost"]:
        """What each server has cost, also those that are there."""
        try:
            with open(os.path.join(self._directory, COSTS), "rb") as file:
                found = [msgspec.json.decode(line, type=Cost) for line in file if line.endswith(b"\n")]
        except FileNotFoundError:
            found = []
        return [*found, *(Cost.of(kept, now) for kept in self.all.values() if kept.asked and not kept.gone)]

    def forget(self, tag: str) -> None:
        """Drop what was written down."""
        self.all.pop(tag, None)
        try:
            os.unlink(self._path(tag))
        except FileNotFoundError:
            return


class MemoryRecords(Records):
    """Records that are not in files, for simulations; `disk` outlives a manager."""

    def account(self, kept: Kept) -> None:
        """Nobody asks."""

    def __init__(self, disk: dict[str, Kept]) -> None:
        self.all = disk

    def keep(self, kept: Kept) -> Kept:
        """Write down."""
        self.all[kept.tag] = kept
        return kept

    def forget(self, tag: str) -> None:
        """Drop."""
        self.all.pop(tag, None)
