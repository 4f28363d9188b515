"""Disk: scratch space of a job, diskIO of a queue, free space and state of its storage, direct access to input."""

from collections.abc import Callable
from math import floor

from rota.schedule.broker.config import Thresholds
from rota.schedule.broker.context import MB, Context
from rota.schedule.broker.decision import Skip
from rota.schedule.broker.queue import Queue

__all__ = ["check_direct_access", "check_diskio", "check_io_intensity", "check_scratch", "check_storage", "unit_bytes"]

UNITS = {"k": 1024, "m": MB, "g": 1024 * MB}
SINGLE = (None, 0, 1)
OFF = ("OFF", "TEST")


def unit_bytes(count: float | None, unit: str | None) -> float:
    """A count in kB, MB or GB, as the unit begins, in bytes; nothing or less: 0."""
    if count is None or count < 0:
        return 0
    return count * UNITS.get((unit or "kB")[:1].lower(), 1)


def scratch_bytes(out: float, work: float | None, thresholds: Thresholds, production: bool) -> float:
    """Output (at least so much in production) and work space of a job, without its input."""
    least = thresholds.number("OUT_DISK_MIN") * MB if production else 0
    margin = 0 if work is None else work + thresholds.number("WORK_DISK_MARGIN") * MB
    return max(out, least) + margin


def check_scratch(context: Context) -> Callable[[Queue], Skip | None] | None:
    """What a job writes, works with and copies must fit into maxwdir."""
    task, values, portion = context.task, context.values, context.portion
    by_event = "PerEvent" in (task.out_disk_unit or "")
    out = unit_bytes(task.out_disk_count, task.out_disk_unit) * (portion.events if by_event else portion.effective_mb)
    work = None if task.work_disk_count is None else unit_bytes(task.work_disk_count, task.work_disk_unit or "MB")
    own = scratch_bytes(out, work, values, context.flow == "production")
    size, least = portion.bytes, 0.0
    if context.flow == "analysis":
        size = 2 * size if context.merging else size
        least = (context.rules.n_gb_per_job or 0) * 1024
    copied, direct = max(floor((own + size) / MB), least), max(floor(own / MB), least)
    reads_directly = direct_reader(context)
    single = task.core_count in SINGLE and not context.event_service
    always = values.on("MAXWDIR_PER_CORE")

    def check(queue: Queue) -> Skip | None:
        has = queue.maxwdir
        if not has:
            return None
        if (single or always) and queue.cores > 1:
            has = has / queue.cores  # type: ignore[assignment]
        straight = reads_directly(queue)
        need = direct if straight else copied
        if need <= has:
            return None
        how = "without its input, which is read directly" if straight else f"{floor(size / MB)} MB of it for input"
        words = f"a job needs {need:g} MB of scratch ({how}), it has {has:g}"
        return Skip("-disk", words, numbers={"need_MB": need, "maxwdir": has})

    return check


def direct_reader(context: Context) -> Callable[[Queue], bool]:
    """Whether a job at a queue reads its input directly from the local storage."""
    if context.merging:
        return lambda queue: False
    wants = not context.rules.use_local_io and context.rules.allow_input_lan in ("use", "only")
    return lambda queue: queue.maxinputsize == -1 or (wants and queue.direct_access_lan)


def check_direct_access(context: Context) -> Callable[[Queue], Skip | None] | None:
    """A task that reads only directly needs a queue that can."""
    if context.rules.allow_input_lan != "only" or context.merging:
        return None
    no = Skip("-remoteio", "it cannot read input directly from its storage, and the task asks for nothing else")
    return lambda queue: None if queue.direct_access_lan or queue.maxinputsize == -1 else no


def check_diskio(context: Context) -> Callable[[Queue], Skip | None] | None:
    """A queue whose disks are busy gets no more tasks that make them busier."""
    task, usage, default = context.task, context.world.diskio, context.values.limit("MAX_DISKIO_DEFAULT")
    if not task.disk_io or not usage:
        return None
    asked, divide, lasting = task.disk_io, task.core_count not in SINGLE, context.flow == "analysis"

    def check(queue: Queue) -> Skip | None:
        used = usage.get(queue.unified)
        if not used:
            return None
        limit = queue.max_diskio if queue.max_diskio and queue.max_diskio > 0 else default
        own = asked
        if divide and queue.core_count:
            own = asked / queue.core_count if lasting else asked // queue.core_count
        if not own or used <= limit or own <= limit:
            return None
        words = f"its jobs do {used:g} kB/s per core, the task would do {own:g}, the limit is {limit:g}"
        numbers = {"used": used, "task": own, "limit": limit}
        return Skip("-diskIO", words, lasting, numbers)

    return check


def check_io_intensity(context: Context) -> Callable[[Queue], Skip | None] | None:
    """A queue may say how much input and output per second it bears (modern)."""
    asked = context.task.io_intensity
    if not context.modern or not asked or context.merging:
        return None

    def check(queue: Queue) -> Skip | None:
        most = queue.max_io_intensity
        if most is None or asked <= most:
            return None
        words = f"the task's ioIntensity is {asked:g} kB/s, it bears {most:g}"
        return Skip("-max_io_intensity", words, numbers={"ioIntensity": asked, "limit": most})

    return check


def check_storage(context: Context) -> Callable[[Queue], Skip | None] | None:
    """The queue's storage must have space, and must be in use."""
    analysis, modern = context.flow == "analysis", context.modern
    least = context.values.number("STORAGE_MIN_FREE_SIZE_OUTPUT" if analysis else "STORAGE_MIN_FREE_SIZE")
    lasting, source = analysis, context.world.source_readable

    def check(queue: Queue) -> Skip | None:
        free = queue.storage_free_gb
        if free is not None and free < least and not (context.code and queue.has("skip_RSE_check")):
            words = f"its storage has {free:g} GB free, {least:g} are asked for"
            return Skip("-disk", words, lasting, {"free_GB": free, "least_GB": least})
        if not modern or analysis:
            if queue.blacklisted:
                return Skip("-blacklist", "its storage is blacklisted", lasting)
            return None
        for what in ("read_lan", "write_lan") + ("write_wan", "read_wan") * (not context.at_nucleus(queue)):
            state = queue.activity.get(what, "OFF" if queue.blacklisted else "ON")
            if state in OFF:
                words = f"{what} of its storage is {state}"
                return Skip(f"-{what}_blacklist", words, lasting, {what: state})
        if not source and context.n_files and context.files_on_disk(queue) < context.n_files:
            return Skip("-source_blacklist", "its input would be copied, and the source cannot be read", lasting)
        return None

    return check
