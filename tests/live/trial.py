"""One trial: a rota of its own beside a live batch system, witnessed jobs, and the count of what became of them."""

import contextlib
import os
import pwd
import shutil
import time
from collections import Counter

from process.support_home import a_home
from process.support_witness import check, command

SITE = """\
listen = "127.0.0.1:0"
backoff_first = "1s"
backoff_jitter = "1s"

[site.live]
driver = "{driver}"
mode = "{mode}"
report_within = "5s"
most = {most}
{pace}
{more}
"""
HASTE = """\
poll = "2s"
poll_least = "1s"
linger = "3s"
"""
SHIM = """\
#!/bin/bash
echo "$EPOCHREALTIME {name} $*" >>{log}
[ -e {slow} ] || exec {real} "$@"
out=$({real} "$@"); code=$?
sleep "$(cat {slow})"
[ -z "$out" ] || printf '%s\\n' "$out"
exit $code
"""
LIVE = ("WAITING", "PENDING", "STARTING", "RUNNING", "MISSING", "KILLING", "HOLDING")


class Trial:
    """What a scenario works with."""

    def __init__(self, system, home, mode, count):
        self.system, self.home, self.mode, self.count = system, home, mode, count
        self.batches = []
        self.expected = {}
        """Job → (state, reasons) of those that are not to be COMPLETED."""
        self.wrong = []
        """Reasons that are not right, in words."""
        self.figures = {}
        """What else was measured."""
        self.witness = str(home.work / "witness")
        os.mkdir(self.witness, 0o777)
        os.chmod(self.witness, 0o777)
        self.wrapper, self._more = (), {}
        if system.user is not None:
            entry = pwd.getpwnam(system.user)
            ids = (f"--reuid={entry.pw_uid}", f"--regid={entry.pw_gid}", "--init-groups")
            self.wrapper = ("setpriv", *ids, "--")
            names = {"HOME": entry.pw_dir, "USER": system.user, "LOGNAME": system.user}
            home.env |= names
            for place in (home.path, home.work, self.witness):
                os.chown(place, entry.pw_uid, entry.pw_gid)
        self._shims()

    def _shims(self):
        """Every command of the batch system is counted on its way, and can be made slow."""
        place, path = str(self.home.work / "shims"), self.system.environment.get("PATH", "")
        os.mkdir(place)
        self._log = f"{place}/log"
        with open(self._log, "w"):
            os.chmod(self._log, 0o666)
        for name in self.system.programs:
            real = shutil.which(name, path=path)
            if real is not None:
                with open(f"{place}/{name}", "w") as file:
                    file.write(SHIM.format(name=name, log=self._log, slow=f"{place}/slow-{name}", real=real))
                os.chmod(f"{place}/{name}", 0o755)
        self.home.env["PATH"] = f"{place}:{path}"

    def slow(self, name, seconds):
        """From now on a command answers so late, though it works at once; 0: no more."""
        path = self.home.work / "shims" / f"slow-{name}"
        if seconds:
            path.write_text(str(seconds))
        else:
            path.unlink(missing_ok=True)

    def commands(self):
        """How often rota has called the batch system, by program."""
        with open(self._log) as file:
            return Counter(line.split()[1] for line in file)

    def sent(self):
        """When rota has called the batch system, by the wall clock, in order."""
        with open(self._log) as file:
            return sorted(float(line.split()[0]) for line in file)

    # ---- rota -------------------------------------------------------------------------------------------------------

    def rota(self, *words, code=0):
        return self.home.rota(*words, code=code, wrapper=self.wrapper, cwd="/")

    def rows(self, *words):
        import json

        return [json.loads(line) for line in self.rota(*words, "--json").stdout.splitlines()]

    def add(self, *options, indices=None, work="true"):
        """Add witnessed jobs, by default as many as the trial has; the batch."""
        indices = indices or f"1-{self.count}"
        words = ("add", "--on", "live", *options, "--array", indices, "--", command(self.witness, work))
        self.batches.append(self.rota(*words).stdout.strip())
        return self.batches[-1]

    def jobs(self):
        return {row["id"]: row for row in self.rows("jobs", *self.batches)}

    def counts(self):
        return Counter(row["state"] for row in self.jobs().values())

    def attempts(self, job):
        return sorted(self.rows("history", job), key=lambda row: row["attempt"])

    def explain(self, job):
        return self.rota("explain", job).stdout

    def until(self, probe, seconds, what):
        end = time.monotonic() + seconds
        while True:
            began = time.monotonic()
            if found := probe():
                return found
            if (now := time.monotonic()) > end:
                raise TimeoutError(f"not within {seconds} s: {what}")
            time.sleep(min(5, max(0.5, 2 * (now - began))))  # who looks all the time makes everything late

    def until_some(self, running=2, waiting=0, seconds=300):
        """Wait until the batch system runs and keeps waiting so many; their ids."""

        def probe():
            rows = self.system.listed()
            runs = [native for native, state in rows.items() if state == "running"]
            waits = [native for native, state in rows.items() if state == "waiting"]
            begun = sum(1 for name in os.listdir(self.witness) if not name.endswith(".lock"))
            return len(runs) >= running and len(waits) >= waiting and begun >= running and (runs, waits)

        return self.until(probe, seconds, f"{running} run and {waiting} wait")

    def witnessed(self, job):
        """Whether a job has begun, by its own word."""
        return os.path.exists(os.path.join(self.witness, job.partition(".")[2]))

    @property
    def gate(self):
        """A command that waits until `open_gate`."""
        return f"until [ -e {self.home.work}/go ]; do sleep 0.3; done"

    def open_gate(self):
        (self.home.work / "go").touch()

    def settle(self, seconds=900):
        with contextlib.suppress(TimeoutError):
            self.until(lambda: not any(state in LIVE for state in self.counts()), seconds, "all settled")

    # ---- the count --------------------------------------------------------------------------------------------------

    def expect(self, job, *reasons, state="FAILED"):
        """This job is to end otherwise than the others, for one of these reasons."""
        self.expected[job] = (state, reasons)

    def says(self, what, text, *phrases):
        """See that a text has one of these phrases."""
        if not any(phrase in text.lower() for phrase in phrases):
            self.wrong.append(f"{what}: no {' or '.join(phrases)!r} in {' '.join(text.split())[:300]!r}")

    def explains(self, job, *phrases, seconds=30):
        """See that an explanation comes to have one of these phrases: rota looks at the site every few seconds."""
        with contextlib.suppress(TimeoutError):
            self.until(lambda: any(phrase in self.explain(job).lower() for phrase in phrases), seconds, "that is said")
        self.says(f"explain {job}", self.explain(job), *phrases)

    def row(self):
        """What became of the jobs: lost, double, and whether the reasons are right."""
        jobs = self.jobs()
        found = check(self.witness, jobs.values(), self.rows("history", *self.batches))
        lost = []
        for job, row in jobs.items():
            state, reasons = self.expected.get(job, ("COMPLETED", ()))
            if row["state"] != state:
                rows = self.attempts(job) if len(lost) < 5 else ()
                notes = "; ".join(f"{one['reason']}: {one['note']}" for one in rows)
                lost.append(f"{job} is {row['state']} ({row['reason']}), not {state}: {notes}")
            elif reasons and row["reason"] not in reasons:
                self.wrong.append(f"{job}: the reason is {row['reason']}, not {' or '.join(reasons)}")
        self.wrong.extend(found.untold)
        return {
            "jobs": len(jobs),
            "lost": len(lost),
            "double": len(found.doubled),
            "reason_ok": not self.wrong,
            "executions": found.executions,
            "attempts_lost": found.lost_attempts,
            "commands": sum(self.commands().values()),
            **self.figures,
            "why": [*lost[:5], *sorted(found.doubled)[:5], *self.wrong[:5]],
        }


@contextlib.contextmanager
def a_trial(system, mode, count, more="", most=None, pace=HASTE):
    """A trial with nothing in the queue before and after; `pace`: how often the site is asked."""
    with a_home() as home:
        home.env |= system.environment | {"ROTA_HOME": home.path}
        most = most or (2 * system.slots if mode == "runners" else count)
        home.config(SITE.format(driver=system.driver, mode=mode, most=most, pace=pace, more=f"{system.more}\n{more}"))
        os.chmod(home.work, 0o755)
        trial = Trial(system, home, mode, count)
        if system.user is not None:
            shutil.chown(f"{home.path}/config.toml", system.user)
        trial.rota("up")
        try:
            yield trial
        finally:
            trial.rota("down", "--kill", code=None)
            system.clean()
