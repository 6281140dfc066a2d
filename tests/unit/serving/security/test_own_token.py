"""The token file: there while the server runs, for its user alone."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from serving.security.own_token import own_token, own_token_path, read_own_token
from serving.security.tokens import digest_of


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("HOME", str(tmp_path))
    yield tmp_path
    for path in tmp_path.rglob("*"):
        if path.is_dir():
            path.chmod(0o700)


def test_it_is_there_while_the_server_runs(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = own_token_path(8000)
    assert path == home / ".cache" / "emberline" / "tokens" / "8000"
    with caplog.at_level(logging.INFO), own_token(8000) as digest:
        token = read_own_token(8000)
        assert digest == digest_of(token)
        assert path.stat().st_mode & 0o777 == 0o600
        assert path.parent.stat().st_mode & 0o777 == 0o700
        assert [each.name for each in path.parent.iterdir()] == ["8000"]
    assert not path.exists()
    assert str(path) in caplog.text
    assert token not in caplog.text
    assert digest not in caplog.text
    assert read_own_token(8000) == ""


def test_each_start_has_another_one_and_a_killed_servers_is_replaced(home: Path) -> None:
    with own_token(8000) as first:
        pass
    own_token_path(8000).write_text("left behind\n")
    own_token_path(8000).chmod(0o644)
    with own_token(8000) as second:
        assert own_token_path(8000).stat().st_mode & 0o777 == 0o600
    assert first != second


def test_those_of_killed_servers_go_and_those_of_living_ones_stay(home: Path) -> None:
    with own_token(8000), own_token(8001):
        own_token_path(7000).write_text("left behind\n")
        (own_token_path(7000).parent / ".8002.being-written").touch()
        with own_token(8003):
            left = sorted(path.name for path in own_token_path(7000).parent.iterdir())
            assert left == [".8002.being-written", "8000", "8001", "8003"]
        assert read_own_token(8000)


def test_a_server_removes_its_own_only(home: Path) -> None:
    with own_token(8000):
        own_token_path(8000).write_text("of a server that came later\n")
    assert read_own_token(8000) == "of a server that came later"


def test_a_folder_that_others_could_read_is_closed(home: Path) -> None:
    own_token_path(1).parent.mkdir(parents=True)
    own_token_path(1).parent.chmod(0o755)
    with own_token(1):
        assert own_token_path(1).parent.stat().st_mode & 0o777 == 0o700


def test_a_link_is_not_followed(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    (home / "elsewhere").mkdir()
    own_token_path(1).parent.parent.mkdir(parents=True)
    own_token_path(1).parent.symlink_to(home / "elsewhere")
    with own_token(1) as digest:
        assert digest == ""
    assert not list((home / "elsewhere").iterdir())
    assert "could not be written" in caplog.text


def test_without_a_place_for_it_the_server_serves_all_the_same(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    (home / ".cache").write_text("no folder")
    with own_token(8000) as digest:
        assert digest == ""
    assert "nobody can load" in caplog.text


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"x" * 10_000])
def test_whatever_lies_there_is_read_without_harm(home: Path, content: bytes) -> None:
    own_token_path(8000).parent.mkdir(parents=True)
    own_token_path(8000).write_bytes(content)
    assert len(read_own_token(8000)) <= 512
