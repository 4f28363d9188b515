"""Provider × last words: every cell of the matrix."""

import itertools

import pytest

from rota.drivers.api import Outcome
from rota.drivers.dialect import Seen
from rota.drivers.outcome import Evidence, judge

GOOD, BAD = Outcome(exit_code=0), Outcome(exit_code=3)


def seen(kind, **outcome):
    return Seen("1", "STATE", kind, "tag", "its words", Outcome(**outcome) if outcome else None)


PROVIDERS = {
    "pending": seen("pending"),
    "running": seen("running"),
    "unsure": seen("unsure"),
    "completed": seen("completed"),
    "completed 0": seen("completed", exit_code=0),
    "completed 7": seen("completed", exit_code=7),
    "exited 0": seen("exited", exit_code=0),
    "exited 7": seen("exited", exit_code=7),
    "exited 0 by signal": seen("exited", exit_code=0, signal=9),
    "exited": seen("exited"),
    "failed 7": seen("failed", exit_code=7),
    "failed": seen("failed"),
    "aborted oom": seen("aborted", why="oom"),
    "aborted cancelled 0": seen("aborted", exit_code=0, why="cancelled"),
    "aborted node": seen("aborted", why="node-fail"),
    "failed node": seen("failed", exit_code=1, why="node-fail"),
    "absent": None,
}
# provider: verb with no words of its own (ever), with good words, with bad words
MATRIX = {
    "pending": ("pend", "pend", "pend"),
    "running": ("run", "run", "run"),
    "unsure": ("unsure", "unsure", "unsure"),
    "completed": ("complete", "complete", "fail"),
    "completed 0": ("complete", "complete", "fail"),
    "completed 7": ("fail", "fail", "fail"),
    "exited 0": ("complete", "complete", "fail"),
    "exited 7": ("fail", "fail", "fail"),
    "exited 0 by signal": ("fail", "fail", "fail"),
    "exited": ("fail", "complete", "fail"),
    "failed 7": ("fail", "fail", "fail"),
    "failed": ("fail", "fail", "fail"),
    "aborted oom": ("abort", "abort", "abort"),
    "aborted cancelled 0": ("abort", "abort", "abort"),
    "aborted node": ("abort", "complete", "abort"),
    "failed node": ("fail", "complete", "fail"),
    "absent": (None, "complete", "fail"),
}


@pytest.mark.parametrize(("provider", "words"), list(itertools.product(PROVIDERS, range(3))))
def test_the_verb_in_every_cell(provider, words):
    own = (None, GOOD, BAD)[words]
    verdict = judge(Evidence(PROVIDERS[provider], own, writes=True, waited=True))
    assert verdict.verb == MATRIX[provider][words]
    if verdict.verb in ("complete", "fail", "abort"):
        assert verdict.outcome is not None
        assert verdict.reason or verdict.verb == "complete"


@pytest.mark.parametrize("provider", PROVIDERS)
def test_last_words_are_waited_for_only_where_there_will_be_some(provider):
    found = PROVIDERS[provider]
    over = found is not None and found.kind not in ("pending", "running", "unsure")
    assert (judge(Evidence(found, None, writes=True, waited=False)).verb is None) == (over or found is None)
    assert judge(Evidence(found, None, writes=False, waited=False)).verb == MATRIX[provider][0]


def test_every_cell_is_tried_and_no_success_has_no_witness():
    kinds = {found.kind for found in PROVIDERS.values() if found is not None}
    assert kinds == {"pending", "running", "unsure", "completed", "exited", "failed", "aborted"}
    flags = list(itertools.product((False, True), repeat=5))
    words = (None, GOOD, BAD, Outcome(), Outcome(signal=9), Outcome(exit_code=0, why="oom"))
    for found, own, (writes, waited, lingers, gone, trust) in itertools.product(PROVIDERS.values(), words, flags):
        verdict = judge(Evidence(found, own, writes, waited, lingers, gone), trust)
        if verdict.verb == "complete":
            assert own == GOOD or trust or found.kind == "completed" or found.outcome.exit_code == 0
            assert own is None or own in (GOOD, Outcome())
        if verdict.verb in ("fail", "abort") and own is None and found is None:
            assert gone
        if found is None and own is None and not gone:
            assert verdict.verb is None


def test_the_job_gives_the_status_and_the_provider_the_reason():
    provider = seen("aborted", exit_code=0, signal=15, why="time", host="n1")
    verdict = judge(Evidence(provider, Outcome(exit_code=143, cpu_s=2.5)))
    assert verdict.verb == "abort"
    assert verdict.outcome == Outcome(exit_code=143, why="time", host="n1", cpu_s=2.5)
    assert "STATE" in verdict.reason and "its words" in verdict.reason and "143" in verdict.reason


def test_both_facts_are_told_when_they_contradict_each_other():
    verdict = judge(Evidence(seen("failed", exit_code=7), GOOD))
    assert verdict.outcome.exit_code == 7 and "ended well" in verdict.reason
    verdict = judge(Evidence(seen("completed", exit_code=0), BAD))
    assert verdict.outcome.exit_code == 3 and "STATE" in verdict.reason


def test_vanished_is_its_own_reason():
    verdict = judge(Evidence(None, gone=True))
    assert (verdict.verb, verdict.outcome.why) == ("abort", "vanished")


def test_one_that_lingers_after_its_last_words_is_over():
    assert judge(Evidence(seen("running"), GOOD, True, True, lingers=True)).verb == "complete"
    assert judge(Evidence(seen("running"), BAD, True, True, lingers=True)).verb == "fail"
    assert judge(Evidence(seen("running"), None, True, True, lingers=True)).verb == "run"


def test_a_scheduler_may_be_trusted_with_an_end_without_status():
    assert judge(Evidence(seen("exited")), trust_scheduler=True).verb == "complete"
    assert judge(Evidence(seen("failed")), trust_scheduler=True).verb == "fail"


def test_last_words_without_status_are_no_success():
    assert judge(Evidence(None, Outcome())).verb == "fail"


def test_what_was_stopped_and_started_again_unseen_was_put_back_and_did_not_fail():
    """The second start finds the first one's claim, and ends well without running anything."""
    again = seen("completed", exit_code=0)._replace(requeued=1)
    verdict = judge(Evidence(again, Outcome(signal=15), writes=True))
    assert verdict.verb == "abort" and verdict.outcome.why == "requeue" and "started it again" in verdict.reason
    assert judge(Evidence(again, GOOD, writes=True)).verb == "complete"
    assert judge(Evidence(again._replace(requeued=0), Outcome(signal=15), writes=True)).verb == "fail"
