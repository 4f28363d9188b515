"""The ledger against a plain account: whatever is reserved and given back, along whatever tree."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rota.model.location import Kind, Location
from rota.model.needs import Amounts
from rota.schedule.ledger import Ledger

ASKED = st.builds(
    Amounts,
    st.integers(0, 3),
    st.integers(0, 3),
    st.integers(0, 1),
    st.integers(0, 1),
    st.sampled_from(((), (("lic", 1),))),
)
SIZES = st.builds(
    Amounts, st.integers(0, 9), st.integers(0, 9), st.integers(0, 4), st.integers(0, 3), st.just((("lic", 3),))
)
NOTHING = Amounts()


class Accounts(RuleBasedStateMachine):
    """`given` is the truth: what was reserved where and not yet given back."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger()
        self.given: list[tuple[str, Amounts, int]] = []
        self.shrunk: set[str] = set()
        self.made = 0

    def paths(self, name: str) -> list[str]:
        """The location and what is above it while stacked, worked out here."""
        out = [name]
        while (location := self.ledger.locations[out[-1]]).stacked and location.parent is not None:
            out.append(location.parent)
        return out

    def used(self, name: str) -> Amounts:
        total = NOTHING
        for where, amounts, count in self.given:
            if name in self.paths(where):
                total = total.plus(amounts, count)
        return total

    @rule(data=st.data(), capacity=st.none() | SIZES, stacked=st.booleans())
    def grow(self, data: st.DataObject, capacity: Amounts | None, stacked: bool) -> None:
        parent = data.draw(st.sampled_from([None, *self.ledger.locations]))
        self.made += 1
        self.ledger.add(Location(f"n{self.made}", Kind.NODE, parent, capacity, stacked))

    @precondition(lambda self: self.ledger.locations)
    @rule(data=st.data(), asked=ASKED, count=st.integers(1, 3))
    def reserve(self, data: st.DataObject, asked: Amounts, count: int) -> None:
        where = data.draw(st.sampled_from(list(self.ledger.locations)))
        room = self.ledger.room(where, asked)
        expected = min(
            (
                asked.times_in(capacity.plus(self.used(name), -1))
                for name in self.paths(where)
                if (capacity := self.ledger.locations[name].capacity) is not None
            ),
            default=1 << 30,
        )
        assert room == expected
        short = self.ledger.shortage(where, asked)
        assert (short is None) == (room > 0)
        if short is not None:
            assert asked.lacking(short)
        if count <= room:
            self.ledger.charge(where, asked, count)
            self.given.append((where, asked, count))
        else:
            before = dict(self.ledger.used)
            with pytest.raises(AssertionError, match="over-committed"):
                self.ledger.charge(where, asked, count)
            for name, old in before.items():  # a breach stops the manager; here the account goes on from before
                self.ledger.used[name] = old
                self.ledger.add(self.ledger.locations[name])

    @precondition(lambda self: self.given)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        at = data.draw(st.integers(0, len(self.given) - 1))
        where, amounts, count = self.given.pop(at)
        back = data.draw(st.integers(1, count))
        self.ledger.charge(where, amounts, -back)
        if back < count:
            self.given.append((where, amounts, count - back))

    @precondition(lambda self: self.given)
    @rule(data=st.data(), capacity=SIZES)
    def resize(self, data: st.DataObject, capacity: Amounts) -> None:
        old = self.ledger.locations[data.draw(st.sampled_from(list(self.ledger.locations)))]
        self.ledger.add(Location(old.id, old.kind, old.parent, capacity, old.stacked))
        self.shrunk.discard(old.id)
        if capacity.plus(self.used(old.id), -1).negative():
            self.shrunk.add(old.id)

    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        parents = {location.parent for location in self.ledger.locations.values()}
        leaves = [name for name in self.ledger.locations if name not in parents]
        if not leaves:
            return
        name = data.draw(st.sampled_from(leaves))
        if self.used(name) == NOTHING:
            self.ledger.drop(name)
            self.given = [row for row in self.given if row[0] != name]
        else:
            with pytest.raises(AssertionError, match="dropped while in use"):
                self.ledger.drop(name)

    @precondition(lambda self: self.ledger.locations)
    @rule(data=st.data(), asked=ASKED)
    def give_back_too_much(self, data: st.DataObject, asked: Amounts) -> None:
        where = data.draw(st.sampled_from(list(self.ledger.locations)))
        if asked == NOTHING or not self.used(where).plus(asked, -1).negative():
            return
        with pytest.raises(AssertionError, match="more is given back"):
            self.ledger.charge(where, asked, -1)

    @invariant()
    def sums_are_right(self) -> None:
        for name, location in self.ledger.locations.items():
            used = self.used(name)
            assert self.ledger.used[name] == used
            assert not used.negative()
            if location.capacity is not None:
                assert self.ledger.free(name) == location.capacity.plus(used, -1)
                assert name in self.shrunk or not self.ledger.free(name).negative()


Accounts.TestCase.settings = settings(max_examples=100, stateful_step_count=30)
test_ledger = Accounts.TestCase
