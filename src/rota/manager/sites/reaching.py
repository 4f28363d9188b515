"""How a runner that is started by ssh finds its way to us: the words for it, and the files that it is sent."""

import json
import posixpath
import socket

from rota.drivers.local import Door
from rota.manager.paths import Paths
from rota.wire import auth
from rota.wire.home import read_own

__all__ = ["way_here"]


def way_here(door: Door, paths: Paths, allocation: str, place: str, caller: str) -> tuple[list[str], dict[str, str]]:
    """The words that lead the runner to us, and the files that they name, by name, which it finds in `place`.

    Unless the configuration says at which address we listen, it is the one that the host sees us come from.
    """
    door.open(allocation)
    address, _, port = (getattr(door, "address", None) or "").rpartition(":")
    if address == socket.gethostname() and caller:
        address = caller
    notice = json.loads(read_own(paths.notice) or b"{}")
    notice["address"] = address
    sent = {
        "token": auth.read_token(paths.home, allocation) + "\n",
        "ca.pem": read_own(paths.ca).decode(),
        "notice": json.dumps(notice),
    }
    files = {name: posixpath.join(place, name) for name in sent}
    words = ["--connect", f"tls:{address}:{port}", "--notice", files["notice"], "--ca", files["ca.pem"]]
    return [*words, "--token-file", files["token"]], sent
