"""`rota up --at-boot`: a unit for this user's systemd, or the line for a crontab."""

import os
from pathlib import Path

import pytest

from rota.cli.boot import at_boot
from rota.model.errors import RefusedError


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (tmp_path / "bin").mkdir()
    return tmp_path


def systemctl(place: Path, code: int) -> None:
    file = place / "bin" / "systemctl"
    file.write_text(f'#!/bin/sh\necho "$@" >> {place}/calls\necho no bus >&2\nexit {code}\n')
    file.chmod(0o755)


def test_the_unit_is_written_and_enabled(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    systemctl(place, 0)
    path = at_boot(str(place / "home"))
    text = Path(path).read_text()
    assert path == f"{place}/config/systemd/user/rota.service"
    assert f"-m rota.manager --home {place}/home" in text and "KillMode=process" in text
    assert (place / "calls").read_text() == "--user daemon-reload\n--user enable rota.service\n"
    assert "loginctl enable-linger" in capsys.readouterr().out


@pytest.mark.parametrize("there", [True, False])
def test_without_systemd_the_line_for_the_crontab_is_told(place: Path, there: bool) -> None:
    if there:
        systemctl(place, 1)
    with pytest.raises(RefusedError, match=rf"@reboot .* -m rota up --home {os.path.realpath(place)}/home"):
        at_boot(str(place / "home"))
