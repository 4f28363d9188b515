"""Hardware and its arithmetic, and what a job asks of each level of a stack."""

import pytest

from placement_world import host
from rota.model.needs import Amounts
from rota.placement import AvailableLocation, DefinitionError, ExecutionLocation, Hardware, PlacementError, Storage
from rota.placement.levels import amounts_of, identity, levels
from rota.placement.usage import topmost

MIB = 1 << 20
MAIN = Hardware(16, 1024, {"a": Storage("/", 100), "b": Storage("/", 20), "c": Storage("/tmp", 30)})


def test_storage() -> None:
    one, other = Storage("/", 5, {"/a"}, "/host"), Storage("/", 3, {"/b"}, "/elsewhere")
    for made, size in ((one + other, 8), (one - other, 2), (one | other, 5), (other | one, 5)):
        assert (made.size, made.paths, made.mount_point) == (size, {"/a", "/b"}, "/")
    assert (one + other).bind == "/host" and one.size == 5 and one.paths == {"/a"}, "the operands stay as they are"
    for wrong in (lambda: one + Storage("/x", 1), lambda: one - Storage("/x", 1), lambda: one | Storage("/x", 1)):
        with pytest.raises(ArithmeticError, match="not at one mount point"):
            wrong()
    with pytest.raises(PlacementError, match=r"storage / has a negative size: -2 MiB"):
        other - one
    with pytest.raises(PlacementError, match="storage /data has a negative size"):
        Storage("/data", -1)


def test_sums_and_differences_are_normal() -> None:
    more = MAIN + Hardware(5, storage={"x": Storage("/tmp", 1)})
    assert not MAIN.is_normalized() and more.is_normalized() and MAIN.normalized().is_normalized()
    assert (more.cores, more.memory, set(more.storage)) == (21, 1024, {"/", "/tmp"})
    assert (more.get_size("/"), more.get_size("/tmp")) == (120, 31)
    less = more - MAIN
    assert (less.cores, less.memory, less.get_size("/"), less.get_size("/tmp")) == (5, 0, 0, 1)
    with pytest.raises(PlacementError, match="no storage at /data"):
        MAIN - Hardware(storage={"x": Storage("/data", 1)})
    assert (MAIN - Hardware(1)).cores == 15, "what asks for no storage needs no mount point"


def test_a_merge_keeps_keys_and_takes_the_greater_storage() -> None:
    merged = Hardware(1, 2, {"k": Storage("/", 5)}) | Hardware(3, 4, {"k": Storage("/", 9), "l": Storage("/x", 1)})
    assert (merged.cores, merged.memory, set(merged.storage), merged.storage["k"].size) == (4, 6, {"k", "l"}, 9)
    with pytest.raises(ArithmeticError):
        Hardware(storage={"k": Storage("/", 5)}) | Hardware(storage={"k": Storage("/x", 5)})


def test_satisfies_does_not_look_at_keys() -> None:
    other = Hardware(16, 1024, {"p": Storage("/", 120), "q": Storage("/tmp", 30)})
    assert MAIN.satisfies(other) and other.satisfies(MAIN)
    assert not MAIN.satisfies(other + Hardware(1)) and not MAIN.satisfies(other + Hardware(0, 1))
    assert not MAIN.satisfies(other + Hardware(storage={"x": Storage("/tmp", 1)}))
    with pytest.raises(PlacementError) as caught:
        other.satisfies(Hardware(1, 1, {"x": Storage("/data", 1)}))
    assert "'/tmp'" in str(caught.value) and "'/data'" in str(caught.value), "both are named"


def test_named_resources() -> None:
    two = Hardware(resources={"gpus": 2, "licence": 1})
    assert (two + two).resources == {"gpus": 4, "licence": 2} and (two - two).resources["gpus"] == 0
    assert two.satisfies(Hardware(resources={"gpus": 2})) and not two.satisfies(Hardware(resources={"gpus": 3}))
    assert not Hardware(9).satisfies(Hardware(resources={"gpus": 1}))


def test_looking_up_storage() -> None:
    hardware = Hardware(storage={"x": Storage("/data", 7, {"/data/in"})})
    assert hardware.get_mount_point("/data/in") == "/data" and hardware.get_size("/data") == 7
    with pytest.raises(KeyError):
        hardware.get_storage("/data/other")
    assert Hardware().get_mount_points() == ["/"]


# ---- levels ---------------------------------------------------------------------------------------------------------


def example() -> tuple[AvailableLocation, AvailableLocation, Hardware]:
    big = Hardware(8, 16_000, {"/": Storage("/", 100_000), "/data": Storage("/data", 1_000_000)})
    node = host("node", "cluster", hardware=big)
    inner = Hardware(4, 8000, {"/": Storage("/", 10_000), "/work": Storage("/work", 5000, bind="/data/x")})
    container = host("box", "docker", hardware=inner, stacked=True, wraps=node)
    out, tmp = Storage("/", 1024, {"/work/out"}), Storage("/", 512, {"/tmp/t"})
    return node, container, Hardware(2, 4000, {"__outdir__": out, "__tmpdir__": tmp})


def test_the_worked_example() -> None:
    _, container, asked = example()
    top, below = levels(container, asked)
    assert (top.id, below.id) == ("docker/box", "cluster/node")
    assert set(top.hardware.storage) == {"__outdir__", "__tmpdir__"}, "the keys of whoever asks are kept"
    assert {each.mount_point: each.size for each in top.hardware.storage.values()} == {"/work": 1024, "/": 512}
    assert {key: (each.size, each.paths) for key, each in below.hardware.storage.items()} == {
        "/data": (1024, {"/data/x/out"})
    }, "what the container keeps to itself is not charged below"
    for level in (top, below):
        assert (level.hardware.cores, level.hardware.memory) == (2, 4000)
    assert container.location.mounts == {"/work": "/data/x"}
    assert amounts_of(top) == Amounts(2000, 4000 * MIB, named=(("disk:/", 512 * MIB), ("disk:/work", 1024 * MIB)))


def test_what_is_not_stacked_charges_nothing_below() -> None:
    node, _, asked = example()
    slurm = AvailableLocation("slurm", "cluster2", "node", slots=3, wraps=node)
    (level,) = levels(slurm, asked)
    assert level.id == "cluster2/slurm" and amounts_of(level) == Amounts(1000)


def test_volumes_that_end_at_one_mount_of_the_host_are_added() -> None:
    node, _, _ = example()
    binds = {path: Storage(path, 100, bind=f"/data{path}") for path in ("/a", "/b")}
    container = host("box", "docker", hardware=Hardware(4, 8000, {**binds}), stacked=True, wraps=node)
    asked = Hardware(1, 1, {"x": Storage("/", 10, {"/a/x"}), "y": Storage("/", 20, {"/b/y"})})
    below = levels(container, asked)[1].hardware
    assert below.is_normalized() and below.storage["/data"].size == 30
    assert below.storage["/data"].paths == {"/data/a/x", "/data/b/y"} and node.hardware.satisfies(below)


def test_any_depth() -> None:
    node, _, _ = example()
    inner = host(
        "c1", "docker", hardware=Hardware(4, 8000, {"/w": Storage("/w", 50, bind="/data")}), stacked=True, wraps=node
    )
    outer = host(
        "c2", "nested", hardware=Hardware(4, 8000, {"/v": Storage("/v", 50, bind="/w/v")}), stacked=True, wraps=inner
    )
    asked = Hardware(1, 1, {"x": Storage("/", 10, {"/v/out"})})
    found = [(level.id, *level.hardware.storage.values()) for level in levels(outer, asked)]
    assert [(name, disk.mount_point, disk.paths) for name, disk in found] == [
        ("nested/c2", "/v", {"/v/out"}),
        ("docker/c1", "/w", {"/w/v/out"}),
        ("cluster/node", "/data", {"/data/v/out"}),
    ]


def test_several_paths_under_one_key_all_count() -> None:
    node, _, _ = example()
    asked = Hardware(1, 1, {"x": Storage("/", 10, {"/a", "/b", "/data/c"})})
    (level,) = levels(node, asked)
    assert sorted((each.mount_point, each.size) for each in level.hardware.storage.values()) == [
        ("/", 10),
        ("/data", 10),
    ]


def test_memory_file_systems_take_up_memory_too() -> None:
    disk = Storage("/dev/shm", 100, tmpfs=True)
    (level,) = levels(
        host(hardware=Hardware(1, 1000, {"s": disk})), Hardware(1, 10, {"x": Storage("/", 30, {"/dev/shm/x"})})
    )
    assert level.hardware.memory == 40


def test_a_missing_mount_is_named_with_those_that_there_are() -> None:
    only = host(hardware=Hardware(1, 1, {"/data": Storage("/data", 5)}))
    with pytest.raises(PlacementError, match=r"/work/x is on none of the mount points of farm/h1, which are /data"):
        levels(only, Hardware(1, 1, {"x": Storage("/", 1, {"/work/x"})}))
    (level,) = levels(only, Hardware(1, 1))
    assert level.hardware.cores == 1, "who asks for no storage needs none"


def test_wraps_in_a_circle() -> None:
    one = host("a", stacked=True)
    one.wraps = host("b", stacked=True, wraps=one)
    with pytest.raises(DefinitionError, match="wraps goes in a circle"):
        levels(one, Hardware(1))


def test_equal_names_in_two_deployments_are_two_but_this_machine_is_one() -> None:
    assert identity(host("n1", "a")) != identity(host("n1", "b"))
    assert identity(host("here", "a", local=True)) == identity(host("here", "b", local=True))
    assert identity(host("n1", "a", identity="rack7")) == identity(host("x", "b", identity="rack7"))


def test_execution_locations_are_equal_by_their_fields() -> None:
    made = [ExecutionLocation("n", "d", mounts={"/": "/x"}, service=service) for service in ("s", "s", None)]
    assert made[0] == made[1] != made[2] and len(set(made)) == 2
    assert (str(made[0]), str(made[2])) == ("d/s/n", "d/n")


def test_of_directories_that_are_one_in_the_other_one_is_measured() -> None:
    given = ["/w/out", "/w/out", "/w/out/tmp", "/w/out-2", "/w/outer", "/w/a/"]
    assert topmost(given) == ["/w/a", "/w/out", "/w/out-2", "/w/outer"]
