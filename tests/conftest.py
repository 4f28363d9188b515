"""What all tests share: a ROTA_HOME of their own, and how hypothesis searches."""

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# Machines are shared, so no example has a deadline, and none is too slow. `HYPOTHESIS_PROFILE=deep` looks longer.
_patient = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("default", **_patient)
settings.register_profile("deep", **_patient, max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

_home = pytest.StashKey[str]()


def pytest_configure(config: pytest.Config) -> None:
    """Point every test away from the user's own ROTA_HOME; the path is short, since sockets live below it.

    A shell starts what is in its background with INT and QUIT ignored, and all below would not hear them; a user's do.
    """
    for number in (signal.SIGINT, signal.SIGQUIT):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    for name in [name for name in os.environ if name.startswith("ROTA_")]:
        del os.environ[name]
    config.stash[_home] = os.environ["ROTA_HOME"] = tempfile.mkdtemp(prefix="rota-")


def pytest_unconfigure(config: pytest.Config) -> None:
    shutil.rmtree(config.stash[_home], ignore_errors=True)


UNAVOIDABLE = ("root", "file system can be mounted", "memory cgroup", "Python 3.8")
"""Words in the reasons of skips that a machine can do nothing about."""


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Where CI is set, what is skipped for want of something that could be installed has failed."""
    result = yield
    report = result.get_result()
    if report.skipped and os.environ.get("CI") and call.excinfo is not None and not hasattr(report, "wasxfail"):
        why = str(call.excinfo.value)
        if not any(word in why for word in UNAVOIDABLE):
            report.outcome = "failed"
            report.longrepr = f"{item.nodeid} is skipped though CI is set: {why}"
