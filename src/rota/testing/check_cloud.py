"""The exam for providers of servers.

    from rota.testing.check_cloud import check_cloud

    def test_my_cloud():
        check_cloud(MyCloud("lab", {}), size="small", image="debian-12", network="inside")

It creates a few of the smallest servers, and destroys them, also if it fails. It needs room for three in the quota. It
says in words what is wrong.
"""

import secrets
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from rota.drivers.provider import (
    BUILDING,
    ENDING,
    FAILED,
    GONE,
    RESTARTING,
    RUNNING,
    STOPPED,
    UNKNOWN,
    Order,
    Provider,
    QuotaError,
    Server,
    Size,
    Thing,
)
from rota.model.errors import RefusedError

__all__ = ["check_cloud"]

Named = TypeVar("Named", Size, Thing)
STATES = (BUILDING, RUNNING, RESTARTING, STOPPED, FAILED, ENDING, GONE, UNKNOWN)


def check_cloud(
    provider: Provider,
    *,
    size: str | None = None,
    image: str | None = None,
    network: str | None = None,
    within_s: float = 300.0,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Raise AssertionError, with the reason, if a provider does not do what `rota.drivers.provider.Provider` says."""
    sizes, images, networks = provider.sizes(), provider.images(), provider.networks()
    _want(bool(sizes), "there are no sizes")
    _want(bool(images), "there are no images")
    for each in sizes:
        _want(each.node.cores > 0 and each.node.memory > 0, f"the size {each.name} has no cores or no memory")
    _want(len({each.name for each in sizes}) == len(sizes), "two sizes have one name")
    chosen = _pick(sizes, size, "size") if size is not None else min(sizes, key=lambda s: (s.node.cores, s.node.memory))
    nets = (_pick(networks, network, "network").id,) if network is not None else ()
    made_from = _pick(images, image, "image") if image is not None else images[0]
    provider.keys()
    provider.groups()
    owner, other = (f"rota-exam-{secrets.token_hex(4)}" for _ in range(2))
    order = Order(owner, secrets.token_hex(6), "rota-exam", chosen.id, made_from.id, nets)
    until = time.monotonic() + within_s

    def wait(what: str, holds: Callable[[], bool]) -> None:
        while not holds():
            _want(time.monotonic() < until, f"{what}: not within {within_s:g} s")
            sleep(1.0)

    try:
        _one(provider, order, chosen, owner, other, wait)
        _refusals(provider, order, owner)
    finally:
        for server in provider.servers(owner):
            provider.destroy(server.id)
    wait("all that was destroyed is gone", lambda: not _there(provider, owner))
    _keys(provider, owner)


def _one(
    provider: Provider,
    order: Order,
    size: Size,
    owner: str,
    other: str,
    wait: Callable[[str, Callable[[], bool]], None],
) -> None:
    before = provider.quota()
    made = provider.create(order)
    _want(bool(made.id), "create gives no id")
    _want((made.owner, made.tag) == (owner, order.tag), f"create says owner {made.owner} and tag {made.tag}")
    listed = provider.servers(owner)
    _want([each.id for each in listed] == [made.id], f"servers does not list what create has just made: {listed}")
    first = listed[0]
    _want(first.tag == order.tag, f"servers says the tag {first.tag!r} of one that was made with {order.tag}")
    _want(first.state in STATES, f"the state {first.state!r} is none of {STATES}")
    _want(first.size == size.name, f"servers says the size {first.size!r} of one that was made as {size.name}")
    _want(order.tag in first.name, f"the tag is not in the name {first.name}")
    _want(not provider.servers(other), "servers lists another owner's")
    wait("a server runs", lambda: _state(provider, made.id) in (RUNNING, FAILED))
    now = provider.server(made.id)
    _want(now is not None and now.state == RUNNING, f"a server that was made is {now}")
    assert now is not None
    _want(bool(now.addresses), "a server that runs has no address")
    after = provider.quota()
    _want(after.servers.used == before.servers.used + 1, "a server is not counted in the quota")
    _want(after.cores.used == before.cores.used + size.node.cores, "its cores are not counted in the quota")
    _want(isinstance(provider.console(made.id), str), "console gives no text")
    provider.destroy(made.id)
    provider.destroy(made.id)
    wait("a server that was destroyed is gone", lambda: _state(provider, made.id) in (None, GONE))
    _want(made.id not in {each.id for each in _there(provider, owner)}, "servers lists one that is gone")
    provider.destroy(made.id)
    _want(provider.server("00000000-0000-4000-8000-000000000000") is None, "server knows one that never was")
    _want(provider.quota().servers.used == before.servers.used, "a server that is gone is counted in the quota")


def _refusals(provider: Provider, order: Order, owner: str) -> None:
    for wrong in (Order(owner, secrets.token_hex(6), order.name, "no-such-size-of-rota", order.image, order.networks),):
        try:
            provider.create(wrong)
        except (RefusedError, QuotaError):
            pass
        else:
            raise AssertionError("create made a server of a size that there is not")
    _want(not _there(provider, owner), "what was refused was made")


def _keys(provider: Provider, owner: str) -> None:
    public = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIIhS3cWtIqVs2a9nRkQvY0oZ8bXv3m7f4e2r1k5l6d9a rota-exam"
    provider.add_key(owner, public)
    provider.add_key(owner, public)
    _want(owner in _key_names(provider), "a key pair that was added is not there")
    provider.remove_key(owner)
    provider.remove_key(owner)
    _want(owner not in _key_names(provider), "a key pair that was removed is there")


def _key_names(provider: Provider) -> set[str]:
    there = provider.keys()
    return {key.name for key in there}


def _there(provider: Provider, owner: str) -> list[Server]:
    return [each for each in provider.servers(owner) if each.state != GONE]


def _state(provider: Provider, id: str) -> str | None:
    found = provider.server(id)
    return None if found is None else found.state


def _pick(things: Sequence[Named], name: str, what: str) -> Named:
    found = [thing for thing in things if name in (thing.name, thing.id)]
    _want(bool(found), f"there is no {what} {name}; there are {', '.join(thing.name for thing in things)}")
    return found[0]


def _want(holds: bool, words: str) -> None:
    if not holds:
        raise AssertionError(words)
