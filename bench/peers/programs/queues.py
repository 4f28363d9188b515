"""Peers that are queues of calls: a store, workers that take from it, results that go back to it."""

import os
import subprocess
import sys
import time

from drive import TRUE, Peer, line, words

HERE = os.path.dirname(os.path.abspath(__file__))


class _Workers(Peer):
    def begin(self, *command):
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def end(self, *children):
        for child in children:
            if child is not None:
                child.terminate()
                child.wait(30)


class Huey(_Workers):
    """huey with SQLite: results stay in the file until they are read."""

    def start(self, hold):
        os.environ["HUEY_FILE"] = os.path.abspath("huey.db")
        import queue_huey

        self.tasks, self.worker = queue_huey, None
        if not hold:
            consumer = os.path.join(os.path.dirname(sys.executable), "huey_consumer")
            options = ["-w", str(self.width), "-k", "thread", "-n", "-d", "0.001", "-m", "0.005"]
            self.worker = self.begin(sys.executable, consumer, "queue_huey.huey", *options)

    def run(self, count, command):
        command = words(command)
        results = [self.tasks.call(command) for _ in range(count)]
        return sum(one.get(blocking=True, backoff=1, max_delay=0.005) == 0 for one in results)

    def submit(self, count, distinct):
        for number in range(count):
            self.tasks.call(line(number).split() if distinct else TRUE)

    def servers(self):
        return []

    def stop(self):
        self.end(self.worker)


class Celery(_Workers):
    """Celery with redis as broker and for results."""

    def start(self, hold):
        socket = os.path.abspath("redis.sock")
        os.environ["CELERY_REDIS"] = f"redis+socket://{socket}"
        self.worker = None
        self.redis = self.begin(
            "redis-server", "--port", "0", "--unixsocket", socket, "--save", "", "--appendonly", "no"
        )
        while not os.path.exists(socket):
            time.sleep(0.01)
        import queue_celery

        self.tasks = queue_celery
        if not hold:
            options = [
                "-c",
                str(self.width),
                "-l",
                "ERROR",
                "--without-gossip",
                "--without-mingle",
                "--without-heartbeat",
            ]
            self.worker = self.begin(sys.executable, "-m", "celery", "-A", "queue_celery", "worker", *options)

    def run(self, count, command):
        from celery import group

        command = words(command)
        results = group(self.tasks.call.s(command) for _ in range(count)).apply_async()
        return sum(code == 0 for code in results.join_native(interval=0.005))

    def one(self):
        if self.tasks.call.delay(TRUE).get(interval=0.001):
            raise SystemExit("a job failed")

    def submit(self, count, distinct):
        with self.tasks.app.producer_pool.acquire(block=True) as producer:
            for number in range(count):
                command = line(number).split() if distinct else TRUE
                self.tasks.call.apply_async((command,), producer=producer)

    def servers(self):
        return [self.redis.pid]

    def stop(self):
        self.end(self.worker, self.redis)
