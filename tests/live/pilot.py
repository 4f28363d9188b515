"""The scenario of a pilot: batch scripts, one after the other, that run the same jobs inside their allocations."""

import json
import os
import re
import shlex
import shutil
import time
from pathlib import Path

from live.scenarios import scenario
from process.support_home import ROTA
from process.support_witness import command

CORES, GANGS = 2, 2
SHORT_MIN, LONG_MIN, MARGIN_S = 4, 30, 150
SCRIPT = """\
#!/bin/bash
cd {place}
export ROTA_HOME={place}/home PATH={path}
{rota} pilot {words}
echo code $?
{rota} report usage --json >usage.json
echo over
"""
ADD = "[ -e added ] || {rota} add --nodes 2 --array {first}-{last} -- {gang} >added"
GANG = "for host in $(sort -u $ROTA_HOSTFILE); do $ROTA_RSH $host echo is there; done | wc -l >>gangs"


class Pilots:
    """The allocations of one home."""

    def __init__(self, trial):
        self.trial, self.system = trial, trial.system
        self.place = trial.home.work / "pilot"
        self.place.mkdir()
        if self.system.user is not None:
            shutil.chown(self.place, self.system.user)
        self.nodes = min(2, self.system.nodes())
        self.cores = min(CORES, self.system.slots)
        self.count = 0

    def start(self, minutes, *words):
        """Submit a script whose pilot has these words; its native id, when it runs."""
        self.count += 1
        script, self.output = self.place / f"script{self.count}", self.place / f"out{self.count}"
        path = self.system.environment.get("PATH", "")
        script.write_text(SCRIPT.format(place=self.place, path=path, rota=ROTA, words=shlex.join(words)))
        os.chmod(script, 0o755)
        submit = self.system.script_words(self.nodes, self.cores, minutes, str(self.output))
        self.began = time.time()
        done = self.system.run(*self.trial.wrapper, *submit, str(script))
        number = re.search(r"\d+", done.stdout)[0]
        (native,) = self.trial.until(
            lambda: [one for one in self.system.of("running") if re.match(r"\d+", one)[0] == number], 120, "it runs"
        )
        return native

    def ends(self, native, seconds=300):
        """What a script has said, when its job is in the queue no more."""
        self.trial.until(lambda: native not in self.system.listed(), seconds, f"{native} is over")
        self.trial.until(self.output.exists, 60, "its output is there")
        time.sleep(1)
        return self.output.read_text(errors="replace")

    def said(self):
        """The number of each job that has begun, and what it says of itself."""
        paths = [path for path in Path(self.trial.witness).iterdir() if path.suffix != ".lock"]
        return {path.name: path.read_text() for path in paths}

    def starts(self):
        """How often each has begun."""
        return {name: text.count("start ") for name, text in self.said().items()}

    def ended(self):
        return {name for name, text in self.said().items() if "end " in text}

    def begun(self, before=None):
        """Those that have begun, and not ended (and have begun since `before`)."""
        before = before or {}
        return {name for name, count in self.starts().items() if count > before.get(name, 0)} - self.ended()


@scenario
def pilot(trial):
    """Three allocations: the first ends by its time, the second is deleted, the third comes to the end of all jobs."""
    trial.rota("down")
    pilots = Pilots(trial)
    wait = 2 * pilots.cores * pilots.nodes
    work = f"[ $ROTA_INDEX -le {trial.count - wait} ] && sleep 0.3 || {{ {trial.gate}; }}"
    if pilots.nodes > 1:
        first, last = trial.count + 1, trial.count + GANGS
        gang = shlex.quote(command(trial.witness, GANG))
        work = f"{work}; [ $ROTA_INDEX -ne 1 ] || {ADD.format(rota=ROTA, first=first, last=last, gang=gang)}"
    jobs = ("--array", f"1-{trial.count}", "--", command(trial.witness, work))
    trial.home.env["ROTA_HOME"] = f"{pilots.place}/home"
    trial.batches = ["1", "2"] if pilots.nodes > 1 else ["1"]
    stopped = set()

    native = pilots.start(SHORT_MIN, "--margin", f"{MARGIN_S}s", *jobs)
    said = pilots.ends(native)
    trial.figures["first_s"] = round(time.time() - pilots.began)
    stopped |= pilots.begun()
    nodes = f"{pilots.nodes} node{'s' * (pilots.nodes > 1)}, {pilots.nodes * pilots.cores} cores"
    trial.says("the first pilot", said, nodes)
    trial.says("the first pilot", said, "it ends in")
    trial.says("the first pilot", said, "code 75")

    before = pilots.starts()
    native = pilots.start(LONG_MIN, "--resume")
    trial.until(lambda: len(pilots.ended()) >= trial.count - wait, 300, "all that can end has")
    trial.until(lambda: pilots.begun(before), 120, "some run again")
    time.sleep(3)
    trial.system.delete(native)
    pilots.ends(native)
    stopped |= pilots.begun()

    trial.open_gate()
    said = pilots.ends(pilots.start(LONG_MIN, "--resume"), 600)
    trial.says("the third pilot", said, "code 0")
    trial.says("the third pilot", said, "over")
    _judge(trial, pilots, stopped)


def _judge(trial, pilots, stopped):
    twice = {name for name, count in pilots.starts().items() if count > 1}
    if twice - stopped:
        trial.wrong.append(f"{sorted(twice - stopped)} ran again, and no end of an allocation hit them")
    if not twice:
        trial.wrong.append("nothing ran when an allocation ended: nothing was seen")
    with open(pilots.place / "usage.json") as file:
        usage = json.load(file)
    trial.figures |= {"nodes": pilots.nodes, "cores": usage.get("cores"), "again": len(twice)}
    trial.figures["used"] = round(usage["busy_s"] / usage["available_s"], 3)
    if usage["cores"] != pilots.nodes * pilots.cores:
        trial.wrong.append(f"usage: {usage['cores']} cores")
    if pilots.nodes > 1:
        hosts = (pilots.place / "gangs").read_text().split()
        if set(hosts) != {"2"} or len(hosts) < GANGS:
            trial.wrong.append(f"gangs saw so many hosts: {hosts}")


pilot.mode = "pilot"
