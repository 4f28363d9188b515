"""Which ends of jobs a runner keeps to itself for a moment, because they may be those of its allocation."""

import signal
from types import SimpleNamespace

import pytest

from rota.runner.signalled_ends import SignalledEnds

OWN = SimpleNamespace(why=None)


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGINT, signal.SIGXCPU, signal.SIGKILL], ids=lambda n: n.name
)
def test_an_end_by_a_signal_that_batch_systems_send_waits_also_if_a_shell_tells_it(number):
    """A node's daemon of PBS that comes back kills all processes of its jobs: ours a moment before their runner."""
    ends = SignalledEnds()
    assert ends.concerns(OWN, (None, int(number), "signal", None))
    assert ends.concerns(OWN, (128 + number, None, "exit", None))


def test_an_end_that_is_known_to_be_the_jobs_own_is_told_at_once():
    ends = SignalledEnds()
    assert not ends.concerns(OWN, (1, None, "exit", None))
    assert not ends.concerns(OWN, (None, int(signal.SIGSEGV), "signal", None))
    assert not ends.concerns(OWN, (None, int(signal.SIGKILL), "oom", "killed by the kernel: out of memory"))
    assert not ends.concerns(SimpleNamespace(why="time"), (None, int(signal.SIGKILL), "time", None))


def test_what_waits_is_told_as_it_was_or_as_the_end_of_the_runner():
    ends, killed = SignalledEnds(), (None, int(signal.SIGKILL), "signal", None)
    until = ends.add(OWN, killed, 10.0)
    assert until > 10.0 and ends.take(10.0) == [] and ends.next_at() == until
    assert ends.take(until) == [(OWN, killed)] and len(ends) == 0
    ends.add(OWN, killed, 20.0)
    assert ends.settle("ended") == [(OWN, (None, int(signal.SIGKILL), "runner-stopped", "ended"))]
