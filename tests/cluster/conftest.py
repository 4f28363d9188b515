"""Real batch systems for tests: each started once per session, privately, and ended whatever happens.

Where CI is set, a batch system that is missing is a failure. Elsewhere, without root or without the packages
(tests/cluster/packages.txt), its tests are skipped and say why.
"""

import functools
import os
import shutil
import subprocess

import pytest

from cluster import real_gridengine, real_s3, real_slurm, ssh_farm
from cluster.private import HERE


def pytest_collection_modifyitems(items):
    """One cluster per session: these tests run in one process, beside the others."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.cluster)
            item.add_marker(pytest.mark.timeout(900))


def _started(kind, programs, make):
    found = f"/usr/lib/gridengine:{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    missing = [name for name in programs if shutil.which(name, path=found) is None]
    if missing and os.getuid() == 0 and shutil.which("apt-get"):
        root = os.path.dirname(os.path.dirname(HERE))
        done = subprocess.run(
            [f"{root}/tools/apt-packages", f"{HERE}/packages.txt"], capture_output=True, text=True, timeout=280
        )
        missing = [name for name in programs if shutil.which(name, path=found) is None]
        if missing:
            pytest.fail(f"{kind} could not be installed: {done.stderr}")
    why = None
    if missing:
        why = f"no {kind} here (no {missing[0]}): as root, run tools/apt-packages tests/cluster/packages.txt"
    elif os.getuid() != 0:
        why = f"a private {kind} is started by root only"
    if why is not None:
        if os.environ.get("CI", "").lower() not in ("", "0", "false"):
            pytest.fail(f"{why}. On CI it must be there.")
        pytest.skip(why)
    cluster = make()
    try:
        try:
            cluster.start()
        except Exception as error:
            pytest.fail(f"{kind} did not start: {error}\n{cluster.logs()}")
        yield cluster
    finally:
        cluster.close()


@pytest.fixture(scope="session")
def slurm_session():
    yield from _started("Slurm", real_slurm.PROGRAMS, real_slurm.RealSlurm)


@pytest.fixture
def slurm(slurm_session):
    """The session's Slurm, with nothing in its queue before and after."""
    yield slurm_session
    slurm_session.cancel_all()


@pytest.fixture(scope="session")
def gridengine_session():
    yield from _started("Grid Engine", real_gridengine.PROGRAMS, real_gridengine.RealGridEngine)


@pytest.fixture
def gridengine(gridengine_session):
    """The session's Grid Engine, with nothing in its queue before and after."""
    yield gridengine_session
    gridengine_session.cancel_all()


@pytest.fixture(scope="session")
def hosts_slurm_session():
    make = functools.partial(real_slurm.RealSlurm, hosts=True, partitions=real_slurm.SHORT_AND_LONG)
    yield from _started("Slurm", (*real_slurm.PROGRAMS, "ip", "mpirun.openmpi", "mpiexec.hydra"), make)


@pytest.fixture
def hosts_slurm(hosts_slurm_session):
    """A Slurm whose nodes are hosts of their own, with nothing in its queue before and after."""
    yield hosts_slurm_session
    hosts_slurm_session.cancel_all()


@pytest.fixture(scope="session")
def farm_session():
    yield from _started("farm", ssh_farm.PROGRAMS, functools.partial(ssh_farm.SshFarm, 3))


@pytest.fixture
def farm(farm_session):
    """Three hosts by ssh, with empty disks before and after."""
    yield farm_session
    farm_session.clear()


@pytest.fixture(scope="session")
def s3():
    yield from _started("S3", real_s3.PROGRAMS, real_s3.RealS3)
