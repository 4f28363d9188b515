"""Files of jobs on this machine: links in a directory of their own, reasons, and what is known afterwards."""

import os
import signal
from pathlib import Path

import pytest

from process.support_home import a_home


def test_in_a_directory_of_its_own_are_links_to_what_it_reads():
    with a_home() as home:
        tree = home.work / "in" / "tree"
        tree.mkdir(parents=True)
        (tree / "a").write_text("one\n")
        (home.work / "in" / "x y").write_text("two\n")
        words = ("--workdir", "unique", "--input", "in/tree", "--input", "in/x y")
        batch = home.add(*words, "--", "readlink tree 'x y'; cat tree/a 'x y'; pwd")
        assert home.settled(batch) == {"COMPLETED": 1}
        *said, own = home.rota("log", f"{batch}.1").stdout.splitlines()
        assert said == [str(tree), str(home.work / "in" / "x y"), "one", "two"]
        assert not os.path.exists(own) and (tree / "a").read_text() == "one\n"  # the link is gone, not what it led to
        assert not home.json("data")["transfers"]


def test_an_input_that_is_nowhere_or_cannot_be_read_fails_the_job_with_its_name():
    with a_home() as home:
        os.mkfifo(home.work / "pipe")
        for name, reason in (("none", "nobody has it"), ("pipe", "is neither a file nor a directory")):
            batch = home.add("--input", name, "--", "true")
            assert home.settled(batch) == {"FAILED": 1}
            assert home.job(f"{batch}.1")["reason"] == "input"
            note = home.json("explain", f"{batch}.1")["attempts"][0]["note"]
            assert str(home.work / name) in note and reason in note, note
        said = home.rota("explain", f"{batch}.1").stdout
        assert "nobody has it" in said and "no bytes of what it reads were known" in said and "of 0" not in said


def test_a_link_out_of_a_directory_is_used_where_it_is():
    with a_home() as home:
        (home.work / "tree").mkdir()
        (home.work / "tree" / "out").symlink_to("/etc/hostname")
        batch = home.add("--input", "tree", "--", "cat tree/out > copy; cmp copy /etc/hostname")
        assert home.settled(batch) == {"COMPLETED": 1}


def test_why_an_object_cannot_be_had_is_said(tmp_path):
    pytest.importorskip("boto3")
    nothing = str(tmp_path / "none")
    bare = {"AWS_EC2_METADATA_DISABLED": "true", "AWS_SHARED_CREDENTIALS_FILE": nothing, "AWS_CONFIG_FILE": nothing}
    refusing = {"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_DEFAULT_REGION": "here"}
    keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    with a_home() as home:
        home.env |= bare | refusing
        batch = home.add("--input", "s3://bucket/key", "--", "true")
        assert home.settled(batch) == {"FAILED": 1} and home.job(f"{batch}.1")["reason"] == "input"
        assert (
            "s3://bucket/key: Unable to locate credentials" in home.json("explain", f"{batch}.1")["attempts"][0]["note"]
        )
    with a_home() as home:
        home.env |= bare | refusing | keys
        batch = home.add("--input", "s3://bucket/key", "--", "true")
        said = home.until(
            lambda: "127.0.0.1:9" in (words := home.json("explain", f"{batch}.1")["reason"] or "") and words,
            what="it is said who does not answer",
        )
        assert "s3://bucket/key" in said
        assert home.counts(batch) == {"STARTING": 1} and home.job(f"{batch}.1")["attempt"] == 1
        home.rota("kill", batch)
        assert home.settled(batch) == {"ABORTED": 1}


def test_what_it_writes_is_known():
    with a_home() as home:
        batch = home.add("--array", "1-2", "--output", "out/{}.txt", "--", "mkdir -p out; echo 123 > out/{index}.txt")
        assert home.settled(batch) == {"COMPLETED": 2}
        rows = home.until(lambda: len(found := home.json("data", "list")["replicas"]) == 2 and found)
        assert [(row["path"], row["size"], row["valid"]) for row in rows] == [
            (str(home.work / "out" / f"{number}.txt"), 4, True) for number in (1, 2)
        ]


def test_what_it_has_not_written_is_said():
    with a_home() as home:
        batch = home.add("--output", "made", "--output", "not-made", "--", "touch made")
        assert home.settled(batch) == {"COMPLETED": 1}
        said = f"has not written {home.work / 'not-made'} at local"
        home.until(lambda: said in home.json("explain", f"{batch}.1")["reason"], what="it is said")
        assert home.json("data")["outputs"] == []


def test_what_was_written_is_seen_to_by_the_next_manager():
    """The store of objects is away when the job ends, and the manager dies: the output is owed still."""
    with a_home() as home:
        home.env |= {"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
        batch = home.add("--output", "s3://bucket/there/x", "--", "echo here > x")
        killed = home.add("--output", "s3://bucket/never", "--", "exit 3")
        assert home.settled(batch, killed) == {"COMPLETED": 1, "FAILED": 1}

        def owed():
            rows = home.json("data")["outputs"]
            assert all(row["job"] == f"{batch}.1" and row["outputs"] == ["s3://bucket/there/x"] for row in rows)
            return rows and "127.0.0.1:9" in rows[0]["why"] and rows[0]

        first = home.until(owed, what="it is said what is owed, and why")
        assert first["place"] == "local" and first["tries"] >= 1
        assert "not where it belongs yet: s3://bucket/there/x" in home.json("explain", f"{batch}.1")["reason"]
        assert "s3://bucket/there/x" in home.rota("data").stdout
        waits = home.add("--after", batch, "--input", "s3://bucket/there/x", "--", "true")
        home.until(lambda: f"job {batch}.1 has written it" in home.json("explain", f"{waits}.1")["reason"])
        home.kill_manager(signal.SIGKILL)
        journal = Path(home.path, "outputs.jsonl")
        journal.write_bytes(b"\xffno line\n" + journal.read_bytes() + b'{"owed":{"job"')
        home.rota("up")
        home.until(owed, what="the next manager knows it too")
        home.rota("kill", waits)


def test_what_is_written_while_no_manager_is_there_is_known_too():
    with a_home() as home:
        gate = home.gate()
        (home.work / "in").write_text("x")
        batch = home.add("--input", "in", "--output", "out", "--", f"{gate.wait}; cp in out")
        home.until(lambda: home.counts(batch).get("RUNNING") == 1)
        home.kill_manager(signal.SIGKILL)
        gate.open()
        home.until((home.work / "out").exists)
        home.rota("up")
        assert home.settled(batch) == {"COMPLETED": 1}
        home.until(lambda: [row["path"] for row in home.json("data", "list", "out")["replicas"]])
