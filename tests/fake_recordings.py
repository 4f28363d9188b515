"""Recordings of real batch systems, and a fake one in the same situation."""

import json
import os
import re

from rota.testing.fake_cluster import SimulatedCluster

HERE = os.path.join(os.path.dirname(__file__), "fixtures", "fake")
START = 1_794_775_815.0


class Recording:
    """What a real command answered: argv, exit, out, err."""

    def __init__(self, system, case):
        with open(f"{HERE}/{system}/{case}.txt") as file:
            head, rest = file.read().split("--- stdout", 1)
        first, rest = rest.split("\n", 1)
        place = 0 if rest.startswith("--- stderr") else rest.index("\n--- stderr") + 1
        self.out, (last, _, self.err) = rest[:place], rest[place:].partition("\n")
        if "no newline" in first:
            self.out = self.out[:-1]
        if "no newline" in last:
            self.err = self.err[:-1]
        facts = dict(line[2:].split(": ", 1) for line in head.splitlines() if ": " in line)
        self.argv = json.loads(facts["argv"])
        self.exit = int(facts["exit"]) if facts["exit"].isdigit() else None
        self.stdin = json.loads(facts["stdin"]) if "stdin" in facts else None


def cases(system, pattern):
    """Names of the recordings that match."""
    names = sorted(name[:-4] for name in os.listdir(f"{HERE}/{system}"))
    return [name for name in names if re.fullmatch(pattern, name)]


def cluster(personality, lasts=lambda submission, job: (1e9, 0, None), directory="/home/tester/work", **settings):
    """A simulated one; jobs go on for ever unless told otherwise."""
    made = SimulatedCluster({"personality": personality, **settings}, lasts, directory=directory)
    made.advance(START)
    return made


def ends(seconds=1.0, code=0, signal=None):
    """Every job takes so long and ends so."""
    return lambda submission, job: (seconds, code, signal)
