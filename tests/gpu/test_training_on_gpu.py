"""Tests training on a real GPU: the processor's losses, precisions, the same bytes again, commits, publishing, errors.

With `--simulated`, the processor stands for the GPU, and its copies are as late as streams allow.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import torch.distributed as dist

from storage import open_version
from storage.errors import DeviceOutOfMemory
from tests.integration.trainer.test_training import at_step, content, quiet
from tests.support.late_transfers import LateTransfers
from tests.unit.trainer.conftest import MODELS, click_table, clicks_config
from trainer import EmbeddingBag, EmbeddingTable, SparseAdagrad, TrainReport, load_trained, update
from trainer.config import TrainConfig
from trainer.devices import replaced_transfers
from trainer.embedding import SparseRule, optimizer_classes
from trainer.embedding.row_steps import stepped_rows
from trainer.ranks import Ranks

ROWS, VALID_ROWS = 2048, 1024
# What another order of sums may change of a loss of about 0.6: in the first step, and after some that follow from it.
FIRST, LATER = 2e-5, 3e-3


@pytest.fixture(scope="module")
def is_simulated(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--simulated", default=False))


@pytest.fixture(scope="module", autouse=True)
def device(is_simulated: bool) -> Iterator[str]:
    """Returns the device to train on."""
    if not is_simulated:
        yield "cuda"
        return
    with replaced_transfers(torch.device("cpu"), LateTransfers()):
        yield "cpu"


@pytest.fixture
def on_gpu(is_simulated: bool) -> None:
    if is_simulated:
        pytest.skip("the processor does not stand for the GPU here")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clicks")
    for name, rows, seed in (("train", ROWS, 1), ("valid", VALID_ROWS, 3), ("newer", 1024, 9)):
        pq.write_table(click_table(rows, seed), folder / f"{name}.parquet", row_group_size=512)
    return folder


def config_of(model: str, *, dropout: bool = False, **options: str) -> TrainConfig:
    """Returns the configuration of a model over the click log, one epoch unless `options` say otherwise."""
    usual = {"epochs": "1", "threads": "2", "checkpoint_every_steps": "0"}
    config = clicks_config(model, **{**usual, **options})
    if dropout or not hasattr(config.model, "dropout"):
        return config
    return config.model_copy(update={"model": config.model.model_copy(update={"dropout": 0.0})})


@pytest.mark.parametrize("model", MODELS)
def test_losses_and_metrics_are_those_of_the_processor(data: Path, tmp_path: Path, device: str, model: str) -> None:
    config, train, valid = config_of(model), data / "train.parquet", data / "valid.parquet"
    whole = [(None, LATER)] if model in ("dlrm", "hstu") else []
    for limit, tolerance in ((256, FIRST), *whole):
        here = quiet(config, train, tmp_path / f"gpu-{limit}", valid=valid, limit=limit, device=device)
        there = quiet(config, train, tmp_path / f"cpu-{limit}", valid=valid, limit=limit, device="cpu")
        assert here.epochs[0].loss == pytest.approx(there.epochs[0].loss, abs=tolerance)
        assert here.log_loss == pytest.approx(there.log_loss, abs=LATER)
    # Evaluated on the processor, from the commit.
    own = load_trained(tmp_path / f"gpu-{limit}").evaluate(valid)
    assert own.log_loss == pytest.approx(here.log_loss, abs=FIRST)


def test_the_report_has_the_gpu_and_its_memory(on_gpu: None, data: Path, tmp_path: Path, device: str) -> None:
    report = quiet(config_of("dlrm"), data / "train.parquet", tmp_path, device=device)
    assert report.device is not None
    assert report.device.device == "cuda:0"
    assert 0 < report.device.peak_bytes < report.device.memory_bytes
    assert "cuda:0" in report.device.line()


@pytest.fixture(scope="module")
def in_float32(data: Path, tmp_path_factory: pytest.TempPathFactory, device: str) -> TrainReport:
    return in_precision(data, tmp_path_factory.mktemp("fp32"), device, "fp32")


def in_precision(data: Path, output: Path, device: str, precision: str) -> TrainReport:
    config = config_of("dlrm", precision=precision, batch_size="128", epochs="2")
    return quiet(config, data / "train.parquet", output, valid=data / "valid.parquet", device=device)


@pytest.mark.parametrize("precision", ["tf32", "bf16", "fp16"])
def test_a_lower_precision_learns_what_float32_does(
    data: Path, tmp_path: Path, device: str, in_float32: TrainReport, precision: str
) -> None:
    found = in_precision(data, tmp_path, device, precision)
    assert found.epochs[1].loss < found.epochs[0].loss
    assert found.log_loss == pytest.approx(in_float32.log_loss, abs=0.03)


@pytest.mark.parametrize(
    ("model", "precision", "hbm"),
    [
        ("dlrm", "fp32", False),
        ("dlrm", "fp32", True),
        ("din", "bf16", True),
        ("hstu", "fp32", False),
        ("deepfm", "fp16", True),
    ],
)
def test_a_resumed_run_has_the_bytes_of_an_uninterrupted_one(
    data: Path, tmp_path: Path, device: str, monkeypatch: pytest.MonkeyPatch, model: str, precision: str, hbm: bool
) -> None:
    def crash() -> None:
        raise OSError("the power went")

    config = config_of(model, dropout=True, precision=precision, checkpoint_every_steps="3")
    config = config.model_copy(update={"optimizer": config.optimizer.model_copy(update={"clip_norm": 0.5})})
    config = in_hbm(config) if hbm else config
    train = data / "train.parquet"
    whole = quiet(config, train, tmp_path / "whole", device=device)
    with monkeypatch.context() as patched:
        at_step(patched, 6, crash)
        with pytest.raises(OSError, match="power"):
            quiet(config, train, tmp_path / "cut", device=device)
    resumed = quiet(config, train, tmp_path / "cut", resume=True, device=device)
    assert content(config, resumed.checkpoint) == content(config, whole.checkpoint)


def in_hbm(config: TrainConfig) -> TrainConfig:
    """Has a GPU keep about half of the rows."""
    return config.model_copy(update={"training": config.training.model_copy(update={"hbm_bytes": 4000})})


@pytest.mark.parametrize("model", ["dlrm", "din"])
def test_rows_that_the_gpu_keeps_get_the_same_bits(data: Path, tmp_path: Path, device: str, model: str) -> None:
    config = config_of(model, epochs="2", batch_size="16")
    train, valid = data / "train.parquet", data / "valid.parquet"
    without = quiet(config, train, tmp_path / "without", valid=valid, device=device)
    kept = quiet(in_hbm(config), train, tmp_path / "kept", valid=valid, device=device)
    assert kept.hbm is not None
    assert 0 < kept.hbm.hits < kept.hbm.looked_up
    assert content(config, kept.checkpoint) == content(config, without.checkpoint)
    assert kept.epochs == without.epochs


@pytest.mark.parametrize("rule", list(optimizer_classes()))
def test_the_gpu_steps_rows_to_the_bits_of_the_host(device: str, rule: SparseRule) -> None:
    draws = np.random.default_rng(1)
    table, ids = EmbeddingTable("t", 20, optimizer=rule), np.arange(500)
    table.lookup(ids, train=True)
    optimizer = optimizer_classes()[rule]([table], 0.03, row_clip=0.5)
    _, rows, slots, *_ = table.export_rows()
    values = torch.from_numpy(np.concatenate([rows, slots], axis=1)).to(device)
    for step in range(5):
        gradients = draws.normal(0, 10.0 ** (step - 3), (500, 20)).astype(np.float32)
        options = optimizer._options(0.7)
        table.add_gradients(ids, gradients)
        optimizer.step(scale=0.7)
        values = stepped_rows(rule, values, torch.from_numpy(gradients).to(device), options, table.steps)
    _, rows, slots, *_ = table.export_rows()
    expected = np.concatenate([rows, slots], axis=1)
    assert np.array_equal(values.cpu().numpy().view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("optimizer", ["Adam", "SGD", "Adagrad"])
def test_a_run_goes_on_on_another_device(data: Path, tmp_path: Path, device: str, optimizer: str) -> None:
    two, one = config_of("dlrm", epochs="2"), config_of("dlrm")
    dense = two.optimizer.dense.model_copy(update={"type": optimizer})
    two, one = (
        each.model_copy(update={"optimizer": each.optimizer.model_copy(update={"dense": dense})}) for each in (two, one)
    )
    train, valid = data / "train.parquet", data / "valid.parquet"
    losses: list[float] = []
    for first, second in (("cpu", device), (device, "cpu")):
        output = tmp_path / f"run-{len(losses)}"
        quiet(one, train, output, valid=valid, device=first)
        losses.append(quiet(two, train, output, valid=valid, resume=True, device=second).epochs[1].loss)
    assert losses[0] == pytest.approx(losses[1], abs=LATER)


def test_what_is_published_on_the_way_and_by_an_update_has_the_scores_of_its_training(
    data: Path, tmp_path: Path, device: str
) -> None:
    config = config_of("din")
    config = config.model_copy(update={"publish": config.publish.model_copy(update={"delta_every_steps": 6})})
    train, valid = data / "train.parquet", data / "valid.parquet"
    report = quiet(
        config, train, tmp_path / "run", valid=valid, repository=tmp_path / "models", device=device
    )  # publishing compares the scores of the graph over the tables with the module's own
    assert report.published is not None
    assert open_version(tmp_path / "models" / "clicks" / "1").manifest.tables
    newer = update(
        tmp_path / "run",
        data / "newer.parquet",
        repository=tmp_path / "models",
        valid=valid,
        progress=False,
        device=device,
    )
    assert newer.published
    assert load_trained(tmp_path / "run").evaluate(valid).log_loss == pytest.approx(newer.log_loss_after, abs=FIRST)


def test_layers_of_a_module_of_ones_own_follow_it(device: str) -> None:
    rows = {}
    for where in ("cpu", device):
        torch.manual_seed(0)
        table = EmbeddingTable("items", 8)
        bag, head = EmbeddingBag(table).to(where), torch.nn.Linear(8, 1).to(where)
        optimizer = SparseAdagrad([table], lr=0.1)
        ids, offsets = torch.arange(64) % 10, torch.arange(0, 65, 4)
        for _ in range(3):
            optimizer.zero_grad()
            pooled = bag(ids.to(where), offsets)  # ids may be there too
            assert pooled.device.type == torch.device(where).type
            head(pooled).square().mean().backward()
            optimizer.step()
        rows[where] = torch.from_numpy(table.lookup(ids.numpy()[:10], train=False))
    assert torch.allclose(rows["cpu"], rows[device], atol=1e-5)


def test_a_gpu_without_memory_says_what_to_lower(on_gpu: None, data: Path, tmp_path: Path, device: str) -> None:
    config = config_of("dlrm", batch_size="4096")
    config = config.model_copy(update={"model": config.model.model_copy(update={"top": (2048,) * 4})})
    gc.collect()
    torch.cuda.empty_cache()
    # Room for the weights of 51 MB, and not for activations and gradients of 250 MB.
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved(0) + (96 << 20)) / total, 0)
    try:
        with pytest.raises(
            DeviceOutOfMemory, match=r"no memory left on cuda:0 .*lower training.batch_size \(it is 4,096"
        ):
            quiet(config, data / "train.parquet", tmp_path, device=device)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, 0)


def test_ranks_add_up_what_is_on_gpus_by_nccl(on_gpu: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class One(Ranks):
        are_several = property(lambda ranks: True)

    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        ranks = One()
        ranks.use(torch.device("cuda", 0))
        values = torch.arange(5.0, device="cuda")
        ranks.sum(values)
        assert values.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    finally:
        dist.destroy_process_group()


def test_two_ranks_on_one_gpu_learn_what_one_process_does(
    on_gpu: None, data: Path, tmp_path: Path, device: str
) -> None:
    config = config_of("dlrm")
    path = tmp_path / "model.json"
    path.write_text(config.model_dump_json(), encoding="utf-8")
    command = [sys.executable, "-m", "emberline", "train", str(path), "--data", str(data / "train.parquet"), "--quiet"]
    command += ["--output", str(tmp_path / "ranks"), "--nproc", "2", "--device", "cuda:0"]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=70, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    alone = quiet(config, data / "train.parquet", tmp_path / "alone", device=device)
    of_ranks = load_trained(tmp_path / "ranks").evaluate(data / "valid.parquet").log_loss
    own = load_trained(tmp_path / "alone").evaluate(data / "valid.parquet").log_loss
    assert alone.steps == ROWS // 256
    assert of_ranks == pytest.approx(own, abs=LATER)


def test_a_compiled_dense_part_learns_the_same_within_rounding(
    on_gpu: None, data: Path, tmp_path: Path, device: str
) -> None:
    losses = {}
    for compiled in ("false", "true"):
        config = config_of("dlrm", compile=compiled)
        losses[compiled] = quiet(config, data / "train.parquet", tmp_path / compiled, device=device).epochs[0].loss
    assert losses["true"] == pytest.approx(losses["false"], abs=LATER)
