"""PENDING jobs: everything that keeps one from starting now, who has what is short, and who is ahead of it."""

import math

from msgspec.structs import replace

from rota.core.explain.account import Account, Blocker, Holder, Records, ago, count_words, said_words, wait_words
from rota.core.explain.limits import limit_blockers
from rota.core.explain.line import SHOWN, InFront, Line, holders_of, in_front, limit_holders
from rota.core.plan.asked import asked_now, longest_time, unoffered
from rota.core.plan.backfill import free_from
from rota.core.plan.policies import out_of_order
from rota.core.plan.refusals import no_node_ever, refusals
from rota.core.state import BatchState, RunnerState, ShapeState, State
from rota.core.stimuli import At
from rota.model.allocation import Allocation
from rota.model.amounts import format_duration, format_size
from rota.model.limits import local_text
from rota.model.needs import Amounts, Needs
from rota.model.shape import Shape
from rota.model.verdict import Verdict, Wake
from rota.schedule import queues
from rota.schedule.policy import DEFAULT
from rota.schedule.view import QUEUE, View, Want

__all__ = ["Newest", "manager_blockers", "newest_of", "pending", "stopped_words", "verdicts", "when_ready"]

Newest = dict[tuple[str, str, int | None], tuple[int, Allocation]]
"""The newest allocation on its way of each site and queue, for each shape (None: for any), with its rank by age."""
NO_SITE = "no site has what it asks for, as they are configured now: "
STUCK = "the disk of the queue is full, and what was set aside there for accepted work is used up"
_VERBS = ("has ", "gives ", "takes ", "is ", "needs ", "must ")
"""With what a site says of itself begins, if its name can go before it."""


def pending(
    state: State, batch: BatchState, pos: int, at: At, line: Line, newest: Newest, records: Records, brief: bool = False
) -> Account:
    """Why a PENDING job has not started. (Eight parameters: `line` and `newest` are made once for many jobs.)"""
    shape = state.shapes[batch.shapes[batch.template_of(pos)]]
    asked = asked_now(state, shape).asked
    blockers = manager_blockers(state, at, records)
    limited = limit_blockers(state, asked, at)
    if (no := out_of_order(state, shape.shape.policy)) is not None:
        blockers.append(Blocker("policy", no.detail, True, None, f"rota modify {batch.id} --policy default"))
    else:
        blockers += limited
        blockers += _places(state, shape, asked, at, newest, records) if not records.down else []
    if records.trouble is not None and not records.stuck:
        blockers.append(Blocker("store", records.trouble))
    ahead = [] if brief else line.before(batch, pos)
    front = line.in_front(batch, pos) if brief else in_front(ahead, batch.id)
    if not blockers:
        words = "waits its turn" if front.jobs else "is about to start: a place is free"
        blockers.append(Blocker("turn", words))
    account = Account("", blockers=blockers, ahead=ahead)
    account.short = _brief(blockers, front, batch)
    if brief:
        return account
    for each in blockers:
        command = each.command if each.kind != "never" else f"rota modify {batch.id} {_less(state, asked.needs)}"
        if command is not None and command not in account.commands:
            account.commands.append(command)
    _who_and_when(state, shape, asked, account, at)
    account.reason = _sentence(account, front, batch, at)
    return account


def _who_and_when(state: State, shape: ShapeState, asked: Shape, account: Account, at: At) -> None:
    """Find who has what is short, and by when the job can start if nobody else is ahead."""
    runners: list[RunnerState] = []
    kinds = {blocker.kind for blocker in account.blockers}
    if "room" in kinds:
        runners = _busy_runners(state, shape, at)
        amounts = asked.needs.amounts()
        short = {what for runner in runners for what, _, _ in amounts.lacking(state.ledger.free(runner.location))}
        account.holders += holders_of(state, runners, sorted(short))
    if "limit" in kinds:
        for name in asked.limits:
            limit = state.limits.get(name)
            if limit is not None and limit.count is not None and 0 < limit.count <= limit.used:
                account.holders += limit_holders(state, name)
    if any(blocker.lasting for blocker in account.blockers) or account.ahead:
        return
    times = [blocker.until for blocker in account.blockers if blocker.kind not in ("room", "site")]
    if "room" in kinds and None not in times:
        starts = [free_from(state, runner, asked.needs.amounts()) for runner in runners]
        soonest = min(starts, default=math.inf)
        times.append(None if math.isinf(soonest) else at.wall + max(0.0, soonest - at.mono))
    if times and None not in times:
        account.start = max(each for each in times if each is not None)


def _busy_runners(state: State, shape: ShapeState, at: At) -> list[RunnerState]:
    """Runners where only room is missing."""
    by_place = {runner.location: runner for runner in state.runners.values() if not runner.direct}
    busy = [verdict.location for verdict in refusals(state, shape, at, places_only=True) if verdict.code == "busy"]
    return [by_place[name] for name in busy if name in by_place]


# ---- words -----------------------------------------------------------------------------------------------------------


def _brief(blockers: list[Blocker], front: InFront, batch: BatchState) -> str:
    """The first reason, for a column."""
    first = next((blocker for blocker in blockers if blocker.lasting), blockers[0])
    more = f" (and {count_words(len(blockers) - 1, 'more reason')})" if len(blockers) > 1 else ""
    turn = f"; {_ahead_words(front, batch)}" if front.jobs > front.own and not first.lasting else ""
    words = first.words.partition(" (at ")[0] if first.kind == "room" else first.words.removeprefix(NO_SITE)
    return f"{words}{more}{turn}"


def _sentence(account: Account, front: InFront, batch: BatchState, at: At) -> str:
    """All of it in one sentence, the cause first."""
    first = next((blocker for blocker in account.blockers if blocker.lasting), account.blockers[0])
    parts = [first.words, *(f"also: {blocker.words}" for blocker in account.blockers if blocker is not first)]
    if account.holders:
        parts.append(_holder_words(account.holders))
    if account.ahead:
        parts.append(_ahead_words(front, batch))
    if account.start is not None and first.until != account.start:
        parts.append(f"it can start in {wait_words(account.start - at.wall)} at the latest")
    return "; ".join(parts)


def _ahead_words(front: InFront, batch: BatchState) -> str:
    """`996 jobs ahead of it (996 of batch 5 (prep), of higher priority)`."""
    told = []
    for row in front.most:
        if row.batch == batch.id:
            told.append(f"{row.jobs:,} of its own batch")
            continue
        name = f" ({row.name})" if row.name else ""
        own = max(template.priority for template in batch.templates)
        higher = f" of priority {row.priority}" if row.priority > own else ""
        told.append(f"{row.jobs:,} of batch {row.batch}{name}{higher}")
    rest = front.batches - len(front.most)
    more = f" and {count_words(rest, 'more batch').replace('batchs', 'batches')}" if rest else ""
    return f"{count_words(front.jobs)} ahead of it: {', '.join(told)}{more}"


def _holder_words(holders: list[Holder]) -> str:
    """`in use by 3.4 (4 cores, 1 of limit db), 12 jobs of batch 5 (12 cores)`; of all that is short, at least one."""
    groups: dict[tuple[int, int, str], list[Holder]] = {}
    for row in holders:
        groups.setdefault((row.batch, row.jobs, row.example), []).append(row)
    kinds: set[str] = set()
    first: list[list[Holder]] = []
    rest: list[list[Holder]] = []
    for rows in groups.values():
        (rest if kinds.issuperset(row.what for row in rows) else first).append(rows)
        kinds.update(row.what for row in rows)
    shown = (first + rest)[: max(SHOWN, len(first))]
    told = []
    for rows in shown:
        one, name = rows[0], f" ({rows[0].name})" if rows[0].name else ""
        who = one.example if one.jobs == 1 else f"{one.jobs:,} jobs of batch {one.batch}{name}"
        what = [f"{row.has} of {row.what}" if row.what.startswith(("limit ", "%")) else row.has for row in rows]
        told.append(f"{who} ({', '.join(what)})")
    more = f" and {count_words(len(groups) - len(shown), 'other')}" if len(groups) > len(shown) else ""
    return f"in use by {', '.join(told)}{more}"


def manager_blockers(state: State, at: At, records: Records) -> list[Blocker]:
    """What keeps every job from starting: no manager, a full disk, a pause."""
    found = []
    if records.down:
        found.append(Blocker("manager", "no manager is up: rota up starts one", True, None, "rota up"))
    if records.stuck:
        found.append(Blocker("store", f"nothing starts: {STUCK}"))
    if state.mode != "serving":
        held = "user" in state.pauses or state.mode != "paused"
        how = "" if held else f" --as {next(iter(state.pauses), 'user')}"
        if state.mode == "paused" and len(state.pauses) > 1:
            how = " --all"
        words = f"the manager is {state.mode}{_pauses(state, at)}: rota resume{how} lets jobs start again"
        found.append(Blocker("manager", words, state.mode == "paused", None, f"rota resume{how}"))
    return found


def _pauses(state: State, at: At) -> str:
    """Whose pauses keep the manager from starting jobs."""
    if state.mode != "paused" or (list(state.pauses) == ["user"] and not state.pauses["user"][1]):
        return ""
    rows = []
    for holder, (since, why, _) in state.pauses.items():
        when = f" since {local_text(int(since) + at.utc_offset_s)[:-3]}" if since else ""
        rows.append(f"{holder}{when}{f' ({why})' if why else ''}")
    return f" by {', '.join(rows[:3])}{' and others' if len(rows) > 3 else ''}"


# ---- places ----------------------------------------------------------------------------------------------------------


def _places(state: State, shape: ShapeState, asked: Shape, at: At, newest: Newest, records: Records) -> list[Blocker]:
    """What the nodes that there are say, and if none of them will ever do, what sites could give."""
    nodes = refusals(state, shape, at, places_only=True)
    live = [runner for runner in state.runners.values() if runner.state in ("SERVING", "DRAINING", "MISSING")]
    said_no = {verdict.location for verdict in nodes}
    if asked.needs.together:  # of its nodes an allocation speaks as one
        said_no |= {runner.location for runner in live if runner.location.rpartition("/")[0] in said_no}
    takes = any(not runner.direct and runner.location not in said_no for runner in live)
    passing = [verdict for verdict in nodes if not verdict.lasting and verdict.filter != "status"]
    if (takes or passing) and not any(number == shape.id for _, number in state.soft.weather.refused):
        if takes and not passing:
            return []
        return _node_blockers(state, passing, len(said_no)) + _no_more(state, shape, at, newest, records)
    why = unoffered(state, asked.needs) or queues.impossible(asked.needs, state.soft.queues)
    if why is not None and not passing:
        return [_never(state, shape, why)]
    said = _queues(state, shape, at, newest, records)
    first = [verdict for verdict in said if verdict.code == "refused"]
    if not passing:
        first += [verdict for verdict in said if verdict.code in ("failing", "starting") and verdict not in first]
    found = _queue_blockers(state, first, newest, records, at)
    found += _node_blockers(state, passing, len(said_no))
    if not found or all(blocker.kind == "never" for blocker in found):
        found += _status_blockers(state, [verdict for verdict in nodes if verdict.filter == "status"], at)
    if not found:
        said = [verdict for verdict in said if verdict.code != state.mode]  # that is said already
        rest = [verdict for verdict in said if verdict not in first and not verdict.lasting]
        rest = rest or [verdict for verdict in nodes if verdict.lasting] or said
        rest += [verdict for verdict in said if verdict.lasting and verdict not in rest]
        found += [Blocker("place", _at(verdict)) for verdict in rest[:SHOWN]]
    return found


def _at(verdict: Verdict) -> str:
    """What a site or queue says, with its name before it if that makes a sentence."""
    where, detail = verdict.location, verdict.detail
    if verdict.level == QUEUE and detail.startswith(_VERBS):
        site, _, queue = where.partition(":")
        return f"the queue {queue} of {site} {detail}" if queue else f"the site {site} {detail}"
    return f"{detail} (at {where})"


def _no_more(state: State, shape: ShapeState, at: At, newest: Newest, records: Records) -> list[Blocker]:
    """Why no more nodes are asked for, where a site could give some: it is paused, shut, failing or has all it may.

    That servers are within no quota is told if it is so of all of a cloud that would do: others are asked for.
    """
    found = []
    said = _queues(state, shape, at, newest, records)
    needs, codes = asked_now(state, shape).asked.needs, {verdict.location: verdict.code for verdict in said}
    for verdict in said:
        name = verdict.location.partition(":")[0]
        facts = state.soft.sites.get(name)
        only_one = facts is None or (facts.whole and facts.most == 1)
        full = verdict.code == "quota" and all(
            codes.get(place.location.id, "starting") != "starting"
            for place in queues.candidates(needs, state.soft.queues[name])
        )
        if full or verdict.code in ("paused", "down", "failing") or (verdict.code == "most" and not only_one):
            found.append(Blocker("site", f"no more is asked for, as {_at(verdict)}"))
    return found[:1]


def when_ready(state: State, batch: BatchState, pos: int, at: At, records: Records) -> list[Blocker]:
    """What would keep a job that waits or is held from starting even if it were ready: as far as that is known now."""
    shape = state.shapes[batch.shapes[batch.template_of(pos)]]
    asked = asked_now(state, shape).asked
    found = [] if records.down else manager_blockers(state, at, records)
    if (no := out_of_order(state, shape.shape.policy)) is not None:
        return [*found, Blocker("policy", no.detail, True, None, f"rota modify {batch.id} --policy default")]
    found += limit_blockers(state, asked, at)
    why = unoffered(state, asked.needs) or queues.impossible(asked.needs, state.soft.queues)
    if not records.down and why is not None and no_node_ever(state, shape, at):
        command = f"rota modify {batch.id} {_less(state, asked.needs)}"
        found.append(replace(_never(state, shape, why), command=command))
    return found


def _never(state: State, shape: ShapeState, why: str) -> Blocker:
    """That no place could ever run it: it was accepted, so what it needs is gone, or was learned since."""
    given, asked = shape.shape.needs, asked_now(state, shape).asked.needs
    could = unoffered(state, given) is None and queues.impossible(given, state.soft.queues) is None
    learned = f" (it asks for {asked.words()}, learned; given: {given.words()})" if asked != given and could else ""
    words = f"{NO_SITE}{why}{learned}; waiting does not help"
    return Blocker("never", words, True, None, "rota modify")


def _less(state: State, needs: Needs) -> str:
    """The options of `rota modify` by which a job asks for what some site has."""
    sites = state.soft.sites
    if needs.site is not None and needs.site not in sites:
        return f"--on {next(iter(sites), 'SITE')}"
    facts = [facts for name, facts in sites.items() if needs.site in (None, name)]
    tags = [{*each.tags, *(tag for queue in each.queues for tag in queue.tags)} for each in facts]
    out = [] if any(here.issuperset(needs.tags) for here in tags) else ["--tag ''"]
    lacking = [needs.amounts().lacking(each.node.plus(Amounts(named=each.shared))) for each in facts if not each.queues]
    for what, _, free in min(lacking, key=len, default=[]):
        if what == "cores":
            out.append(f"--cores {free / 1000:g}")
        elif what in ("memory", "disk"):
            out.append(f"--{what} {format_size(free)}")
        else:
            out.append(f"--gpus {free}" if what in ("gpus", "gpu_share") else f"--resource {what}={free}")
    most = longest_time(state, needs)
    if most is not None and (needs.time_s or 0) > most:
        out.append(f"--time {format_duration(most)}")
    return " ".join(out) or "--help"


def _node_blockers(state: State, passing: list[Verdict], asked: int) -> list[Blocker]:
    """What nodes that would do say now, each reason once, with one place and how many more there are."""
    by_code: dict[str, list[Verdict]] = {}
    for verdict in passing:
        by_code.setdefault(verdict.code, []).append(verdict)
    found = []
    for code, rows in sorted(by_code.items(), key=lambda row: row[0] != "busy"):
        kind = {"busy": "room", "reserved": "kept", "kept": "kept"}.get(code, "place")
        where = rows[0].location
        more = f" and {count_words(len(rows) - 1, 'more place')}" if len(rows) > 1 else ""
        detail = rows[0].detail if code != "reserved" else f"the only place that is free is {rows[0].detail}"
        found.append(Blocker(kind, f"{detail} (at {where}{more})"))
    return found


def _status_blockers(state: State, rows: list[Verdict], at: At) -> list[Blocker]:
    """Nodes that take no job now: draining, silent, or ending what was given up."""
    more = f", and {count_words(len(rows) - 1, 'more runner')} likewise" if len(rows) > 1 else ""
    return [Blocker("runner", f"{row.detail} (at {row.location}){more}", command="rota runners") for row in rows[:1]]


def _queue_blockers(state: State, rows: list[Verdict], newest: Newest, records: Records, at: At) -> list[Blocker]:
    """What sites and queues say, with the words of the batch system for an allocation on its way."""
    by_id = {allocation.id: allocation for _, allocation in newest.values()}
    found = []
    for verdict in rows[:SHOWN]:
        words = f"{verdict.detail} (at {verdict.location})"
        if verdict.code == "starting":
            allocation = next((by_id[word] for word in verdict.detail.split() if word in by_id), None)
            told = records.waits(allocation) if allocation is not None and allocation.native_id else None
            if allocation is not None and allocation.submitted is not None:
                words += f", asked for {ago(at.wall - allocation.submitted)} ago"
            if allocation is not None and (quiet := records.unanswered(allocation)):
                words += f"; {quiet}"
            elif told and allocation is not None and allocation.id not in state.soft.conditions:
                words += f"; {said_words(allocation, told)}"
                if told.lasting:
                    found.append(Blocker("never", words, True, None, "rota modify"))
                    continue
        found.append(Blocker("place", words))
    return found


def verdicts(state: State, shape: ShapeState, at: At, records: Records) -> list[Verdict]:
    """What keeps the PENDING jobs of a shape from starting: sites and queues, then nodes, as far as they say no."""
    if (no := out_of_order(state, shape.shape.policy)) is not None:
        return [no]
    limits = limit_blockers(state, shape.shape, at)
    said = _queues(state, shape, at, newest_of(state), records)
    found = [*sorted(said, key=lambda verdict: verdict.lasting), *refusals(state, shape, at)]
    if not limits:
        return found
    words, lasting = limits[0].words, limits[0].lasting
    return [replace(v, detail=words, lasting=lasting) if v.filter == "limits" else v for v in found]


def newest_of(state: State) -> Newest:
    """The newest allocation of each queue and shape that is on its way, by going through all of them once."""
    return {
        (each.site, each.queue or "", each.shape): (rank, each)
        for rank, each in enumerate(state.allocations.values())
        if each.state.endswith("ING") and len(state.census.of.get(each.id, ())) < each.nodes
    }


def stopped_words(state: State, name: str | None) -> str:
    """That the cluster holds or has suspended an allocation, in its own words; else nothing."""
    condition, allocation = state.soft.conditions.get(name or ""), state.allocations.get(name or "")
    if condition is None or allocation is None:
        return ""
    words = f" ({condition.words})" if condition.words else ""
    if condition.kind == "held":
        return f"the cluster holds job {allocation.native_id}{words}: it starts when somebody releases it there"
    return f"the cluster has suspended job {allocation.native_id}{words}: it goes on when somebody resumes it there"


def _queues(state: State, shape: ShapeState, at: At, newest: Newest, records: Records) -> list[Verdict]:
    """What sites and queues say of a shape now, or what is on its way there."""
    want = Want(shape.id, asked_now(state, shape).asked, 1, 0, 0)
    view = View(
        at.wall, at.mono, "serving", (), state.ledger.view, {}, facts=state.soft.facts, rooms=state.rooms(at.mono),
        budgets=state.budgets(),
    )  # fmt: skip
    policy = state.settings.policies.get(shape.shape.policy, DEFAULT)
    said = {verdict.location: verdict for verdict in queues.verdicts(want, state.soft.queues, view, policy)}
    out = []
    for site, places in state.soft.queues.items():
        before = f"; before, {why}" if (why := state.soft.weather.of(site).why) else ""
        for place in queues.candidates(want.shape.needs, places):
            no = said.get(place.location.id)
            if no is not None and no.filter != "most":
                out.append(no)
                continue
            queue = queues.claim_of(want, place)[1]
            _, live = max(newest.get((site, queue, of), (-1, None)) for of in (shape.id, None))
            if live is not None:
                stopped = f"; {words}" if (words := stopped_words(state, live.id)) else ""
                words = f"allocation {live.id} is {live.state}{stopped}{before}"
                never = (told := records.waits(live)) is not None and told.lasting
                no = Verdict(place.location.id, "most", "starting", words, never, (Wake.CAPACITY,), QUEUE)
            elif no is None and state.mode != "serving":
                words = f"the manager is {state.mode}"
                no = Verdict(place.location.id, "status", state.mode, words, False, (Wake.STATUS,), QUEUE)
            if no is not None:
                out.append(no)
    return out
