"""Policies in the configuration file: what a table says, and what it cannot mean."""

from pathlib import Path

import pytest

from rota.manager.__main__ import settings_of
from rota.manager.config import load_config
from rota.model.errors import UsageError
from rota.schedule.policy import DEFAULT, POLICIES, Policy


def policies(home: Path, text: str) -> dict[str, Policy]:
    (home / "config.toml").write_text(text)
    return dict(settings_of(load_config(str(home))).policies)


def test_tables_build_on_the_default(tmp_path: Path) -> None:
    assert policies(tmp_path, "") == POLICIES
    assert POLICIES["default"] == DEFAULT and POLICIES["qcg"] == Policy(order="arrival", scorers={})
    known = set(POLICIES)
    found = policies(
        tmp_path,
        """
        [policy.fair]
        order = "fair_share"
        share_by = "account"
        half_life = "1d"
        filters_drop = ["tags"]

        [policy.default]
        scorers = { spread = 2 }
        pick = "weighted"

        [policy.own]
        filters = ["status", "limits", "room"]
        relax = []
        """,
    )
    assert found["default"].scorers == {"spread": 2.0} and found["default"].pick == "weighted"
    fair = found["fair"]
    assert (fair.order, fair.share_by, fair.half_life_s, fair.pick) == ("fair_share", "account", 86_400, "weighted")
    assert "tags" not in fair.filters and len(fair.filters) == len(DEFAULT.filters) - 1
    assert found["own"].filters == ("status", "limits", "room")
    assert POLICIES["default"] == DEFAULT, "what the file says is for this manager only"
    assert set(POLICIES) == known


def test_filters_are_added_before_the_last(tmp_path: Path) -> None:
    found = policies(tmp_path, '[policy.p]\nfilters_drop = ["tags", "site"]\nfilters_add = ["site"]\n')
    assert found["p"].filters[-2:] == ("site", "room")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('order = "x"', "[policy.p]: there is no order 'x'; there are ageing, arrival, fair_share, priority"),
        ('filters_add = ["x"]', "[policy.p]: there is no filter 'x'; there are analysis, fits, "),
        ('filters_drop = ["x"]', "[policy.p]: filters_drop names 'x', which is not one of site, tags"),
        ('filters_drop = ["room"]', "[policy.p]: the filter 'room' cannot be left out"),
        ('filters = ["room"]\nfilters_add = ["tags"]', "[policy.p]: give filters (all of them), or filters_add"),
        ("scorers = { pack = 1000 }", "[policy.p]: the scorer 'pack' has the weight 1000: give -100 to 100"),
        ('half_life = "7"', "[policy.p] half_life: '7' has no unit"),
        ('half_life = "1m"', "[policy.p]: half_life 1m: give 1h to 30d"),
        ('share_by = "me"', "[policy.p] share_by: "),
        ('orders = "x"', "[policy.p] there is no key 'orders': did you mean 'order'?"),
        ('relax = ["room"]', "[policy.p]: 'room' cannot be relaxed"),
    ],
)
def test_what_cannot_be_meant(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        policies(tmp_path, f"[policy.p]\n{text}\n")
    assert says in str(caught.value)
    assert str(tmp_path) in str(caught.value)
