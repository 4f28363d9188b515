"""How large arrays may be, as it is told and refused."""

from hypothesis import given
from hypothesis import strategies as st

from rota.drivers.arrays import ArrayLimit


def test_what_is_told_later_counts_and_undoes_refusals():
    limit = ArrayLimit(1000)
    assert limit.most == 1000 and not limit.tell(None) and not limit.tell(10_000)
    limit.refuse(500)
    limit.refuse(250)
    assert limit.most == 250 and not limit.tell(10_000), "the same again: something else has refused"
    assert limit.tell(400) and limit.most == 400, "half of what was refused was a guess"
    limit.refuse(200)
    assert limit.most == 200
    assert limit.tell(None) and limit.most == 1000, "it has no limit any more"
    assert limit.tell(0) and limit.most == 1


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 50) | st.none())))
def test_no_array_is_larger_than_anybody_said_last(events):
    limit, told, refused = ArrayLimit(40), None, None
    for is_told, number in events:
        if is_told:
            refused = None if number != told else refused
            told = number
            limit.tell(number)
        elif number is not None:
            refused = number if refused is None else min(refused, number)
            limit.refuse(number)
        said = [each for each in (told, refused) if each is not None]
        assert limit.most == max(1, min([40, *said]))
