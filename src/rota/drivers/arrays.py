"""How many elements one submission to a site may have: what is configured, what the system tells, what it refused."""

__all__ = ["ArrayLimit"]


class ArrayLimit:
    """The largest array of one site. No I/O.

    What the system tells is looked at again now and then. A refusal counts until it tells something else: where that
    is the reason for the refusal, it is exact, and a refusal mostly is not; and what was smaller may be larger again.
    """

    def __init__(self, ceiling: int) -> None:
        self._ceiling = ceiling
        self._told: int | None = None
        self._taken: int | None = None
        """What is asked for since a refusal."""

    @property
    def most(self) -> int:
        """The most elements of one submission."""
        return max(1, min(limit for limit in (self._ceiling, self._told, self._taken) if limit is not None))

    def tell(self, told: int | None) -> bool:
        """The system has told its limit (None: it has none); whether this changed anything."""
        before = self.most
        if told != self._told:
            self._told, self._taken = told, None
        return self.most != before

    def refuse(self, most: int) -> None:
        """The system has refused an array, and takes so many at the most, as far as can be said."""
        self._taken = min(most, self.most)
