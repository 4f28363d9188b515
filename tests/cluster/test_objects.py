"""Inputs and outputs behind s3:// addresses, on a real server."""

import os
import signal

import pytest

from process.support_home import a_home

MIB = 1 << 20


@pytest.fixture
def home(s3, monkeypatch):
    with a_home() as made:
        made.env |= s3.variables
        yield made


@pytest.fixture
def bucket(s3, monkeypatch):
    boto3 = pytest.importorskip("boto3")
    from botocore.config import Config

    for name, value in s3.variables.items():
        monkeypatch.setenv(name, value)
    config = Config(
        s3={"addressing_style": "path"},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    client = boto3.client("s3", config=config)
    client.create_bucket(Bucket="rota")
    yield client
    for row in client.list_objects_v2(Bucket="rota").get("Contents", ()):
        client.delete_object(Bucket="rota", Key=row["Key"])
    client.delete_bucket(Bucket="rota")


def test_an_object_is_brought_once_and_again_when_it_changes(home, bucket):
    data = os.urandom(3 * MIB)
    bucket.put_object(Bucket="rota", Key="in/x y.dat", Body=data)
    words = (
        "--input",
        "s3://rota/in/x y.dat",
        "--output",
        "s3://rota/out/sum.txt",
        "--",
        "sha256sum 'x y.dat' > sum.txt",
    )
    first = home.add(*words)
    assert home.settled(first) == {"COMPLETED": 1}
    assert (home.work / "x y.dat").read_bytes() == data

    def written():
        rows = bucket.list_objects_v2(Bucket="rota", Prefix="out/").get("Contents", ())
        return [row["Key"] for row in rows] == ["out/sum.txt"]

    home.until(written, what="the output is an object")
    body = bucket.get_object(Bucket="rota", Key="out/sum.txt")["Body"].read()
    assert body == (home.work / "sum.txt").read_bytes()
    assert home.settled(home.add(*words)) == {"COMPLETED": 1}
    brought = [row for row in home.json("data")["transfers"] if row["source"] == "s3"]
    assert len(brought) == 1 and brought[0]["done"] == 3 * MIB
    bucket.put_object(Bucket="rota", Key="in/x y.dat", Body=b"another")
    assert home.settled(home.add(*words)) == {"COMPLETED": 1}
    assert (home.work / "x y.dat").read_bytes() == b"another"
    places = {row["location"] for row in home.json("data", "list", "s3://rota/in/x y.dat")["replicas"]}
    assert places == {"s3", "local"}


def test_an_object_that_is_not_there_fails_the_job_with_its_name(home, bucket):
    batch = home.add("--input", "s3://rota/none", "--", "true")
    assert home.settled(batch) == {"FAILED": 1}
    assert home.job(f"{batch}.1")["reason"] == "input"
    assert "s3://rota/none is not there" in home.json("explain", f"{batch}.1")["attempts"][0]["note"]


def test_an_output_is_sent_once_the_store_is_back_by_whatever_manager_there_is(home, bucket, s3):
    gate = home.gate()
    first = home.add("--output", "s3://rota/out/late.txt", "--", f"{gate.wait}; echo new > late.txt")
    home.until(lambda: home.counts(first).get("RUNNING") == 1)
    bucket.put_object(Bucket="rota", Key="out/late.txt", Body=b"of an earlier run")
    with s3.away():
        gate.open()
        assert home.settled(first) == {"COMPLETED": 1}
        home.until(lambda: [row["why"] for row in home.json("data")["outputs"] if row["why"]], what="it is said why")
        home.kill_manager(signal.SIGKILL)
        home.rota("up")
        reader = home.add("--cwd", str(home.work), "--input", "s3://rota/out/late.txt", "--workdir", "unique",
                          "--after", first, "--", "cat late.txt")  # fmt: skip
    assert home.settled(reader, seconds=400) == {"COMPLETED": 1}
    assert home.rota("log", f"{reader}.1").stdout == "new\n", "what was there before is not what was written"
    assert bucket.get_object(Bucket="rota", Key="out/late.txt")["Body"].read() == b"new\n"
    home.until(lambda: home.json("data")["outputs"] == [])
