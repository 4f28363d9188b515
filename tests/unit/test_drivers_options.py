"""What every dialect makes alike of names, tags, and the options of a site and a user."""

import subprocess
from pathlib import Path

import pytest

from rota.drivers.api import Ask
from rota.drivers.dialect import Answer, Command, Dialect, Options
from rota.drivers.lsf import Lsf, OpenLava
from rota.drivers.native import enter, native_name, ranges, tag_of
from rota.drivers.options import NAMED
from rota.drivers.pbs import Pbs
from rota.drivers.sge import Sge
from rota.drivers.slurm import Slurm
from rota.drivers.torque import Torque
from rota.model.errors import UsageError
from rota.model.needs import Amounts

TAG = "0123456789ab"
DIALECTS: list[Dialect] = [Slurm(), Lsf(), OpenLava(), Pbs(), Torque(), Sge()]  # type: ignore[list-item]
every = pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)


def ask(*options: tuple[str, str], name: str = "my batch", tag: str = TAG, directory: str = "/shared/rota") -> Ask:
    return Ask(tag, name, ("a1",), Amounts(1000), "exit 0\n", directory, options=options)


def submit(dialect: Dialect, *options: tuple[str, str], site: Options | None = None) -> Command:
    return dialect.submit(ask(*options), site or Options())


def has(command: Command, word: str) -> bool:
    return any(each == word or each.endswith(f"={word}") for each in command.argv)


@every
@pytest.mark.parametrize("value", ["-x", "--uid=0", "a\nb", "a\0b", "a\x1b", "\tb"])
def test_a_name_that_could_be_something_else_is_refused(dialect: Dialect, value: str) -> None:
    for name in NAMED:
        with pytest.raises(UsageError, match=name):
            submit(dialect, (name, value))
        with pytest.raises(UsageError, match=name):
            submit(dialect, site=Options(**{name: value}))


@every
def test_a_name_is_one_word(dialect: Dialect) -> None:
    for name in NAMED:
        if name == "constraint" and isinstance(dialect, Lsf):
            continue
        with pytest.raises(UsageError, match=f"{name} 'a b'"):
            submit(dialect, (name, "a b"))


def test_a_selection_of_lsf_may_have_blanks() -> None:
    assert "select[mem > 4000 && ib]" in submit(DIALECTS[1], ("constraint", "mem > 4000 && ib")).argv


@every
def test_no_option_has_a_line_break(dialect: Dialect) -> None:
    for key in sorted(dialect.allowed):
        for pair in ((key, "a\nb"), (f"{key}\n", "a")):
            with pytest.raises(UsageError, match="line break or another control character"):
                submit(dialect, pair)


@every
def test_what_is_not_known_is_refused_with_what_is(dialect: Dialect) -> None:
    for key in ("colour", "--nosuch", "", "-", sorted(dialect.allowed)[0].lstrip("-")):
        with pytest.raises(UsageError, match=f"option '{key}' .*account.*{sorted(dialect.allowed)[0]}"):
            submit(dialect, (key, "x"))
        with pytest.raises(UsageError, match=f"option '{key}'"):
            submit(dialect, site=Options(raw=((key, "x"),)))


@every
def test_the_user_is_stronger_than_the_site_and_may_want_none(dialect: Dialect) -> None:
    site = Options(account="ours", partition="short")
    assert has(submit(dialect, site=site), "ours")
    for key in ("account", "--account"):
        mine = submit(dialect, (key, "mine"), site=site)
        assert has(mine, "mine") and has(mine, "short") and not has(mine, "ours")
    assert not has(submit(dialect, ("account", ""), site=site), "ours")
    assert submit(dialect, site=Options(account="")) == submit(dialect)


@pytest.mark.parametrize(
    ("dialect", "site", "mine", "wanted"),
    [
        (Slurm(), (("--nice", "1"),), (("-nice", "2"),), ["--nice=2"]),
        (Lsf(), (("-app", "a"),), (("--app", "b"), ("-app", "c")), ["-app", "c"]),
        (Pbs(), (("-p", "1"), ("-l", "x=1")), (("-l", "y=1"), ("-p", "-2")), ["-l", "x=1", "-l", "y=1", "-p", "-2"]),
        (Torque(), (("-W", "x=1"),), (("-W", "umask=2"),), ["-W", "x=1", "-W", "umask=2"]),
        (
            Sge(),
            (("-soft", ""), ("-l", "a=1"), ("-hard", "")),
            (("-soft", ""), ("-l", "b=1")),
            ["-soft", "-l", "a=1", "-hard", "-soft", "-l", "b=1"],
        ),
    ],
)
def test_options_that_may_be_repeated_add_up(
    dialect: Dialect, site: tuple[tuple[str, str], ...], mine: tuple[tuple[str, str], ...], wanted: list[str]
) -> None:
    argv = submit(dialect, *mine, site=Options(raw=site)).argv
    assert list(argv[-len(wanted) :]) == wanted
    assert not {"--nice=1", "a"} & set(argv)


def test_requirements_of_lsf_add_up_and_of_one_section_the_users_counts() -> None:
    site = Options(raw=(("-R", "select[ib] order[ut]"),))
    argv = submit(DIALECTS[1], ("-R", "select[ssd] order[mem]"), site=site).argv
    assert argv[argv.index("-R") + 1] == "select[(ssd) && (ib)] order[mem]"
    assert argv.count("-R") == 1


@every
def test_directories(dialect: Dialect) -> None:
    for path in ("relative", "", "/a\nb", "/a\x7f"):
        with pytest.raises(UsageError, match=r"directory .*(absolute|has)"):
            dialect.submit(ask(directory=path), Options())


@every
def test_a_native_name_has_its_tag_whole_and_is_found_by_it(dialect: Dialect) -> None:
    for name in ("x" * 500, "9lives", "", "--", "ünïcode / name", "a b:c@d*?%j", "c++", "-TAG"):
        for tag in (TAG, "0" * 12):
            argv = dialect.submit(ask(name=name, tag=tag), Options()).argv
            (native,) = [word.removeprefix("--job-name=") for word in argv if word.endswith(f"-{tag}")]
            assert tag_of(native) == tag and native.isascii() and not set(native) & set(" /:@*?%")
            assert len(native) <= (15 if dialect.name == "torque" else 73) and native[0] not in "-_"
            assert native[0].isalpha() or dialect.name in ("slurm", "lsf", "openlava")


def test_native_names() -> None:
    assert native_name(ask(name="_9 lives_"), 64) == f"9_lives-{TAG}"
    assert native_name(ask(name="_9 lives_"), 64, letter_first=True) == f"r9_lives-{TAG}"
    assert native_name(ask(name="9lives"), 15, letter_first=True) == f"r9-{TAG}"
    assert native_name(ask(name=""), 64) == f"rota-{TAG}"


@pytest.mark.parametrize("behind", ["", "[3]", "[1-9]", "[0,3-8:2]", "[1-9]%4"])
def test_the_tag_in_a_native_name(behind: str) -> None:
    assert tag_of(f"my-batch-{TAG}{behind}") == TAG


@pytest.mark.parametrize("name", ["", "my", f"my-{TAG[:-1]}", f"my{TAG}", f"my-{TAG}c", f"my-{TAG}_2", f"my-{TAG}.sh"])
def test_what_a_job_of_ours_named_after_itself_is_not_ours(name: str) -> None:
    assert tag_of(name) is None


def test_only_elements_of_torque_have_a_number_behind_the_tag() -> None:
    torque, digits = Torque(), "1" * 12
    for native, name, tag in (
        *(("7[3]", f"my-{TAG}-3", TAG), ("7[3]", f"my-{TAG}-", TAG), ("7[]", f"my-{digits}", digits)),
        *(("7[3]", f"my-{digits}-3", digits), ("8", f"my-{TAG}-3", None)),
    ):
        row = f"{native}.trq1 me batch {name} -- 1 1 -- 01:00:00 R 01:00\n"
        assert torque.read_listing(Answer(0, row, ""), Options()).seen[0].tag == tag


def test_ranges() -> None:
    assert ranges("3-4, 6,8-12:2") == [3, 4, 6, 8, 10, 12]
    for text in ("", "a", "1-", "4-3", "1-4:0", "1-9999999", "1,,2"):
        assert ranges(text) is None


def test_a_directory_that_cannot_be_entered_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "no such"
    text = "\n".join(["sleep() { :; }", "hostname() { echo n1; }", *enter(str(missing)), "echo never"])
    done = subprocess.run(["/bin/sh"], input=text, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (71, "", f"rota: cannot enter {missing} on n1\n")
