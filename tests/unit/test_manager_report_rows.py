"""Reports as the core takes them, over the wire or from a file."""

import pytest

from rota.core.stimuli import Ended
from rota.manager.performing import report_rows

ROW = [7, 1, 1, 0, None, None, 1.0, 2.0, 0.5, 4096]
PLACE = ["seg", 0, 5, 0, None, 0, 0, 0]


@pytest.mark.parametrize(("more", "disk"), [([], None), ([None], None), ([512], 512)])
def test_a_row_may_end_before_the_disk_that_was_used(more: list[int | None], disk: int | None) -> None:
    """A direct job's file has it only where the disk was measured."""
    (row,) = report_rows([[*ROW, PLACE, "note", *more]], "/out")
    assert row == Ended(*ROW, '["/out","seg",0,5,0,null,0,0,0]', "note", disk)  # type: ignore[arg-type]
