"""What is said of the files that jobs read and write."""

import pytest

from rota.model.errors import UsageError
from rota.submission import build


def spec(command="x {}", **more):
    values = more.pop("values", None)
    array = more.pop("array", None)
    return build(command, {"cwd": "/", **more}, values=values, array=array)


def test_inputs_are_absolute_and_patterns_stand_for_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a.fq", "b.fq", "c.txt"):
        (tmp_path / name).write_text("x")
    (template,) = spec("x", inputs=["*.fq", "c.txt", "s3://bucket/key"], outputs="out/*.bam").spec.templates
    assert template.inputs == (*(f"{tmp_path}/{name}" for name in ("a.fq", "b.fq", "c.txt")), "s3://bucket/key")
    assert template.outputs == (f"{tmp_path}/out/*.bam",)


def test_jobs_with_the_same_files_share_a_template():
    made = spec(values=["a", "b", "a"], inputs="/data/{}.fq", outputs="/out/{}.bam")
    assert [template.inputs for template in made.spec.templates] == [("/data/a.fq",), ("/data/b.fq",)]
    assert made.spec.templates[1].outputs == ("/out/b.bam",)
    ((values, templates),) = made.source.chunks()
    assert (values, templates) == (["a", "b", "a"], [0, 1, 0])


def test_arrays_have_files_by_number():
    made = spec("x {index}", array="3-5", inputs="/data/{}.fq")
    assert [template.inputs for template in made.spec.templates] == [(f"/data/{n}.fq",) for n in (3, 4, 5)]
    ((values, templates),) = made.source.chunks()
    assert (values, templates) == (["", "", ""], [0, 1, 2])


def test_values_may_be_used_by_inputs_alone():
    assert len(spec("x", values=["a", "b"], inputs="/data/{}").spec.templates) == 2


@pytest.mark.parametrize(
    ("given", "words"),
    [("s3://bucket", "give s3://BUCKET/KEY"), ("", "give a path"), ("/no/such/*.fq", "nothing here matches that")],
)
def test_what_is_no_file_is_refused(given, words):
    with pytest.raises(UsageError) as error:
        spec("x", inputs=[given])
    assert words in str(error.value)


def test_too_many_different_sets_are_refused():
    with pytest.raises(UsageError, match="more than 65,535 different sets of inputs"):
        spec("x {}", values=[str(n) for n in range(65_540)], inputs="/data/{}")


def test_two_files_under_one_name_in_a_directory_are_refused():
    spec("x", inputs=["/a/x", "/b/x"])
    with pytest.raises(UsageError, match="'/a/x' and '/b/x': the job would find both under one name"):
        spec("x", inputs=["/a/x", "/b/x"], workdir="unique")
    with pytest.raises(UsageError, match="under one name"):
        spec("x", inputs=["s3://b/1/x", "s3://b/2/x"])
    with pytest.raises(UsageError, match="is removed"):
        spec("x", outputs=["s3://b/x"], workdir="unique")


def test_a_placeholder_may_stand_for_a_whole_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = spec("x {}", values=["/data/a", "b", "s3://bucket/c"], inputs="{}", outputs="{}.out").spec
    assert [template.inputs for template in made.templates] == [("/data/a",), (f"{tmp_path}/b",), ("s3://bucket/c",)]
    assert [template.outputs[0] for template in made.templates] == [
        "/data/a.out",
        f"{tmp_path}/b.out",
        "s3://bucket/c.out",
    ]
    (alone,) = spec("x", inputs="{weird").spec.templates
    assert alone.inputs == (f"{tmp_path}/{{weird",)
