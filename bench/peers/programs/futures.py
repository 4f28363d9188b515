"""Peers whose unit is a Python function: one that starts the command and gives back its exit code."""

import subprocess

from drive import Peer, line, parents, words


def call(command, *before):
    """Run a command; what it waits for has been waited for."""
    return subprocess.call(command)


class _Futures(Peer):
    """`submit_one` gives a future."""

    def submit_one(self, command, *before):
        raise NotImplementedError

    def run(self, count, command):
        command = words(command)
        return sum(one.result() == 0 for one in [self.submit_one(command) for _ in range(count)])

    def graph(self, layers, across, command):
        command, found, before = words(command), [], []
        for _ in range(layers):
            after = [[before[each] for each in parents(number, across)] if before else () for number in range(across)]
            before = [self.submit_one(command, *futures) for futures in after]
            found += before
        return sum(one.result() == 0 for one in found)

    def submit(self, count, distinct):
        self.kept = [self.submit_one(line(n).split() if distinct else ["/bin/true"]) for n in range(count)]


class Parsl(_Futures):
    """Parsl with its high-throughput executor."""

    def _executor(self, hold):
        from parsl.executors import HighThroughputExecutor
        from parsl.providers import LocalProvider

        return HighThroughputExecutor(
            max_workers_per_node=self.width, cores_per_worker=1e-6, prefetch_capacity=self.width, address="127.0.0.1",
            encrypted=False, worker_debug=False, provider=LocalProvider(init_blocks=int(not hold), max_blocks=1),
        )  # fmt: skip

    def start(self, hold):
        import parsl

        config = parsl.Config(executors=[self._executor(hold)], strategy="none", initialize_logging=False)
        self.parsl = parsl
        parsl.load(config)
        self.submit_one = parsl.python_app(call, cache=False)

    def stop(self):
        self.parsl.dfk().cleanup()
        self.parsl.clear()


class ParslThreads(Parsl):
    """Parsl with threads of this process."""

    def _executor(self, hold):
        from parsl.executors import ThreadPoolExecutor

        return ThreadPoolExecutor(max_threads=self.width)


class Dask(_Futures):
    """Dask's distributed scheduler with a worker process for each core."""

    def start(self, hold):
        import os

        from distributed import Client, LocalCluster

        workers = min(self.width, len(os.sched_getaffinity(0)))
        self.cluster = LocalCluster(
            n_workers=0 if hold else workers, threads_per_worker=-(-self.width // workers), dashboard_address=None
        )
        self.client = Client(self.cluster)

    def run(self, count, command):
        futures = self.client.map(call, [words(command)] * count, pure=False, batch_size=10_000)
        return sum(code == 0 for code in self.client.gather(futures))

    def one(self):
        if self.client.submit(call, ["/bin/true"], pure=False).result():
            raise SystemExit("a job failed")

    def graph(self, layers, across, command):
        command, graph, keys = words(command), {}, []
        for layer in range(layers):
            for number in range(across):
                before = [f"l{layer - 1}-{each}" for each in parents(number, across)] if layer else []
                graph[f"l{layer}-{number}"] = (call, command, *before)
        keys = list(graph)
        return sum(code == 0 for code in self.client.get(graph, keys))

    def submit(self, count, distinct):
        commands = [line(n).split() if distinct else ["/bin/true"] for n in range(count)]
        self.kept = self.client.map(call, commands, pure=False, batch_size=10_000)
        self.client.sync(self._heard, count)

    async def _heard(self, count):
        """The scheduler, in this process, has taken all of them in."""
        import asyncio

        while len(self.cluster.scheduler.tasks) < count:  # noqa: ASYNC110  it tells nobody
            await asyncio.sleep(0.01)

    def stop(self):
        self.client.close()
        self.cluster.close()


class ExecutorLib(_Futures):
    """executorlib on one node, with its workers kept (block allocation)."""

    def start(self, hold):
        from executorlib import SingleNodeExecutor

        self.executor = SingleNodeExecutor(
            max_workers=self.width, block_allocation=True, resource_dict={"cores": 1}, hostname_localhost=True
        )

    def submit_one(self, command, *before):
        return self.executor.submit(call, command, *before)

    def stop(self):
        self.executor.shutdown(wait=True)
