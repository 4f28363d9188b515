"""Transports with real processes, and ssh with a real sshd on a port of its own."""

import asyncio
import getpass
import glob
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rota.drivers.dialect import Answer
from rota.drivers.ssh import SshTransport
from rota.drivers.transport import LocalTransport, PrefixTransport, UnreachableError, UnreadError

SSHD = shutil.which("sshd") or ("/usr/sbin/sshd" if os.path.exists("/usr/sbin/sshd") else None)
NASTY = ["a b", "it's", '"$HOME"', "$(echo no)", "`x`", "back\\slash", "*", "", "-n", "ünï☃"]
ECHO = (sys.executable, "-c", "import sys; print(repr(sys.argv[1:]))")


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 300))


def children():
    out = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat") as file:
                if int(file.read().rpartition(")")[2].split()[1]) == os.getpid():
                    out.append(int(pid))
        except OSError:
            continue
    return out


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


# ---- local ----------------------------------------------------------------------------------------------------------


def test_a_command_gets_its_words_and_stdin_and_gives_all_its_answers():
    answer = run(LocalTransport().run(["sh", "-c", "cat; echo err >&2; exit 7"], "hä?\n"))
    assert answer == (7, "hä?\n", "err\n", False)
    answer = run(LocalTransport().run([*ECHO, *NASTY]))
    assert eval(answer.stdout) == NASTY
    assert run(LocalTransport().run(["cat"])).stdout == ""


def test_the_environment_has_only_what_clients_need():
    environ = {"PATH": os.environ["PATH"], "SQUEUE_FORMAT": "x", "SBATCH_PARTITION": "x", "LSF_ENVDIR": "/lsf"}
    environ |= {"SGE_ROOT": "/sge", "BSUB_QUIET": "1", "LANG": "de_DE.UTF-8", "ROTA_HOME": "/secret", "USER": "ann"}
    answer = run(LocalTransport(environ).run(["env"]))
    found = dict(line.split("=", 1) for line in answer.stdout.splitlines())
    found.pop("_", None), found.pop("PWD", None), found.pop("SHLVL", None)
    assert set(found) == {"PATH", "LSF_ENVDIR", "SGE_ROOT", "USER", "LANG", "LC_ALL", "TZ"}
    assert found["LC_ALL"] == "C"


def test_a_command_that_hangs_is_ended_with_all_that_it_started(tmp_path):
    script = f"sleep 300 & echo $! >{tmp_path}/pid; trap '' TERM; echo begun; while :; do sleep 300; done"
    answer = run(LocalTransport().run(["sh", "-c", script], timeout_s=5))
    assert answer.code is None and answer.stdout == "begun\n"
    child = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 30
    while is_running(child):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert not children()


def test_one_that_is_cancelled_leaves_nothing():
    async def test():
        task = asyncio.get_running_loop().create_task(LocalTransport().run(["sleep", "300"]))
        while not children():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(test())
    assert not children()


def test_what_a_command_leaves_in_the_background_does_not_hold_up_its_answer():
    async def test():
        answer = await LocalTransport().run(["sh", "-c", "setsid sleep 300 & echo $!"], timeout_s=60)
        os.kill(int(answer.stdout), 9)  # it is still there
        return answer.code

    assert run(test()) == 0


def test_endless_output_is_cut_and_marked():
    answer = run(LocalTransport(output_most=1 << 20).run(["yes", "line"], timeout_s=30))
    assert answer.cut and len(answer.stdout) <= 1 << 20 and answer.stdout.endswith("line\n")
    lines = ["sh", "-c", "for i in 1 2 3 4 5 6 7 8 9; do echo 0123456789abc; done"]
    answer = run(LocalTransport(output_most=100).run(lines))
    assert answer.cut and answer.stdout == "0123456789abc\n" * 7
    assert run(LocalTransport().run(["printf", "\\377\\376ok"])).stdout == "\ufffd\ufffdok"


def test_a_program_that_is_not_there_is_an_answer():
    answer = run(LocalTransport().run(["/no/such/program"]))
    assert answer.code == 127 and "/no/such/program" in answer.stderr


def test_at_most_so_many_run_at_once(tmp_path):
    async def test():
        transport = LocalTransport(at_once=2)
        script = f"mkdir {tmp_path}/$$; ls {tmp_path} | wc -l; sleep 0.2; rmdir {tmp_path}/$$"
        answers = await asyncio.gather(*(transport.run(["sh", "-c", script]) for _ in range(8)))
        return [int(answer.stdout) for answer in answers]

    assert max(run(test())) <= 2


def test_programs_are_found_by_absolute_path():
    found = run(LocalTransport({"PATH": "/usr/bin:/bin:."}).which(["sh", "no-such-program", "/bin/sh"]))
    assert found["sh"].startswith("/") and found["no-such-program"] is None and found["/bin/sh"] == "/bin/sh"


# ---- any way there --------------------------------------------------------------------------------------------------


def inside():
    """The innermost of three: sh in env in this host."""
    return PrefixTransport(PrefixTransport(LocalTransport(), ["env", "DEEP=1"]), ["nice", "-n", "1"])


@pytest.fixture(params=["local", "inside", "ssh"])
def transport(request):
    if request.param == "ssh":
        return request.getfixturevalue("ssh")
    return LocalTransport() if request.param == "local" else inside()


def test_words_stdin_and_status_survive_every_way(transport):
    async def test():
        assert eval((await transport.run([*ECHO, *NASTY])).stdout) == NASTY
        answer = await transport.run(["sh", "-c", "cat; echo err >&2; exit 255"], "hä?\n")
        assert (answer.code, answer.stdout) == (255, "hä?\n") and answer.stderr.strip() == "err"
        answer = await transport.run(["sleep", "30"], timeout_s=1)
        assert answer.code is None
        assert (await transport.run(["/no/such/program"])).code == 127
        found = await transport.which(["sh", "no-such-program"])
        assert found["sh"].startswith("/") and found["no-such-program"] is None

    run(test())


def test_files_survive_every_way(transport, tmp_path):
    async def test():
        path, content = f"{tmp_path}/a b/it's", bytes(range(256)) * 40
        await transport.write(path, content, 0o640)
        assert os.stat(path).st_mode & 0o777 == 0o640
        assert await transport.read([f"{tmp_path}/none", path, "/no/such/dir/x"]) == {path: content}
        assert os.listdir(f"{tmp_path}/a b") == ["it's"]
        assert await transport.read([]) == {}
        with pytest.raises(UnreachableError, match="nowhere"):
            await transport.write("/proc/nowhere/file", b"")
        with pytest.raises(UnreachableError, match=r"cannot.* read.*a b"):
            await transport.read([f"{tmp_path}/a b"])  # a directory

    run(test())


def test_a_pipe_in_place_of_a_file_hides_no_other(transport, tmp_path):
    """It would be waited for, for ever; and of what is read with it nothing is lost."""
    paths = [f"{tmp_path}/{name}" for name in ("one", "pipe", "none", "folder", "two")]
    for path in (paths[0], paths[4]):
        Path(path).write_bytes(path.encode())
    os.mkfifo(paths[1])
    os.mkdir(paths[3])
    with pytest.raises(UnreadError, match=r"cannot be read|cannot read") as error:
        run(transport.read(paths))
    assert error.value.found == {path: path.encode() for path in (paths[0], paths[4])}
    assert error.value.paths == [paths[1], paths[3]]


def test_variables_that_change_what_clients_print_are_taken_out_on_the_far_side():
    variables = ["SQUEUE_FORMAT=x", "SBATCH_QOS=y", "LSB_BJOBS_FORMAT=z", "KEPT=1"]
    transport = PrefixTransport(LocalTransport(), ["env", *variables])
    found = run(transport.run(["env"])).stdout
    assert "KEPT=1" in found and "LC_ALL=C" in found and "TZ=UTC" in found
    assert not any(name in found for name in ("SQUEUE", "SBATCH", "BJOBS"))


def test_a_setup_line_is_run_first():
    transport = PrefixTransport(LocalTransport(), ["env"], setup="HERE=there; export HERE")
    assert run(transport.run(["sh", "-c", "echo $HERE"])).stdout == "there\n"


def test_a_way_that_is_closed_is_no_answer():
    with pytest.raises(UnreachableError, match="got no answer") as caught:
        run(PrefixTransport(LocalTransport(), ["false"]).run(["true"]))
    assert caught.value.ran
    with pytest.raises(UnreachableError) as caught:
        run(PrefixTransport(LocalTransport(), ["/no/docker", "exec"]).run(["true"]))
    assert not caught.value.ran


# ---- ssh ------------------------------------------------------------------------------------------------------------


class Server:
    """An sshd with its own keys and configuration, on a port of its own."""

    def __init__(self, path):
        self.path = path
        for name in ("host", "user", "stranger"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", f"{path}/{name}"], check=True)
        shutil.copy(path / "user.pub", path / "authorized")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        (path / "config").write_text(
            f"Port {self.port}\nListenAddress 127.0.0.1\nHostKey {path}/host\nPidFile none\nUsePAM no\n"
            f"AuthorizedKeysFile {path}/authorized\nStrictModes no\nPasswordAuthentication no\n"
            f"KbdInteractiveAuthentication no\nPermitRootLogin prohibit-password\nMaxSessions 100\n"
        )
        key = (path / "host.pub").read_text().split()
        (path / "known").write_text(f"[127.0.0.1]:{self.port} {key[0]} {key[1]}\n")
        self.process = None
        self.start()

    def start(self):
        if os.getuid() == 0:
            os.makedirs("/run/sshd", exist_ok=True)
        command = [SSHD, "-D", "-e", "-f", self.path / "config"]
        with open(self.path / "log", "ab") as log:
            self.process = subprocess.Popen(command, stderr=log, stdin=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                time.sleep(0.05)
        raise AssertionError((self.path / "log").read_text())

    def stop(self):
        self.process.terminate()
        self.process.wait(60)

    def options(self, key="user"):
        path = self.path
        words = f"-F none -p {self.port} -i {path}/{key} -o IdentitiesOnly=yes -o IdentityAgent=none"
        return (*words.split(), "-o", f"UserKnownHostsFile={path}/known")


@pytest.fixture
def server(tmp_path):
    if SSHD is None:
        pytest.skip("there is no sshd here (apt-get install openssh-server)")
    server = Server(tmp_path)
    yield server
    server.stop()


@pytest.fixture
def ssh(server):
    transport = SshTransport(f"{getpass.getuser()}@127.0.0.1", options=server.options())
    yield transport
    run(transport.close())


def test_all_commands_share_one_connection(server, ssh):
    async def test():
        await ssh.run(["true"])
        await asyncio.gather(*(ssh.run(["true"]) for _ in range(5)))

    run(test())
    assert (server.path / "log").read_text().count("Accepted publickey") == 1


def test_a_key_that_is_not_known_there_needs_a_login(server):
    async def test():
        transport = SshTransport(f"{getpass.getuser()}@127.0.0.1", options=server.options("stranger"))
        words = r"needs a login .*Permission denied.* by hand: ssh .*ControlMaster"
        with pytest.raises(UnreachableError, match=words) as caught:
            await transport.run(["true"])
        await transport.close()
        assert caught.value.login and not caught.value.ran and "BatchMode" not in str(caught.value)

    run(test())


def test_what_was_opened_by_hand_serves_the_next_manager_too():
    """All look in one place, and leave nothing else behind."""
    before = set(glob.glob("/tmp/rota-ssh-*"))
    one, other = (SshTransport("host").unreachable(Answer(255, "", "Permission denied"), ()) for _ in range(2))
    assert str(one) == str(other) and f"/tmp/rota-ssh-{os.getuid()}/%C" in str(one)
    assert set(glob.glob("/tmp/rota-ssh-*")) <= before | {f"/tmp/rota-ssh-{os.getuid()}"}


def test_a_connection_that_was_opened_by_hand_is_used(server):
    """What the message tells people to do works."""
    path = f"/tmp/rota-{os.getpid()}-master"
    host = f"{getpass.getuser()}@127.0.0.1"
    by_hand = ["ssh", *server.options(), "-o", f"ControlPath={path}", "-o", "ControlMaster=yes"]
    subprocess.run([*by_hand, "-o", "ControlPersist=yes", "-fN", host], check=True, timeout=60)

    async def test():
        transport = SshTransport(host, options=server.options("stranger"), control_path=path)
        try:
            assert (await transport.run(["echo", "in"])).stdout == "in\n"
        finally:
            await transport.close()

    run(test())


def test_a_host_that_is_not_there_has_run_nothing(server, ssh):
    server.stop()
    with pytest.raises(UnreachableError, match=r"cannot be reached.*Connection refused") as caught:
        run(ssh.run(["true"]))
    assert not caught.value.ran and not caught.value.login


def test_a_connection_that_breaks_may_have_run_the_command(server, ssh):
    async def test():
        await ssh.run(["true"])
        # the far end of the connection goes away while the command runs
        up = "p=$PPID; while [ \"$(ps -o comm= -p $p)\" != sshd ]; do p=$(ps -o ppid= -p $p | tr -d ' '); done"
        with pytest.raises(UnreachableError, match="was lost") as caught:
            await ssh.run(["sh", "-c", f"{up}; kill -9 $p; sleep 5"])
        assert caught.value.ran
        assert (await ssh.run(["echo", "again"])).stdout == "again\n"

    run(test())


def test_ssh_inside_ssh(server, ssh):
    async def test():
        host = f"{getpass.getuser()}@127.0.0.1"
        inner = SshTransport(host, over=ssh, options=server.options(), control_path=f"/tmp/rota-{os.getpid()}-%C")
        try:
            assert eval((await inner.run([*ECHO, *NASTY], "stdin")).stdout) == NASTY
            assert (await inner.run(["cat"], "through\n")).stdout == "through\n"
        finally:
            await inner.close()

    run(test())


def test_names_that_ssh_would_take_for_options_are_refused(tmp_path):
    with pytest.raises(ValueError, match="host"):
        SshTransport("-oProxyCommand=touch /tmp/x")
    os.chmod(tmp_path, 0o755)
    with pytest.raises(ValueError, match="open to others"):
        SshTransport("host", directory=str(tmp_path))
