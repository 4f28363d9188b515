"""The databases of older versions in `tests/data`, each with what the version that made it said of it."""

import json
import lzma
from pathlib import Path
from typing import Any

DATA = Path(__file__).with_name("data")
OLD = sorted(str(path.parent.relative_to(DATA)) for path in DATA.glob("*/*/rota.db.xz"))
"""`VERSION/WAY`, as in `0.1.0/killed`."""


def unpack(old: str, home: Path) -> dict[str, Any]:
    """Put a copy of a database into a home; what was said of it."""
    (home / "rota.db").write_bytes(lzma.decompress((DATA / old / "rota.db.xz").read_bytes()))
    expected: dict[str, Any] = json.loads((DATA / old / "expected.json").read_text())
    return expected
