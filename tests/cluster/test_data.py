"""Files and jobs over hosts that share nothing: jobs go to their files, or files to their jobs, whole or not at all."""

import contextlib
import hashlib
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from bench import locality

from cluster.test_farm import FARM, configure
from process.support_home import a_home

MIB = 1 << 20


@pytest.fixture
def home(farm):
    with a_home() as made:
        configure(made, farm)
        try:
            yield made
        finally:
            made.rota("down", "--kill", code=None)


def make(farm, host, name, size):
    """A file on a host; its path."""
    farm.on(host, f"mkdir -p {farm.disk}/d; head -c {size} /dev/urandom > {farm.disk}/d/{name}")
    return f"{farm.disk}/d/{name}"


def digest(farm, host, path):
    return farm.on(host, f"sha256sum {path}").stdout.split()[0]


def add(home, *words):
    return home.add("--on", "farm", "--cwd", "/tmp", *words)


def at(home, path):
    rows = home.json("data", "list", path)["replicas"]
    return {row["location"]: row for row in rows}


def moved(home):
    return sum(row["bytes"] for row in home.json("data")["moved"])


def left(farm):
    """What lies on the hosts of transfers that did not go on."""
    return "".join(farm.on(name, f"find {farm.disk} -name '.rota-part-*'").stdout for name in farm.names)


def test_a_job_goes_to_the_host_that_has_its_file_and_nothing_is_moved(farm, home):
    paths = {name: make(farm, name, f"of-{name}", 2 * MIB) for name in farm.names}
    home.settled(add(home, "--partition", farm.names[0], "--", "true"))  # one runner is there already
    batches = {
        name: add(home, "--input", path, "--policy", "data_locality", "--", f"hostname; sha256sum {path}")
        for name, path in paths.items()
    }
    for name, batch in batches.items():
        assert home.settled(batch) == {"COMPLETED": 1}
        assert home.rota("log", f"{batch}.1").stdout.split()[:2] == [name, digest(farm, name, paths[name])]
        told = home.json("explain", f"{batch}.1")["data"]
        assert told["places"][0] == {"place": f"farm/{name}", "bytes": 2 * MIB}
        why = "the policy data_locality chose it: 2M of 2M were there"
        assert told["chosen"] == {"place": f"farm/{name}", "why": why}
    assert moved(home) == 0
    row = at(home, paths[farm.names[0]])[f"farm/{farm.names[0]}"]
    assert (row["size"], row["valid"], row["checksum"]) == (2 * MIB, True, None)


def test_a_tree_is_brought_once_and_outputs_are_known(farm, home):
    source, target = farm.names[:2]
    tree = f"{farm.disk}/d/tree"
    farm.on(source, f"mkdir -p {tree}/sub; echo one > {tree}/sub/a; ln -s sub/a {tree}/l")
    words = ("--input", tree, "--output", f"{farm.disk}/out/*.txt", "--partition", target)
    batch = add(
        home, "--array", "1-3", *words, "--", f"mkdir -p {farm.disk}/out; cat {tree}/l > {farm.disk}/out/{{}}.txt"
    )
    assert home.settled(batch) == {"COMPLETED": 3}
    assert len([row for row in home.json("data")["transfers"] if row["path"] == tree]) == 1
    home.until(lambda: len(at(home, f"{farm.disk}/out")) == 1 and len(home.json("data", "list")["replicas"]) == 5)
    rows = home.json("data", "list", f"{farm.disk}/out")["replicas"]
    assert {(row["path"], row["location"], row["size"]) for row in rows} == {
        (f"{farm.disk}/out/{n}.txt", f"farm/{target}", 4) for n in (1, 2, 3)
    }
    here = home.add("--on", "farm", "--cwd", "/tmp", "--partition", source, "--input", f"{farm.disk}/out/2.txt", "--",
                    f"cat {farm.disk}/out/2.txt")  # fmt: skip
    assert home.settled(here) == {"COMPLETED": 1} and home.rota("log", f"{here}.1").stdout == "one\n"
    home.rota("data", "verify")  # what was brought has the digest that it was brought with
    assert {row["valid"] for row in home.json("data", "list")["replicas"]} == {True}


def test_many_files_at_once_from_here_to_a_host_and_from_hosts_to_here(farm):
    """What is below `disk` here is seen on no host."""
    here, (first, second) = Path(farm.disk) / "here", farm.names[:2]
    with a_home() as home:
        configure(home, farm, more="[site.local]")
        try:
            here.mkdir()
            for number in range(20):
                (here / f"f{number}").write_bytes(os.urandom(1000 * number))
            there = ("--input", f"{here}/f*", "--partition", first, "--on", "farm", "--cwd", "/tmp")
            batch = home.add(*there, "--", f"cat {here}/f* | sha256sum")
            assert home.settled(batch) == {"COMPLETED": 1}
            whole = b"".join(path.read_bytes() for path in sorted(here.iterdir()))
            assert home.rota("log", f"{batch}.1").stdout.split()[0] == hashlib.sha256(whole).hexdigest()
            farm.on(second, f"mkdir -p {farm.disk}/d/tree; seq 1000 > {farm.disk}/d/tree/a; seq 9 > {farm.disk}/d/one")
            words = ("--input", f"{farm.disk}/d/tree", "--input", f"{farm.disk}/d/one", "--on", "local")
            back = home.add(*words, "--", f"cat {farm.disk}/d/tree/a {farm.disk}/d/one | wc -l")
            assert home.settled(back) == {"COMPLETED": 1} and home.rota("log", f"{back}.1").stdout == "1009\n"
            home.rota("data", "verify")
            assert left(farm) == "" and not list(Path(farm.disk).rglob(".rota-part-*"))
        finally:
            home.rota("down", "--kill", code=None)
            shutil.rmtree(here, ignore_errors=True)
            shutil.rmtree(Path(farm.disk) / "d", ignore_errors=True)


def test_a_connection_cut_in_mid_transfer_goes_on_and_nothing_is_left_behind(farm, home):
    source, target = farm.names[:2]
    path = make(farm, source, "long", 24 * MIB)
    limit = ["ip", "netns", "exec", source, "tc", "qdisc", "add", "dev", "eth0", "root", "tbf"]
    subprocess.run([*limit, "rate", "8mbit", "burst", "64k", "latency", "400ms"], check=True)
    try:
        batch = add(home, "--input", path, "--partition", target, "--", f"sha256sum {path}")

        def half():
            rows = [row for row in home.json("data")["transfers"] if row["state"] == "running"]
            return any(2 * MIB < row["done"] < 20 * MIB for row in rows)

        home.until(half, what="some of it has arrived")
        explained = home.json("explain", f"{batch}.1")
        assert explained["state"] == "STARTING" and " brought to " in explained["reason"]
        senders = [pid for pid in farm.processes(source) if '"what": "send"' in farm.command(pid)]
        assert senders
        for pid in senders:
            subprocess.run(["kill", "-9", str(pid)])
    finally:
        subprocess.run(["ip", "netns", "exec", source, "tc", "qdisc", "del", "dev", "eth0", "root"])
    assert home.settled(batch) == {"COMPLETED": 1}
    assert home.rota("log", f"{batch}.1").stdout.split()[0] == digest(farm, source, path)
    (row,) = [row for row in home.json("data")["transfers"] if row["path"] == path]
    assert row["tries"] == 2 and row["state"] == "done" and "cut" in row["why"]
    assert left(farm) == ""


def test_a_full_disk_is_named_and_the_job_goes_elsewhere(farm, home):
    first, second = farm.names[:2]
    heavy, light = make(farm, second, "heavy", 24 * MIB), make(farm, first, "light", 16 * MIB)
    farm.on(second, f"head -c {26 * MIB} /dev/zero > {farm.disk}/filler")  # of 64 MiB
    words = ("--input", heavy, "--input", light, "--policy", "data_locality")
    batch = add(home, *words, "--", f"hostname; cat {heavy} {light} | wc -c")
    assert home.settled(batch) == {"COMPLETED": 1}
    host, size = home.rota("log", f"{batch}.1").stdout.split()
    assert host != second and int(size) == 40 * MIB
    lost = [row for row in home.rows("history", batch) if row["state"] == "LOST"]
    assert [(row["host"], row["reason"]) for row in lost] == [(second, "staging")]
    assert f"farm/{second}" in lost[0]["note"] and "bytes free" in lost[0]["note"]
    assert left(farm) == ""


def test_a_source_that_is_gone_or_has_changed_is_never_mistaken(farm, home):
    source, target = farm.names[:2]
    path = make(farm, source, "x", MIB)
    words = ("--input", path, "--partition", target, "--", f"sha256sum {path}")
    assert home.settled(add(home, *words)) == {"COMPLETED": 1}
    make(farm, source, "x", 2 * MIB)  # another, under the same name
    changed = add(home, *words)
    assert home.settled(changed) == {"COMPLETED": 1}
    assert home.rota("log", f"{changed}.1").stdout.split()[0] == digest(farm, source, path)
    farm.on(source, f"rm {path}")
    farm.on(target, f"rm {path}")
    gone = add(home, *words)
    assert home.settled(gone) == {"FAILED": 1}
    job = home.job(f"{gone}.1")
    assert job["reason"] == "input" and job["attempt"] == 1
    assert f"no replica of {path} can be had" in home.json("explain", f"{gone}.1")["attempts"][0]["note"]
    assert not any(row["valid"] for row in at(home, path).values())


def test_a_cache_forgets_what_was_used_longest_ago(farm):
    source, target = farm.names[:2]
    paths = [make(farm, source, f"c{n}", 4 * MIB) for n in range(3)]
    with a_home() as home:
        configure(home, farm, more='cache = "9M"')
        try:
            for path in (paths[0], paths[1], paths[0], paths[2]):
                words = ("--input", path, "--partition", target, "--", f"sha256sum {path}")
                assert home.settled(add(home, *words)) == {"COMPLETED": 1}
            here = [path for path in paths if f"farm/{target}" in at(home, path)]
            assert here == [paths[0], paths[2]]
            assert farm.on(target, f"ls {farm.disk}/d").stdout.split() == ["c0", "c2"]
            (cache,) = [row for row in home.json("data")["caches"] if row["place"] == f"farm/{target}"]
            assert cache["bytes"] == 8 * MIB and cache["most"] == 9 * MIB
            refused = add(home, "--input", make(farm, source, "huge", 12 * MIB), "--partition", target, "--", "true")
            home.until(lambda: home.rows("history", refused))
            assert "are more than its cache may have, 9M" in home.rows("history", refused)[0]["note"]
            home.rota("kill", refused)
        finally:
            home.rota("down", "--kill", code=None)


def test_a_cache_never_takes_what_a_job_uses(farm):
    source, target = farm.names[:2]
    paths = [make(farm, source, f"c{n}", 4 * MIB) for n in range(3)]
    with a_home() as home:
        configure(home, farm, more='cache = "9M"')
        try:
            wanted = digest(farm, source, paths[0])
            uses = f"until [ -e {farm.disk}/go ]; do sleep 0.1; done; sha256sum {paths[0]}"
            running = add(home, "--input", paths[0], "--partition", target, "--", uses)
            home.until(lambda: home.counts(running).get("RUNNING") == 1)
            for path in paths[1:]:
                words = ("--input", path, "--partition", target, "--", f"sha256sum {path}")
                assert home.settled(add(home, *words)) == {"COMPLETED": 1}
            assert farm.on(target, f"ls {farm.disk}/d").stdout.split() == ["c0", "c2"], "the oldest is in use"
            refused = home.rota("data", "drop", paths[0], "--at", f"farm/{target}", "--files", code=None)
            assert refused.returncode and "is used by a job that runs" in refused.stderr
            farm.on(target, f"touch {farm.disk}/go")
            assert home.settled(running) == {"COMPLETED": 1}
            assert home.rota("log", f"{running}.1").stdout.split()[0] == wanted
        finally:
            home.rota("down", "--kill", code=None)


def test_rota_data_says_what_is_valid(farm, home):
    host = farm.names[0]
    path = make(farm, host, "v", 1000)
    home.rota("up")
    home.until(lambda: home.rota("data", "add", path, "--at", f"farm/{host}", "--checksum", code=None).returncode == 0)
    row = home.json("data", "list", path)["replicas"][0]
    assert {"path", "location", "size", "checksum", "valid"} <= row.keys()
    assert (row["location"], row["size"], row["valid"]) == (f"farm/{host}", 1000, True) and len(row["checksum"]) == 64
    assert home.rota("data", "verify", path).returncode == 0
    farm.on(host, f"printf X | dd of={path} bs=1 conv=notrunc 2>/dev/null")
    home.rota("data", "verify", path, code=1)
    assert "digest" in at(home, path)[f"farm/{host}"]["why"]
    home.rota("data", "drop", path)
    assert at(home, path) == {}
    assert "is not there" in home.rota("data", "add", f"{path}.no", "--at", f"farm/{host}", code=None).stderr
    assert "there is no place 'mars'" in home.rota("data", "add", path, "--at", "mars", code=2).stderr


def slow(farm, *names):
    """Make the way from and to hosts slow; ends with the block."""
    stack = contextlib.ExitStack()
    for name in names:
        words = ["ip", "netns", "exec", name, "tc", "qdisc"]
        limit = ("rate", "16mbit", "burst", "64k", "latency", "400ms")
        subprocess.run([*words, "add", "dev", "eth0", "root", "tbf", *limit], check=True)
        stack.callback(subprocess.run, [*words, "del", "dev", "eth0", "root"], check=False)
    return stack


def under_way(home, path, least=2 * MIB):
    """Wait until some of a path has arrived somewhere; the transfer."""

    def found():
        rows = home.json("data")["transfers"]
        return [row for row in rows if row["path"] == path and row["state"] == "running" and row["done"] > least]

    return home.until(found, what=f"some of {path} has arrived")[0]


def quick(home, farm):
    """A farm where it is noticed soon that a host does not answer."""
    more = f'ssh_options = ["-F", "{farm.config}", "-o", "ServerAliveInterval=1", "-o", "ServerAliveCountMax=3"]'
    hosts = ", ".join(f'"{name} cores=2"' for name in farm.names)
    text = FARM.format(hosts=hosts, config=farm.config, disk=farm.disk, more="")
    home.config(text.replace(f'ssh_options = ["-F", "{farm.config}"]', more))
    for name in farm.names:  # connections of other tests have other words
        control = f"/tmp/rota-ssh-{os.getuid()}/%C"
        subprocess.run(
            ["ssh", *farm.ssh_options, "-o", f"ControlPath={control}", "-O", "exit", name], capture_output=True
        )


@pytest.mark.slow
def test_a_host_that_goes_away_while_files_come_is_named_and_the_job_goes_elsewhere(farm):
    source, lost, other = farm.names
    path = make(farm, source, "long", 24 * MIB)
    with a_home() as home:
        quick(home, farm)
        try:
            for name in (lost, other):
                home.settled(add(home, "--partition", name, "--", "true"))
            with slow(farm, source):
                small = make(farm, lost, "small", 25 * MIB)  # the heaviest: there it goes
                words = ("--input", path, "--input", small, "--policy", "data_locality")
                batch = add(home, *words, "--", f"hostname; sha256sum {path}")
                assert under_way(home, path)["target"] == f"farm/{lost}"
                farm.cut(lost)
            try:
                lost_rows = home.until(
                    lambda: [row for row in home.rows("history", batch) if row["state"] == "LOST"], what="given up"
                )
                assert [(row["host"], row["reason"]) for row in lost_rows] == [(lost, "staging")]
                assert lost in lost_rows[0]["note"]
            finally:
                farm.heal(lost)
            assert home.settled(batch) == {"COMPLETED": 1}
            host, told = home.rota("log", f"{batch}.1").stdout.split()[:2]
            assert host != lost and told == digest(farm, source, path)
            home.until(lambda: left(farm) == "", what="what lay there is removed")
            assert lost not in str(at(home, path))  # nothing half brought is known as a copy
        finally:
            home.rota("down", "--kill", code=None)


@pytest.mark.slow
def test_a_source_that_goes_away_is_waited_for_and_another_is_taken_if_there_is_one(farm):
    source, second, target = farm.names
    path = make(farm, source, "long", 24 * MIB)
    with a_home() as home:
        quick(home, farm)
        try:
            home.settled(add(home, "--partition", target, "--", "true"))
            with slow(farm, source):
                batch = add(home, "--input", path, "--partition", target, "--", f"sha256sum {path}")
                assert under_way(home, path)["source"] == f"farm/{source}"
                wanted = digest(farm, source, path)
                farm.cut(source)
            try:
                said = home.until(
                    lambda: source in (words := home.json("explain", f"{batch}.1")["reason"]) and words,
                    what="it is said whom the job waits for",
                )
                assert path in said and home.job(f"{batch}.1")["attempt"] == 1
            finally:
                farm.heal(source)
            assert home.settled(batch) == {"COMPLETED": 1}
            assert home.rota("log", f"{batch}.1").stdout.split()[0] == wanted
            farm.cut(source)  # now there are two replicas
            try:
                again = add(home, "--input", path, "--partition", second, "--", f"sha256sum {path}")
                assert home.settled(again) == {"COMPLETED": 1}
                assert home.rota("log", f"{again}.1").stdout.split()[0] == wanted
            finally:
                farm.heal(source)
            assert left(farm) == ""
        finally:
            home.rota("down", "--kill", code=None)


@pytest.mark.slow
def test_hosts_that_are_started_anew_while_files_come(farm, home):
    source, target, other = farm.names
    path = make(farm, source, "long", 24 * MIB)
    home.settled(add(home, "--partition", target, "--", "true"))
    with slow(farm, source):
        heavy = make(farm, target, "heavy", 25 * MIB)
        words = ("--input", path, "--input", heavy, "--policy", "data_locality")
        batch = add(home, *words, "--", f"hostname; sha256sum {path}")
        under_way(home, path)
        farm.crash(target)  # its disk is gone with it, and what it had alone too
        farm.boot(target)
        farm.wait(target)
    assert home.settled(batch) == {"FAILED": 1}
    notes = {row["attempt"]: (row["state"], row["reason"], row["note"]) for row in home.rows("history", batch)}
    assert notes[1][0] == "LOST" and target in notes[1][2], notes
    assert notes[max(notes)][:2] == ("FAILED", "input") and heavy in notes[max(notes)][2], notes
    alone = add(home, "--input", path, "--partition", other, "--", f"sha256sum {path}")
    assert home.settled(alone) == {"COMPLETED": 1}  # what is on others was not harmed
    assert left(farm) == ""


def test_a_source_that_is_changed_or_removed_while_it_is_read(farm, home):
    source, target = farm.names[:2]
    path, gone = make(farm, source, "x", 16 * MIB), make(farm, source, "y", 12 * MIB)
    home.settled(add(home, "--partition", target, "--", "true"))
    with slow(farm, source):
        first = add(home, "--input", path, "--partition", target, "--", f"sha256sum {path}")
        under_way(home, path)
        farm.on(source, f"printf X | dd of={path} bs=1 conv=notrunc 2>/dev/null")
        removed = digest(farm, source, gone)
        second = add(home, "--input", gone, "--partition", target, "--", f"sha256sum {gone}")
        under_way(home, gone)
        farm.on(source, f"rm {gone}")
    assert home.settled(first) == {"COMPLETED": 1}
    assert home.rota("log", f"{first}.1").stdout.split()[0] == digest(farm, source, path)  # as it is now
    (row,) = [row for row in home.json("data")["transfers"] if row["path"] == path]
    assert row["tries"] > 1 and "changed while it was copied" in row["why"]
    assert home.settled(second) == {"COMPLETED": 1}  # it was open, and came whole
    assert home.rota("log", f"{second}.1").stdout.split()[0] == removed
    assert left(farm) == ""


def test_a_manager_that_is_killed_in_mid_transfer_goes_on_with_it(farm, home):
    source, target = farm.names[:2]
    path = make(farm, source, "long", 24 * MIB)
    home.settled(add(home, "--partition", target, "--", "true"))
    with slow(farm, source):
        batch = add(home, "--input", path, "--partition", target, "--", f"sha256sum {path}")
        under_way(home, path)
        home.kill_manager(signal.SIGKILL)
    home.rota("up")
    assert home.settled(batch) == {"COMPLETED": 1}
    assert home.rota("log", f"{batch}.1").stdout.split()[0] == digest(farm, source, path)
    assert home.job(f"{batch}.1")["attempt"] == 1
    assert left(farm) == ""


def test_a_link_out_of_a_directory_is_not_brought(farm, home):
    source, target = farm.names[:2]
    tree = f"{farm.disk}/d/tree"
    farm.on(source, f"mkdir -p {tree}; ln -s /etc/passwd {tree}/l")
    batch = add(home, "--input", tree, "--partition", target, "--", "true")
    assert home.settled(batch) == {"FAILED": 1}
    assert home.job(f"{batch}.1")["reason"] == "input"
    note = home.rows("history", batch)[0]["note"]
    assert f"{tree}/l is a link out of the directory, to /etc/passwd" in note
    assert left(farm) == ""


@pytest.mark.slow
def test_many_jobs_go_to_their_files_and_little_is_moved(farm):
    """The bench `locality`, small: `random` moves many times as much."""
    world = locality.a_world(farm.names, files=12, jobs=36, seed=2)
    near = locality.run(farm, world, "data_locality", 0.1)
    assert near.settled == {"COMPLETED": 36}
    by_chance = locality.run(farm, world, "random", 0.1)
    assert by_chance.settled == {"COMPLETED": 36}
    assert near.moved < by_chance.moved / 2
    assert left(farm) == ""
