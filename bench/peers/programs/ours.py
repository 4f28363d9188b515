"""rota: by its Python client, by its command line, and as a pilot."""

import os
import subprocess
import sys
import time

from drive import TRUE, Peer, line, parents, words

import rota


class Client(Peer):
    """`rota.local()`: what is acknowledged is on disk."""

    launcher = "auto"

    def start(self, hold):
        os.makedirs("home", mode=0o700)
        with open("home/config.toml", "w") as file:
            file.write(f'[site.local]\ncores = {self.width}\nlauncher = "{self.launcher}"\nlinger = "1m"\n')
        self.client = rota.local("home")
        if hold:
            self.client.pause()

    def warm(self):
        self.run(200, TRUE)
        time.sleep(1.0)  # the launcher may have to be compiled first
        self.run(200, TRUE)

    def run(self, count, command):
        return self.submitted(count, words(command))

    def submitted(self, count, command):
        batch = self.client.submit(command, array=range(1, count + 1))
        batch.wait()
        return batch.counts().get("COMPLETED", 0)

    def one(self):
        if not self.client.submit(TRUE).wait():
            raise SystemExit("a job failed")

    def graph(self, layers, across, command):
        flow, before = rota.Graph(), []
        for _ in range(layers):
            after = [[before[each] for each in parents(number, across)] if before else () for number in range(across)]
            before = [flow.add(command, after=names) for names in after]
        batch = self.client.submit(lines=flow)
        batch.wait()
        return batch.counts().get("COMPLETED", 0)

    def submit(self, count, distinct):
        if distinct:
            self.client.submit(lines=(line(number) for number in range(count)))
        else:
            self.client.submit(TRUE, array=range(1, count + 1))

    def servers(self):
        with open("home/manager.pid") as file:
            return [int(file.read())]

    def stop(self):
        self.client.close()


class Plain(Client):
    """Without the compiled launcher."""

    launcher = "none"


class OwnShell(Client):
    """A command line as people give it: rota chooses the shell."""

    def run(self, count, command):
        return self.submitted(count, command)


class Command(Client):
    """`rota run`, beside a manager that is up."""

    def warm(self):
        super().run(200, TRUE)
        time.sleep(1.0)
        super().run(200, TRUE)

    def run(self, count, command):
        rest = ["--array", f"1-{count}", "--", *words(command)]
        environment = {**os.environ, "ROTA_HOME": os.path.abspath("home")}
        done = subprocess.run(
            [sys.executable, "-m", "rota", "run", *rest], env=environment, capture_output=True, check=False
        )
        return 0 if done.returncode else count  # it says so if one did not complete


class Pilot(Client):
    """A pilot on this machine."""

    def start(self, hold):
        self.client = rota.Pilot("home", nodes=f"localhost:{self.width}")

    def run(self, count, command):
        batch = self.client.submit(command, array=range(1, count + 1), policy="qcg")
        batch.wait()
        return batch.counts().get("COMPLETED", 0)
