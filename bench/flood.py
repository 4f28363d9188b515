"""Junk from many addresses beside real work by TLS: what it costs the manager, and who asks it."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from bench import Row
from bench import home as at
from rota.wire.client import Connection

FLOOD = Path(__file__).parents[1] / "tests" / "process" / "support_flood.py"
CONFIG = 'listen = "127.0.0.1:0"\n[site.local]\ncores = 4\n[site.local.options]\nconnect = "tls"\n'


def flood(seconds: int) -> list[Row]:
    """2,000 connections from 200 addresses, for so long, beside 500 jobs."""
    with at.manager(CONFIG) as home:
        at.rota(home, "run", "--array", "1-20", "--", "true")
        pid, log = at.manager_pid(home), os.path.join(home, "manager.log")
        memory, written = at.rss(pid), os.path.getsize(log)
        port = json.loads(Path(home, "manager.json").read_text())["port"]
        most, pings = memory, []
        command = [sys.executable, str(FLOOD), str(port), "2000", "200", str(seconds)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as junk, Connection.connect(home) as asking:
            at.rota(home, "add", "--array", "1-500", "--", "sleep 0.1")
            while junk.poll() is None:
                begin = time.perf_counter()
                asking.ask("ping")
                pings.append((time.perf_counter() - begin) * 1000)
                most = max(most, at.rss(pid))
                time.sleep(0.05)
            assert junk.stdout is not None
            count = int(junk.stdout.read().split()[-1])
        at.rota(home, "wait", "2")
        with Connection.connect(home) as asking:
            counts = asking.ask("count", sel=["2"])["counts"]
        written = os.path.getsize(log) - written
    pings.sort()
    often, worst, more = pings[len(pings) * 99 // 100], pings[-1], (most - memory) / 1e6
    figure = f"{pings[len(pings) // 2]:.1f} ms in the middle, {often:.0f} ms of 99 %, {worst:.0f} ms at most"
    return [
        Row(f"ping beside {count:,} junk connections in {seconds} s", figure, "≤ 200 ms", worst <= 200),
        Row("… 500 jobs by TLS meanwhile", str(counts), "all COMPLETED", counts == {"COMPLETED": 500}),
        Row("… more memory", f"{more:.0f} MB", "≤ 50 MB", more <= 50),
        Row("… more log", f"{written / 1000:.1f} kB", "≤ 1 MB", written <= 1_000_000),
    ]
