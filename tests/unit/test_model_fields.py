"""The table of fields, and the types that are written out beside it."""

import typing

import msgspec
import pytest

from rota.model.batch import Template
from rota.model.errors import UsageError
from rota.model.fields import BATCH_CHANGES, CHANGES, FIELDS, JSON_FIELDS, OPTIONS, Field
from rota.model.needs import Needs
from rota.model.patch import BatchPatch, Patch, decode_patch, patched
from rota.submission import Changes, JobOptions, build
from rota.submission.jsonline import JsonLine
from rota.submission.kinds import KINDS
from rota.submission.patching import make_patch

OF_JOBS = [field for fields in CHANGES.values() for field in fields if field.place]
OF_BATCHES = [field for fields in BATCH_CHANGES.values() for field in fields if field.place]


def targets(place: str, among: typing.Iterable[Field] = OPTIONS.values()) -> set[str]:
    return {field.target for field in among if field.place == place}


def words_of(hint: typing.Any) -> set[str]:
    """The words of the Literals in a type."""
    inner = typing.get_args(hint)
    if typing.get_origin(hint) is typing.Literal:
        return {word for word in inner if isinstance(word, str)}
    return set().union(*map(words_of, inner))


def test_every_option_has_a_type_and_every_type_an_option() -> None:
    assert set(JobOptions.__annotations__) == set(OPTIONS)
    assert set(Changes.__annotations__) == {field.name for field in (*OF_JOBS, *OF_BATCHES)}


def test_everything_can_be_changed() -> None:
    assert not set(OPTIONS) - set(Changes.__annotations__)


def test_every_field_of_a_template_is_said_by_an_option() -> None:
    own = {"argv", "shell", "needs", "umask", "level", "over", "share", "time_ends", "near", "scout"}
    assert targets("template") == set(Template.__struct_fields__) - own
    assert targets("needs") == set(Needs.__struct_fields__) - {
        "cores_most", "gpu_share", "options", "nodes_most", "whole",
    }  # fmt: skip


def test_every_field_of_a_patch_is_said_by_a_change() -> None:
    own = {"argv", "shell", "cores_most", "gpu_share", "limits_add", "limits_drop", "batch", "nodes_most", "whole"}
    own |= {"options_add", "options_drop"}
    assert (targets("template", OF_JOBS) | targets("needs", OF_JOBS)) - {"limits"} == set(Patch.__struct_fields__) - own
    said = {field.target for field in OF_BATCHES if field.kind != "manner"} - {"after_any", "after_failure"}
    assert said == set(BatchPatch.__struct_fields__) - {"after_none"}


def test_what_is_not_said_is_as_a_template_has_it() -> None:
    (template,) = build(["x"], {"group": "", "cwd": "/"}).spec.templates
    # In records `override` that is left out is what it was when the first were written.
    assert template == Template(argv=("x",), umask=template.umask, override="higher")


@pytest.mark.parametrize("name", [name for name, field in FIELDS.items() if field.choices])
def test_choices_are_those_of_the_types(name: str) -> None:
    choices = set(FIELDS[name].choices)
    hints = [typing.get_type_hints(kind)[name] for kind in (JobOptions, Changes)]
    if FIELDS[name].kind == "choice":
        hints += [typing.get_type_hints(kind)[name] for kind in (Template, Patch)]
    assert [words_of(hint) for hint in hints] == [choices] * len(hints)


def test_every_kind_can_be_read() -> None:
    assert {field.kind for field in FIELDS.values() if field.place in ("template", "needs")} <= set(KINDS)
    assert all(field.choices or KINDS[field.kind].json for field in JSON_FIELDS)
    links = {"id", "after", "after_any", "after_failure", "live", "name"}
    assert {"command", "cwd", "env", "stdin", "stdout", "stderr", *links} == set(JsonLine.__struct_fields__) - {
        field.name for field in JSON_FIELDS
    }


@pytest.mark.parametrize(
    ("given", "kept"), [(2, (2, 0)), ("2", (2, 0)), (0.5, (0, 500)), ("0.125", (0, 125)), ("1.0", (1, 0)), (0, (0, 0))]
)
def test_gpus_are_whole_or_a_share_of_one(given: typing.Any, kept: tuple[int, int]) -> None:
    (template,) = build(["x"], {"gpus": given}).spec.templates
    assert (template.needs.gpus, template.needs.gpu_share) == kept
    line = {"command": "x", "gpus": given}
    (made,) = build(None, {"gpus": 0, "group": ""}, lines=[line]).spec.templates[-1:]
    assert (made.needs.gpus, made.needs.gpu_share) == kept
    assert (made_patch := make_patch({"gpus": given}))["gpus"] == kept[0] and made_patch["gpu_share"] == kept[1]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"gpus": 1.5}, "1.5 gpus: whole ones, as in 1 or 2, or a share of one"),
        ({"gpus": "0.0001"}, "0.001 to 0.999"),
        ({"gpus": "many"}, "'many' is not a number of gpus"),
        ({"gpus": "-1"}, "'-1' is not a number of gpus"),
        ({"bind": "memory"}, "bind 'memory': give cores, compact, tight, scatter"),
        ({"bind": "cores", "cores": "0.5"}, "bind cores with 0.5 cores: give whole cores"),
        ({"policy": "no/name"}, "policy 'no/name'"),
        ({"policy": ""}, "policy ''"),
    ],
)
def test_what_cannot_be_meant_is_refused(options: typing.Any, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        build(["x"], options)
    assert words in str(caught.value)


def test_a_change_to_a_share_takes_whole_gpus_away() -> None:
    (template,) = build(["x"], {"gpus": 2, "bind": "cores", "policy": "fair"}).spec.templates
    assert (template.needs.bind, template.policy) == ("cores", "fair")
    patch = decode_patch(msgspec.json.encode(make_patch({"gpus": "0.5", "bind": "none", "policy": "default"})))
    changed = patched(template, patch, template.needs)
    assert (changed.needs.gpus, changed.needs.gpu_share, changed.needs.bind) == (0, 500, "")
    assert changed.policy == "default"
