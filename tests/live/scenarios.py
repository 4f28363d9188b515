"""The scenarios, each written once for every system and both modes. A docstring says what happens, the code how."""

import time

LOST = ("allocation-ended", "cancelled", "lost", "requeue", "vanished", "node-fail", "preempt", "runner-stopped")
"""Reasons of attempts that ended with their allocation, and not by their own doing."""
SCENARIOS = {}


def scenario(function):
    SCENARIOS[function.__name__.replace("_", "-")] = function
    return function


def lost_with_reason(trial, jobs):
    """Every attempt but the last of these was lost, and says how."""
    for job in jobs:
        for row in trial.attempts(job)[:-1]:
            if row["reason"] not in LOST or not row["note"]:
                trial.wrong.append(f"{job} attempt {row['attempt']}: {row['state']}, {row['reason']}, {row['note']!r}")


def with_native(trial, natives):
    """The jobs that run, or wait, in these allocations."""
    return [job for job, row in trial.jobs().items() if row["native_id"] in natives and row["state"] != "COMPLETED"]


def begun(trial, natives):
    """The jobs in these allocations that say that they have begun."""
    return [job for job in with_native(trial, natives) if trial.witnessed(job)]


@scenario
def undisturbed(trial):
    """Nothing happens."""
    trial.add(work="sleep 0.2")
    trial.settle()


@scenario
def slow_submit(trial):
    """Every submission tells its id 6 s late."""
    trial.slow(trial.system.programs[0], 6)
    trial.add(work="sleep 0.5")
    trial.settle()


@scenario
def hung_submit(trial):
    """The first submission works, and then tells nothing for 45 s."""
    trial.slow(trial.system.programs[0], 45)
    trial.add(work="sleep 0.5")
    trial.until(lambda: trial.system.listed() or any(trial.counts()[s] for s in ("RUNNING", "COMPLETED")), 60, "sub")
    time.sleep(5)
    trial.slow(trial.system.programs[0], 0)
    trial.settle()


@scenario
def old_listing(trial):
    """Every listing is 6 s old."""
    trial.slow(trial.system.programs[1], 6)
    trial.add(work="sleep 0.5")
    trial.settle()


@scenario
def node_daemon_killed(trial):
    """The daemon that runs jobs is killed, and is back in 3 s."""
    trial.add(work=f"{trial.gate}; sleep 0.2")
    trial.until_some(2)
    trial.system.kill_node_daemon(3)
    time.sleep(5)
    trial.open_gate()
    trial.settle()
    lost_with_reason(trial, (job for job, row in trial.jobs().items() if row["attempt"] > 1))


@scenario
def server_restarted(trial):
    """The batch system's server is restarted while jobs wait and run."""
    trial.add(work=f"{trial.gate}; sleep 0.2")
    trial.until_some(2, 1)
    trial.system.restart_server()
    trial.open_gate()
    trial.settle()


@scenario
def server_away(trial):
    """The server answers nothing for 30 s; the site says so within a poll, and no more when it is back."""
    trial.add(work=f"{trial.gate}; sleep 0.2")
    trial.until_some(2, 1)
    import threading

    away = threading.Thread(target=trial.system.stop_server, args=(30,))
    away.start()
    try:
        trial.until(lambda: site(trial)["state"] != "ok", 28, "the site is not ok")
        trial.says("sites", trial.rota("sites", "live").stdout, "failing for", "silent for")
    except TimeoutError:
        trial.wrong.append(f"sites: the state is ok, without a word, while the server is away ({site(trial)['why']})")
    away.join()
    trial.open_gate()
    trial.settle()
    time.sleep(3)
    if site(trial)["state"] != "ok" or site(trial)["why"]:
        trial.wrong.append(f"sites: {site(trial)['state']}, {site(trial)['why']} though it is back")


def site(trial):
    import json

    (row,) = json.loads(trial.rota("sites", "--json").stdout)["sites"]
    return row


@scenario
def manager_killed(trial):
    """The manager is killed three times: while it submits, while jobs run, and near the end."""
    trial.add(work="sleep 0.5")
    for part in (1, trial.count // 4, trial.count // 2):
        trial.until(lambda part=part: len(list(trial.home.work.glob("witness/*[0-9]"))) >= part, 120, f"{part} began")
        trial.home.kill_manager()
        time.sleep(1)
        trial.rota("up")
    trial.settle()


@scenario
def deleted(trial):
    """Two that run and one that waits are deleted by hand: runners are replaced, direct jobs have failed."""
    trial.add(work=f"{trial.gate}; sleep 0.2")
    running, waiting = trial.until_some(2, 1)
    trial.until(lambda: len(with_native(trial, running[:2])) >= 2, 30, "rota knows which jobs run there")
    hit = with_native(trial, [*running[:2], waiting[-1]])
    for native in (*running[:2], waiting[-1]):
        trial.system.delete(native)
    time.sleep(8)
    trial.open_gate()
    if trial.mode == "direct":
        for job in hit:
            trial.expect(job, "cancelled")
    trial.settle()
    if trial.mode == "runners":
        if not all(trial.jobs()[job]["attempt"] > 1 for job in hit):
            trial.wrong.append(f"of {hit} some were not lost with their allocation")
        lost_with_reason(trial, hit)
    for job in hit if trial.mode == "direct" else ():
        if not trial.attempts(job)[-1]["note"]:
            trial.wrong.append(f"{job}: deleted by hand, and no note says so")


@scenario
def held(trial):
    """What waits is held: that is said, nothing runs twice, and it goes on when it is released."""
    trial.add(work=f"{trial.gate}; sleep 0.2")
    _, waiting = trial.until_some(2, 2)
    for native in waiting[-2:]:
        trial.system.hold(native)
    time.sleep(6)
    if trial.mode == "direct":
        (job, *_) = with_native(trial, waiting[-2:])
        trial.explains(job, "held", "hold")
    trial.open_gate()
    time.sleep(5)
    for native in waiting[-2:]:
        if native in trial.system.listed():
            trial.system.release(native)
    trial.settle()
    if any(row["attempt"] > 1 for row in trial.jobs().values()):
        trial.wrong.append("a hold of what waited made new attempts")


@scenario
def suspended(trial):
    """What runs is suspended: that is said, nothing runs twice, and it goes on when it is resumed."""
    trial.add(work=f"{trial.gate}; sleep 0.2")
    running, _ = trial.until_some(2)
    trial.until(lambda: with_native(trial, running[:2]), 30, "rota knows which jobs run there")
    for native in running[:2]:
        trial.system.suspend(native)
    time.sleep(6)
    (job, *_) = with_native(trial, running[:2])
    trial.explains(job, "suspended")
    for native in running[:2]:
        trial.system.resume(native)
    trial.open_gate()
    trial.settle()
    if any(row["attempt"] > 1 for row in trial.jobs().values()):
        trial.wrong.append("a suspension made new attempts")


@scenario
def requeued(trial):
    """Two that run are put back into the queue by hand."""
    trial.add(work=f"{trial.gate}; sleep 0.2")
    running, _ = trial.until_some(2)
    trial.until(lambda: len(begun(trial, running[:2])) >= 2, 120, "jobs have begun there")
    for native in running[:2]:
        trial.system.requeue(native)
    time.sleep(8)
    trial.open_gate()
    trial.settle()
    lost_with_reason(trial, (job for job, row in trial.jobs().items() if row["attempt"] > 1))


requeued.more = "requeue = true"


@scenario
def memory(trial):
    """Three use more memory than they asked for: ended for that, few times, and it is said."""
    over = 3
    trial.add(indices=f"1-{trial.count - over}", work="sleep 0.2")
    enforce = "time" if trial.mode == "direct" and trial.system.ends_for_memory else "both"
    numbers = f"{trial.count - over + 1}-{trial.count}"
    batch = trial.add(
        "--memory", "100M", "--enforce", enforce, "--retries", "0", indices=numbers, work=trial.system.hog
    )
    trial.settle()
    _ended_for(trial, batch, trial.system.memory_ends)


@scenario
def time_limit(trial):
    """Three take longer than they asked for: ended for that, few times, and it is said."""
    over = 3
    trial.add(indices=f"1-{trial.count - over}", work="sleep 0.2")
    numbers = f"{trial.count - over + 1}-{trial.count}"
    limits = ("--time", "1m", "--enforce", "memory") if trial.mode == "direct" else ("--time", "3s")
    batch = trial.add(*limits, "--retries", "0", indices=numbers, work="sleep 600")
    trial.settle()
    _ended_for(trial, batch, ("time",))


time_limit.more = 'longest = "1m"'


IDLE_S = 300
"""So often a site tells of its queues and nodes: with fewer seconds it would be chance what is counted."""
BUSY_MOST, IDLE_MOST = 25, 1
"""Commands per minute."""


@scenario
def refused_array(trial):
    """Arrays of 300 are refused since rota has asked how large they may be: smaller ones go, with few commands."""
    trial.until(lambda: site(trial)["state"] == "ok", 60, "the site is known")
    trial.until(lambda: time.time() - trial.sent()[-1] > 5, 60, "it has been asked everything")
    most = trial.system.limit_arrays(100)
    try:
        before = time.time()
        trial.add(work="sleep 0.2")
        trial.settle()
        trial.until(lambda: not trial.system.listed(), 240, "nothing is in the queue")
        time.sleep(IDLE_S + 30)
    finally:
        trial.system.limit_arrays(None)
    now, sent = time.time(), [at for at in trial.sent() if at >= before]
    busy = max(sum(1 for at in sent if first <= at < first + 60) for first in sent)
    idle = sum(1 for at in sent if at >= now - IDLE_S) / (IDLE_S / 60)
    trial.figures |= {"busy_per_minute": busy, "idle_per_minute": round(idle, 2)}
    if busy > BUSY_MOST or idle > IDLE_MOST:
        trial.wrong.append(f"{busy} commands in a busy minute, {idle:.1f} in an idle one")
    trial.says("sites", trial.rota("sites", "live").stdout, "it refused a larger one")
    if not most // 2 <= site(trial)["array_most"] <= most:
        trial.wrong.append(f"sites: arrays of {site(trial)['array_most']} at the most, and it takes {most}")


refused_array.count = refused_array.most = 300
refused_array.pace = ""


def _ended_for(trial, batch, reasons):
    for job, row in trial.jobs().items():
        if job.partition(".")[0] == batch:
            if row["state"] != "COMPLETED":
                trial.expect(job, *reasons)
            rows = trial.attempts(job)
            if not any(one["reason"] in reasons for one in rows):
                trial.wrong.append(f"{job}: {[(one['state'], one['reason'], one['note']) for one in rows]}")
            if len(rows) > 4:
                trial.wrong.append(f"{job} was tried {len(rows)} times")
