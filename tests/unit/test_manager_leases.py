"""Lease messages: jobs that cannot be put into words fail alone; a repeat leaves nothing open."""

from types import SimpleNamespace
from typing import Any

from rota.core import effects as ef
from rota.core.state import Settings
from rota.manager.outbound import NO_COMMAND, Outbound, Sent, lease_message


class Book:
    """Knows the command of every job but the first."""

    version = 0

    def lease_row(self, batch: Any, pos: int, attempt: int, slot: str, cores: int) -> list[Any]:
        if pos == 0:
            raise IndexError("list index out of range")
        return [slot, f"{batch.id}.0.{cores}", batch.id, pos + 1, attempt, ["true"], None]

    def are_alike(self, batch: Any, template: int) -> bool:
        return True

    def spec(self, *_: Any) -> dict[str, Any]:
        return {"env": None}


def test_a_job_without_a_command_fails_alone() -> None:
    spec = SimpleNamespace(ends=None)
    plain = SimpleNamespace(apart=False)
    batch: Any = SimpleNamespace(
        id=7, count=3, spec=spec, env=None, ranges=None, template_of=lambda pos: 0, index=lambda pos: pos + 1,
        templates=[plain],
    )  # fmt: skip
    slot: Any = SimpleNamespace(text="3:1000", amounts=SimpleNamespace(cores=1000))
    lease = ef.Lease("r1", 1, 1, 0.0, [(7, pos, 1, slot) for pos in range(3)], {})
    state: Any = SimpleNamespace(batches={7: batch}, runners={"r1": SimpleNamespace(host="n1")})
    book: Any = Book()
    message = lease_message(book, state, lease, "local", Sent())
    assert [row[5] for row in message["jobs"]] == [[NO_COMMAND], ["true"], ["true"]]
    assert [row[3] for row in message["jobs"]] == [1, 2, 3]
    assert {row[1] for row in message["jobs"]} == set(message["specs"])


def test_what_came_with_a_repeat_is_sent_again_with_the_next_lease() -> None:
    """Of a repeat of what it has a runner takes nothing: also not the spec of a job that was changed meanwhile."""
    sent: list[dict[str, Any]] = []
    batch: Any = SimpleNamespace(
        id=7, count=5, spec=SimpleNamespace(ends=None), template_of=lambda pos: 0, index=lambda pos: pos + 1,
        templates=[SimpleNamespace(apart=False)], env=None, ranges=None,
    )  # fmt: skip
    slot: Any = SimpleNamespace(text="3:1000", amounts=SimpleNamespace(cores=1000))
    state: Any = SimpleNamespace(
        batches={7: batch}, runners={"r1": SimpleNamespace(host="n1", session=1, site="local")}
    )
    peers: Any = {"r1": SimpleNamespace(send=lambda message, flushed: sent.append(message))}
    book: Any = Book()
    outbound = Outbound(book, Settings(), peers, lambda state, effect: None, "secret")
    outbound._sent["r1"] = Sent()
    for n in (1, 2, 2, 3, 4):
        outbound.perform(state, ef.Lease("r1", 1, n, 0.0, [(7, n, 1, slot)], {}))
    assert [bool(message.get("specs")) for message in sent] == [True, False, True, True, False]


def test_batches_that_are_run_alike_have_one_spec_which_is_sent_once() -> None:
    sent = Sent()
    first = sent.name("7.0.1000", {"cwd": "/a"}, once=True)
    assert (first, len(sent.names)) == ("7.0.1000", 0), "nobody asks for the name of a batch of one job again"
    assert sent.name("8.0.1000", {"cwd": "/a"}, once=False) == "7.0.1000"
    assert sent.names == {"8.0.1000": "7.0.1000"}
    assert sent.name("9.0.1000", {"cwd": "/b"}, once=False) == "9.0.1000"
    sent.clear()
    assert not len(sent) and sent.name("10.0.1000", {"cwd": "/a"}, once=False) == "10.0.1000", "it is sent again"


def test_a_spec_that_was_replaced_under_its_name_is_nobody_elses() -> None:
    """A site that is set up otherwise, and then as before: the runner has the last that came under a name."""
    sent = Sent()
    assert sent.name("7.0.1000", {"setup": ["a"]}, once=True) == "7.0.1000"
    assert sent.name("7.0.1000", {"setup": ["b"]}, once=True) == "7.0.1000"
    assert sent.name("8.0.1000", {"setup": ["a"]}, once=True) == "8.0.1000"
    assert sent.name("9.0.1000", {"setup": ["b"]}, once=True) == "7.0.1000"


def test_a_template_that_a_runner_has_is_known_by_itself_until_sites_are_set_up_otherwise() -> None:
    book: Any = Book()
    made: list[str] = []
    book.spec = lambda *_: made.append("spec") or {"env": "e1", "setup": [book.version]}
    book.environment = lambda name: {}
    slot: Any = SimpleNamespace(text="3:1000", amounts=SimpleNamespace(cores=1000))
    plain, other = SimpleNamespace(apart=False), SimpleNamespace(apart=False)
    sent = Sent()

    def lease(number: int, template: Any, env: str = "e1", ranges: Any = None) -> dict[str, Any]:
        batch: Any = SimpleNamespace(
            id=number, count=1, spec=SimpleNamespace(ends=None), env=env, ranges=ranges, template_of=lambda pos: 0,
            index=lambda pos: pos + 1, templates=[template],
        )  # fmt: skip
        state: Any = SimpleNamespace(batches={number: batch}, runners={"r1": SimpleNamespace(host="n1")})
        return lease_message(book, state, ef.Lease("r1", 1, 1, 0.0, [(number, 1, 1, slot)], {}), "local", sent)

    assert list(lease(1, plain)["specs"]) == ["1.0.1000"]
    again = lease(2, plain)
    assert "specs" not in again and "envs" not in again and again["jobs"][0][1] == "1.0.1000"
    assert made == ["spec"], "it was not made a second time"
    lease(3, other), lease(4, plain, "e2"), lease(5, plain, ranges=[(1, 1, 1)])
    assert made == ["spec"] * 4, "another template, environment, or an array"
    book.version += 1
    assert list(lease(6, plain)["specs"]) == ["6.0.1000"], "the site is set up otherwise"
    assert lease(7, plain)["jobs"][0][1] == "6.0.1000"
    sent.clear()
    assert list(lease(8, plain)["specs"]) == ["8.0.1000"]


class Runner:
    """A runner's connection, of which it is written down what is sent, and when that leaves."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def ack(self, seq: int, flushed: bool = False) -> None:
        self.said.append(f"ack {seq}" + ("" if flushed else ", at once"))

    def flush(self) -> None:
        self.said.append("left")


def test_an_acknowledgement_waits_for_a_lease_if_the_runner_has_nothing_left_to_report() -> None:
    idle, busy, greeting = Runner(), Runner(), Runner()
    peers: Any = {"idle": idle, "busy": busy}
    state: Any = SimpleNamespace(
        runners={
            "idle": SimpleNamespace(jobs={}, parts={}),
            "busy": SimpleNamespace(jobs={(7, 1): None}, parts={}),
            "new": SimpleNamespace(jobs={}, parts={}),
        }
    )
    book: Any = Book()
    outbound = Outbound(book, Settings(), peers, lambda state, effect: None, "secret")
    outbound.greeting["new"] = (greeting, 1)  # type: ignore[assignment]
    for name in ("idle", "busy", "new", "unknown"):
        outbound.perform(state, ef.Ack(name, 3))
    assert (idle.said, busy.said, greeting.said) == (["ack 3"], ["ack 3, at once"], ["ack 3, at once"])
    outbound._leased["idle"] = idle  # type: ignore[assignment]
    outbound.flush()
    assert idle.said == ["ack 3", "left"], "they leave together"
    outbound.flush_acks()
    assert idle.said == ["ack 3", "left"]
    outbound.perform(state, ef.Ack("idle", 4))
    outbound.flush_acks()
    outbound.flush_acks()
    assert idle.said == ["ack 3", "left", "ack 4", "left"]
