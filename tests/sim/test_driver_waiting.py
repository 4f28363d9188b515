"""Why allocations wait, in the cluster's own words, from end to end in virtual time; and how often it is asked."""

import asyncio

import pytest

from driver_world import run_virtual
from rota.drivers.api import Ask, Known
from rota.drivers.dialects import load_dialect
from rota.drivers.submitting import ArrayError
from rota.model.needs import Amounts
from sim.test_driver_qsub import Site

KINDS = {
    "slurm": ({"personality": "slurm"}, "Resources"),
    "lsf": ({"personality": "lsf"}, "Job slot limit reached;"),
    "openlava": ({"personality": "lsf", "cluster": "openlava"}, "Job slot limit reached: 1 hosts"),
    "sge": ({"personality": "sge"}, 'queue instance "all.q@n1" dropped because it is full'),
}


def site_of(kind, **settings):
    words, why = KINDS[kind]
    site = Site(**words, **settings)
    site.driver.dialect = load_dialect(kind)
    return site, why


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [3, 1])
def test_the_clusters_reason_is_known_and_asked_for_now_and_then(kind, count):
    async def scenario():
        site, why = site_of(kind)
        if count == 1:
            site.cluster.world.nodes["n1"] = [False, "nothing can start"]
        natives = await site.submit(count)
        await site.wait(120)
        assert site.driver.waits(natives[-1])[:2] == (why, False), site.ran
        if count > 1:
            assert site.driver.waits(natives[0]) is None
        before = len(site.ran)
        await site.wait(600)
        assert len(site.ran) - before <= 10 * 3 + 2, "more than a listing every 30 s and one such question a minute"

    run_virtual(scenario())


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_asked_for_what_runs(kind):
    async def scenario():
        site, _ = site_of(kind)
        await site.submit(2)
        await site.wait(300)
        assert not {("qstat", "-j"), ("bjobs", "-p")} & {words[:2] for words in site.ran}

    run_virtual(scenario())


@pytest.mark.parametrize("kind", KINDS)
def test_an_array_that_is_too_large_is_a_few_commands_and_then_as_large_as_it_may_be(kind):
    async def scenario():
        site, _ = site_of(kind, max_array=100)
        sizes = [300]
        while True:
            before = len(site.ran)
            try:
                assert len(await site.submit(sizes[-1])) == sizes[-1]
                break
            except ArrayError as error:
                assert len(site.ran) - before <= 5, site.ran
                site.driver.arrays.refuse(error.most)
                sizes.append(site.driver.arrays.most)
        assert sizes == [300, 100] if kind == "sge" else [300, 150, 75], "only Grid Engine names its limit"
        assert len(site.ran) <= 12

    run_virtual(scenario())


@pytest.mark.parametrize("kind", [*KINDS, "pbs", "torque"])
def test_what_waits_in_several_arrays_is_taken_back_with_few_commands(kind):
    async def scenario():
        site = Site(**KINDS[kind][0] if kind in KINDS else {"personality": kind})
        site.driver.dialect = load_dialect(kind)
        for tag in ("00000000000a", "00000000000b", "00000000000c"):
            ids = tuple(f"{tag}.{element}" for element in range(100))
            natives = await site.driver.submit(Ask(tag, "x", ids, Amounts(1000), "#!/bin/sh\n", "/shared"))
            site.known += [Known(id, tag, natives[number], number, 0.0, 100) for number, id in enumerate(ids)]
        await site.wait(20)
        before = len(site.ran)
        waiting = [known for known in site.known if site.told[known.id][-1].verb != "run"]
        await asyncio.gather(*(site.driver.terminate(known) for known in waiting))
        await site.wait(60)
        assert len(site.ran) - before <= 14, [" ".join(words)[:60] for words in site.ran[before:]]
        await site.wait(60)
        assert len(site.over) == len(waiting) >= 290

    run_virtual(scenario())


@pytest.mark.parametrize("kind", KINDS)
def test_allocations_whose_ids_are_unknown_are_looked_for_by_array_not_one_by_one(kind):
    async def scenario():
        site, _ = site_of(kind)
        await site.wait(1)
        before = len(site.ran)
        tags = [f"{number:012x}" for number in range(20)]
        site.known = [Known(f"a{tag}.{element}", tag, None, element, 0.0, 40) for tag in tags for element in range(40)]
        for known in site.known:
            await site.driver.terminate(known)
        assert len(site.ran) - before <= 2 * 2 + 1, "a look-up is one command or two"
        await site.wait(60)
        assert len(site.ran) - before <= 25 + 5, site.ran

    run_virtual(scenario())
