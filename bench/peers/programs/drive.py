"""One measurement of one peer, in the environment of that peer: `python drive.py MODULE.CLASS JSON`.

Standard library only. What was found is the last line that it prints, in JSON. The clock runs from the submission until
the peer has said how all jobs ended; what has to be up is up before, and has run jobs.
"""

import contextlib
import gc
import importlib
import json
import os
import sys
import time

TRUE = ["/bin/true"]
APART_S = 0.05
SPAWNS = 20


class Peer:
    """What can be asked of a peer. A command is a list of words, or a string for a shell."""

    def __init__(self, width):
        self.width = width
        """How many jobs may run at one time."""

    def prepare(self, job):
        """Write whatever files it is given."""

    def start(self, hold):
        """Have all services up. Where `hold` is true, nothing is to run."""

    def warm(self):
        """Have run something."""
        self.run(5 * self.width, TRUE)

    def run(self, count, command):
        """Run the command so many times; how many ended with exit code 0."""
        raise NotImplementedError

    def one(self):
        """Run `true` once, and know that it succeeded."""
        if self.run(1, TRUE) != 1:
            raise SystemExit("a job failed")

    def graph(self, layers, across, command):
        """Run the command in layers, each job after two of the layer before; how many ended with exit code 0."""
        raise NotImplementedError

    def submit(self, count, distinct):
        """Have so many jobs accepted, alike or none like another (see `line`)."""
        raise NotImplementedError

    def servers(self):
        """The processes that keep what was submitted."""
        return [os.getpid(), *descendants(os.getpid())]

    def stop(self):
        """End the services."""


def parents(number, across):
    """The two jobs of the layer before that a job waits for."""
    return number, (number + 1) % across


def words(command):
    """A command as words."""
    return ["/bin/sh", "-c", command] if isinstance(command, str) else command


def line(number):
    """A command line like no other."""
    return f"process --input sample-{number:07d}.dat --level {number % 7}"


def descendants(pid):
    """The processes below a process, that of the system's own view."""
    found = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children") as file:
                children = [int(word) for word in file.read().split()]
            for child in children:
                found += [child, *descendants(child)]
    except OSError:
        pass
    return found


def resident(pids):
    """Bytes of memory that processes have to themselves, together."""
    total = 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/smaps_rollup") as file:
                total += sum(int(row.split()[1]) << 10 for row in file if row.startswith("Private_"))
        except OSError:
            pass
    return total


def spawns(count, apart):
    """Seconds that each of so many spawns and waits took here."""
    took = []
    for _ in range(count):
        if apart:
            time.sleep(APART_S)
        begin = time.perf_counter()
        os.waitpid(os.posix_spawn(TRUE[0], TRUE, os.environ), 0)
        took.append(time.perf_counter() - begin)
    return took


def throughput(peer, job):
    """A: many jobs."""
    peer.start(False)
    peer.warm()
    begin = time.perf_counter()
    good = peer.run(job["count"], job["command"])
    return {"seconds": time.perf_counter() - begin, "good": good}


def submission(peer, job):
    """B: many jobs, none of which runs; and the memory of whoever keeps them."""
    peer.start(True)
    gc.collect()
    before = resident(peer.servers())
    begin = time.perf_counter()
    peer.submit(job["count"], job["distinct"])
    seconds = time.perf_counter() - begin
    gc.collect()
    time.sleep(0.5)
    return {"seconds": seconds, "bytes": resident(peer.servers()) - before}


def latency(peer, job):
    """C: one job at a time."""
    peer.start(False)
    peer.warm()
    beside = spawns(SPAWNS, job["apart"])
    took = []
    for _ in range(job["count"]):
        if job["apart"]:
            time.sleep(APART_S)
        begin = time.perf_counter()
        peer.one()
        took.append(time.perf_counter() - begin)
    return {"took": took, "spawns": beside + spawns(SPAWNS, job["apart"])}


def layers(peer, job):
    """D: a graph."""
    peer.start(False)
    peer.warm()
    begin = time.perf_counter()
    good = peer.graph(job["layers"], job["across"], job["command"])
    return {"seconds": time.perf_counter() - begin, "good": good}


KINDS = {"A": throughput, "B": submission, "C": latency, "D": layers}


def main():
    """Measure, and print."""
    where, text = sys.argv[1:]
    job = json.loads(text)
    module, name = where.split(".")
    peer = getattr(importlib.import_module(module), name)(job["width"])
    peer.prepare(job)
    try:
        found = KINDS[job["kind"]](peer, job)
    finally:
        with contextlib.suppress(Exception):  # it is measured, and ended in any case
            peer.stop()
    print("\n" + json.dumps(found), flush=True)


if __name__ == "__main__":
    sys.modules["drive"] = sys.modules["__main__"]  # peers import it by its name
    main()
