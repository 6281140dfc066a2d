"""Every option of every command: URLs for paths, options given twice, and near names for wrong ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from emberline.cli.command import Command, Group, LocalPath
from emberline.cli.frame import command


def walk(group: click.Group, names: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        assert found is not None
        yield (*names, name), found
        if isinstance(found, click.Group):
            yield from walk(found, (*names, name))


ALL = list(walk(command))
PATHS = [(names, param) for names, each in ALL for param in each.params if isinstance(param.type, click.Path)]
SINGLE = [
    (names, param)
    for names, each in ALL
    for param in each.params
    if isinstance(param, click.Option) and not param.multiple and not param.is_flag
]


def name_of(value: object) -> str:
    return " ".join(value) if isinstance(value, tuple) else str(getattr(value, "name", value))


def refused(arguments: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> Result:
    monkeypatch.chdir(folder)
    done = CliRunner().invoke(command, arguments)
    assert done.exit_code != 0, done.output
    assert list(folder.iterdir()) == []
    return done


def test_the_walk_finds_the_commands_and_their_paths() -> None:
    assert len(ALL) > 30
    assert len(PATHS) > 40
    for names, each in ALL:
        assert isinstance(each, Command | Group), names
    for names, param in PATHS:
        assert isinstance(param.type, LocalPath), (names, param.name)


@pytest.mark.parametrize(("names", "param"), PATHS, ids=name_of)
@pytest.mark.parametrize("url", ["s3://x/y", "GS://x/y", "file:///x/y", "hdfs:/x/y"])
def test_every_path_refuses_a_url_by_its_scheme(
    names: tuple[str, ...], param: click.Parameter, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = [param.opts[0]] if isinstance(param, click.Option) else []
    if names == ("export",) and param.name == "target":
        given = ["table"]
    if names in (("score",), ("data", "convert")) and param.name == "target":
        given = [str(Path(__file__))]
    done = refused([*names, *given, url], tmp_path, monkeypatch)
    scheme = url.partition(":")[0].lower()
    assert f"expected a path of this machine, got '{scheme}://" in done.output
    if scheme == "file":
        assert "give the path itself: /x/y" in done.output
    else:
        assert f"{scheme}:// is not supported; mount the storage or copy the files" in done.output


@pytest.mark.parametrize(
    "arguments",
    [
        ["plan", "s3://x/y"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_paths_that_may_be_something_else_refuse_a_url_too(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = refused(arguments, tmp_path, monkeypatch)
    assert "'s3://x/y'" in done.output + str(done.exception)


@pytest.mark.parametrize(("names", "param"), SINGLE, ids=name_of)
def test_an_option_that_takes_one_value_is_refused_when_it_is_given_twice(
    names: tuple[str, ...], param: click.Option, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = refused([*names, param.opts[0], "1", f"{param.opts[0]}=2"], tmp_path, monkeypatch)
    assert f"{param.opts[0]} is given twice; it takes one value" in done.output


def test_a_flag_may_be_given_twice() -> None:
    assert CliRunner().invoke(command, ["train", "--quiet", "--quiet", "--help"]).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["serve", "--modl-repository", "x"], " Did you mean --model-repository?"),
        (["serve", "--repository", "x"], " Did you mean --model-repository?"),
        (["serve", "--port", "80"], " Did you mean --grpc-port or --http-port or --metrics-port?"),
        (["train", "c", "--reposit", "x"], " Did you mean --repository?"),
        (["budget", "m", "--bytes", "2"], " Did you mean --dram-bytes?"),
        (["predict", "m", "--model", "x"], ""),
        (["predict", "m", "--text", "x"], ""),
        (["predict", "m", "--batch", "3"], ""),
        (["train", "c", "--epochs", "3"], ""),
        (["serve", "--workers", "2"], ""),
        (["--verbose"], ""),
    ],
    ids=" ".join,
)
def test_a_wrong_option_is_answered_with_what_is_like_it_or_with_nothing(arguments: list[str], hint: str) -> None:
    wrong = next(text for text in arguments if text.startswith("--"))
    done = CliRunner().invoke(command, arguments)
    assert done.exit_code == 2
    assert done.output.rstrip().endswith(f"No such option '{wrong}'.{hint}")


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["sevre"], "Did you mean 'serve'?"),
        (["store", "verfy"], "Did you mean 'verify'?"),
        (["token", "make"], "There are: list, new, remove."),
        (["data", "kaggle"], "There are: convert, criteo-like, movielens, synthetic, wide."),
    ],
    ids=" ".join,
)
def test_a_wrong_command_is_answered_with_its_like_or_all_there_are(arguments: list[str], hint: str) -> None:
    done = CliRunner().invoke(command, arguments)
    assert done.exit_code == 2
    assert done.output.rstrip().endswith(f"No such command '{arguments[-1]}'. {hint}")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["train", "--dram-bytes", "0"], "'--dram-bytes': expected 1 or more bytes, got '0'"),
        (["update", "--dram-bytes", "8XB"], "'--dram-bytes': expected a number of bytes such as 536870912 or 512MiB"),
        (["mirror", "--rate", "1kB"], "'--rate': expected 65536 or more bytes, got '1kB'"),
    ],
    ids=" ".join,
)
def test_a_number_of_bytes_that_means_none_is_refused_by_its_option(arguments: list[str], expected: str) -> None:
    done = CliRunner().invoke(command, arguments)
    assert done.exit_code == 2
    assert expected in " ".join(done.output.split())
