"""The batch systems that scenarios are run on: who they are, and what a user, an administrator or chance does to them.

Slurm and Grid Engine are started privately, as in tests/cluster. The others must be there: their commands on PATH and
answering, their daemons on this machine.
"""

import contextlib
import os
import pwd
import re
import shutil
import signal
import subprocess
import time

from cluster import real_gridengine, real_slurm
from cluster.guard import send, ticks
from cluster.private import ClusterError, wait_for


class AbsentError(Exception):
    """A system is not here; says why."""


class System:
    """One batch system. Native ids are those that rota shows."""

    name = driver = ""
    programs: tuple[str, ...] = ()
    """What rota calls; the first submits, the second lists."""
    user: str | None = None
    """Who submits; None: whoever runs this."""
    slots = 8
    more = ""
    """Lines of the site's configuration."""
    memory_ends = ("oom", "memory")
    """Reasons of a job that used more memory than it asked for."""
    commands: dict[str, tuple[str, ...]] = {}
    """What each verb of `act` is here; the native id follows."""
    hog = "exec python3 -c 'import time; x = bytearray(400 << 20); time.sleep(90)'"
    """Such a job, that asked for 100 MB."""
    ends_for_memory = True
    """Whether it ends such a job by itself."""

    def __init__(self):
        self.environment = {**os.environ, "LC_ALL": "C"}

    def start(self):
        """Bring it up, or see that it is; AbsentError if it is not here."""

    def close(self):
        """End what was started."""

    def version(self) -> str:
        raise NotImplementedError

    def run(self, *argv, check=True, timeout=60):
        """Run a command of it as root, which everywhere may do everything."""
        done = subprocess.run(argv, capture_output=True, text=True, timeout=timeout, env=self.environment)
        if check and done.returncode != 0:
            raise RuntimeError(f"{' '.join(argv)}: exit {done.returncode}: {done.stderr or done.stdout}")
        return done

    def listed(self) -> dict[str, str]:
        """Native id → `waiting`, `running` or another word, of all that is in the queue."""
        raise NotImplementedError

    def of(self, word) -> list[str]:
        """Native ids in this state, in order."""
        return [native for native, state in self.listed().items() if state == word]

    def act(self, verb, native):
        """Delete, hold, release, suspend, resume or requeue a job."""
        self.run(*self.commands[verb], native)

    def delete(self, native):
        self.act("delete", native)

    def hold(self, native):
        self.act("hold", native)

    def release(self, native):
        self.act("release", native)

    def suspend(self, native):
        self.act("suspend", native)

    def resume(self, native):
        self.act("resume", native)

    def requeue(self, native):
        self.act("requeue", native)

    def kill_node_daemon(self, seconds):
        """End the daemon of the node that runs jobs, as by a crash; it is back after so long."""
        raise NotImplementedError

    def restart_server(self):
        raise NotImplementedError

    def stop_server(self, seconds):
        """The server answers nothing for so long."""
        raise NotImplementedError

    def limit_arrays(self, most) -> int:
        """An array may have so many elements from now on (None: as before); what rota can make of that."""
        raise NotImplementedError

    def nodes(self) -> int:
        """How many nodes one job can have."""
        return 1

    def script_words(self, nodes, cores, minutes, output) -> list[str]:
        """The words that submit a script (its path follows) for so much; stdout says the native id."""
        raise NotImplementedError

    def clean(self):
        """Leave nothing in the queue."""
        for native in self.listed():
            try:
                self.delete(native)
            except RuntimeError:
                continue
        deadline = time.monotonic() + 40
        while self.listed() and time.monotonic() < deadline:
            time.sleep(0.5)


def _may_be_private(programs, *folders):
    """AbsentError if one cannot be started here, of programs on the path or in these folders."""
    path = ":".join([*folders, os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
    missing = [name for name in programs if shutil.which(name, path=path) is None]
    if missing or os.getuid() != 0:
        raise AbsentError(f"no {missing[0]}" if missing else "a private one is started by root only")


class Slurm(System):
    """A private one with accounting."""

    name = driver = "slurm"
    programs = ("sbatch", "squeue", "scancel", "sacct", "sinfo", "scontrol")
    words = {"PENDING": "waiting", "RUNNING": "running", "SUSPENDED": "suspended"}

    def start(self):
        _may_be_private(real_slurm.PROGRAMS)
        self.real = real_slurm.RealSlurm(count=2, min_job_age=300)
        self.real.start()
        self.environment = self.real.environment
        self.user = None

    def close(self):
        self.real.close()

    def version(self):
        return self.run("sbatch", "--version").stdout.split()[-1]

    def listed(self):
        rows = [line.split() for line in self.run("squeue", "-h", "-r", "-o", "%i %T").stdout.splitlines()]
        return {native: self.words.get(state, state) for native, state in rows}

    def act(self, verb, native):
        getattr(self.real, "cancel" if verb == "delete" else verb)(native)

    def kill_node_daemon(self, seconds):
        names = [f"slurmd-{node}" for node in self.real.nodes]
        for name in names:
            self.real.kill(name, signal.SIGKILL).wait(20)
        time.sleep(seconds)
        for node in self.real.nodes:
            self.real._start_daemon(node)

    def restart_server(self):
        self.real.restart_controller()

    def stop_server(self, seconds):
        self.real.stop_controller()
        time.sleep(seconds)
        self.real.start_controller()

    def limit_arrays(self, most):
        path = self.environment["SLURM_CONF"]
        with open(path) as file:
            text = file.read()
        with open(path, "w") as file:
            file.write(re.sub("MaxArraySize=.*", f"MaxArraySize={most or 1001}", text))  # indices are smaller
        self.real.restart_controller()
        return most

    def nodes(self):
        return len(self.real.nodes)

    def script_words(self, nodes, cores, minutes, output):
        return [
            "sbatch", "--parsable", f"-N{nodes}", "--ntasks-per-node=1", f"-c{cores}", f"-t{minutes}", f"-o{output}",
        ]  # fmt: skip

    def clean(self):
        self.real.cancel_all()
        super().clean()


class GridEngine(System):
    """A private one of one host."""

    name, driver = "gridengine", "sge"
    parallel = "smp"
    """A parallel environment of one host."""
    memory_ends = ("oom", "memory", "exit")  # its limit is one of the kernel: allocating fails inside the job
    programs = ("qsub", "qstat", "qdel", "qacct", "qconf", "qhost")
    slots = 4
    commands = {
        "delete": ("qdel",),
        "hold": ("qhold",),
        "release": ("qrls",),
        "suspend": ("qmod", "-sj"),
        "resume": ("qmod", "-usj"),
        "requeue": ("qmod", "-rj"),
    }

    def start(self):
        _may_be_private(real_gridengine.PROGRAMS, real_gridengine.LIBRARY)
        self.real = real_gridengine.RealGridEngine()
        self.real.start()
        self.environment = self.real.environment

    def close(self):
        self.real.close()

    def version(self):
        return self.run("qstat", "-help").stdout.split()[1]

    def listed(self):
        text = self.run("qstat", "-u", "*", "-g", "d", check=False).stdout
        out = {}
        for line in text.splitlines()[2:]:
            words = line.split()
            letters = words[4]
            state = "running" if letters == "r" else "waiting" if letters == "qw" else letters
            state = "suspended" if set(letters) & set("sST") else state
            _, *task = [word for word in words[7:] if "@" not in word]  # after the queue, if it has one: slots
            out[".".join([words[0], *task])] = state
        return out

    def kill_node_daemon(self, seconds):
        send(self.real._execd, signal.SIGKILL)
        time.sleep(seconds)
        self.real.start_host()

    def restart_server(self):
        self.real.restart_master()

    def stop_server(self, seconds):
        self.real.stop_master()
        time.sleep(seconds)
        self.real.restart_master(signal.SIGKILL)

    def script_words(self, nodes, cores, minutes, output):
        wanted = ["-pe", self.parallel, str(cores)] if cores > 1 else []
        return ["qsub", "-terse", "-j", "y", "-o", output, "-l", f"h_rt={60 * minutes}", *wanted]

    def limit_arrays(self, most):
        changes = {"max_aj_tasks": str(most or 75_000)}
        text = real_gridengine.edited(self.run("qconf", "-sconf").stdout.partition("\n")[2], changes)
        os.makedirs(self.real.path("changed"), exist_ok=True)
        self.run("qconf", "-Mconf", self.real.write("changed/global", text))
        return most

    def clean(self):
        self.real.cancel_all()


class Found(System):
    """One that somebody else has set up: its daemons are found by their names and started again as they were."""

    answers: tuple[str, ...] = ()
    """A command that ends well if it is there …"""
    says = ""
    """… and what its answer contains."""
    node_daemon = server_daemon = ""

    def start(self):
        missing = [name for name in self.programs if shutil.which(name) is None]
        if missing:
            raise AbsentError(f"no {missing[0]}")
        try:
            done = self.run(*self.answers, check=False, timeout=20)
        except subprocess.TimeoutExpired:
            raise AbsentError(f"{self.answers[0]} does not answer") from None
        said = done.stdout + done.stderr
        if done.returncode != 0 or not re.search(self.says, said):
            raise AbsentError(f"{' '.join(self.answers)} says: {said.strip()[:100] or 'nothing'}")
        self.user = self.user or _a_user()

    def _daemons(self, name):
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/comm") as file:
                    if file.read().strip() != name[:15] or not ticks(pid):
                        continue
                with open(f"/proc/{pid}/stat") as file:
                    above = int(file.read().rpartition(")")[2].split()[1])
                with open(f"/proc/{pid}/cmdline", "rb") as file:
                    argv = file.read().split(b"\0")[:-1]
                with open(f"/proc/{pid}/environ", "rb") as file:
                    pairs = [pair.partition(b"=") for pair in file.read().split(b"\0") if b"=" in pair]
                program = os.readlink(f"/proc/{pid}/exe").removesuffix(" (deleted)")
            except OSError:
                continue
            found.append((int(pid), above, program, argv, {key: value for key, _, value in pairs}))
        pids = {pid for pid, *_ in found}
        return [row for row in found if row[1] not in pids] or found  # a child of one is no daemon

    def _again(self, name, number, seconds):
        rows = self._daemons(name)
        if not rows:
            raise RuntimeError(f"no process {name} here")
        for pid, *_ in rows:
            send(pid, number)
        with contextlib.suppress(ClusterError):
            wait_for(f"{name} to end", lambda: not any(ticks(pid) for pid, *_ in rows), 15)
        for pid in (pid for pid, *_ in rows if ticks(pid)):  # TORQUE's server saves all, and then may hang in its exit
            send(pid, signal.SIGKILL)
        wait_for(f"{name} to end", lambda: not any(ticks(pid) for pid, *_ in rows), 15)
        time.sleep(seconds)
        for _, _, program, argv, environment in rows:
            if self._daemons(name):
                break  # another daemon looks after it
            with open(os.devnull, "r+b") as null:
                subprocess.Popen(
                    argv, executable=program, env=environment, cwd="/", stdin=null, stdout=null, stderr=null,
                    start_new_session=True,
                )  # fmt: skip
        wait_for(f"{name} to be back", lambda: self._daemons(name), 30)

    def kill_node_daemon(self, seconds):
        self._again(self.node_daemon, signal.SIGKILL, seconds)

    def restart_server(self):
        self._again(self.server_daemon, signal.SIGTERM, 0)
        wait_for("its answer", lambda: self.run(*self.answers, check=False).returncode == 0, 60, 0.5)

    def stop_server(self, seconds):
        rows = self._daemons(self.server_daemon)
        for pid, *_ in rows:
            send(pid, signal.SIGSTOP)
        time.sleep(seconds)
        for pid, *_ in rows:
            send(pid, signal.SIGCONT)


def _a_user():
    """Who submits where root may not: $ROTA_LIVE_USER, or the first ordinary user who can log in."""
    if os.getuid() != 0:
        return None
    if name := os.environ.get("ROTA_LIVE_USER"):
        return name
    for entry in pwd.getpwall():
        if 1000 < entry.pw_uid < 60000 and entry.pw_shell.endswith("sh") and os.path.isdir(entry.pw_dir):
            return entry.pw_name
    raise AbsentError("it refuses root, and there is no ordinary user: set ROTA_LIVE_USER")


class OpenLava(Found):
    """OpenLava, which has the commands of LSF."""

    name = driver = "openlava"
    programs = ("bsub", "bjobs", "bhist", "bkill", "bqueues", "bparams", "bhosts", "lshosts")
    answers, says = ("lsid",), "OpenLava"
    node_daemon, server_daemon = "sbatchd", "mbatchd"
    words = {"PEND": "waiting", "RUN": "running", "PSUSP": "held", "USUSP": "suspended", "SSUSP": "suspended"}
    commands = {
        "delete": ("bkill",),
        "hold": ("bstop",),
        "release": ("bresume",),
        "suspend": ("bstop",),
        "resume": ("bresume",),
        "requeue": ("brequeue",),
    }

    def version(self):
        return self.run("lsid").stdout.split()[1].rstrip(",")

    def listed(self):
        out = {}
        for line in self.run("bjobs", "-w", "-u", "all", check=False).stdout.splitlines()[1:]:
            words = line.split()
            element = re.search(r"(\[\d+\])\s+\w+ +\d+ \d\d:\d\d\s*$", line)
            out[words[0] + (element[1] if element else "")] = self.words.get(words[2], words[2])
        return out

    def nodes(self):
        return len(re.findall(r"^\S+ +ok ", self.run("bhosts", "-w").stdout, re.M))

    def script_words(self, nodes, cores, minutes, output):
        where = ("-n", str(nodes * cores), "-R", f"span[ptile={cores}]")
        return ["bsub", *where, "-W", str(minutes), "-o", output, "/bin/bash"]

    def limit_arrays(self, most):
        path = os.path.join(self.environment["LSF_ENVDIR"], "lsb.params")
        with open(path) as file:
            lines = [line for line in file if "MAX_JOB_ARRAY_SIZE" not in line]
        section = next(at for at, line in enumerate(lines) if re.match(r"\s*Begin\s+Parameters", line))
        lines.insert(section + 1, f"MAX_JOB_ARRAY_SIZE = {most or 1000}\n")  # not in the comments above it
        with open(path, "w") as file:
            file.writelines(lines)
        self.run("badmin", "reconfig")
        return most


class Pbs(Found):
    """What OpenPBS and TORQUE have in common."""

    programs = ("qsub", "qstat", "qdel", "qsig", "pbsnodes")
    array_limit = ""
    answers = ("qstat", "-B")
    node_daemon = "pbs_mom"
    words = {"Q": "waiting", "R": "running", "H": "held", "S": "suspended"}
    commands = {
        "delete": ("qdel",),
        "hold": ("qhold",),
        "release": ("qrls",),
        "suspend": ("qsig", "-s", "suspend"),
        "resume": ("qsig", "-s", "resume"),
        "requeue": ("qrerun",),
    }

    def start(self):
        if shutil.which("pbsnodes") is None:
            raise AbsentError("no pbsnodes")  # Grid Engine has the other programs too
        super().start()
        if not self.version():
            raise AbsentError(f"its version is not told as {self.name} does it")

    def listed(self):
        out = {}
        for line in self.run("qstat", "-t", check=False).stdout.splitlines():
            words = line.split()
            if len(words) >= 6 and words[0][:1].isdigit() and "[]" not in words[0]:
                out[words[0].partition(".")[0]] = self.words.get(words[4], words[4])
        return {native: state for native, state in out.items() if state not in ("C", "F", "E", "X")}

    def nodes(self):
        return len(re.findall(r"^\s+state = (?:free|job-busy)", self.run("pbsnodes", "-a").stdout, re.M))

    def _chunks(self, nodes, cores):
        raise NotImplementedError

    def script_words(self, nodes, cores, minutes, output):
        return ["qsub", *self._chunks(nodes, cores), "-l", f"walltime=00:{minutes:02}:00", "-j", "oe", "-o", output]

    def limit_arrays(self, most):
        name = self.array_limit
        self.run("qmgr", "-c", f"set server {name} = {most}" if most else f"unset server {name}")
        return most


class OpenPbs(Pbs):
    """OpenPBS."""

    name, driver = "openpbs", "pbs"
    array_limit = "max_array_size"

    def hold(self, native):
        super().hold(re.sub(r"\[\d+\]", "[]", native))  # no element can be held by itself

    def release(self, native):
        super().release(re.sub(r"\[\d+\]", "[]", native))

    def _chunks(self, nodes, cores):
        return ("-l", f"select={nodes}:ncpus={cores}", "-l", "place=scatter")

    says = r"pbs_version|\d\d\.\d\d|Server"
    server_daemon = "pbs_server.bin"

    def version(self):
        done = self.run("qstat", "--version", check=False)
        return (done.stdout + done.stderr).partition("=")[2].strip()


class Torque(Pbs):
    """TORQUE."""

    name = driver = "torque"
    array_limit = "max_job_array_size"
    # Without control groups it limits each process only, by the kernel: allocating fails inside of it. What all use
    # together is left to rota.
    ends_for_memory = False
    hog = "for n in 1 2 3 4 5 6; do python3 -c 'import time; x = bytearray(60 << 20); time.sleep(90)' & done; wait"
    says = r"[Vv]ersion|\d\.\d|Server"
    server_daemon = "pbs_server"

    def _chunks(self, nodes, cores):
        return ("-l", f"nodes={nodes}:ppn={cores}")

    def version(self):
        done = self.run("qstat", "--version", check=False)
        found = re.search(r"[Vv]ersion: *(\S+)", done.stdout + done.stderr)
        return found[1] if found else ""


SYSTEMS = {system.name: system for system in (Slurm, GridEngine, OpenPbs, Torque, OpenLava)}
