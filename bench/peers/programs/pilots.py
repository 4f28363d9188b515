"""Peers that run many programs inside one allocation, or start them for somebody else."""

import threading
import time

from drive import Peer, line, parents, words


class _NotYetError(Exception):
    """Some jobs have not ended."""


def _all_completed(jobs):
    if not all(one["completed"] for one in jobs.values()):
        raise _NotYetError


class HyperQueue(Peer):
    """HyperQueue's wheel: server and worker are threads of this process."""

    PIECE = 400_000
    """Command lines of one submission: it refuses a million of them as too long a message."""

    def start(self, hold):
        from hyperqueue import LocalCluster
        from hyperqueue.cluster import WorkerConfig

        self.cluster = LocalCluster()
        if not hold:
            self.cluster.start_worker(WorkerConfig(cores=self.width))
        self.client = self.cluster.client()

    def _job(self, commands):
        from hyperqueue import Job

        job = Job()
        for command in commands:
            job.program(command, stdout=None, stderr=None)
        return job

    def _run(self, job, count):
        ended = self.client.submit(job)
        while True:  # its own wait asks once a second
            try:
                failed = self.client.connection.wait_for_jobs([ended.id], _all_completed)
            except _NotYetError:
                time.sleep(0.001)
            else:
                return count - (len(self.client.get_failed_tasks(ended)) if failed else 0)

    def run(self, count, command):
        return self._run(self._job(words(command) for _ in range(count)), count)

    def graph(self, layers, across, command):
        from hyperqueue import Job

        job, before = Job(), []
        for _ in range(layers):
            after = [[before[each] for each in parents(number, across)] if before else () for number in range(across)]
            before = [job.program(words(command), stdout=None, stderr=None, deps=deps) for deps in after]
        return self._run(job, layers * across)

    def submit(self, count, distinct):
        if not distinct:
            self.client.submit(self._job(["/bin/true"] for _ in range(count)))
            return
        for low in range(0, count, self.PIECE):
            self.client.submit(self._job(line(n).split() for n in range(low, min(count, low + self.PIECE))))

    def stop(self):
        self.cluster.stop()


class Qcg(Peer):
    """QCG-PilotJob's manager, in a process of its own."""

    def start(self, hold):
        from qcg.pilotjob.api.manager import LocalManager

        self.manager = LocalManager(["--nodes", str(self.width), "--log", "error", "--wd", "."], {"wdir": "."})
        self.number = 0
        if hold:
            from qcg.pilotjob.api.job import Jobs

            cores = {"exact": self.width}
            self.manager.submit(Jobs().add(name="hold", exec="/bin/sleep", args=["100000"], numCores=cores))

    def _wait(self, jobs):
        ended = self.manager.wait4(self.manager.submit(jobs))
        return sum(state == "SUCCEED" for state in ended.values())

    def run(self, count, command):
        from qcg.pilotjob.api.job import Jobs

        self.number += 1
        command = words(command)
        jobs = Jobs().add(name=f"j{self.number}", exec=command[0], args=command[1:], iteration=count)
        return count * self._wait(jobs)

    def graph(self, layers, across, command):
        from qcg.pilotjob.api.job import Jobs

        command, jobs = words(command), Jobs()
        for layer in range(layers):
            for number in range(across):
                after = [f"l{layer - 1}.{each}" for each in parents(number, across)] if layer else []
                more = {"after": after} if after else {}
                jobs.add(name=f"l{layer}.{number}", exec=command[0], args=command[1:], **more)
        return self._wait(jobs)

    def submit(self, count, distinct):
        from qcg.pilotjob.api.job import Jobs

        if not distinct:
            self.manager.submit(Jobs().add(name="all", exec="/bin/true", iteration=count))
            return
        jobs = Jobs()
        for number in range(count):
            program, *rest = line(number).split()
            jobs.add(name=f"n{number}", exec=program, args=rest)
        self.manager.submit(jobs)

    def stop(self):
        self.manager.cancel(["hold"]) if self.number == 0 else None
        self.manager.finish()


class PsiJ(Peer):
    """PSI/J on this machine: it starts at once what it is given, so no more is given than may run."""

    def start(self, hold):
        from psij import JobExecutor

        self.executor = JobExecutor.get_instance("local")
        self.room = threading.Semaphore(self.width)
        self.good = 0
        self.executor.set_job_status_callback(self._told)

    def _told(self, job, status):
        if status.final:
            self.good += status.exit_code == 0
            self.room.release()

    def run(self, count, command):
        from psij import Job, JobSpec

        program, *rest = words(command)
        begun = self.good
        for _ in range(count):
            self.room.acquire()
            self.executor.submit(Job(JobSpec(executable=program, arguments=rest)))
        for _ in range(self.width):
            self.room.acquire()
        for _ in range(self.width):
            self.room.release()
        return self.good - begun
