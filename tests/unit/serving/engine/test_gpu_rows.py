"""Models whose rows lie on a simulated GPU: `hbm_bytes`, what fails, versions over one store, what is counted."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from serving.engine.model import LoadedModel
from serving.engine.validation import validate
from serving.gpu.device_model import DeviceModel
from serving.model_config.options import ModelOptions
from serving.model_config.pbtxt import read_model_config
from storage.errors import ConfigError, DeviceError, DeviceLost, DeviceOutOfMemory
from storage.hbm.gpus import gpus_of
from storage.hbm.sharing import sharing_of
from storage.tiers.tiered import TieredStore
from tests.simulated_gpu import SimulatedGpus

MakeModel = Callable[..., LoadedModel]
GPU = "instance_group { kind: KIND_GPU count: %d }\n"


def option(key: str, value: str) -> str:
    return f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'


def ask(model: LoadedModel, world: Any, ids: np.ndarray) -> np.ndarray:
    scores: np.ndarray = asyncio.run(model.infer(world.columns(ids), len(ids))).outputs[0]
    return scores


def on_gpu(model: LoadedModel) -> DeviceModel:
    return model.parts.devices.models[0]


@pytest.mark.parametrize(("schedule", "seed"), [("eager", 0), ("lazy", 0), ("random", 1), ("random", 2)])
def test_rows_come_from_the_gpu_and_are_counted_there(
    make_model: MakeModel, world: Any, store: TieredStore, schedule: str, seed: int
) -> None:
    gpus = SimulatedGpus(schedule=schedule, seed=seed)
    model = make_model(GPU % 2, gpus=gpus)
    assert gpus_of(store).wait_filled(60)
    validate(model.parts, None, model.history.current, world.golden(), None, options=ModelOptions())
    ids = np.arange(490, 520)
    assert np.allclose(ask(model, world, ids), world.score(ids), atol=1e-6)
    stats = model.store_stats()
    assert (stats.hits["hbm"], stats.hits["dram"], stats.absent) == (10, 0, 20)
    assert stats.rows["hbm"] == stats.tables["item"].rows["hbm"] == 500
    assert 0 < stats.tables["item"].bytes["hbm"] == stats.bytes["hbm"]
    told = gpus_of(store).tiers[0].stats().tables[0]
    # Neither the sessions' warm-up nor a replay counts as traffic.
    assert (told.lookups, told.misses) == (30, 20)
    assert model.close(10.0)
    assert not gpus_of(store).tiers
    driver = gpus.driver(0)
    driver.enter_thread()
    driver.finish()
    assert not driver.errors


def test_none_where_the_option_says_so(make_model: MakeModel, world: Any, store: TieredStore) -> None:
    model = make_model(GPU % 1 + option("hbm_bytes", "0"), gpus=SimulatedGpus())
    assert on_gpu(model).gpu is None
    assert not gpus_of(store).tiers
    assert np.allclose(ask(model, world, np.arange(9)), world.score(np.arange(9)), atol=1e-6)
    assert model.store_stats().hits == {"hbm": 0, "overlay": 0, "dram": 9, "ssd": 0}


def test_a_quarter_of_what_is_free_and_no_more_than_all_rows(make_model: MakeModel, store: TieredStore) -> None:
    make_model(GPU % 1, gpus=SimulatedGpus(total_bytes=64 << 20))
    tier = gpus_of(store).tiers[0]
    assert 15 << 20 < tier.hbm_bytes <= 16 << 20
    assert tier.stats().capacity_rows < 700


def test_memory_of_a_gpu_without_a_session_on_one(tmp_path: Any) -> None:
    for text, gpus in (("instance_group { kind: KIND_CPU }", SimulatedGpus()), ("", SimulatedGpus(why_none="none"))):
        (tmp_path / "config.pbtxt").write_text(text + option("hbm_bytes", "1MiB"))
        config = read_model_config(tmp_path)
        with pytest.raises(ConfigError, match=r"parameters\.hbm_bytes") as raised:
            config.placed(gpus)
        assert raised.value.field == "parameters.hbm_bytes"


def test_versions_over_one_store_share_the_cache(make_model: MakeModel, world: Any, store: TieredStore) -> None:
    gpus = SimulatedGpus()
    first, second = make_model(GPU % 1, gpus=gpus), make_model(GPU % 1, gpus=gpus)
    tier = gpus_of(store).tiers[0]
    assert gpus_of(store).wait_filled(60)
    assert first.close(10.0)
    assert gpus_of(store).tiers[0] is tier
    assert np.allclose(ask(second, world, np.arange(9)), world.score(np.arange(9)), atol=1e-6)
    assert second.store_stats().hits["hbm"] == 9
    assert second.close(10.0)
    assert not gpus_of(store).tiers


class TestSharing:
    """`hbm_placement: shard` keeps each cold row on one of the GPUs."""

    # All rows of the world take some 40 KB on a GPU.
    TEXT = GPU % 1 + option("hbm_placement", "shard") + option("hbm_bytes", "26000")

    def test_each_gpu_answers_with_the_rows_of_both(
        self, make_model: MakeModel, world: Any, store: TieredStore
    ) -> None:
        gpus = SimulatedGpus(2, schedule="random", seed=3)
        model = make_model(self.TEXT, gpus=gpus)
        assert gpus_of(store).wait_filled(60)
        placement = sharing_of(store).placement
        assert placement is not None
        assert placement.gpus == (0, 1)
        rows = [tier.stats().rows for tier in gpus_of(store).tiers.values()]
        assert max(rows) < 400
        assert sum(rows) == 500
        validate(model.parts, None, model.history.current, world.golden(), None, options=ModelOptions())
        ids = np.arange(500)
        for start in range(0, 500, 25):
            part = ids[start : start + 25]
            assert np.allclose(ask(model, world, part), world.score(part), atol=1e-6)
        assert model.store_stats().hits["hbm"] == 500
        assert model.close(10.0)
        assert not gpus_of(store).tiers
        for driver in gpus.drivers:
            driver.enter_thread()
            driver.finish()
            assert not driver.errors

    def test_gpus_that_cannot_read_each_other(
        self, make_model: MakeModel, world: Any, store: TieredStore, caplog: pytest.LogCaptureFixture
    ) -> None:
        gpus = SimulatedGpus(2)
        gpus.driver(1).refuse_peers = True
        with pytest.raises(DeviceError, match="cannot read the memory of GPU 0"):
            make_model(self.TEXT + option("on_gpu_failure", "refuse"), gpus=gpus)
        with caplog.at_level(logging.WARNING, "emberline.serving"):
            model = make_model(self.TEXT, gpus=gpus)
        assert any("each GPU has rows of its own, none are shared" in record.message for record in caplog.records)
        assert sharing_of(store).placement is None
        assert np.allclose(ask(model, world, np.arange(9)), world.score(np.arange(9)), atol=1e-6)

    def test_one_gpu_has_nobody_to_share_with(self, make_model: MakeModel, world: Any, store: TieredStore) -> None:
        model = make_model(self.TEXT, gpus=SimulatedGpus(1))
        assert sharing_of(store).placement is None
        assert np.allclose(ask(model, world, np.arange(9)), world.score(np.arange(9)), atol=1e-6)

    def test_a_lost_gpu_leaves_the_other_right(self, make_model: MakeModel, world: Any) -> None:
        gpus = SimulatedGpus(2, schedule="random", seed=5)
        model = make_model(self.TEXT.replace("KIND_GPU", "KIND_AUTO"), gpus=gpus)
        gpus.driver(1).lose(5)
        for _ in range(40):
            assert np.allclose(ask(model, world, np.arange(9)), world.score(np.arange(9)), atol=1e-6)
        assert model.trouble == ""

    def test_without_a_session_on_a_gpu(self, tmp_path: Any) -> None:
        (tmp_path / "config.pbtxt").write_text("instance_group { kind: KIND_CPU }" + option("hbm_placement", "shard"))
        with pytest.raises(ConfigError, match=r"parameters\.hbm_placement: is of rows on GPUs") as raised:
            read_model_config(tmp_path).placed(SimulatedGpus())
        assert raised.value.field == "parameters.hbm_placement"

    def test_another_word(self, tmp_path: Any) -> None:
        (tmp_path / "config.pbtxt").write_text(option("hbm_placement", "everywhere"))
        with pytest.raises(ConfigError, match="hbm_placement"):
            read_model_config(tmp_path)


class TestFailures:
    """Tests failures of the cache alone: the model stays on the GPU."""

    def test_no_memory_for_the_cache(
        self, make_model: MakeModel, world: Any, store: TieredStore, caplog: pytest.LogCaptureFixture
    ) -> None:
        gpus = SimulatedGpus(total_bytes=48 << 20)
        with caplog.at_level(logging.WARNING, "emberline.serving"):
            model = make_model(GPU % 1 + option("hbm_bytes", "0"), gpus=gpus)
            assert model.close(10.0)
            gpus.driver(0).fail_allocation(6)  # The allocation after those of the program's weights fails.
            model = make_model(GPU % 1, gpus=gpus)
        assert any("looked up on the host, not on GPU 0" in record.message for record in caplog.records)
        assert on_gpu(model).gpu is None
        assert np.allclose(ask(model, world, np.arange(9)), world.score(np.arange(9)), atol=1e-6)
        assert not on_gpu(model).given_up

    def test_or_it_is_refused_where_it_was_asked_for(self, make_model: MakeModel, store: TieredStore) -> None:
        gpus = SimulatedGpus()
        gpus.driver(0).fail_allocation(6)
        text = GPU % 1 + option("hbm_bytes", "1MiB")
        with pytest.raises(DeviceOutOfMemory):
            make_model(text + option("on_gpu_failure", "refuse"), gpus=gpus)
        assert not gpus_of(store).tiers
        gpus.driver(0).fail_allocation(6)
        assert on_gpu(make_model(text, gpus=gpus)).gpu is None

    @pytest.mark.parametrize(
        "options",
        [
            {"on_gpu_failure": "eager"},
            {"on_gpu_failure": "cpu"},
            {"on_gpu_failure": "refuse"},
            {"on_gpu_failure": "eager", "hbm_bytes": "1MiB"},
            {"on_gpu_failure": "cpu", "hbm_bytes": "1MiB"},
        ],
    )
    def test_kernels_of_lookups_that_do_not_compile(
        self,
        make_model: MakeModel,
        world: Any,
        store: TieredStore,
        options: dict[str, str],
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        gpus = SimulatedGpus(schedule="random", seed=5)
        driver = gpus.driver(0)
        driver.refuse_kernels = True
        with caplog.at_level(logging.WARNING, "emberline.serving"):
            model = make_model(GPU % 2 + "".join(option(*each) for each in options.items()), gpus=gpus)
        said = [record.message for record in caplog.records if "looked up on the host, not on GPU 0" in record.message]
        assert len(said) == 1
        assert "no kernel of lookups compiles" in said[0]
        assert not gpus_of(store).tiers
        ids = np.arange(490, 520)
        assert np.allclose(ask(model, world, ids), world.score(ids), atol=1e-6)
        device = on_gpu(model)
        assert device.gpu is None
        # The dense part runs on the GPU, and in its graphs.
        assert (device.given_up, device.counters.on_processor) == ("", 0)
        assert set(device.counters.batches) <= {str(bucket.size) for bucket in device.buckets.all}
        assert device.counters.batches["32"] > 0
        hits = model.store_stats().hits
        assert (hits["hbm"], hits["dram"] > 0) == (0, True)
        assert model.close(10.0)
        driver.enter_thread()
        driver.finish()
        assert not driver.errors

    def test_or_the_version_is_refused_where_a_cache_was_asked_for(
        self, make_model: MakeModel, world: Any, store: TieredStore
    ) -> None:
        gpus = SimulatedGpus()
        driver = gpus.driver(0)
        driver.refuse_kernels = True
        text = GPU % 1 + option("hbm_bytes", "1MiB") + option("on_gpu_failure", "refuse")
        with pytest.raises(DeviceError, match=r"no kernel of lookups compiles"):
            make_model(text, gpus=gpus)
        assert not gpus_of(store).tiers
        gc.collect()
        assert driver.live_bytes == {"device": 0, "pinned": 0}
        driver.refuse_kernels = False
        model = make_model(text, gpus=gpus)
        assert np.allclose(ask(model, world, np.arange(9)), world.score(np.arange(9)), atol=1e-6)

    def test_every_lack_of_memory_at_the_start(self, make_model: MakeModel, world: Any, store: TieredStore) -> None:
        seen = set()
        for after in range(1, 60):
            gpus = SimulatedGpus()
            driver = gpus.driver(0)
            driver.fail_allocation(after)
            try:
                model = make_model(GPU % 1, gpus=gpus)
            except DeviceOutOfMemory:
                seen.add("refused")
            else:
                seen.add("on the GPU" if on_gpu(model).gpu is not None else "without rows")
                assert np.allclose(ask(model, world, np.arange(9)), world.score(np.arange(9)), atol=1e-6)
                assert model.close(10.0)
            assert not gpus_of(store).tiers
            if not driver._until_full._left:
                continue
            break
        assert seen == {"refused", "without rows", "on the GPU"}
        assert after > 25

    @pytest.mark.parametrize("after", [1, 5, 20, 60])
    def test_a_lost_gpu(self, make_model: MakeModel, world: Any, after: int) -> None:
        gpus = SimulatedGpus(schedule="random", seed=after)
        model = make_model("instance_group { count: 2 }", gpus=gpus)
        gpus.driver(0).lose(after)
        for _ in range(30):
            assert np.allclose(ask(model, world, np.arange(9)), world.score(np.arange(9)), atol=1e-6)
        assert on_gpu(model).given_up
        assert model.trouble == ""

    def test_a_lost_gpu_at_the_start(self, make_model: MakeModel, store: TieredStore) -> None:
        gpus = SimulatedGpus()
        gpus.driver(0).lose(12)
        with pytest.raises(DeviceLost):
            make_model(GPU % 1, gpus=gpus)
        assert not gpus_of(store).tiers
