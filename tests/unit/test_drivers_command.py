"""What a command driver does with answers, good and bad. The answers are scripted, the time is virtual."""

import asyncio
import itertools
import random
import re

import pytest

from driver_world import ModelCluster, ScriptedTransport, make_ask, make_driver, run_virtual
from rota.drivers.api import Known, Outcome
from rota.drivers.dialect import Answer, Command, Listing, Seen
from rota.drivers.outcome import Evidence
from rota.drivers.settings import Settings
from rota.drivers.submitting import ArrayError, FullError
from rota.drivers.tracking import DELETED, Tracker
from rota.drivers.transport import UnreachableError
from rota.model.errors import BusyError, RefusedError
from support_steps import counting

TAG = f"{1:012x}"
KNOWN = Known("a1.0", TAG, "7")
EMPTY = Answer(0, "", "")
HANGS = Answer(None, "", "")


def row(state, native="7", tag=TAG, requeues=0, code="-"):
    return f"{native} {state} {tag} {requeues} {code}\n"


def says(*rows):
    return Answer(0, "".join(rows), "")


def virtual(test):
    def run():
        run_virtual(test())

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


async def told(driver, seconds, known=(KNOWN,), step=1.0):
    """What is told while a manager polls every second."""
    out, loop = [], asyncio.get_running_loop()
    until = loop.time() + seconds
    while loop.time() < until:
        out += [(seen.id, seen.verb) for seen in await driver.poll(list(known))]
        await asyncio.sleep(step)
    return out


def now():
    return asyncio.get_running_loop().time()


# ---- submitting -----------------------------------------------------------------------------------------------------


@virtual
async def test_an_array_is_one_command_and_has_an_id_per_element():
    transport = ScriptedTransport(tsub=[Answer(0, "41\n", "")])
    driver = make_driver(transport)
    assert await driver.submit(make_ask(1, 3)) == ["41.0", "41.1", "41.2"]
    assert [argv for _, argv in transport.ran] == [("tsub", f"rota-{TAG}", "3")]
    assert driver.health().programs == {name: f"/toy/{name}" for name in ("tsub", "tstat", "thist", "tdel")}
    assert driver.health().version == "toy 1"


@virtual
async def test_transient_answers_are_tried_again_with_growing_pauses():
    transport = ScriptedTransport(tsub=[*[Answer(1, "", "busy")] * 9, Answer(0, "41\n", "")])
    assert await make_driver(transport).submit(make_ask(1)) == ["41"]
    at = [moment for moment, _ in transport.ran]
    gaps = [b - a for a, b in itertools.pairwise(at)]
    for gap, meant in zip(gaps, (2, 4, 8, 16, 30, 30, 30, 30, 30), strict=True):
        assert 0.9 * meant <= gap <= 1.1 * meant
    assert transport.count("tstat") == 0


@virtual
async def test_ten_transient_answers_are_enough_and_the_site_is_not_called_failing():
    transport = ScriptedTransport(tsub=[Answer(1, "", "busy: come back")])
    driver = make_driver(transport)
    with pytest.raises(BusyError, match=r"site toy: nothing was submitted, tried 10 times.*tsub.*busy: come back"):
        await driver.submit(make_ask(1))
    assert transport.count("tsub") == 10
    assert driver.health().failures == 0 and "come back" in driver.health().last_error


@virtual
async def test_a_site_that_takes_no_more_is_not_asked_ten_times():
    for words in (
        "sbatch: error: AssocMaxSubmitJobLimit\nsbatch: error: Batch job submission failed: Job violates acc",
        "qsub: would exceed complex's per-user limit of jobs in 'Q' state",
        "qsub: submit error (Maximum number of jobs already in queue MSG=total number",
        "Unable to run job: job rejected: Only 4 jobs are allowed per user (current job count: 4).",
        "User's pending job threshold reached. Please wait",
    ):
        transport = ScriptedTransport(tsub=[Answer(1, "", f"busy: {words}")])
        with pytest.raises(FullError, match="nothing was submitted"):
            await make_driver(transport).submit(make_ask(1))
        assert transport.count("tsub") == 1


@virtual
async def test_a_refusal_names_site_command_stderr_and_what_to_do():
    refusal = Answer(1, "", "tsub: error:\ntsub: invalid partition: gold\n")
    transport = ScriptedTransport(tsub=[refusal], tstat=[EMPTY])
    with pytest.raises(RefusedError) as caught:
        await make_driver(transport).submit(make_ask(1))
    meant = rf"site toy.*tsub rota-{TAG} 1.*invalid partition: gold.*What to do: .*partition"
    assert re.search(meant, str(caught.value))
    assert str(caught.value).count("invalid partition: gold") == 1
    assert "\n" not in str(caught.value)
    assert transport.count("tsub") == 1


@virtual
async def test_a_refusal_that_was_none_is_found_out():
    transport = ScriptedTransport(tsub=[Answer(1, "", "invalid reply")], tstat=[says(row("Q", "54"))])
    driver = make_driver(transport)
    assert await driver.submit(make_ask(1)) == ["54"]
    assert any("invalid reply" in note for note in driver.health().notes)


@virtual
async def test_a_submission_that_hangs_and_was_accepted_is_found_and_not_repeated():
    transport = ScriptedTransport(tsub=[HANGS], tstat=[EMPTY, says(row("Q", "55"))])
    assert await make_driver(transport).submit(make_ask(1)) == ["55"]
    assert transport.count("tsub") == 1
    assert now() < 100  # looked up while the command still hung


@pytest.mark.parametrize(
    "answer", [EMPTY, Answer(0, "\ufffd", ""), Answer(1, "", "reset by peer"), UnreachableError("lost", ran=True)]
)
def test_a_doubtful_answer_is_looked_into_for_as_long_as_it_takes(answer):
    async def test():
        lookups = [HANGS, Answer(1, "", "down"), *[EMPTY] * 3, says(row("R", "56"))]
        transport = ScriptedTransport(tsub=[answer], tstat=lookups)
        assert await make_driver(transport).submit(make_ask(1)) == ["56"]
        assert transport.count("tsub") == 1

    run_virtual(test())


@virtual
async def test_only_after_enough_good_lookups_it_is_sent_again():
    settings = Settings()
    transport = ScriptedTransport(tsub=[Answer(1, "", "strange"), Answer(0, "57\n", "")], tstat=[EMPTY])
    assert await make_driver(transport, settings).submit(make_ask(1)) == ["57"]
    first, second = (at for at, argv in transport.ran if argv[0] == "tsub")
    lookups = [at for at, argv in transport.ran if argv[0] == "tstat"]
    assert second - first >= settings.settle_s
    assert sum(1 for at in lookups if at - first >= settings.settle_s) >= settings.settle_looks


@virtual
async def test_nothing_is_looked_up_when_the_host_was_not_reached():
    transport = ScriptedTransport(tsub=[UnreachableError("refused", ran=False), Answer(0, "58\n", "")])
    assert await make_driver(transport).submit(make_ask(1)) == ["58"]


@virtual
async def test_two_with_one_tag_the_first_stays_the_others_are_ended():
    transport = ScriptedTransport(tsub=[EMPTY], tstat=[says(row("R", "61"), row("Q", "60"))], tdel=[EMPTY])
    driver = make_driver(transport)
    assert await driver.submit(make_ask(1)) == ["60"]
    assert ("tdel", "-1", "61") in [argv for _, argv in transport.ran]
    assert any("more than once" in note for note in driver.health().notes)


@virtual
async def test_one_that_ran_and_was_forgotten_is_known_by_its_own_words():
    transport = ScriptedTransport(tsub=[EMPTY], tstat=[EMPTY], thist=[EMPTY])
    transport.own_words = True

    async def last_words(known):
        return {item.id: Outcome(exit_code=4) for item in known}

    transport.last_words = last_words
    driver = make_driver(transport)
    (native,) = await driver.submit(make_ask(1))
    assert transport.count("tsub") == 1
    assert await told(driver, 4, [Known("a1.0", TAG, native)]) == [("a1.0", "fail")]


@virtual
async def test_find_is_certain_before_it_says_nothing():
    transport = ScriptedTransport(tstat=[HANGS, Answer(1, "", "x"), EMPTY])
    driver = make_driver(transport)
    assert await driver.find(TAG, 1) is None
    assert transport.count("tstat") >= 2 + Settings().settle_looks and now() >= Settings().restart_settle_s
    transport.answers["tstat"] = [says(row("R", "9.0"), row("Q", "9.1"))]
    assert await driver.find(TAG, 2) == ["9.0", "9.1"]


@virtual
async def test_an_array_that_was_planned_larger_than_is_taken_is_planned_anew_before_anything_is_run():
    """It was no use to anybody as refused for good: direct jobs fail by that."""
    transport = ScriptedTransport()
    driver = make_driver(transport, array_most=5)
    with pytest.raises(ArrayError, match=r"site toy: 6 allocations .* 5") as caught:
        await driver.submit(make_ask(1, 6))
    assert caught.value.most == 5 and transport.ran == []


@virtual
async def test_programs_that_are_not_there_are_named():
    transport = ScriptedTransport()
    transport.absent = ("tsub",)
    driver = make_driver(transport)
    with pytest.raises(BusyError, match=r"site toy: tsub cannot be found on a script: .*PATH"):
        await driver.submit(make_ask(1))
    assert await told(driver, 100) == []
    assert driver.health().state == "failing" and "tsub" in driver.health().why
    transport.absent = ()
    transport.answers["tstat"] = [says(row("R"))]
    assert await told(driver, 600) == [("a1.0", "run")]


# ---- polling --------------------------------------------------------------------------------------------------------


@virtual
async def test_news_is_told_once():
    listings = [says(row(state)) for state in "QQRRR"] + [says(row("D", code=0))]
    driver = make_driver(ScriptedTransport(tstat=listings))
    out = []
    while ("a1.0", "complete") not in out:
        out += await told(driver, 1)
    assert [verb for _, verb in out] == ["pend", "run", "complete"]


@virtual
async def test_an_end_is_told_again_only_while_the_manager_still_asks():
    transport = ScriptedTransport(tstat=[says(row("E", code=3), row("R", "8", "f" * 12))])
    driver = make_driver(transport)
    assert await told(driver, 3) == [("a1.0", "fail")]
    assert ("a1.0", "fail") in await told(driver, 120)
    assert await told(driver, 120, [Known("other", "f" * 12, "8")]) == [("other", "run")]


@virtual
async def test_a_restarted_driver_adopts_by_native_id():
    transport = ScriptedTransport(tstat=[says(row("R"), row("Q", "8"))])
    driver = make_driver(transport)
    other = Known("a2.0", TAG, "8")
    assert sorted(await told(driver, 5, [KNOWN, other])) == [("a1.0", "run"), ("a2.0", "pend")]


@virtual
async def test_the_pace_of_polling():
    transport = ScriptedTransport(tstat=[says(row("R"), row("R", "99", f"{2:012x}"))], tsub=[Answer(0, "99\n", "")])
    driver = make_driver(transport)
    await told(driver, 600)
    at = [moment for moment, argv in transport.ran if argv[0] == "tstat"]
    gaps = [b - a for a, b in itertools.pairwise(at)]
    assert gaps[0] < 6 and all(26 <= gap <= 34 for gap in gaps[5:])
    begun = now()
    await driver.submit(make_ask(2))
    await told(driver, 60, [KNOWN, Known("a2.0", f"{2:012x}", "99")])
    quick = [moment - begun for moment, argv in transport.ran if argv[0] == "tstat" and moment > begun]
    assert quick[0] <= 3.5 and 3 <= len(quick) <= 5


@virtual
async def test_a_question_about_a_few_is_answered_soon_but_not_below_the_minimum():
    transport = ScriptedTransport(tstat=[says(row("R"), row("R", "8"))])
    driver = make_driver(transport, Settings(poll_min_s=5.0))
    other = Known("a2.0", TAG, "8")
    await told(driver, 300, [KNOWN, other])
    transport.ran.clear()
    await told(driver, 60, [KNOWN], 0.1)
    at = [moment for moment, _ in transport.ran]
    assert at and all(b - a >= 5 for a, b in itertools.pairwise(at))


@virtual
async def test_requeues_are_told_as_pend_even_if_it_runs_again_already():
    transport = ScriptedTransport(
        tstat=[says(row("R")), says(row("Q", requeues=1)), says(row("R", requeues=1)), says(row("R", requeues=2))]
    )
    verbs = [verb for _, verb in await told(make_driver(transport), 200)]
    assert verbs == ["run", "pend", "run", "pend", "run"]


@virtual
async def test_failed_partial_and_empty_answers_are_no_evidence():
    other = row("R", "8", "f" * 12)
    bad = [HANGS, Answer(1, "", "down"), Answer(0, "\x00garbage", ""), Answer(1, other, "cut")]
    bad += [UnreachableError("gone", ran=True), Answer(0, other, "", True)]
    transport = ScriptedTransport(tstat=[says(row("R")), *bad * 20, says(row("R"))], thist=[EMPTY])
    assert await told(make_driver(transport), 86400, step=10) == [("a1.0", "run")]


@virtual
async def test_a_vanished_one_is_given_up_only_after_enough_good_polls_and_time():
    settings = Settings()
    transport = ScriptedTransport(tstat=[says(row("R")), EMPTY], thist=[EMPTY], tdel=[EMPTY])
    driver = make_driver(transport)
    await told(driver, 2)
    for _ in range(2000):
        seen = await driver.poll([KNOWN])
        if seen:
            break
        await asyncio.sleep(1)
    assert [(one.verb, one.outcome.why) for one in seen] == [("abort", "vanished")]
    empties = [at for at, argv in transport.ran if argv[0] == "tstat"][1:]
    assert len(empties) >= settings.vanish_polls and empties[-1] - empties[0] >= settings.vanish_s
    assert transport.count("thist") >= 1


@pytest.mark.parametrize(
    ("before", "why"),
    [
        ([says(row("Q"))], "cancelled"),
        ([says(row("R")), says(row("Q", requeues=1))], "vanished"),
        ([says(row("Q")), *[Answer(1, "", "down")] * 8], "vanished"),
    ],
    ids=["deleted-while-it-waited", "it-had-run-before", "seen-long-ago"],
)
def test_one_that_vanishes_from_the_queue_was_deleted(before, why):
    """Where no history tells of jobs that never ran; but not if it may have run since it was seen."""

    async def run():
        transport = ScriptedTransport(tstat=[*before, EMPTY], thist=[EMPTY], tdel=[EMPTY])
        driver = make_driver(transport)
        for _ in range(5000):
            seen = [one for one in await driver.poll([KNOWN]) if one.verb == "abort"]
            if seen:
                break
            await asyncio.sleep(1)
        assert [one.outcome.why for one in seen] == [why]
        assert (seen[0].reason == DELETED) == (why == "cancelled")

    run_virtual(run())


@virtual
async def test_nothing_vanishes_while_the_history_cannot_be_asked():
    transport = ScriptedTransport(tstat=[says(row("R")), EMPTY], thist=[Answer(1, "", "down")])
    assert await told(make_driver(transport), 7200, step=5) == [("a1.0", "run")]


@virtual
async def test_a_vanished_one_that_turns_up_again_is_ended():
    transport = ScriptedTransport(tstat=[says(row("R")), *[EMPTY] * 30, says(row("R"))], thist=[EMPTY], tdel=[EMPTY])
    driver = make_driver(transport)
    out = await told(driver, 2000)
    assert ("a1.0", "abort") in out and transport.count("tdel") >= 1
    assert any("should not be there" in note for note in driver.health().notes)


@virtual
async def test_the_history_decides_what_the_listing_shows_no_more():
    transport = ScriptedTransport(tstat=[says(row("R")), EMPTY], thist=[EMPTY, says(row("E", code=9))])
    driver = make_driver(transport)
    await told(driver, 2)
    out = []
    while not out:
        out = await driver.poll([KNOWN])
        await asyncio.sleep(1)
    assert (out[0].verb, out[0].outcome.exit_code) == ("fail", 9)


@virtual
async def test_a_number_used_again_by_another_job_is_not_ours():
    transport = ScriptedTransport(tstat=[says(row("R")), says(row("D", tag="f" * 12, code=0))])
    transport.answers["thist"] = [says(row("D", tag="f" * 12, code=0))]
    transport.answers["tdel"] = [EMPTY]
    out = await told(make_driver(transport), 1000)
    assert ("a1.0", "complete") not in out and ("a1.0", "abort") in out


@virtual
async def test_of_two_rows_with_one_id_the_living_one_counts():
    transport = ScriptedTransport(tstat=[says(row("R"), row("D", code=0)), says(row("D", code=0), row("R"))])
    assert await told(make_driver(transport), 100) == [("a1.0", "run")]


@virtual
async def test_states_that_tell_nothing_are_spread_over_their_time():
    transport = ScriptedTransport(tstat=[says(row("?"))])
    driver = make_driver(transport, Settings(poll_s=2.0, unsure_states=(("?", 6000.0),)))
    out = await told(driver, 1000)
    assert {verb for _, verb in out} == {"unsure"} and 14 <= len(out) <= 17  # 100 of them take 6000 s
    transport.answers["tstat"] = [says(row("R"))]
    assert await told(driver, 30) == [("a1.0", "run")]


@virtual
async def test_an_end_without_status_waits_for_a_better_witness():
    transport = ScriptedTransport(tstat=[says(row("E"))], thist=[EMPTY])
    driver = make_driver(transport)
    assert await told(driver, 50) == []
    assert ("a1.0", "fail") in await told(driver, 100)


@virtual
async def test_last_words_that_cannot_be_read_are_told_and_put_off_the_judgement():
    transport = ScriptedTransport(tstat=[says(row("D", code=0))])
    transport.own_words = True

    async def last_words(known):
        raise PermissionError("reports: permission denied")

    transport.last_words = last_words
    driver = make_driver(transport)
    assert await told(driver, 300) == []
    assert any("permission denied" in note for note in driver.health().notes)
    assert ("a1.0", "complete") in await told(driver, 600)


@virtual
async def test_one_that_is_over_for_a_moment_because_it_is_put_back_has_not_failed():
    """OpenLava lists what was requeued as EXIT for some seconds; its history has the requeue before."""
    transport = ScriptedTransport(tstat=[says(row("R")), says(row("E"))], thist=[says(row("Q", requeues=1))])
    transport.own_words = True

    async def last_words(known):
        return {item.id: Outcome(signal=2) for item in known} if transport.count("tstat") > 2 else {}

    transport.last_words = last_words
    driver, out = make_driver(transport), []
    while not any(seen.verb in ("fail", "abort", "complete") for seen in out):
        out += await driver.poll([KNOWN])
        await asyncio.sleep(1)
    assert (out[-1].verb, out[-1].outcome.why) == ("abort", "requeue"), out[-1]


@virtual
async def test_one_that_lingers_after_its_last_words_is_over_and_ended():
    transport = ScriptedTransport(tstat=[says(row("R"))], tdel=[EMPTY])
    transport.own_words = True

    async def last_words(known):
        return {item.id: Outcome(exit_code=0) for item in known}

    transport.last_words = last_words
    out = await told(make_driver(transport), 500)
    assert out[:2] == [("a1.0", "run"), ("a1.0", "complete")] and transport.count("tdel") >= 1


@virtual
async def test_one_that_is_over_and_kept_in_the_queue_is_ended():
    transport = ScriptedTransport(tstat=[says(row("H", code=1))], tdel=[EMPTY])
    driver = make_driver(transport)
    assert ("a1.0", "fail") in await told(driver, 30)
    assert ("tdel", "-1", "7") in [argv for _, argv in transport.ran]


@virtual
async def test_a_look_up_of_several_commands_is_certain_only_if_all_of_them_are():
    late = [Answer(1, "", "down"), says(row("D", "44", code=0))]
    transport = ScriptedTransport(tsub=[EMPTY], tstat=[EMPTY], thist=late)
    driver = make_driver(transport)
    live = driver.dialect.find
    driver.dialect.find = lambda tag, user: [*live(tag, user), Command(("thist", "-t", tag))]
    assert await driver.submit(make_ask(1)) == ["44"]
    assert transport.count("tsub") == 1


@virtual
async def test_a_dialect_that_raises_makes_a_failed_poll():
    transport = ScriptedTransport(tstat=[says(row("R"))])
    driver = make_driver(transport)

    def broken(answer, options):
        raise KeyError("surprise")

    driver.dialect.read_listing = broken
    assert await told(driver, 100) == []
    assert any("surprise" in note for note in driver.health().notes)


# ---- killing --------------------------------------------------------------------------------------------------------


@virtual
async def test_kills_within_a_moment_are_one_command():
    transport = ScriptedTransport(tstat=[EMPTY], tdel=[EMPTY])
    driver = make_driver(transport)
    known = [Known(f"a{n}", TAG, str(n)) for n in range(45)]
    assert all(await asyncio.gather(*(driver.terminate(item) for item in known)))
    assert [len(argv) - 2 for _, argv in transport.ran if argv[0] == "tdel"] == [20, 20, 5]


@virtual
async def test_a_kill_gets_stronger_until_it_is_confirmed():
    transport = ScriptedTransport(tstat=[says(row("R"))], tdel=[EMPTY])
    driver = make_driver(transport)
    await told(driver, 3)
    assert await driver.terminate(KNOWN)
    out = await told(driver, 150)
    forces = [argv[1] for _, argv in transport.ran if argv[0] == "tdel"]
    assert forces[:3] == ["-0", "-1", "-2"] and out == []
    transport.answers["tstat"] = [says(row("K"))]
    transport.answers["thist"] = [EMPTY]
    assert ("a1.0", "abort") in await told(driver, 60)
    sent = len(transport.ran)
    await told(driver, 300, [])
    assert not any(argv[0] == "tdel" for _, argv in transport.ran[sent:])


@virtual
async def test_one_that_waits_is_killed_natively_at_once():
    transport = ScriptedTransport(tstat=[says(row("Q"))], tdel=[EMPTY])
    driver = make_driver(transport)
    await told(driver, 3)
    await driver.terminate(KNOWN)
    assert ("tdel", "-1", "7") in [argv for _, argv in transport.ran]


@virtual
async def test_a_cluster_that_never_confirms_is_told_of_honestly():
    transport = ScriptedTransport(tstat=[says(row("R"))], tdel=[EMPTY])
    driver = make_driver(transport)
    await told(driver, 3)
    await driver.terminate(KNOWN)
    out = []
    while not out and now() < 3600:
        out = await driver.poll([KNOWN])
        await asyncio.sleep(1)
    assert out[0].verb == "abort" and "never confirmed" in out[0].reason and "7" in out[0].reason
    assert 500 < now() < 900 and transport.count("tdel") <= 11
    assert any("never confirmed" in note for note in driver.health().notes)


@virtual
async def test_a_kill_that_does_not_get_through_is_repeated_and_never_counts_as_refused():
    transport = ScriptedTransport(tstat=[says(row("R"))], tdel=[Answer(1, "", "down")])
    driver = make_driver(transport)
    await told(driver, 3)
    assert not await driver.terminate(KNOWN)
    assert await told(driver, 3600, step=5) == []
    assert transport.count("tdel") > 50
    assert {argv[1] for _, argv in transport.ran if argv[0] == "tdel"} == {"-0"}


@virtual
async def test_a_kill_before_the_native_id_is_known_waits_for_the_submission():
    transport = ScriptedTransport(tsub=[HANGS], tstat=[EMPTY, EMPTY, says(row("R", "70"))], tdel=[EMPTY])
    driver = make_driver(transport)
    submission = asyncio.get_running_loop().create_task(driver.submit(make_ask(1)))
    await asyncio.sleep(5)
    assert not await driver.terminate(Known("a1.0", TAG, None))
    assert await submission == ["70"]
    await told(driver, 5, [Known("a1.0", TAG, "70")])
    assert ("tdel", "-0", "70") in [argv for _, argv in transport.ran]


@virtual
async def test_a_kill_between_two_tries_stops_the_submission():
    transport = ScriptedTransport(tsub=[Answer(1, "", "busy")])
    driver = make_driver(transport)
    submission = asyncio.get_running_loop().create_task(driver.submit(make_ask(1)))
    await asyncio.sleep(1)
    await driver.terminate(Known("a1.0", TAG, None))
    with pytest.raises(RefusedError, match="killed before"):
        await submission
    assert transport.count("tsub") == 1


@virtual
async def test_a_kill_after_a_restart_finds_the_native_job_or_says_there_is_none():
    transport = ScriptedTransport(tstat=[says(row("R", "71"))], tdel=[EMPTY])
    assert await make_driver(transport).terminate(Known("a1.0", TAG, None, 0, 0.0, 1))
    assert ("tdel", "-0", "71") in [argv for _, argv in transport.ran]
    transport = ScriptedTransport(tstat=[EMPTY])
    driver = make_driver(transport)
    known = Known("a1.0", TAG, None)
    assert not await driver.terminate(known)
    assert ("a1.0", "abort") in await told(driver, 600, [known])


@virtual
async def test_a_killed_one_that_is_listed_no_more_is_over():
    transport = ScriptedTransport(tstat=[says(row("R"))], tdel=[EMPTY], thist=[EMPTY])
    driver = make_driver(transport)
    await told(driver, 3)
    await driver.terminate(KNOWN)
    transport.answers["tstat"] = [EMPTY]
    begun = now()
    out = []
    while not out:
        out = await driver.poll([KNOWN])
        await asyncio.sleep(1)
    assert (out[0].verb, out[0].outcome.why) == ("abort", "cancelled")
    assert Settings().gone_s <= now() - begun <= 150


@virtual
async def test_one_that_somebody_deleted_while_it_waited_is_over_sooner_than_one_that_ran():
    """Slurm keeps no record at all of the last element of an array that is cancelled before it starts."""
    over = {}
    for before in "QR":
        transport = ScriptedTransport(tstat=[says(row(before))], thist=[says(row("Q")), EMPTY])
        driver = make_driver(transport)
        await told(driver, 3)
        transport.answers["tstat"] = [EMPTY]
        assert await told(driver, 8) == [(KNOWN.id, "unsure")], "the accounting is late"
        begun, out = now(), []
        while not out:
            out = await driver.poll([KNOWN])
            await asyncio.sleep(1)
        over[before] = now() - begun
        assert out[0].verb == "abort" and out[0].outcome.why == ("cancelled" if before == "Q" else "vanished")
    assert 60 <= over["Q"] + 8 <= 150 and over["R"] + 8 >= Settings().vanish_s


@virtual
async def test_one_that_was_killed_while_it_waited_is_over_soon():
    transport = ScriptedTransport(tstat=[says(row("Q"))], tdel=[EMPTY], thist=[EMPTY])
    driver = make_driver(transport)
    await told(driver, 3)
    await driver.terminate(KNOWN)
    transport.answers["tstat"] = [EMPTY]
    begun = now()
    out = []
    while not out:
        out = await driver.poll([KNOWN])
        await asyncio.sleep(1)
    assert (out[0].verb, out[0].outcome.why) == ("abort", "cancelled")
    assert Settings().gone_waiting_s <= now() - begun < Settings().gone_s


@pytest.mark.parametrize(
    ("host", "before", "verb"), [(None, "pending", "abort"), ("n1", "pending", None), (None, "running", None)]
)
def test_for_one_that_never_ran_no_last_words_are_awaited(host, before, verb):
    tracker = Tracker(Settings(), 0.0)
    tracker.enter([KNOWN], 0.0)
    tracker.look(Listing((Seen(KNOWN.native_id, before, before, KNOWN.tag),), "ok"), set(), 0.0, 0.0)
    ended = Seen(KNOWN.native_id, "CANCELLED", "aborted", KNOWN.tag, None, Outcome(why="cancelled", host=host))
    entry = tracker.entries[KNOWN.id]
    found = tracker.conclude(entry, Evidence(ended, None, True), 1.0, readable=True, killed=False)
    assert (found and found.verb) == verb


@pytest.mark.parametrize(("why", "soon"), [("node-fail", True), ("cancelled", False)])
def test_last_words_of_a_lost_node_are_not_awaited_for_long(why, soon):
    tracker = Tracker(Settings(), 0.0)
    tracker.enter([KNOWN], 0.0)
    tracker.look(Listing((Seen(KNOWN.native_id, "R", "running", KNOWN.tag),), "ok"), set(), 0.0, 0.0)
    ended = Seen(KNOWN.native_id, "NF", "aborted", KNOWN.tag, None, Outcome(why=why, host="n1"))
    entry, evidence = tracker.entries[KNOWN.id], Evidence(ended, None, True)
    assert tracker.conclude(entry, evidence, 1.0, readable=True, killed=False) is None
    assert (tracker.conclude(entry, evidence, 12.0, readable=True, killed=False) is not None) == soon


@pytest.mark.parametrize("by_kill", [True, False])
def test_where_a_deletion_is_a_kill_at_once_one_that_left_no_words_was_deleted(by_kill):
    """qdel of Grid Engine: the accounting has exit status 137, as of a job that was killed by itself."""
    for own, wanted in ((None, "cancelled" if by_kill else None), (Outcome(signal=9), None)):
        tracker = Tracker(Settings(), 0.0, by_kill)
        tracker.enter([KNOWN], 0.0)
        tracker.look(Listing((Seen(KNOWN.native_id, "r", "running", KNOWN.tag),), "ok"), set(), 0.0, 0.0)
        ended = Seen(KNOWN.native_id, "failed=100", "failed", KNOWN.tag, None, Outcome(signal=9, host="n1"))
        entry = tracker.entries[KNOWN.id]
        tracker.conclude(entry, Evidence(ended, own, True), 1.0, readable=True, killed=False)
        over = entry.over or tracker.conclude(entry, Evidence(ended, own, True), 99.0, readable=True, killed=False)
        assert over.outcome.why == wanted and over.outcome.signal == 9


# ---- health ---------------------------------------------------------------------------------------------------------


@virtual
async def test_a_site_that_fails_is_left_alone_and_comes_back_by_itself():
    transport = ScriptedTransport(tstat=[Answer(1, "", "slurmctld is down")], tsub=[Answer(0, "1\n", "")])
    driver = make_driver(transport)
    await told(driver, 300)
    health = driver.health()
    assert health.state == "failing" and "tstat -u me: slurmctld is down" in health.why and health.retry_at > 1e9
    assert health.failures >= 5
    while not driver.gate.is_shut:
        await told(driver, 1)
    with pytest.raises(BusyError, match=r"site toy is left alone.*slurmctld is down"):
        await driver.submit(make_ask(1))
    assert transport.count("tstat") < 12
    transport.answers["tstat"] = [says(row("R"))]
    assert await told(driver, 1300) == [("a1.0", "run")]
    health = driver.health()
    assert (health.state, health.why, health.retry_at) == ("ok", None, None)
    assert health.last_error is None and health.since is None and health.last_poll > 1e9


@virtual
async def test_a_site_says_after_one_failure_that_it_fails_and_since_when():
    transport = ScriptedTransport(tstat=[Answer(1, "", "slurmctld is down")])
    driver = make_driver(transport)
    await told(driver, 1)
    first = driver.health()
    assert (first.state, first.failures) == ("failing", 1) and "slurmctld is down" in first.why
    await told(driver, 30)
    health = driver.health()
    assert health.since == first.since < health.last_error_at and health.last_error == health.why


@virtual
async def test_a_command_that_does_not_answer_is_said_before_it_is_given_up():
    driver = make_driver(ScriptedTransport(tstat=[Answer(None, "", "")]))
    polling = asyncio.ensure_future(told(driver, 1))
    await asyncio.sleep(5)
    assert driver.health().state != "silent"
    await asyncio.sleep(10)
    health = driver.health()
    assert health.state == "silent" and "tstat -u me: no answer yet" in health.why and health.since is not None
    await polling


@virtual
async def test_a_submission_that_does_not_reach_the_batch_system_is_a_failure_of_the_site():
    words = "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)"
    transport = ScriptedTransport(tsub=[Answer(1, "", f"busy: {words}")])
    driver = make_driver(transport)
    with pytest.raises(BusyError):
        await driver.submit(make_ask(1))
    assert driver.health().state == "failing" and "connect failure" in driver.health().why


@virtual
async def test_an_answer_that_was_not_all_is_said_for_a_while():
    transport = ScriptedTransport(tsub=[Answer(1, "", "busy: come back")])
    driver = make_driver(transport)
    with pytest.raises(BusyError):
        await driver.submit(make_ask(1))
    assert driver.health().state == "ok" and "come back" in driver.health().last_error
    await asyncio.sleep(301)
    assert driver.health().last_error is None


@virtual
async def test_a_site_that_wants_a_login_says_so():
    transport = ScriptedTransport(tstat=[UnreachableError("hpc needs a login: ssh …", ran=False, login=True)])
    driver = make_driver(transport)
    await told(driver, 10)
    assert driver.health().state == "needs login" and "ssh" in driver.health().why
    transport.answers["tstat"] = [says(row("R"))]
    await told(driver, 60)
    assert driver.health().state == "ok"


@virtual
async def test_commands_are_counted_and_limited():
    transport = ScriptedTransport(tsub=[Answer(0, "5\n", "")])
    driver = make_driver(transport, Settings(commands_per_minute=10))
    await asyncio.gather(*(driver.submit(make_ask(number)) for number in range(35)))
    at = [moment for moment, _ in transport.ran]
    assert len(at) == 35 and 179 < now() < 200
    assert max(sum(1 for other in at if 0 <= other - one < 60) for one in at) <= 10
    assert driver.health().commands_last_minute <= 10 and driver.health().commands == 36


async def one_look(count):
    """Lines of one poll at which nothing is new, for each allocation, and of one that comes too early."""
    listing = "".join(row("R", str(n), f"{n:012x}") for n in range(count))
    transport = ScriptedTransport(tstat=[Answer(0, listing, "")])
    driver = make_driver(transport)
    known = [Known(f"a{n}", f"{n:012x}", str(n)) for n in range(count)]
    assert len(await driver.poll(known)) == count
    parsed = driver.dialect.read_listing(Answer(0, listing, ""), driver.options)
    driver.dialect.read_listing = lambda answer, options: parsed  # each dialect's own time is its own test
    await asyncio.sleep(60)
    sent = len(transport.ran)
    with counting() as steps:
        assert await driver.poll(known) == []
        due = steps()
        assert await driver.poll(known) == []
    assert len(transport.ran) - sent == 1
    return due / count, steps() - due


@virtual
async def test_many_allocations_cost_one_command_and_as_much_each_as_few():
    few, many = await one_look(500), await one_look(10_000)
    assert many[0] <= 1.1 * few[0]
    assert many[1] <= few[1], "not its time yet"


@virtual
async def test_thousands_that_are_missing_are_asked_for_in_bounded_pieces():
    count = 2000
    cluster = ModelCluster(random.Random(1))
    driver = make_driver(cluster)
    known = [Known(f"a{n}", f"{n:012x}", str(n)) for n in range(count)]
    for _ in range(10):
        before = cluster.commands
        await driver.poll(known)
        assert cluster.commands - before <= 3 + Settings().history_commands
        await asyncio.sleep(3)
