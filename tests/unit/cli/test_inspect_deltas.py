"""`emberline inspect` shows a version's deltas, the refused ones too, and a delta by itself wherever it lies."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from emberline.cli.inspect import command
from storage import DeltaTable, PublishedVersion, open_version, write_delta
from storage.errors import UnsafeArtifact

ROOT = Path(__file__).parents[3]


@pytest.fixture
def version(tmp_path: Path) -> PublishedVersion:
    shutil.copytree(ROOT / "model_repo" / "tiny", tmp_path / "tiny")
    return open_version(tmp_path / "tiny" / "1")


def write(version: PublishedVersion, sequence: int) -> Path:
    ids = np.array([4, 9, 1234])
    rows = np.full((3, 4), sequence, np.float32)
    return write_delta(
        version.path,
        snapshot=f"{sequence:032x}",
        base=version.snapshot,
        parent=version.snapshot,
        applies_to=[version.snapshot, "f" * 32],
        from_sequence=0,
        sequence=sequence,
        tables=[DeltaTable("words", 4, ids, rows, np.array([1, 200, 3], np.uint8), np.array([7, 8]))],
        weights={name: tensor.numpy() for name, tensor in version.weights().items()},
        weight_dtypes={},
        golden=version.golden(),
        outputs=version.manifest.graph.outputs,
        created_unix_ms=1_700_000_000_000,
    )


def inspect(*arguments: str | Path) -> str:
    result = CliRunner(env={"COLUMNS": "300"}).invoke(command, [str(argument) for argument in arguments])
    if result.exception is not None:
        raise result.exception
    return result.output


def test_a_version_lists_its_deltas(version: PublishedVersion) -> None:
    assert "deltas" not in inspect(version.path)
    write(version, 3)
    bad = write(version, 4) / "golden.safetensors"
    bad.write_bytes(bad.read_bytes()[:-1] + b"x")
    lines = inspect(version.path).splitlines()
    (good,) = [line for line in lines if "1.3 " in line]
    for text in (f"{3:032x}", version.snapshot, "1.0", "every digest holds"):
        assert text in good
    assert good.split()[4:6] == ["3", "2"]
    (refused,) = [line for line in lines if "1.4 " in line]
    assert "refused" in refused
    assert "golden.safetensors" in refused
    assert "digests not checked" in inspect(version.path, "--no-verify")
    (row,) = [line for line in inspect(version.path.parent).splitlines() if "tiny  " in line]
    assert row.split()[4] == "2"


def test_a_delta_is_shown_by_itself(version: PublishedVersion, tmp_path: Path) -> None:
    path = write(version, 12)
    shown = inspect(path)
    for text in ("delta 1.12", f"{12:032x}", "2023-11-14 22:13:20", "changes after 1.0", version.snapshot):
        assert text in shown
    for text in ("applies to 1 more: " + "f" * 32, "9 (200), 1234 (3), 4 (1)", "golden requests: 267 rows"):
        assert text in shown
    assert "delta 1.12" in inspect(path.rename(tmp_path / "elsewhere"))
    (tmp_path / "elsewhere" / "code.pkl").write_bytes(b"x")
    with pytest.raises(Exception, match=r"code\.pkl"):
        inspect(tmp_path / "elsewhere")


def test_a_planted_manifest_is_one_line(version: PublishedVersion) -> None:
    path = write(version, 1)
    (path / "manifest.json").write_text('{"format":"emberline-delta-1"}')
    with pytest.raises(UnsafeArtifact, match=r"manifest\.json"):
        inspect(path)


def test_the_folder_of_the_deltas_shows_its_version(version: PublishedVersion) -> None:
    write(version, 3)
    assert inspect(version.path / "deltas") == inspect(version.path)


def test_a_file_called_like_a_version_is_refused_and_the_others_are_shown(version: PublishedVersion) -> None:
    (version.path.parent / "7").write_text("x")
    shown = inspect(version.path.parent)
    assert "refused" in shown
    assert "every digest holds" in shown
