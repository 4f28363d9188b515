"""Thresholds, tasks and queues of the brokerage."""

import pytest

from rota.model.errors import UsageError
from rota.schedule.broker.config import PROFILES, SETTINGS, Thresholds
from rota.schedule.broker.queue import Queue, pseudo_queues, resource_type
from rota.schedule.broker.task import Rules, rules_of


def test_every_setting_says_unit_source_and_meaning() -> None:
    for setting in SETTINGS.values():
        assert setting.unit and setting.source and setting.what
        for profile in PROFILES:
            value = setting.of(profile)
            assert (value is None or isinstance(value, bool)) == (setting.unit == "yes or no" or value is None), (
                setting.name
            )


def test_every_disagreement_that_is_a_choice_of_the_flows_has_a_setting() -> None:
    named = " ".join(setting.source for setting in SETTINGS.values()).replace(",", " ").split()
    # D12 (none means nothing is asked) needs no choice
    assert {f"D{number}" for number in range(1, 33)} - set(named) == {"D12"}


def test_values_are_checked_by_name_and_kind() -> None:
    for name, value, words in [
        ("NQUEUED_SAT_CUP", 1, "did you mean NQUEUED_SAT_CAP"),
        ("NQUEUED_SAT_CAP", "many", "give a number (files)"),
        ("NQUEUED_SAT_CAP", -1, "not negative"),
        ("NQUEUED_SAT_CAP", 0, "above it"),
        ("NW_ACTIVE", 1, "true or false"),
        ("NW_THRESHOLD_MC", 1, "there is no threshold"),
    ]:
        with pytest.raises(UsageError) as caught:
            Thresholds("doc", {name: value})
        assert words in str(caught.value)
    with pytest.raises(UsageError):
        Thresholds("old")  # type: ignore[arg-type]


def test_a_value_by_share_hides_the_common_one_and_none_is_the_profiles_own() -> None:
    values = Thresholds("code", {"NQUEUELIMITSITE_User Analysis": 5, "MIN_WEIGHT_managed_MC": 2, "NW_ACTIVE": None})
    assert values.of("NQUEUELIMITSITE", "User Analysis") == 5 and values.of("NQUEUELIMITSITE", "MC") == 20
    assert values.of("MIN_WEIGHT", "managed", "MC") == 2 and values.of("MIN_WEIGHT", "managed", "X") == 0
    assert not values.on("NW_ACTIVE") and Thresholds("doc", {"NW_ACTIVE": None}).on("NW_ACTIVE")
    assert values.with_values({"NW_ACTIVE": True}).on("NW_ACTIVE") and not values.on("NW_ACTIVE")


def test_split_rules_are_read_and_what_is_wrong_is_named() -> None:
    assert rules_of("NF=1,IP=1,XX=7,TW=-1") == Rules(n_files_per_job=1, ip_connectivity="full", t1_weight=-1)
    for text, words in [("NF=x", "NF=x"), ("IP=9", "there are 1, 2"), ("NF", "a number"), ("odd", "NF=1")]:
        with pytest.raises(UsageError, match=words):
            rules_of(text)


def test_a_unified_queue_becomes_a_queue_per_resource_type() -> None:
    parent = Queue(name="Q", capability="ucore", core_count=8, maxrss=32000)
    assert [(q.name, q.unified, q.core_count, q.minrss, q.maxrss) for q in pseudo_queues(parent)] == [
        ("Q/SCORE", "Q", 1, 0, 2000),
        ("Q/SCORE_HIMEM", "Q", 1, 2001, 4000),
        ("Q/MCORE", "Q", 8, 0, 16000),
        ("Q/MCORE_HIMEM", "Q", 8, 16001, 32000),
    ]
    single = Queue(name="S", capability="ucore", core_count=1, maxrss=4000)
    assert [q.name for q in pseudo_queues(single)] == ["S/SCORE", "S/SCORE_HIMEM"]
    assert pseudo_queues(Queue(name="P")) == [Queue(name="P")]


@pytest.mark.parametrize(
    ("cores", "ram", "found"),
    [(1, 2223, "SCORE"), (1, 2224, "SCORE_HIMEM"), (8, 2000, "MCORE"), (8, 2300, "MCORE_HIMEM"), (None, None, "SCORE")],
)
def test_resource_types_of_tasks(cores: int | None, ram: int | None, found: str) -> None:
    assert resource_type(cores, ram, "MBPerCore", 0) == found
