"""Why allocations wait, in the cluster's own words, from end to end in virtual time; and how often it is asked."""

import pytest

from driver_world import run_virtual
from rota.drivers.dialects import load_dialect
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
        assert site.driver.waits(natives[-1]) == why, site.ran
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
