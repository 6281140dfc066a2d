"""Whole runs as on a GPU, without one: copies that come late change no bit, lower precisions learn and resume."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from emberline.cli.train import command as train_command
from storage.errors import ConfigError
from tests.integration.trainer.test_training import at_step, content, quiet
from tests.support.late_transfers import LateTransfers, PromptTransfers
from trainer import load_trained
from trainer.checkpoint import read_state
from trainer.config import TrainConfig
from trainer.devices import replaced_transfers
from trainer.loss_scale import LossScale

Make = Callable[..., TrainConfig]


@pytest.mark.parametrize("model", ["dlrm", "din"])
def test_copies_that_are_as_late_as_they_may_be_change_no_bit(
    clicks: Path, tmp_path: Path, config_of: Make, model: str
) -> None:
    config = config_of(model, epochs="1")
    config = config.model_copy(update={"optimizer": config.optimizer.model_copy(update={"clip_norm": 0.05})})
    with replaced_transfers(torch.device("cpu"), PromptTransfers()):
        prompt = quiet(config, clicks, tmp_path / "prompt", valid=0.1, repository=tmp_path / "models")
    late = LateTransfers()
    with replaced_transfers(torch.device("cpu"), late):
        other = quiet(config, clicks, tmp_path / "late", valid=0.1, repository=tmp_path / "other models")
    assert content(config, other.checkpoint) == content(config, prompt.checkpoint)
    assert other.epochs == prompt.epochs
    on_host = quiet(config, clicks, tmp_path / "host", valid=0.1)
    assert other.epochs[0].loss == pytest.approx(on_host.epochs[0].loss, abs=1e-6), "sums have another order"
    assert late.received == late.sent >= other.steps
    assert late.returned == late.waited == 2 * other.steps, "the loss and the gradients of rows, each once"


@pytest.mark.parametrize("model", ["dlrm", "din"])
def test_rows_that_a_gpu_keeps_get_the_same_bits(clicks: Path, tmp_path: Path, config_of: Make, model: str) -> None:
    config = config_of(model, epochs="2", batch_size="64", checkpoint_every_steps="37")
    config = config.model_copy(update={"optimizer": config.optimizer.model_copy(update={"clip_norm": 0.05})})
    with replaced_transfers(torch.device("cpu"), PromptTransfers()):
        without = quiet(config, clicks, tmp_path / "without", valid=0.1, repository=tmp_path / "models")
    training = config.training.model_copy(update={"hbm_bytes": 4000})
    kept = config.model_copy(update={"training": training})
    with replaced_transfers(torch.device("cpu"), LateTransfers()):
        other = quiet(kept, clicks, tmp_path / "kept", valid=0.1, repository=tmp_path / "other models")
    assert other.hbm is not None
    assert 0 < other.hbm.memory_bytes <= 4000
    assert 0 < other.hbm.hits < other.hbm.looked_up
    assert content(kept, other.checkpoint) == content(config, without.checkpoint)
    assert other.epochs == without.epochs


@pytest.mark.parametrize(("model", "precision"), [("dlrm", "bf16"), ("deepfm", "fp16")])
def test_a_lower_precision_learns_what_float32_does(
    clicks: Path, fresh_clicks: Path, tmp_path: Path, config_of: Make, model: str, precision: str
) -> None:
    options = {"batch_size": "64", "epochs": "3", "checkpoint_every_steps": "0"}
    lower = quiet(config_of(model, precision=precision, **options), clicks, tmp_path / "lower", valid=fresh_clicks)
    whole = quiet(config_of(model, **options), clicks, tmp_path / "whole", valid=fresh_clicks)
    assert lower.log_loss == pytest.approx(whole.log_loss, abs=0.02)
    assert lower.log_loss != whole.log_loss
    # What is served is in float32.
    assert load_trained(tmp_path / "lower").evaluate(fresh_clicks).log_loss == pytest.approx(lower.log_loss, abs=1e-9)


def test_a_resumed_run_in_fp16_has_the_scale_of_its_loss(
    clicks: Path, tmp_path: Path, config_of: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash() -> None:
        raise OSError("the power went")

    config = config_of(precision="fp16", epochs="1")
    # With this scale gradients are not finite at first, so steps are left out and the scale falls.
    monkeypatch.setattr(LossScale.__init__, "__defaults__", (2.0**120,))
    whole = quiet(config, clicks, tmp_path / "whole")
    with monkeypatch.context() as patched:
        at_step(patched, 13, crash)
        with pytest.raises(OSError, match="power"):
            quiet(config, clicks, tmp_path / "cut")
    resumed = quiet(config, clicks, tmp_path / "cut", resume=True)
    assert content(config, resumed.checkpoint) == content(config, whole.checkpoint)
    scale = read_state(whole.checkpoint).loss_scale
    assert read_state(resumed.checkpoint).loss_scale == scale
    assert scale["scale"] < 2.0**120


def test_a_step_whose_gradients_of_rows_are_not_finite_changes_no_weight() -> None:
    layer = torch.nn.Linear(2, 1)
    optimizer, scale = torch.optim.SGD(layer.parameters(), lr=1.0, fused=True), LossScale(torch.device("cpu"))
    before = layer.weight.detach().clone()
    for squares, steps in ((float("inf"), False), (float("nan"), False), (1.0, True)):
        optimizer.zero_grad()
        scale.scaled(layer(torch.ones(1, 2)).sum()).backward()
        scale.unscale(optimizer, layer.parameters(), squares)
        assert scale.step(optimizer) is steps
        assert torch.equal(layer.weight, before) is not steps
    assert scale.to_json_value() == {"scale": 2.0**14, "growth_tracker": 1}
    assert torch.allclose(layer.weight, before - 1.0)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["dlrm", "din"])
def test_a_compiled_dense_part_learns_the_same_within_rounding(
    clicks: Path, fresh_clicks: Path, tmp_path: Path, config_of: Make, model: str
) -> None:
    options = {"epochs": "1", "batch_size": "500", "checkpoint_every_steps": "0"}
    plain = quiet(config_of(model, **options), clicks, tmp_path / "plain", valid=fresh_clicks)
    compiled = quiet(config_of(model, compile="true", **options), clicks, tmp_path / "compiled", valid=fresh_clicks)
    assert compiled.epochs[0].loss == pytest.approx(plain.epochs[0].loss, abs=1e-5)
    assert compiled.log_loss == pytest.approx(plain.log_loss, abs=1e-4)


def test_compiling_without_a_compiler_is_refused(
    clicks: Path, tmp_path: Path, config_of: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> str:
        raise RuntimeError("No working C++ compiler found in torch._inductor.config.cpp.cxx: (None, 'g++')")

    monkeypatch.setattr("torch._inductor.cpp_builder.get_cpp_compiler", missing)
    with pytest.raises(ConfigError, match=r"training\.compile: torch compiles with a C\+\+ compiler, and found none"):
        quiet(config_of(compile="true"), clicks, tmp_path)


@pytest.mark.skipif(torch.version.cuda is not None, reason="this torch is built for CUDA")
def test_the_command_says_what_a_gpu_lacks(clicks: Path, tmp_path: Path, config_of: Make) -> None:
    path = tmp_path / "model.yaml"
    path.write_text(config_of().model_dump_json(), encoding="utf-8")
    words = [str(path), "--data", str(clicks), "--output", str(tmp_path / "run"), "--quiet"]
    refused = CliRunner().invoke(train_command, [*words, "--device", "cuda"])
    assert isinstance(refused.exception, ConfigError)
    assert "model.yaml: training.device is 'cuda', but torch" in str(refused.exception)
    assert not (tmp_path / "run" / "checkpoints").exists()
    wrong = CliRunner().invoke(train_command, [*words, "--device", "gpu"])
    assert "expected cpu, cuda, cuda:N (such as cuda:1) or auto" in str(wrong.exception)
