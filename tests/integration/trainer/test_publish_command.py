"""A finished run published by command: versions, deltas, and deltas from an older snapshot; the run remembers them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from emberline.cli.publish import command
from storage.checkpoint import open_delta, open_version
from storage.errors import CheckpointError, NotFound
from trainer import load_trained, train, update
from trainer.config import TrainConfig


@pytest.mark.slow
def test_a_run_is_published_as_versions_and_deltas_by_command(
    clicks: Path, fresh_clicks: Path, config_of: Callable[..., TrainConfig], tmp_path: Path
) -> None:
    run, models = tmp_path / "run", tmp_path / "models"
    train(config_of("deepfm", epochs="1"), clicks, output=run, limit=1500, progress=False)

    def publish(*options: str) -> Path:
        arguments = [str(run), "--repository", str(models), "--quiet", *options]
        done = CliRunner().invoke(command, arguments, catch_exceptions=False)
        assert done.output.startswith("published ")
        return Path(done.output.removeprefix("published ").strip())

    with pytest.raises(NotFound, match="nothing was published yet"):
        publish("--delta")
    stale = load_trained(run)
    assert publish() == models / "clicks" / "1"
    base = open_version(models / "clicks" / "1").snapshot
    with pytest.raises(CheckpointError, match="load it again"):
        stale.publish(models)

    report = update(run, fresh_clicks, repository=models, progress=False)
    first = open_delta(report.published[-1])
    assert (first.parent, first.sequence) == (base, 1)
    rows = {table.name: table.rows for table in first.tables}
    assert rows["users"] > 0

    nothing = open_delta(publish("--delta"))
    assert (nothing.parent, nothing.applies_to) == (first.snapshot, (first.snapshot,))
    assert {table.rows for table in nothing.tables} == {0}
    whole = open_delta(publish("--cumulative"))
    assert whole.applies_to == (base, first.snapshot, nothing.snapshot)
    assert {table.name: table.rows for table in whole.tables} == rows
    rebased = open_delta(publish("--from", "1.0"))
    assert (rebased.applies_to, rebased.sequence) == ((base,), 4)
    assert {table.name: table.rows for table in rebased.tables} == rows
    version = open_version(publish("--version", "5"))
    assert version.manifest.equals == version.manifest.parent == rebased.snapshot
    assert version.manifest.descends_from == (rebased.snapshot, base)

    refused = CliRunner().invoke(command, [str(run), "--repository", str(models), "--delta", "--cumulative"])
    assert refused.exit_code == 2
    assert "--delta and --cumulative exclude each other; give one of them" in refused.output
    with pytest.raises(NotFound, match=r"'1\.3' is not among"):
        publish("--from", "1.3")
    compared = CliRunner().invoke(command, [str(run), "--against", str(models / "clicks"), "--quiet"])
    assert compared.output == f"nothing changed since {version.path}; nothing was published\n"
    assert not (version.path / "deltas").exists()

    trained = load_trained(run)
    folders = [trained.publish(models, kind="delta"), trained.publish(models, kind="auto")]
    assert [open_delta(folder).sequence for folder in folders] == [1, 2]
