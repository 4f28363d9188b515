"""What may be had of a cloud: sizes and their prices, within its quota and the limits of the configuration."""

from collections.abc import Callable, Mapping, Sequence

from rota.drivers.api import Ask
from rota.drivers.cloud_records import CloudSettings, Records
from rota.drivers.farm import HostError
from rota.drivers.provider import Quota, Size
from rota.model.amounts import format_duration
from rota.model.needs import Amounts
from rota.model.site import MICRO, Bound

__all__ = ["Offer"]


class Offer:
    """What a cloud has for us, as it said last, beside what we have of it."""

    def __init__(
        self, settings: CloudSettings, records: Records, wall: Callable[[], float], mono: Callable[[], float]
    ) -> None:
        self.settings = settings
        self._records = records
        self._wall = wall
        self._mono = mono
        self.sizes: dict[str, Size] = {}
        self.prices: Mapping[str, float] = {}
        self.sets: Mapping[str, int] = {}
        """Size → the number of its set."""
        self.unfit: dict[str, str] = {}
        """Image → why no server of it will ever do: no more are made."""
        self.quota: Quota | None = None
        self._closed: dict[str, tuple[float, str]] = {}
        """Size → (monotonic time until which it is left alone, why)."""
        self._ours = Amounts()
        """What our servers had in all when the quota was last asked for."""
        self._ours_count = 0

    def learn(self, quota: Quota, sizes: Sequence[str]) -> None:
        """The quota, and the sizes of the servers of ours that are counted there."""
        mine = [self.sizes[size].node for size in sizes if size in self.sizes]
        self._ours = Amounts(sum(node.cores for node in mine), sum(node.memory for node in mine))
        self._ours_count, self.quota = len(mine), quota

    def put_aside(self) -> float:
        """The money of a day that is spent, or put aside for servers that are there."""
        now, settings = self._wall(), self.settings
        since = now - settings.day_s
        return sum(kept.cost(since, now, settings.paid_s) for kept in self._records.all.values())

    def bounds(self) -> tuple[Bound, ...]:
        """What all servers together may have: the quota, and the limits of the configuration."""
        settings, out = self.settings, []
        if self.quota is not None:
            for what, level, mine in (
                ("servers", self.quota.servers, self._ours_count),
                ("cores", self.quota.cores, self._ours.cores),
                ("memory", self.quota.memory, self._ours.memory),
            ):
                if level.most is not None:
                    out.append(Bound("quota", what, level.most, max(0, level.used - mine)))
        if settings.servers_most is not None:
            out.append(Bound("max_servers", "servers", settings.servers_most))
        if settings.cores_most is not None:
            out.append(Bound("max_cores", "cores", settings.cores_most))
        if settings.money_most is not None:
            most = int(settings.money_most * MICRO)
            counted = sum(kept.price * (kept.time_s + settings.paid_s) / 3600 for kept in self._records.live())
            others = max(0.0, self.put_aside() - counted)
            out.append(Bound("max_cost_per_day", "money", most, -int(-others * MICRO // 1)))
        return tuple(out)

    def close(self, name: str, seconds: float, why: str) -> None:
        """Leave a size alone for a while, or its whole set, if there is another."""
        until = self._mono() + seconds
        mine = self.sets.get(name, 0)
        alike = [size for size in self.sizes if self.sets.get(size, 0) == mine]
        others = any(number != mine for number in self.sets.values())
        for size in alike if others else [name]:
            self._closed[size] = (until, why)

    def why_closed(self, name: str) -> str:
        """Why a size is left alone; empty: it is not."""
        if self.settings.image in self.unfit:
            return self.unfit[self.settings.image]
        until, why = self._closed.get(name, (0.0, ""))
        left = until - self._mono()
        return f"{why}; it is tried again in {format_duration(max(1, round(left)))}" if left > 0 else ""

    def check_limits(self, size: Size, ask: Ask) -> None:
        """Raise HostError if one more server of a size is not within the limits of the configuration."""
        settings, live = self.settings, self._records.live()
        if settings.servers_most is not None and len(live) >= settings.servers_most:
            raise HostError(f"max_servers: {len(live)} of {settings.servers_most} are there", size.name)
        cores = sum(kept.node.cores for kept in live)
        if settings.cores_most is not None and cores + ask.amounts.cores > settings.cores_most:
            left = f"{max(0, settings.cores_most - cores) / 1000:g} of {settings.cores_most / 1000:g} cores left"
            raise HostError(f"max_cores: {left}, {ask.amounts.cores / 1000:g} asked", size.name)
        if settings.money_most is not None:
            price = self.prices.get(size.name, 0.0)
            cost, aside = price * ((ask.time_s or 0) + settings.paid_s) / 3600, self.put_aside()
            if aside + cost > settings.money_most:
                left = f"{max(0.0, settings.money_most - aside):.4g} of {settings.money_most:.4g} left"
                raise HostError(f"max_cost_per_day: {left}, {cost:.4g} asked", size.name)

    def check_quota(self, quota: Quota, size: Size) -> None:
        """Raise HostError if one more server of a size is not within the quota as it is now."""
        coming = [kept for kept in self._records.live() if not kept.server]  # asked for: perhaps not counted yet
        for what, level, asked in (
            ("servers", quota.servers, 1),
            ("cores", quota.cores, size.node.cores),
            ("memory", quota.memory, size.node.memory),
        ):
            if level.left is None:
                continue
            mine = sum(1 if what == "servers" else int(getattr(kept.node, what)) for kept in coming)
            if level.left - mine < asked:
                self.quota = quota
                unit = {"servers": 1, "cores": 1000, "memory": 1 << 30}[what]
                shown = " GiB memory" if what == "memory" else f" {what}"
                left = f"{max(0, level.left - mine) / unit:g} of {(level.most or 0) / unit:g}{shown} left"
                raise HostError(f"quota: {left}, {asked / unit:g} asked", size.name)
