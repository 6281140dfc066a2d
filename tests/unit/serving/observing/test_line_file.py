"""Lines go to the end of a file that may be renamed at any time, and a file that fails is reported once."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from serving.observing.line_file import LineFile
from storage.errors import ConfigError


def test_a_renamed_file_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    path.write_text("kept\n")
    file = LineFile(path, "access_log")
    assert file.write(b"one\n")
    path.rename(tmp_path / "access.log.1")
    assert file.write(b"two\nthree\n")
    assert (tmp_path / "access.log.1").read_text() == "kept\none\n"
    assert path.read_text() == "two\nthree\n"


def test_a_file_that_cannot_be_written_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"access_log: cannot write .*: No such file") as caught:
        LineFile(tmp_path / "none" / "access.log", "access_log")
    assert caught.value.field == "access_log"


def test_a_failure_is_logged_until_a_write_succeeds(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    file = LineFile(folder / "access.log", "access_log")
    (folder / "access.log").unlink()
    folder.rmdir()
    with caplog.at_level(logging.ERROR):
        assert not file.write(b"one\n")
        assert not file.write(b"two\n")
    assert len(caplog.records) == 1
    folder.mkdir()
    assert file.write(b"three\n")
    assert (folder / "access.log").read_text() == "three\n"
