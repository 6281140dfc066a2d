"""Wrong options of `emberline loadtest` are refused before a server is asked."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from emberline.cli import loadtest, main, names


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give either --data, rows to make requests of, or --requests, recorded requests"),
        (["--data", __file__, "--requests", __file__], "give either --data"),
        (["--data", __file__, "--rate", "5", "--users", "2"], "give one of --users, --rate and --find-p99"),
        (["--data", __file__, "--rate", "fast"], "--rate: expected a profile such as 100"),
        (["--data", __file__, "--users", "1..4"], "--users: expected whole numbers of users"),
        (["--data", __file__, "--hold", "5m"], "--hold goes with --find-p99"),
        (["--data", __file__, "--drift", "0.1"], "--drift goes with --ids"),
        (["--data", __file__, "--ids", "pareto"], "--ids: expected uniform, zipf"),
        (["--requests", __file__, "--ids", "zipf"], "recorded requests are sent as they are"),
        (["--data", __file__, "--kinds", "http"], "--kinds: expected some of http_binary, http_json, grpc"),
        (["--data", __file__, "--fail-if", "p98>3"], "--fail-if: 'p98>3': 'p98' is none of the figures"),
        (["--data", __file__, "--seconds", "3d"], "expected a length of time such as 30s, 5m or 2h"),
        (["--data", __file__, "--rats", "3"], "Did you mean --rate"),
        (["--data", __file__, "--find-p99", "nan"], "'--find-p99': expected a number, got nan"),
        (["--data", __file__, "--find-p99", "5", "--start-rate", "inf"], "'--start-rate': expected a number, got inf"),
        (["--data", __file__, "--users", "2", "--connections", "8"], "--connections goes with --rate or --find-p99"),
        (["--data", __file__, "--arrivals", "poisson"], "--arrivals goes with --rate or --find-p99"),
        (["--data", __file__, "--rate", "5", "--step", "9"], "--step goes with --find-p99"),
        (["--data", __file__, "--rate", "5", "--start-rate", "9"], "--start-rate goes with --find-p99"),
        (
            ["--data", __file__, "--rate", "5", "--arrivals", "poisson", "--generator", "wrk2"],
            "--arrivals: wrk2 sends at equal gaps",
        ),
        (
            ["--data", __file__, "--rate", "5", "--ids", "zipf", "--drift", "0.1", "--generator", "h2load"],
            "--drift: h2load sends its requests in turn; use locust",
        ),
    ],
)
def test_a_wrong_option_is_named(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["loadtest", "--model", "m", "--url", "http://127.0.0.1:1", *arguments])
    assert ended.value.code == 2
    assert message in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("option", ["--json", "--html"])
def test_a_report_without_a_folder_is_refused_before_the_load(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "none" / "load"
    with pytest.raises(SystemExit) as ended:
        main(["loadtest", "--model", "m", "--url", "http://127.0.0.1:1", "--data", __file__, option, str(path)])
    assert ended.value.code == 1
    assert f"{option} {path}: there is no folder {path.parent}" in capsys.readouterr().err


@pytest.mark.parametrize(("figure", "code"), [("failures", 1), ("unanswered", 1), ("requests", None)])
def test_a_request_without_an_answer_fails_the_command(
    figure: str, code: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = {"interrupted": False, "broken": "", "failures": 0, "unanswered": 0, "requests": 5, "search": None, figure: 5}
    monkeypatch.setattr("emberline.cli.loadtest._run", lambda *_: {"grpc": run})
    arguments = ["loadtest", "--model", "m", "--url", "http://127.0.0.1:1", "--data", __file__]
    if code is None:
        main(arguments)
        return
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == code


def test_names_of_models_are_completed(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(url: str, path: str, timeout: float) -> tuple[dict[str, list[str]], dict[str, str]]:
        assert (url, path) == ("http://127.0.0.1:1", "/v1/models")
        return {"models": ["movielens", "movies", "taxi"]}, {}

    monkeypatch.setattr(names, "call_server", asked)
    words = ["--url", "http://127.0.0.1:1", "--model"]
    found = ShellComplete(loadtest.command, {}, "loadtest", "_COMPLETE").get_completions(words, "mov")
    assert [item.value for item in found] == ["movielens", "movies"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rate", "10..20", "--generator", "h2load"], "h2load"),
        (["--users", "2", "--generator", "wrk2"], "wrk2"),
    ],
)
def test_programs_in_c_send_constant_rates_only(
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("h2load", "wrk2"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    words = ["loadtest", "--model", "m", "--data", __file__, *arguments]
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SystemExit):
        main(words)
    assert f"--generator: there is no program {message}" in capsys.readouterr().err
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit):
        main(words)
    assert f"{message} sends constant rates only" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["--rate", "50"],
        ["--rate", "50@30s,60@10s"],
        ["--find-p99", "10"],
        ["--find-p99", "10", "--step", "20s", "--hold", "10s"],
    ],
    ids=["rate", "steps", "search", "hold"],
)
def test_wrk2_measures_nothing_in_phases_that_are_short(
    arguments: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wrk2").write_text("#!/bin/sh\n")
    (tmp_path / "wrk2").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit):
        main(["loadtest", "--model", "m", "--data", __file__, "--generator", "wrk2", *arguments])
    assert "wrk2 measures nothing in its first seconds, so a phase or --step has to last at least 15 s" in (
        capsys.readouterr().err
    )
