"""Files that go from one place to another: whole and verified, or not at all."""

import hashlib
import io
import json
import os
import threading

import pytest

from rota.runner import staging
from rota.runner.staging import StagingError

IDENT = "0123456789abcdef"


def sent(path, offset=0):
    out = io.BytesIO()
    staging.send(str(path), offset, out)
    return out.getvalue()


def arrived(data, path, offset=0, most=None):
    return staging.receive(str(path), IDENT, offset, io.BytesIO(data), most)


@pytest.fixture
def places(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    return tmp_path / "a", tmp_path / "b"


def parts(directory):
    return [name for name in os.listdir(directory) if name.startswith(staging.PART)]


def test_a_file_arrives_with_its_bytes_its_mode_and_its_time(places):
    a, b = places
    (a / "x").write_bytes(os.urandom(3_000_000))
    (a / "x").chmod(0o750)
    found = arrived(sent(a / "x"), b / "deep" / "x")
    new, old = b / "deep" / "x", a / "x"
    assert new.read_bytes() == old.read_bytes() and new.stat().st_mode & 0o777 == 0o750
    assert (found["size"], found["mtime"]) == (3_000_000, old.stat().st_mtime_ns) == (3_000_000, new.stat().st_mtime_ns)
    assert not parts(b / "deep")
    plain = hashlib.sha256(old.read_bytes()).hexdigest()
    assert found["sha256"] == staging.checksum(str(new)) == staging.checksum(str(old)) == plain


def test_a_whole_tree_arrives_with_links_inside_it(places):
    a, b = places
    (a / "t" / "sub").mkdir(parents=True)
    (a / "t" / "sub" / "x y").write_text("one")
    (a / "t" / "empty").mkdir()
    (a / "t" / "l").symlink_to("sub/x y")
    (a / "t" / "absolute").symlink_to(a / "t" / "sub")
    found = arrived(sent(a / "t"), b / "t")
    seen = staging.look([str(a / "t"), str(b / "t")])
    assert seen[str(a / "t")] == seen[str(b / "t")]  # else it would be brought again
    assert (b / "t" / "l").read_text() == "one" and (b / "t" / "empty").is_dir()
    assert os.path.realpath(b / "t" / "absolute") == str(b / "t" / "sub")
    assert staging.checksum(str(a / "t")) == staging.checksum(str(b / "t")) == found["sha256"]
    (b / "t" / "sub" / "x y").rename(b / "t" / "sub" / "z")
    assert staging.checksum(str(b / "t")) != found["sha256"], "the same bytes under another name"


def test_a_link_out_of_the_directory_is_refused_by_name(places):
    a, b = places
    (a / "t").mkdir()
    (a / "secret").write_text("s")
    (a / "t" / "out").symlink_to("../secret")
    with pytest.raises(StagingError, match=r"t/out is a link out of the directory, to \.\./secret") as error:
        arrived(sent(a / "t"), b / "t")
    assert error.value.code == "bad" and not os.listdir(b)


@pytest.mark.parametrize("inner", ["../x", "/etc/x", "sub/../../x"])
def test_a_list_that_leads_out_of_the_directory_is_refused(places, inner):
    _, b = places
    top = {"path": "", "kind": "dir", "size": 0, "mode": 0o755, "mtime": 1}
    row = {"path": inner, "kind": "file", "size": 1, "mode": 0o644, "mtime": 1}
    data = json.dumps({"rows": [top, row], "size": 1}).encode() + b"\nx" + b'{"sha256": ""}\n'
    with pytest.raises(StagingError, match="leads out of the directory"):
        arrived(data, b / "t")
    assert not os.listdir(b)


@pytest.mark.parametrize("target", ["/etc", "..", "sub/../../x"])
def test_a_link_that_is_sent_and_leads_out_is_not_made(places, target):
    _, b = places
    top = {"path": "", "kind": "dir", "size": 0, "mode": 0o755, "mtime": 1}
    link = {"path": "l", "kind": "link", "size": 0, "mode": 0, "mtime": 1, "link": target}
    through = {"path": "l/x", "kind": "file", "size": 1, "mode": 0o644, "mtime": 1}
    data = json.dumps({"rows": [top, link, through], "size": 1}).encode() + b"\nx" + b'{"sha256": ""}\n'
    with pytest.raises(StagingError, match="'l' leads out of the directory"):
        arrived(data, b / "t")
    assert not os.listdir(b)


def test_what_is_cut_is_not_used_and_goes_on_where_it_was(places):
    a, b = places
    (a / "x").write_bytes(os.urandom(5_000_000))
    data = sent(a / "x")
    with pytest.raises(StagingError, match="the connection was cut") as error:
        arrived(data[:3_000_000], b / "x")
    assert error.value.code == "cut" and not (b / "x").exists()
    have = staging.received(str(b / "x"), IDENT)
    assert 2_000_000 < have < 3_000_000
    rest = sent(a / "x", have)
    assert len(rest) < len(data) - have + 200
    arrived(rest, b / "x", have)
    assert (b / "x").read_bytes() == (a / "x").read_bytes() and not parts(b)


def test_what_is_given_up_leaves_nothing(places):
    a, b = places
    (a / "x").write_bytes(os.urandom(2_000_000))
    with pytest.raises(StagingError):
        arrived(sent(a / "x")[:1_500_000], b / "x")
    assert parts(b)
    staging.discard(str(b / "x"), IDENT)
    assert not os.listdir(b)


@pytest.mark.parametrize("kind", ["file", "tree"])
def test_a_process_that_nobody_waits_for_any_more_is_not_written_over(places, kind):
    a, b = places
    if kind == "tree":
        (a / "x").mkdir()
    content = os.urandom(3_000_000)
    (a / "x" / "f" if kind == "tree" else a / "x").write_bytes(content)
    data = sent(a / "x")
    read, write = os.pipe()
    with open(read, "rb") as source, open(write, "wb") as sender:
        orphan = threading.Thread(target=staging.receive, args=(str(b / "x"), IDENT, 0, source))
        orphan.start()
        sender.write(data[:2_000_000])  # returns when most of that is taken
        with pytest.raises(StagingError, match="still being written") as error:
            arrived(data, b / "x")
        assert error.value.code == "cut"
        with pytest.raises(StagingError, match="still being written"):
            staging.discard(str(b / "x"), IDENT)
        sender.write(data[2_000_000:])
        sender.flush()
        orphan.join()
    arrived(data, b / "x")  # and once more, over what is there
    assert (b / "x" / "f" if kind == "tree" else b / "x").read_bytes() == content
    assert os.listdir(b) == ["x"]


def test_one_wrong_byte_is_seen(places):
    a, b = places
    (a / "x").write_bytes(b"0" * 100_000)
    data = bytearray(sent(a / "x"))
    data[50_000] ^= 1
    with pytest.raises(StagingError, match="another digest"):
        arrived(bytes(data), b / "x")
    assert not os.listdir(b)


def test_a_file_that_changes_while_it_is_copied_is_given_up(places):
    a, b = places
    (a / "x").write_bytes(b"0" * (4 << 20))
    read, write = os.pipe()
    source = os.fdopen(write, "wb")

    def send():
        with source:
            staging.send(str(a / "x"), 0, source)

    sender = threading.Thread(target=send)
    sender.start()
    with os.fdopen(read, "rb") as pipe:
        head = pipe.readline()
        with open(a / "x", "r+b") as file:  # it waits for us: a pipe takes little
            file.truncate(1 << 20)
        rest = pipe.read()
    sender.join()
    with pytest.raises(StagingError, match="changed while it was copied") as error:
        arrived(head + rest, b / "x")
    assert error.value.code == "changed" and not os.listdir(b)


def test_what_is_not_there_is_gone(places):
    a, b = places
    with pytest.raises(StagingError, match="x is not there any more") as error:
        arrived(sent(a / "x"), b / "x")
    assert error.value.code == "gone" and not os.listdir(b)


def test_room_is_looked_for_before_the_first_byte(places):
    a, b = places
    (a / "x").write_bytes(b"0" * 10_000)
    with pytest.raises(StagingError, match="10000 bytes are needed, 9000 are left") as error:
        arrived(sent(a / "x"), b / "x", most=9000)
    assert error.value.code == "full" and not os.listdir(b)


def test_only_what_was_brought_and_is_unchanged_is_removed(places):
    a, _ = places
    (a / "x").write_text("one")
    seen = staging.look([str(a / "x"), str(a / "no")])
    assert list(seen) == [str(a / "x")]
    info = seen[str(a / "x")]
    (a / "x").write_text("other")
    assert not staging.remove(str(a / "x"), info["size"], info["mtime"]) and (a / "x").exists()
    info = staging.look([str(a / "x")])[str(a / "x")]
    assert staging.remove(str(a / "x"), info["size"], info["mtime"]) and not (a / "x").exists()


def test_patterns_match_and_links_do_not_cover_files(places):
    a, b = places
    for name in ("x1", "x2", "y"):
        (a / name).write_text(name)
    assert staging.match([str(a / "x*"), str(a / "no")]) == {
        str(a / "x*"): [str(a / "x1"), str(a / "x2")], str(a / "no"): [],
    }  # fmt: skip
    staging.link(str(b / "x1"), str(a / "x1"))
    staging.link(str(b / "x1"), str(a / "x2"))
    assert (b / "x1").read_text() == "x2"
    with pytest.raises(StagingError, match="is another file"):
        staging.link(str(a / "y"), str(a / "x1"))
