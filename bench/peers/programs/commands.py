"""Peers that are one command: nothing stays up, and whatever is queued is a file that they are given.

The file is written before the clock starts, except where one is written for a job alone.
"""

import os
import subprocess

from drive import Peer, parents

QUIET = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "check": False}


class _Command(Peer):
    """Nothing has to be warm."""

    def warm(self):
        return


def _shell(command):
    return command if isinstance(command, str) else " ".join(command)


class Make(_Command):
    """GNU make: targets without files. Exit codes are not kept; one that failed ends it."""

    def _write(self, name, rules):
        if not os.path.exists(name):
            with open(name, "w") as file:
                file.writelines(rules)

    def prepare(self, job):
        if job["kind"] == "D":
            self._write("graph.mk", self._graph(job["layers"], job["across"], job["command"]))
        else:
            for count in {1, job["count"]}:
                self._write(f"{count}.mk", self._flat(count, job["command"]))

    @staticmethod
    def _flat(count, command):
        yield f"all: {' '.join(f'j{number}' for number in range(count))}\n"
        for number in range(count):
            yield f"j{number}:\n\t@{_shell(command)}\n"

    @staticmethod
    def _graph(layers, across, command):
        yield f"all: {' '.join(f'j{layers - 1}.{number}' for number in range(across))}\n"
        for layer in range(layers):
            for number in range(across):
                before = " ".join(f"j{layer - 1}.{each}" for each in parents(number, across)) if layer else ""
                yield f"j{layer}.{number}: {before}\n\t@{_shell(command)}\n"

    def _make(self, name, count):
        done = subprocess.run(["make", "-rRs", f"-j{self.width}", "-f", name, "all"], **QUIET)
        return count if done.returncode == 0 else 0

    def run(self, count, command):
        return self._make(f"{count}.mk", count)

    def graph(self, layers, across, command):
        return self._make("graph.mk", layers * across)


class Xargs(_Command):
    """xargs: it says whether all succeeded, not which."""

    def prepare(self, job):
        for count in {1, job.get("count", 1)}:
            with open(f"{count}.txt", "w") as file:
                file.writelines(f"{number}\n" for number in range(count))

    def run(self, count, command):
        rest = ["/bin/sh", "-c", command] if isinstance(command, str) else command
        done = subprocess.run(["xargs", "-P", str(self.width), "-n", "1", "-a", f"{count}.txt", *rest], **QUIET)
        return count if done.returncode == 0 else 0


class Parallel(Xargs):
    """GNU parallel, with a log of exit codes; each job by the smallest shell there is."""

    def run(self, count, command):
        environment = {**os.environ, "PARALLEL_SHELL": "/bin/sh", "HOME": os.getcwd()}
        rest = ["--joblog", "log", "--will-cite", "-a", f"{count}.txt", _shell(command), ";:"]
        subprocess.run(["parallel", "-j", str(self.width), *rest], env=environment, **QUIET)
        with open("log") as file:
            return sum(row.split("\t")[6] == "0" for row in list(file)[1:])


class Snakemake(_Command):
    """Snakemake: a file for each job says that it was done."""

    def prepare(self, job):
        count, layered = job.get("count", 1), job["kind"] == "D"
        layers, across = (job["layers"], job["across"]) if layered else (1, count)
        with open("Snakefile", "w") as file:
            file.write(f"rule all:\n    input: expand('o/{layers - 1}.{{n}}', n=range({across}))\n")
            for layer in range(layers):
                before = f"lambda w: [f'o/{layer - 1}.{{(int(w.n) + e) % {across}}}' for e in (0, 1)]"
                needs = f"    input: {before}\n" if layer else ""
                file.write(
                    f"rule l{layer}:\n{needs}    output: touch('o/{layer}.{{n}}')\n"
                    f"    shell: '{_shell(job['command'])}'\n"
                )

    def run(self, count, command):
        words = [os.path.join(os.environ["PEER_BIN"], "snakemake"), "--cores", str(self.width), "--quiet", "all"]
        words += ["--scheduler", "greedy", "--nolock", "--latency-wait", "0"]
        done = subprocess.run(words, env={**os.environ, "HOME": os.getcwd()}, **QUIET)
        return count if done.returncode == 0 else 0

    def graph(self, layers, across, command):
        return self.run(layers * across, command)
