"""A batch system that is not there: the real commands' words, with slots, time, purges, and faults on demand.

`FakeCluster` installs commands in a directory and runs jobs as real processes; `SimulatedCluster` answers in this
process, with simulated jobs and the caller's clock.
"""

__all__ = ["FakeCluster", "SimulatedCluster"]


def __getattr__(name: str) -> object:
    # Every fake command imports this package: what it does not need is not loaded.
    if name == "FakeCluster":
        from rota.testing.fake_cluster.installed import FakeCluster

        return FakeCluster
    if name == "SimulatedCluster":
        from rota.testing.fake_cluster.simulated import SimulatedCluster

        return SimulatedCluster
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
