"""Streams beyond their cap: head and tail are kept, the count is exact, or says that it is not."""

import os

import pytest

from rota.runner import spill
from rota.runner.segments import Segments

CAP = 1 << 20


@pytest.fixture
def segments(tmp_path):
    return Segments(str(tmp_path / "output"))


def kept(segments, row):
    with open(os.path.join(segments.directory, row[0]), "rb") as file:
        file.seek(row[1])
        return file.read(row[2])


def write_in_parts(segments, lane, parts):
    """What was written in parts of 20 MB, each followed by a look at the size."""
    size = 20 * CAP
    written = b"".join(b"%063d\n" % line for line in range(parts * size // 64))
    for part in range(parts):
        os.write(lane.out, written[part * size : (part + 1) * size])
        segments.trim(lane, CAP)
    return written


@pytest.mark.parametrize("holes", [True, False])
def test_head_and_tail_of_what_was_trimmed_while_it_ran(segments, monkeypatch, holes):
    if not holes:
        monkeypatch.setattr(spill, "_punch", lambda fd, start, length: False)
    lane = segments.lane()
    written = write_in_parts(segments, lane, 4)
    assert os.fstat(lane.out).st_blocks * 512 <= CAP + spill.SPILL + (20 << 20)
    os.write(lane.out, b"the error\n")
    written += b"the error\n"
    row = segments.collect(lane, CAP, True, True)
    line = b"[rota: %s%d bytes left out]\n" % (b"" if holes else b"at least ", len(written) - CAP)
    assert kept(segments, row) == written[: CAP // 2] + line + written[-CAP // 2 :]
    assert row[3] == len(written) - CAP and row[4:] == [row[0], row[1] + row[2], 0, 0]
    os.write(lane.out, b"next\n")  # by the next job in this lane
    row = segments.collect(lane, CAP, True, True)
    assert kept(segments, row) == b"next\n" and row[3] == 0
    segments.release(lane, False)
    segments.close()
    assert all(name.endswith(".seg") for name in os.listdir(segments.directory))


def test_a_job_that_empties_its_own_output_begins_anew(segments):
    lane = segments.lane()
    write_in_parts(segments, lane, 2)
    os.ftruncate(lane.out, 0)
    os.write(lane.out, b"again\n")
    segments.trim(lane, CAP)
    row = segments.collect(lane, CAP, True, False)
    assert kept(segments, row) == b"again\n" and row[3] == 0


def test_who_reads_along_is_led_past_the_hole(segments):
    lane = segments.lane()
    written = write_in_parts(segments, lane, 3)
    read, at = b"", 0
    while at < len(written):
        data, at = spill.stretch(lane.out, at, 1 << 20)
        assert data
        read += data
    assert spill.stretch(lane.out, at, 100) == (b"", at)
    head, line, tail = read.partition(b"\n[rota: ")
    assert line and CAP // 2 <= len(head) <= CAP and written.startswith(head)
    count, _, tail = tail.partition(b" bytes left out]\n")
    assert written.endswith(tail) and len(head) + int(count) + len(tail) == len(written)
    assert spill.stretch(lane.out, -16, 100) == (written[-16:], len(written))
