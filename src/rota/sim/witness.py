"""What really happened, written down where the manager cannot see it: executions, and the facts it made durable."""

from dataclasses import dataclass, field

from rota.model.events import Event

__all__ = ["Execution", "Witness"]


@dataclass(slots=True)
class Execution:
    """One process of one attempt, as the node saw it. Times are true times."""

    batch: int
    index: int
    attempt: int
    runner: str
    site: str
    cores: int
    start: float
    end: float | None = None
    exit_code: int | None = None
    signal: int | None = None
    stopped: bool = False
    """Whether it ended because somebody asked for it, or with its runner: not by itself."""
    memory: int = 0
    """The memory of its slot."""

    @property
    def job(self) -> tuple[int, int]:
        """(batch, index)."""
        return self.batch, self.index


@dataclass(slots=True)
class Witness:
    """The accounts from which the checker works."""

    executions: list[Execution] = field(default_factory=list)
    ranks: list[Execution] = field(default_factory=list)
    """Processes of gangs on nodes other than their root's."""
    facts: list[tuple[float, Event]] = field(default_factory=list)
    """Events with the true time at which they became durable."""
    local: list[float] = field(default_factory=list)
    """For each fact the local time of its decision, by the manager's clock."""
    acked: dict[str, int] = field(default_factory=dict)
    """Submission key → batch that the client was told."""
    problems: list[str] = field(default_factory=list)
    """Breaches that were seen while they happened."""
