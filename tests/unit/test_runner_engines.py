"""How each container engine is told to run a command: apptainer and docker are not tried live."""

import json

import pytest

from rota.model.errors import UsageError
from rota.runner import contained
from rota.runner.engines import Mount, Request, command_line, image_command, passed_on
from rota.submission import build

LIMITS = {"nofile": (1024, 4096)}
ENVIRON = {"PATH": "/host/bin", "HOME": "/home/u", "ROTA_JOB": "7.1", "LANG": "C", "SECRET=": "x"}


def request(owner=(1000, 100), **more) -> Request:
    made = Request({"image": "debian:12", "name": "rota-x", **more}, ["sh", "-c", "exit 3"], "/data/a b")
    made.owner = owner
    made.keeper = "1.2"
    return made


def test_podman() -> None:
    words = command_line("podman", request(mounts=["/ref:/r:ro"]), "debian:12", ENVIRON, LIMITS)
    start = [
        "podman",
        "run",
        "--name",
        "rota-x",
        "--label",
        "rota.keeper=1.2",
        "--init",
        "--network",
        "host",
        "--workdir",
    ]
    assert words[: len(start)] == start
    assert words[words.index("--workdir") + 1] == "/data/a b"
    assert pairs(words, "--volume") == ["/data/a b:/data/a b", "/ref:/r:ro"]
    assert pairs(words, "--ulimit") == ["nofile=1024:4096"] and pairs(words, "--userns") == ["keep-id"]
    assert pairs(words, "--env") == ["LANG", "ROTA_JOB", "SECRET="]
    assert words[-7:] == ["never", "--entrypoint", "", "debian:12", "sh", "-c", "exit 3"]
    assert "--user" in command_line("podman", request(owner=(0, 0)), "i", {}, {})


def test_docker() -> None:
    words = command_line("docker", request(gpus="0,2"), "debian:12", {}, {})
    assert pairs(words, "--user") == ["1000:100"] and pairs(words, "--gpus") == ['"device=0,2"']
    assert "--userns" not in words and "--pull" not in words
    assert words[-4:] == ["debian:12", "sh", "-c", "exit 3"]


def test_17_cores_that_a_job_is_bound_to_are_those_of_its_container() -> None:
    """What podman starts inherits them; a daemon has to be told."""
    environ = {"ROTA_CORE_IDS": "0-1,4"}
    assert pairs(command_line("docker", request(), "i", environ, {}), "--cpuset-cpus") == ["0-1,4"]
    assert "--cpuset-cpus" not in command_line("docker", request(), "i", {}, {})
    assert "--cpuset-cpus" not in command_line("podman", request(), "i", environ, {})


def test_podman_gives_gpus_by_their_names() -> None:
    words = command_line("podman", request(gpus="0,2"), "i", {}, {})
    assert pairs(words, "--device") == ["nvidia.com/gpu=0", "nvidia.com/gpu=2"]


@pytest.mark.parametrize(
    ("environ", "flag"),
    [({}, "--nv"), ({"ROCR_VISIBLE_DEVICES": "0"}, "--rocm"), ({"CUDA_VISIBLE_DEVICES": "0"}, "--nv")],
)
@pytest.mark.parametrize("engine", ["apptainer", "singularity"])
def test_apptainer(engine: str, environ: dict, flag: str) -> None:
    words = command_line(engine, request(mounts=["/ref:/r:ro"], gpus="0"), "/i/x.sif", environ, {})
    assert words[:4] == [engine, "exec", "--pwd", "/data/a b"]
    assert pairs(words, "--bind") == ["/data/a b:/data/a b", "/ref:/r:ro"] and flag in words
    assert words[-4:] == ["/i/x.sif", "sh", "-c", "exit 3"]


def test_charliecloud_sees_no_path_of_the_host() -> None:
    words = command_line("ch-run", request(), "/i/tree", ENVIRON, {})
    assert pairs(words, "--bind") == ["/data/a b:/data/a b"] and pairs(words, "--unset-env") == ["PATH"]
    assert [word for word in words if word.startswith("--set-env=PATH=/usr/local/sbin:")]
    assert words[-5:] == ["/i/tree", "--", "sh", "-c", "exit 3"]
    said = command_line("ch-run", request(said=["PATH"]), "/i/tree", ENVIRON, {})
    assert not [word for word in said if "PATH" in word]


def test_what_brings_an_image() -> None:
    there, bring = image_command("podman", "debian:12", "/k/x")
    assert there is not None and there[:3] == ["podman", "image", "inspect"]
    assert bring == [["podman", "pull", "--quiet", "debian:12"]]
    assert image_command("apptainer", "debian:12", "/k/x.sif") == (
        None, [["apptainer", "pull", "/k/x.sif", "docker://debian:12"]],
    )  # fmt: skip
    assert image_command("ch-run", "docker://debian:12", "/k/x")[1] == [
        ["ch-image", "pull", "debian:12"],
        ["ch-convert", "-o", "dir", "debian:12", "/k/x"],
    ]


def test_a_mount_is_read_and_a_colon_in_it_is_said_otherwise() -> None:
    mount = Mount.read("/a:/b:ro")
    assert (mount.outside, mount.inside, mount.read_only) == ("/a", "/b", True)
    made = request()
    made.mounts = [Mount("/a:b", "/c", True)]
    assert pairs(command_line("podman", made, "i", {}, {}), "--mount") == ["type=bind,source=/a:b,target=/c,readonly"]


def test_variables_of_the_host_stay_there_unless_the_user_said_them() -> None:
    environ = {"PATH": "", "LD_PRELOAD": "", "BASH_FUNC_x%%": "", "A": "", "ROTA_TOKEN_FILE": ""}
    assert passed_on(environ, []) == ["A"]
    assert passed_on(environ, ["PATH"]) == ["A", "PATH"]


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"reason": 3, "note": "x"}', '{"remove": [1]}', '{"remove": "rm -rf /"}', "[" * 60000]
)
def test_a_word_that_is_none_says_nothing(tmp_path, text: str) -> None:
    class Lane:
        base = str(tmp_path / "lane")

    (tmp_path / "lane.word").write_text(text)
    assert contained.last_word(Lane()) == (None, None)  # type: ignore[arg-type]


def test_a_word_is_read_once(tmp_path) -> None:
    class Lane:
        base = str(tmp_path / "lane")

    (tmp_path / "lane.word").write_text(json.dumps({"reason": "container", "note": "no image"}))
    assert contained.last_word(Lane()) == (("container", "no image"), None)  # type: ignore[arg-type]
    assert contained.last_word(Lane()) == (None, None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mounts": ["/a"]}, "a mount: only for jobs in a container"),
        ({"engine": "podman"}, "engine 'podman': only for jobs in a container"),
        ({"container": "x", "mounts": ["/a:b"]}, "mount '/a:b': write SRC"),
        ({"container": "x", "mounts": ["/a:/b:rx"]}, "write SRC"),
        ({"container": "-v"}, "container '-v': give the name"),
        ({"container": ""}, "container '': give the name"),
        ({"container": "x", "nodes": 2}, "a job on 2 nodes"),
    ],
)
def test_what_cannot_be_meant_is_refused(options, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        build(["x"], options)
    assert words in str(caught.value)


def test_relative_paths_are_those_of_the_submitter(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (template,) = build(["x"], {"container": "./tree", "mounts": ["ref:/r:ro", "data"]}).spec.templates
    assert template.container == str(tmp_path / "tree")
    assert template.mounts == (f"{tmp_path}/ref:/r:ro", f"{tmp_path}/data")


def pairs(words: list, flag: str) -> list:
    return [words[at + 1] for at, word in enumerate(words) if word == flag]
