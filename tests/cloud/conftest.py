"""A real OpenStack for tests: started once per process, privately, and ended whatever happens.

Where CI is set, that it is missing is a failure. Elsewhere, without root or without the packages
(tests/cloud/packages.txt), its tests are skipped and say why.
"""

import os
import shutil
import subprocess

import pytest

from cloud.bodies import Bodies
from cloud.real_openstack import MODULES, PROGRAMS, RealOpenStack

HERE = os.path.dirname(__file__)
PLACE = "/usr/lib/python3/dist-packages"


def pytest_collection_modifyitems(items):
    """One cloud per process: these tests run by themselves (`make cloud`), in two processes."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.cloud)
            item.add_marker(pytest.mark.timeout(1200))


def _missing():
    found = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    programs = [name for name in PROGRAMS if shutil.which(name, path=found) is None]
    return programs + [name for name in MODULES if not os.path.isdir(f"{PLACE}/{name}")]


def _install():
    root = os.path.dirname(os.path.dirname(HERE))
    words = [f"{root}/tools/apt-packages", f"{HERE}/packages.txt"]
    return subprocess.run(words, capture_output=True, text=True, timeout=900)


@pytest.fixture(scope="session")
def cloud_session():
    missing = _missing()
    if missing and os.getuid() == 0 and shutil.which("apt-get"):
        done = _install()
        if missing := _missing():
            pytest.fail(f"OpenStack could not be installed (no {missing[0]}): {done.stderr}")
    why = None
    if missing:
        why = f"no OpenStack here (no {missing[0]}): as root, run tools/apt-packages tests/cloud/packages.txt"
    elif os.getuid() != 0:
        why = "a private OpenStack is started by root only"
    if why is not None:
        if os.environ.get("CI", "").lower() not in ("", "0", "false"):
            pytest.fail(f"{why}. On CI it must be there.")
        pytest.skip(why)
    cloud = RealOpenStack()
    try:
        try:
            cloud.start()
        except Exception as error:
            pytest.fail(f"OpenStack did not start: {error}\n{cloud.logs()}")
        times = ", ".join(f"{what} {seconds:.0f} s" for what, seconds in cloud.times.items())
        print(f"\nOpenStack: {times}; {cloud.memory() >> 20} MiB")
        yield cloud
    finally:
        cloud.close()


@pytest.fixture
def cloud(cloud_session):
    """The session's OpenStack, with no servers before and after."""
    yield cloud_session
    cloud_session.clear()


@pytest.fixture(scope="session")
def bodies_session(cloud_session):
    made = Bodies(cloud_session)
    try:
        made.start()
        yield made
    finally:
        made.close()


@pytest.fixture
def bodies(bodies_session, cloud):
    """Hosts for the servers of this test."""
    bodies_session.shared.clear()
    yield bodies_session
    errors, bodies_session.errors = bodies_session.errors, []
    assert not errors, errors
