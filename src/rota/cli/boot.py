"""`rota up --at-boot`: the manager is started whenever this machine is, by a unit of systemd for this user."""

import os
import subprocess
import sys

from rota.manager.paths import prepare
from rota.model.errors import RefusedError

__all__ = ["at_boot", "unit_text"]

UNIT = "rota.service"


def unit_text(home: str) -> str:
    """The unit: a manager in the foreground, started again if it is killed, whose jobs go on without it."""
    return f"""\
[Unit]
Description=rota, the manager of {home}

[Service]
ExecStart={sys.executable} -m rota.manager --home {home}
Restart=on-failure
KillMode=process

[Install]
WantedBy=default.target
"""


def at_boot(home: "str | None", say: bool = True) -> str:
    """Write the unit and enable it; returns its path. RefusedError says what to do where there is no systemd."""
    place = prepare(home).home
    directory = os.path.join(os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config"), "systemd", "user")
    path = os.path.join(directory, UNIT)
    os.makedirs(directory, exist_ok=True)
    with open(f"{path}.new", "w", encoding="utf-8") as file:
        file.write(unit_text(place))
    os.replace(f"{path}.new", path)
    for command in (["systemctl", "--user", "daemon-reload"], ["systemctl", "--user", "enable", UNIT]):
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            why = error.strerror or str(error)
        else:
            why = done.stderr.strip() if done.returncode else ""
        if why:
            raise RefusedError(
                f"{path} is written, but {' '.join(command)} failed ({why}); without systemd put this line into your "
                f"crontab (crontab -e): @reboot {sys.executable} -m rota up --home {place}"
            )
    if say:
        user = os.environ.get("USER") or str(os.getuid())
        print(f"{path} is enabled: the manager is started when you log in")
        print(f"and at boot, before any login, once you have run: loginctl enable-linger {user}")
    return path
