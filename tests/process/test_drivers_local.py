"""Runner processes on this machine, as their driver sees them."""

import asyncio
import os
import sys

from rota.drivers import local
from rota.drivers.api import Ask, Known
from rota.drivers.local import LocalDriver
from rota.model.needs import Amounts
from rota.model.site import SiteFacts


class NoDoor:
    """Leads nowhere: what is started here sleeps."""

    def open(self, allocation):
        return ()

    def shut(self, allocation):
        pass


def test_what_was_started_a_moment_ago_is_found_by_its_tag(tmp_path, monkeypatch):
    """A process has no command line in /proc until its program is in place; a second one was started then."""
    monkeypatch.setattr(local, "RUNNER", (sys.executable, "-c", "import time; time.sleep(600)"))
    monkeypatch.setattr(local, "_find", lambda tag: None)

    async def test():
        driver = LocalDriver(SiteFacts(Amounts(1000, 1 << 30, 1 << 30)), NoDoor(), str(tmp_path), str(tmp_path / "log"))
        assert await driver.find("0123456789ab", 1) is None
        [native] = await driver.submit(Ask("0123456789ab", "rota", ("a1",), Amounts(1000, 0, 0), "", "/"))
        try:
            assert await driver.find("0123456789ab", 1) == [native]
            later = LocalDriver(driver.facts(), NoDoor(), str(tmp_path), str(tmp_path / "log"))
            later.take_over(driver)
            assert await later.find("0123456789ab", 1) == [native]
        finally:
            pid = int(native.partition(":")[0])
            os.kill(pid, 9)
            driver._children[pid].wait()
        [seen] = await driver.poll([Known("a1", "0123456789ab", native, 0, 0.0, 1)])
        assert seen.verb == "complete"
        assert await driver.find("0123456789ab", 1) is None, "it is over: another may be asked for"

    asyncio.run(test())
