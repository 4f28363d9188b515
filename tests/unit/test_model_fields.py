"""The table of fields, and the types that are written out beside it."""

import typing

import pytest

from rota.model.batch import Template
from rota.model.fields import BATCH_CHANGES, CHANGES, FIELDS, JSON_FIELDS, OPTIONS, Field
from rota.model.needs import Needs
from rota.model.patch import BatchPatch, Patch
from rota.submission import Changes, JobOptions, build
from rota.submission.jsonline import JsonLine
from rota.submission.kinds import KINDS

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
    assert targets("template") == set(Template.__struct_fields__) - {"argv", "shell", "needs", "umask", "level", "over"}
    assert targets("needs") == set(Needs.__struct_fields__) - {"cores_most", "gpu_share", "options"}


def test_every_field_of_a_patch_is_said_by_a_change() -> None:
    own = {"argv", "shell", "cores_most", "limits_add", "limits_drop", "options_add", "options_drop", "batch"}
    assert (targets("template", OF_JOBS) | targets("needs", OF_JOBS)) - {"limits"} == set(Patch.__struct_fields__) - own
    said = {field.target for field in OF_BATCHES if field.kind != "manner"} - {"after_any", "after_failure"}
    assert said == set(BatchPatch.__struct_fields__) - {"after_none"}


def test_what_is_not_said_is_as_a_template_has_it() -> None:
    (template,) = build(["x"], {"group": "", "cwd": "/"}).spec.templates
    assert template == Template(argv=("x",), umask=template.umask)


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
    assert {"command", "cwd", "env", "stdin", "stdout", "stderr"} == set(JsonLine.__struct_fields__) - {
        field.name for field in JSON_FIELDS
    }
