"""Input: which queues have it, and which may have it moved."""

from collections.abc import Callable, Sequence

from rota.schedule.broker.context import GB, MB, Context
from rota.schedule.broker.decision import Skip
from rota.schedule.broker.queue import Queue

__all__ = ["check_input", "check_virtual", "data_weight", "io_tiers", "local_gb"]


def io_tiers(context: Context, queues: Sequence[Queue]) -> tuple[list[Queue], dict[str, Skip]]:
    """(queues that may take a task of much input, why not the others). Those that have it on tape come second."""
    task, values = context.task, context.values
    much = (task.io_intensity or 0) > values.number("IO_INTENSITY_CUTOFF")
    cloned = context.event_service and not context.rules.job_cloning
    if context.site_pre or context.merging or not context.total_bytes or not much or cloned:
        return list(queues), {}
    size, number = values.number("SIZE_CUTOFF_TO_MOVE_INPUT") * 1024, values.number("NUM_CUTOFF_TO_MOVE_INPUT")
    strict = values.on("IO_CUTOFF_STRICT")

    def too_much(count: int) -> tuple[int, int] | None:
        mb, files = (context.total_bytes - context.sizes[count]) // MB, context.n_files - count
        over = (mb >= size or files >= number) if strict else (mb > size or files > number)
        return (mb, files) if over else None

    disk, tape, out = [], [], {}
    for queue in queues:
        far = too_much(context.files_on_disk(queue))
        if far is None:
            disk.append(queue)
        elif (there := too_much(context.files_anywhere(queue))) is None:
            tape.append(queue)
        else:
            mb, files = there
            words = f"{mb} MB in {files} files would be moved; at most {size:g} MB and {number:g} files may"
            out[queue.name] = Skip("-io", words, numbers={"missing_MB": mb, "missing_files": files})
    if not disk and not tape and values.on("IO_AUTO_OFF"):
        return list(queues), {}
    if disk or not values.on("IO_AUTO_OFF"):
        for queue in tape:
            out[queue.name] = Skip("-io", "its input is on tape, and other queues have it on disk")
        return disk, out
    return tape, out


def check_input(context: Context, queues: Sequence[Queue]) -> tuple[list[Queue], dict[str, Skip], bool]:
    """(queues that have the input of an analysis task, why not the others, whether they have only parts of it)."""
    total = context.n_files
    if not total:
        return list(queues), {}, False
    disk = {queue.name: context.files_on_disk(queue) for queue in queues}
    both = {queue.name: context.files_anywhere(queue) for queue in queues}
    parts = context.task.chunk.distributed
    real = any(disk[queue.name] == total and not queue.vp_endpoint for queue in queues)

    def there(queue: Queue, counts: dict[str, int], some: bool) -> bool:
        if context.modern and queue.vp_endpoint and real:
            return False  # a real replica is better than one that is read from afar
        return counts[queue.name] > 0 if some else counts[queue.name] == total

    found: list[Queue] = []
    union = False
    for counts, some in ((disk, parts), (both, parts), (disk, True), (both, True)):
        found = [queue for queue in queues if there(queue, counts, some)]
        if found:
            union = some and not parts
            break
    kept = {queue.name for queue in found}
    out = {}
    for queue in queues:
        if queue.name not in kept:
            words = f"it has {both[queue.name]} of {total} input files"
            if context.modern and queue.vp_endpoint and real:
                words = "it reads input from afar, and other queues have it"
            out[queue.name] = Skip("-input", words, numbers={"files": both[queue.name], "of": total})
    return found, out, union


def check_virtual(context: Context, locality: bool, union: bool) -> Callable[[Queue], Skip | None] | None:
    """Queues that read from afar are left out if the task says so, or input need not be local."""
    avoid = context.rules.avoid_vp or context.merging or not locality
    if context.modern:
        avoid = avoid or context.task.chunk.distributed or union or context.scout or context.rules.use_local_io
    if not avoid:
        return None
    no = Skip(None, "it reads input from afar, which is not to be done here")
    return lambda queue: no if queue.vp_endpoint else None


def data_weight(context: Context, queue: Queue) -> float:
    """How a queue's input counts where input is local: 1 on disk, 0.001 on tape."""
    return 1.0 if not context.n_files or context.files_on_disk(queue) > 0 or queue.vp_endpoint else 0.001


def local_gb(context: Context, queue: Queue) -> float:
    """How a queue's input counts where input need not be local."""
    disk = context.files_on_disk(queue)
    if disk:
        return 1 + context.sizes[disk] // GB / 10
    return 1 + context.sizes[context.files_anywhere(queue)] // GB / 1000
