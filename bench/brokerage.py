"""What a brokerage costs: 200 queues, 1,000 different tasks, and the same tasks again.

python -m bench.brokerage [--quick]
"""

import argparse
import random
import resource
import statistics
import time

from bench import Row
from rota.schedule.broker.config import Thresholds
from rota.schedule.broker.memo import Broker
from rota.schedule.broker.queue import Queue
from rota.schedule.broker.task import Chunk, File, Rules, Task
from rota.schedule.broker.world import Jobs, Link, World

QUEUES, TASKS = 200, 1000
FIRST_MS, AGAIN_MS = 2.0, 0.2


def world(queues: int, chance: random.Random) -> World:
    """So many queues, a fifth of them at the nucleus, none like another."""
    made, jobs, links = {}, {}, {}
    for number in range(queues):
        name = f"Q{number:03d}"
        cores = chance.choice((1, 8, 8, 8))
        made[name] = Queue(
            name=name, type=chance.choice(("production", "analysis", "unified")), site=f"S{number % (queues // 2)}",
            core_count=cores, corepower=chance.uniform(8, 20), maxrss=cores * chance.choice((2000, 4000)),
            maxtime=chance.choice((86_400, 172_800, 345_600)), maxwdir=cores * chance.choice((5000, 20_000)),
            releases=("ANY",), storage_free_gb=chance.uniform(50, 5000), wnconnectivity=chance.choice(("full", "http")),
            fairshare_policy=chance.choice((None, None, "type=evgen:100%,type=any:0%", "priority>900:0")),
            status=chance.choice(("online",) * 9 + ("offline",)),
        )  # fmt: skip
        row = {share: Jobs(*(chance.randrange(400) for _ in range(6))) for share in ("MC", "User Analysis")}
        jobs[name] = row
        queued = {"Production Output": chance.randrange(160)}
        links[f"S{number % (queues // 2)}"] = Link(chance.randrange(11), queued, chance.uniform(0, 300))
    local = {name: chance.randrange(11) for name in made}
    return World(queues=made, jobs=jobs, links=links, files_local=local, diskio=dict.fromkeys(made, 300.0))


def tasks(count: int, chance: random.Random) -> list[Task]:
    """So many tasks, none like another, of both flows."""
    found = []
    for number in range(count):
        user = number % 3 == 0
        cores = 1 if user else 8
        found.append(
            Task(
                task_id=number, prod_source_label="user" if user else "managed", processing_type="simul",
                gshare="User Analysis" if user else "MC", nucleus=None if user else f"S{number % 10}",
                current_priority=chance.randrange(1000), task_priority=chance.randrange(1000), core_count=cores,
                ram_count=chance.randrange(1000, 2200), ram_unit="MBPerCore", cpu_time=chance.randrange(50, 400),
                cpu_time_unit="HS06sPerEvent", base_walltime=600, cpu_efficiency=90, out_disk_count=500,
                out_disk_unit="kBPerEvent", work_disk_count=500, work_disk_unit="MB", io_intensity=100, disk_io=500,
                rules=Rules(n_files_per_job=1, ip_connectivity="http"), chunk=Chunk(scouting=False),
                files=tuple(File(f"f{number}.{each}", chance.randrange(1 << 30), 1000) for each in range(10)),
            )
        )  # fmt: skip
    return found


def measure(queues: int, count: int) -> list[Row]:
    """Broker all tasks, then all of them again; and once more, to see whether memory grows."""
    chance = random.Random(14)
    broker = Broker(world(queues, chance), Thresholds("doc"))
    todo = tasks(count, chance)
    rounds = []
    sizes = []
    for _ in range(3):
        took = []
        for task in todo:
            begun = time.process_time()
            broker.decide(task)
            took.append((time.process_time() - begun) * 1e3)
        rounds.append(statistics.median(took))
        sizes.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    flat = sizes[2] - sizes[1] < 5
    what = f"{queues} queues, {count} tasks"
    return [
        Row(f"broker a task: {what}", f"{rounds[0]:.2f} ms", f"≤ {FIRST_MS:g} ms", rounds[0] <= FIRST_MS),
        Row("… the same tasks again", f"{rounds[1]:.4f} ms", f"≤ {AGAIN_MS:g} ms", rounds[1] <= AGAIN_MS),
        Row("… memory of all that, and of a round more", f"{sizes[1]:.0f}, then {sizes[2]:.0f} MiB", "flat", flat),
    ]


def brokerage(quick: bool) -> list[Row]:
    """What is measured, with fewer tasks if it is to be quick."""
    return measure(QUEUES, 100 if quick else TASKS)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    for row in brokerage(parser.parse_args().quick):
        print(row)
