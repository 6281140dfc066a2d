"""`emberline train --from`, and the command that a resume of a changed configuration names, as it stands there."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from emberline.cli.train import command
from storage.errors import ConfigError
from tests.integration.trainer.warm_starts import changed, renamed, with_colors
from trainer import load_trained, train
from trainer.config import TrainConfig

pytestmark = pytest.mark.slow

Make = Callable[..., TrainConfig]


def run(*words: object) -> Result:
    return CliRunner().invoke(command, [str(word) for word in words], catch_exceptions=False)


def saved(config: TrainConfig, path: Path) -> Path:
    path.write_text(config.model_dump_json())
    return path


def test_the_error_of_a_changed_resume_is_the_command_that_starts_from_the_run(
    clicks: Path, config_of: Make, tmp_path: Path
) -> None:
    train(config_of(epochs="1"), clicks, output=tmp_path / "run", limit=600, progress=False)
    config = saved(changed(config_of(epochs="1"), with_colors), tmp_path / "my model.json")
    options = ["--data", clicks, "--output", tmp_path / "run", "--limit", 600, "--valid", "0.2", "--quiet"]
    with pytest.raises(ConfigError, match=r"features\.zero was added") as caught:
        run(config, *options, "--resume")
    *_, line = str(caught.value).splitlines()
    words = shlex.split(line)
    assert words[:3] == ["emberline", "train", str(config)]
    assert words[-4:] == ["--output", str(tmp_path / "run-2"), "--from", str(tmp_path / "run")]
    assert {"--limit", "600", "--valid", "0.2", "--quiet"} < set(words)
    assert "--resume" not in words
    assert run(*words[2:]).exit_code == 0
    assert load_trained(tmp_path / "run-2").tables["colors"].size() > 0
    with pytest.raises(ConfigError) as caught:
        run(config, *options, "--resume")
    assert str(tmp_path / "run-3") in str(caught.value)


def test_a_dry_run_prints_what_would_be_taken(clicks: Path, config_of: Make, tmp_path: Path) -> None:
    train(config_of(epochs="1"), clicks, output=tmp_path / "run", limit=600, progress=False)
    config = saved(changed(config_of(), renamed), tmp_path / "model.json")
    options = [config, "--data", clicks, "--output", tmp_path / "new"]
    start = [*options, "--from", tmp_path / "run", "--dry-run"]
    output = run(*start, "--map", "labels=tags", "--map", "goods=items").output
    assert output.startswith(f"starts from the run {tmp_path / 'run'} after step")
    assert "was tags" in output
    assert "gone" not in output
    assert not (tmp_path / "new").exists()
    assert "gone" in run(*start).output
    assert "expected NEW=OLD" in run(*start, "--map", "labels").output
    assert "given twice" in run(*start, "--map", "labels=tags", "--map", "labels=users").output
    assert "--dry-run is for --from" in run(*options, "--dry-run").output
    assert "--map is for --from" in run(*options, "--map", "a=b").output
