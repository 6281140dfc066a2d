"""Commands take URLs of object stores where they take repositories, models and versions."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from emberline.cli import inspect, mirror, score
from storage.errors import InvalidInput, NotFound
from storage.objects import ObjectStore
from tests.support.object_store import keys_of

TINY = Path(__file__).parents[2] / "model_repo"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives the test a cache folder of its own."""
    monkeypatch.setenv("HOME", str(tmp_path))


def run(command: Any, *arguments: object) -> Result:
    return CliRunner().invoke(command, [str(each) for each in arguments], catch_exceptions=False)


def test_a_folder_goes_up_and_comes_down_and_is_looked_at(store_url: str, tmp_path: Path) -> None:
    shutil.copytree(TINY, tmp_path / "models")
    assert run(mirror.command, tmp_path / "models", store_url, "--quiet").exit_code == 0
    there = keys_of(store_url)
    assert run(mirror.command, tmp_path / "models", store_url, "--quiet").exit_code == 0
    assert keys_of(store_url) == there

    came = run(mirror.command, store_url, tmp_path / "copy", "--once", "--quiet")
    assert came.output.strip() == f"{tmp_path / 'copy'}: tiny 1.0"
    for file in (path for path in (TINY / "tiny").rglob("*") if path.is_file()):
        assert (tmp_path / "copy" / file.relative_to(TINY)).read_bytes() == file.read_bytes()

    assert f"{store_url}/tiny" in run(inspect.command, store_url).output
    assert "every digest holds" in run(inspect.command, f"{store_url}/tiny/1").output
    assert run(score.export, "--model", f"{store_url}/tiny", "words", tmp_path / "words.parquet").exit_code == 0
    assert pq.read_metadata(tmp_path / "words.parquet").num_rows == 100


def test_a_mirror_ends_at_sigterm_also_as_the_first_process_of_a_container(store_url: str, tmp_path: Path) -> None:
    run(mirror.command, TINY, store_url, "--quiet")
    command = [sys.executable, "-m", "emberline", "mirror", store_url, str(tmp_path / "copy"), "--quiet"]
    process = subprocess.Popen(command)
    try:
        deadline = time.monotonic() + 30
        while not (tmp_path / "copy" / "tiny" / "1").is_dir():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.terminate()
        # Not -SIGTERM: that is what a process without a handler ends with, which the first one never does.
        assert process.wait(20) == 128 + signal.SIGTERM
    finally:
        process.kill()
        process.wait()


def test_wrong_arguments_are_named(store_url: str, tmp_path: Path) -> None:
    refused = run(mirror.command, tmp_path / "a", tmp_path / "b")
    assert (refused.exit_code, "SOURCE and TARGET: one is a URL" in refused.output) == (2, True)
    with pytest.raises(InvalidInput, match="no model is published there"):
        run(mirror.command, store_url, tmp_path / "copy", "--once")
    with pytest.raises(InvalidInput, match=r"--model tinny: .* has tiny"):
        run(mirror.command, TINY, store_url, "--model", "tinny")
    ObjectStore(store_url).check_conditional_writes()
    run(mirror.command, TINY, store_url, "--quiet")
    with pytest.raises(NotFound, match=r"tiny/7 is not published; `emberline inspect .*/tiny` shows what is"):
        run(inspect.command, f"{store_url}/tiny/7")
