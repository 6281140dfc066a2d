"""Training on a GPU, as far as it can be tested without one: choice and errors, order of copies, devices of tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from storage.errors import ConfigError, DeviceOutOfMemory
from tests.support.films import made_up_films
from tests.support.late_transfers import LateTransfers, MetaTransfers
from trainer import EmbeddingBag, EmbeddingTable, SparseSGD, load_config
from trainer.config import TrainConfig
from trainer.data import BatchMaker, DeviceBatches, inputs_on
from trainer.devices import choose_device, out_of_memory, replaced_transfers, running
from trainer.models import MODELS, build_model, build_tables
from trainer.row_sources import training_rows
from trainer.settings import settings_of

Make = Callable[..., TrainConfig]
TWO_TOWER = Path(__file__).parents[3] / "trainer" / "configs" / "movielens_two_tower.yaml"


@pytest.fixture
def late() -> Iterator[LateTransfers]:
    made = LateTransfers()
    with replaced_transfers(torch.device("cpu"), made):
        yield made


def with_gpus(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Has torch be one for CUDA, on a machine with so many GPUs."""
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)


def test_a_gpu_that_cannot_be_used_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_driver() -> None:
        raise RuntimeError("Found no NVIDIA driver on your system. Please check that you have one.\nmore")

    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(ConfigError, match=r"training.device is 'cuda', but torch .* is built for the processor only"):
        choose_device("cuda")
    assert choose_device("auto") == choose_device("cpu") == torch.device("cpu")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "init", no_driver)
    with pytest.raises(ConfigError, match=r"CUDA cannot be used: Found no NVIDIA driver .*emberline doctor") as caught:
        choose_device("cuda:1")
    assert caught.value.field == "training.device"
    assert choose_device("auto") == torch.device("cpu")


def test_each_rank_has_the_gpu_of_its_number_unless_one_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with_gpus(monkeypatch, 2)
    assert choose_device("cuda") == choose_device("auto") == torch.device("cuda", 0)
    assert choose_device("cuda", 1, 2) == torch.device("cuda", 1)
    assert choose_device("cuda:0", 1, 2) == torch.device("cuda", 0)
    with pytest.raises(ConfigError, match=r"there is no GPU 5: torch sees 2, cuda:0 to cuda:1; or train with cpu"):
        choose_device("cuda:5")
    with pytest.raises(ConfigError, match=r"no GPU 2: torch sees 2, .* for 3 ranks on this machine"):
        choose_device("cuda", 2, 3)


@pytest.mark.parametrize("given", ["gpu", "cud", "cuda:", "cuda:x", "cuda:-1"])
def test_a_device_that_is_none_is_refused_by_the_name_of_the_setting(config_of: Make, given: str) -> None:
    with pytest.raises(ConfigError, match=r"training\.device: is '.*expected cpu, cuda, cuda:N .* or auto"):
        config_of(device=f"'{given}'")


def test_device_precision_and_compiling_may_change_on_resume(config_of: Make) -> None:
    other = config_of(device="auto", precision="bf16", compile="true")
    assert settings_of(other) == settings_of(config_of())


def test_a_full_gpu_says_what_to_lower(monkeypatch: pytest.MonkeyPatch) -> None:
    report = running.DeviceReport("cuda:0", "a GPU", 80 << 30, 70 << 30, 75 << 30, 71 << 30)
    monkeypatch.setattr(running, "device_report", lambda device: report)
    with (
        pytest.raises(
            DeviceOutOfMemory, match=r"step 3: no memory left on cuda:0 \(75.0 of 80 GiB .*lower this \[CUDA"
        ),
        out_of_memory(torch.device("cuda", 0), "step 3", "lower this"),
    ):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9.00 GiB. GPU 0 has more text\nand more")


def test_rows_get_gradients_that_are_on_their_way_when_the_optimizer_asks_for_them(late: LateTransfers) -> None:
    table = EmbeddingTable("items", 4, optimizer="sgd")
    bag, optimizer = EmbeddingBag(table), SparseSGD([table], lr=0.5)
    ids, offsets = torch.tensor([3, 5, 3]), torch.tensor([0, 1, 3])
    before = bag(ids, offsets)
    before.sum().backward()
    assert (late.returned, late.waited) == (1, 0)
    optimizer.step()
    assert late.waited == 1
    # The row of 3 went down by 0.5 * 2, that of 5 by 0.5 * 1.
    assert torch.allclose(before - bag(ids, offsets), torch.tensor([[1.0], [1.5]]).expand(2, 4))
    bag(ids, offsets).sum().backward()
    optimizer.zero_grad()
    kept = bag(ids, offsets)
    optimizer.step()
    assert torch.equal(kept, bag(ids, offsets))


@pytest.mark.parametrize("model", [*(kind for kind in MODELS if kind != "two_tower"), "two_tower"])
def test_no_model_mixes_tensors_of_the_host_with_those_of_its_device(clicks: Path, config_of: Make, model: str) -> None:
    device = torch.device("meta")
    config = load_config(TWO_TOWER) if model == "two_tower" else config_of(model)
    rows = training_rows(config, made_up_films(50) if model == "two_tower" else clicks, learns=True)
    with replaced_transfers(device, MetaTransfers()):
        batch = BatchMaker(config.spec, config.targets).batch(rows.range(0, 9).read())
        built = build_model(config, build_tables(config)).to(device)
        batches = DeviceBatches(device)
        loss, _ = built.learn(batches.placed(batches.sent(batch)), config.targets)
        loss.backward()
        assert loss.device == device
        assert all(weight.grad is None or weight.grad.device == device for weight in built.parameters())
        built.eval()
        assert {each.device for each in built(inputs_on(device, batch.inputs)).values()} == {device}
