"""Jobs that share out all cores that there are: each gets its own exact number of them, and so its own template."""

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from rota.model.errors import UsageError
from rota.model.iterations import maximum_iters, split_into
from rota.model.needs import Needs
from rota.submission.build import Submission
from rota.submission.sources import ArrayNumbers, Chunk, One, Source

__all__ = ["share_out"]


def share_out(submission: Submission, how: str, total: int) -> None:
    """Give each job of a submission its part of so many cores: `maximum-iters[:LEAST]` or `split-into[:PARTS]`."""
    name, colon, text = how.partition(":")
    if colon and not (text.isascii() and text.isdigit() and len(text) < 10):
        raise UsageError(f"--share {how}: after the colon comes a number")
    number = int(text) if colon else None
    spec = submission.spec
    if name == "maximum-iters":
        shares = maximum_iters(spec.count, total, 1 if number is None else number)
    elif name == "split-into":
        shares = split_into(spec.count, total, number)
    else:
        raise UsageError(f"--share {how}: give maximum-iters, maximum-iters:LEAST, split-into or split-into:PARTS")
    (template, *more) = spec.templates
    if more or submission.source.weaver is not None:
        raise UsageError("--share: the jobs must ask for the same, and not wait for each other")
    sizes = sorted(set(shares))
    if len(sizes) > 1 and isinstance(submission.source, One | ArrayNumbers):
        raise UsageError(f"--share: the parts differ ({sizes[0]} to {sizes[-1]} cores): give --values, not an array")
    templates = tuple(replace(template, needs=_part(template.needs, size)) for size in sizes)
    submission.spec = replace(spec, templates=templates)
    submission.spec.check()
    if len(sizes) > 1:
        submission.source = _Shared(submission.source, [sizes.index(share) for share in shares])


def _part(needs: Needs, cores: int) -> Needs:
    return replace(needs, cores=cores * 1000, cores_most=0, whole=False, span="pack" if cores > 1 else "")


class _Shared:
    """A source whose jobs have templates of their own."""

    def __init__(self, source: Source, numbers: Sequence[int]) -> None:
        self._source = source
        self._numbers = numbers
        self.count, self.columns, self.ranges = source.count, source.columns, source.ranges
        self.templates, self.longest = source.templates, source.longest
        self.weaver, self.limits = source.weaver, source.limits

    def chunks(self) -> Iterator[Chunk]:
        """The values in order, with their templates."""
        at = 0
        for values, _ in self._source.chunks():
            yield values, list(self._numbers[at : at + len(values)])
            at += len(values)
