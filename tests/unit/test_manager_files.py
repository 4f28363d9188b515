"""The manager's home, its lock, its start in the background, and what file system it is on."""

import errno
import json
import os
import signal
import stat
import subprocess
import sys
import time

import pytest

from rota.manager import daemon, filesystem, lock, paths
from rota.manager.lock import AlreadyRunningError, Lock, announce, start_ticks
from rota.manager.paths import Paths, prepare
from rota.model.errors import DeniedError, NoSpaceError, NotFoundError, RefusedError, RotaError
from rota.wire.client import read_notice


@pytest.fixture
def home(tmp_path):
    return str(tmp_path / "h")


# paths


def test_prepare_makes_everything_private(home):
    made = prepare(home)
    for directory in (made.home, made.output, made.tls, made.tokens):
        assert stat.S_IMODE(os.stat(directory).st_mode) == 0o700
    assert sorted(os.listdir(home)) == ["output", "private", "tls", "tokens"]
    prepare(home)


def test_the_names_are_those_of_the_design(home):
    names = Paths(home)
    files = [names.config, names.pid, names.log, names.socket, names.notice, names.database, names.output, names.tls]
    assert [os.path.basename(file) for file in files] == [
        "config.toml", "manager.pid", "manager.log", "manager.sock", "manager.json", "rota.db", "output", "tls",
    ]  # fmt: skip
    assert all(os.path.dirname(file) == home for file in files)


def test_the_default_home(monkeypatch):
    monkeypatch.setenv("ROTA_HOME", "/some/where")
    assert Paths().home == "/some/where"
    monkeypatch.delenv("ROTA_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert Paths().home == "/home/me/.rota"


@pytest.mark.parametrize("directory", ["", "output", "tokens"])
def test_what_others_can_enter_is_refused_not_repaired(home, directory):
    prepare(home)
    os.chmod(os.path.join(home, directory), 0o750)
    with pytest.raises(DeniedError, match="chmod 700"):
        prepare(home)
    assert stat.S_IMODE(os.stat(os.path.join(home, directory)).st_mode) == 0o750


def test_links_and_files_are_refused(home, tmp_path):
    real = prepare(str(tmp_path / "real"))
    os.symlink(real.home, home)
    with pytest.raises(DeniedError, match="symbolic link"):
        prepare(home)
    os.unlink(home)
    with open(home, "w"):
        pass
    with pytest.raises(DeniedError, match="not a directory"):
        prepare(home)
    with pytest.raises(RotaError):
        prepare(os.path.join(home, "below", "a", "file"))


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to give a directory away")
def test_somebody_elses_home_is_refused(home):
    prepare(home)
    os.chown(home, 65534, 65534)
    with pytest.raises(DeniedError, match="65534"):
        prepare(home)


@pytest.mark.parametrize(
    ("number", "kind", "word"),
    [
        (errno.ENOSPC, NoSpaceError, "no space"),
        (errno.EDQUOT, NoSpaceError, "no space"),
        (errno.EROFS, DeniedError, "read-only"),
        (errno.EACCES, DeniedError, "cannot be written"),
        (errno.ENOENT, NotFoundError, "ROTA_HOME"),
        (errno.EIO, RotaError, "cannot use"),
    ],
)
def test_what_the_disk_says_is_explained(home, monkeypatch, number, kind, word):
    def fail(path, data):
        raise OSError(number, os.strerror(number), path)

    monkeypatch.setattr(paths, "write_private", fail)
    with pytest.raises(kind, match=word):
        prepare(home)
    assert sorted(os.listdir(home)) == ["output", "private", "tls", "tokens"]


# lock

HOLD = """
import sys, time
from rota.manager.paths import Paths
from rota.manager.lock import Lock, announce
held = Lock(Paths(sys.argv[1]))
announce(held)
print("held", flush=True)
sys.stdin.read()
held.release()
"""


@pytest.fixture
def holder(home):
    prepare(home)
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, home], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def test_a_second_manager_is_refused_by_name(home, holder):
    with pytest.raises(AlreadyRunningError) as caught:
        Lock(Paths(home))
    assert caught.value.pid == holder.pid
    assert str(caught.value).startswith(
        f"rota manager already runs on {os.uname().nodename} as pid {holder.pid} since 2"
    )
    assert read_notice(home)["pid"] == holder.pid


def test_the_lock_of_a_killed_manager_is_taken_over_at_once(home, holder):
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    with Lock(Paths(home)) as mine:
        assert mine.refresh()
        assert not mine.weak


def test_the_lock_of_a_stopped_manager_is_free(home, holder):
    holder.communicate("")
    assert os.path.getsize(Paths(home).lock) == 0
    with Lock(Paths(home), host="another-host"):
        pass


def test_a_stopped_process_still_holds(home, holder):
    holder.send_signal(signal.SIGSTOP)
    with pytest.raises(AlreadyRunningError):
        Lock(Paths(home))
    holder.send_signal(signal.SIGCONT)


def abandoned(home, **words):
    """The lock file that a manager left behind without releasing it."""
    names = prepare(home)
    held = Lock(names)
    left = held.words | words
    os.close(held._fd)
    with open(names.lock, "w") as file:
        json.dump(left, file)
    return names


def test_another_host_is_honoured_while_its_heart_beats(home):
    names = abandoned(home, host="login2")
    with pytest.raises(AlreadyRunningError, match="login2"):
        Lock(names)
    old = time.time() - lock.FRESH_S - 1
    os.utime(names.lock, (old, old))
    with Lock(names):
        pass


def test_after_a_reboot_it_is_taken_over(home):
    with Lock(abandoned(home, boot="another", pid=1, start=start_ticks(1))):
        pass


def test_who_was_taken_over_learns_it(home):
    names = prepare(home)
    held = Lock(names)
    assert held.refresh()
    with open(names.lock, "w") as file:
        json.dump(held.words | {"host": "login2", "key": "x"}, file)
    assert not held.refresh()
    held.release()
    assert os.path.getsize(names.lock) > 0  # not ours any more: left alone


def test_a_replaced_lock_file_is_noticed(home):
    names = prepare(home)
    held = Lock(names)
    os.unlink(names.lock)
    with Lock(names):
        assert not held.refresh()
        held.release()
        with pytest.raises(AlreadyRunningError):
            Lock(names)


def test_refresh_renews_the_time(home):
    names = prepare(home)
    with Lock(names) as held:
        os.utime(names.lock, (1, 1))
        assert held.refresh()
        assert os.stat(names.lock).st_mtime > 1_000_000_000


def test_without_locks_the_words_protect(home, monkeypatch):
    names = prepare(home)

    def no_locks(fd, how):
        raise OSError(errno.ENOSYS, "no locks")

    monkeypatch.setattr(lock.fcntl, "flock", no_locks)
    monkeypatch.setattr(lock, "_SETTLE_S", 0.01)
    with Lock(names) as held:
        assert held.weak
        with pytest.raises(AlreadyRunningError):
            Lock(names)
    with Lock(abandoned(home, pid=2**22 - 1)):  # its process is gone
        pass


def test_garbage_in_the_lock_file_does_not_stop_anybody(home):
    names = prepare(home)
    for text in (b"\xff\xfe", b"[1]", b"{", b""):
        with open(names.lock, "wb") as file:
            file.write(text)
        with Lock(names) as held:
            assert held.refresh()


def test_the_announcement_is_private_and_whole(home):
    names = prepare(home)
    with Lock(names) as held:
        announce(held, address="10.0.0.1", port=4711)
    notice = read_notice(home)
    assert (notice["host"], notice["pid"], notice["port"]) == (os.uname().nodename, os.getpid(), 4711)
    assert stat.S_IMODE(os.stat(names.notice).st_mode) == 0o600
    with open(names.pid) as file:
        assert int(file.read()) == os.getpid()


# daemon

FAKE = """
import argparse, os, sys, time
parser = argparse.ArgumentParser()
parser.add_argument("--home"); parser.add_argument("--ready-fd", type=int); parser.add_argument("--how")
args = parser.parse_args()
from rota.manager.daemon import say_failed, say_ready
from rota.manager.lock import Lock
from rota.manager.paths import Paths
from rota.model.errors import RefusedError
if args.how == "die":
    sys.exit("the roof is on fire")
if args.how == "sleep":
    time.sleep(30)
if args.how == "refuse":
    say_failed(args.ready_fd, RefusedError("not today")); sys.exit(1)
import asyncio
from rota.wire.server import Server
class Handler:
    def on_client(self, peer, message): peer.send({"t": "welcome", "version": 1, "manager": {"pid": os.getpid()}})
    def on_ask(self, peer, ask_id, op, body): peer.answer(ask_id, {})
    def on_runner(self, peer, message): pass
    def on_gone(self, peer): pass
    def token_for(self, allocation): return None
async def main():
    server = Server(Handler())
    await server.listen_unix(args.home)
    say_ready(args.ready_fd)
    await asyncio.sleep(60)
try:
    held = Lock(Paths(args.home))
except Exception as error:
    say_failed(args.ready_fd, error); sys.exit(1)
time.sleep(0.1)
asyncio.run(main())
"""


@pytest.fixture
def fake(tmp_path, monkeypatch):
    (tmp_path / "fake_rota_manager.py").write_text(FAKE)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([".", *sys.path]))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(daemon, "_MODULE", "fake_rota_manager")


def test_start_and_stop(home, fake):
    pid = daemon.start(home)
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        assert int(fields[1]) != os.getpid()  # not our child: nothing to reap
        assert int(fields[3]) != os.getsid(0)
        assert os.readlink(f"/proc/{pid}/fd/0") == "/dev/null"
        assert os.readlink(f"/proc/{pid}/fd/1") == Paths(home).log
        assert os.readlink(f"/proc/{pid}/cwd") == "/"
        assert daemon.start(home) == pid  # the second finds the first
        assert not daemon.stop(pid, start=1) or start_ticks(pid)  # another process with this pid: left alone
        assert start_ticks(pid)
    finally:
        assert daemon.stop(pid)
    assert start_ticks(pid) is None
    assert daemon.stop(pid)


def test_two_starts_at_once_give_one_manager(home, fake):
    code = "import sys; from rota.manager import daemon; daemon._MODULE = 'fake_rota_manager'; "
    code += "print(daemon.start(sys.argv[1]))"
    starts = [subprocess.Popen([sys.executable, "-c", code, home], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    pids = {int(process.communicate(timeout=60)[0]) for process in starts}
    assert len(pids) == 1
    assert daemon.stop(pids.pop())


@pytest.mark.parametrize(
    ("how", "kind", "text"), [("die", RotaError, "roof is on fire"), ("refuse", RefusedError, "not today")]
)
def test_why_a_manager_did_not_start_is_told(home, fake, how, kind, text):
    with pytest.raises(kind, match=text):
        daemon.start(home, ["--how", how])


def test_a_manager_that_does_not_get_ready(home, fake):
    with pytest.raises(RotaError, match=r"pid \d+\) does not serve") as caught:
        daemon.start(home, ["--how", "sleep"], timeout_s=3)
    assert daemon.stop(int(str(caught.value).split("pid ")[1].split(")")[0]))


@pytest.mark.parametrize("pid", [-1, 0, 1])
def test_never_stops_what_cannot_be_a_manager(pid):
    with pytest.raises(RefusedError):
        daemon.stop(pid)


# file systems

MOUNTS = r"""22 1 8:1 / / rw - ext4 /dev/sda1 rw
30 22 0:40 / /home rw,relatime shared:1 - nfs4 server:/home rw
31 30 0:41 / /home/my\040disk rw - xfs /dev/sdb rw
32 22 0:42 / /lustre rw master:1 shared:9 - lustre mds:/l rw
33 22 0:43 / /lustre rw - tmpfs over rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/home/me/.rota", "nfs4"), ("/home/my disk/x", "xfs"), ("/homes", "ext4"), ("/lustre/a", "tmpfs"), ("/", "ext4")],
)
def test_kind_of_file_system(tmp_path, path, kind):
    table = tmp_path / "mountinfo"
    table.write_text(MOUNTS)
    assert filesystem.kind_of(path, str(table)) == kind


def test_warning_only_for_network_file_systems(monkeypatch):
    monkeypatch.setattr(filesystem, "kind_of", lambda path: "lustre")
    assert "lustre" in filesystem.warning_for("/x")
    monkeypatch.setattr(filesystem, "kind_of", lambda path: "ext4")
    assert filesystem.warning_for("/x") is None
    monkeypatch.setattr(filesystem, "kind_of", lambda path: None)
    assert filesystem.warning_for("/x") is None
