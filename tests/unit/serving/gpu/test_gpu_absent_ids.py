"""A GPU looks up no table whose absent ids read as something else than zeros: the host does, and says so."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from serving.gpu.features import gpu_features
from storage.errors import Unsupported
from storage.initializers import AbsentRows, Initializer
from tests.simulated_gpu import SimulatedGpus
from tests.support.gpu.simulated_world import ModelWorld, agree

CONSTANT = AbsentRows.of(Initializer("constant", 0.25))


def test_the_host_looks_up_for_a_gpu_and_answers_as_the_processor(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = ModelWorld(tmp_path)
    try:
        gpus = SimulatedGpus(count=1, total_bytes=64 << 20)
        places = frozenset(world.places)
        gpu_features(world.spec, world.store.tables, world.graph, places)
        world.store.tables = tuple(replace(table, absent=CONSTANT) for table in world.store.tables)
        with pytest.raises(Unsupported, match=r"a row read as constant\(0.25\), on a GPU they read as zeros"):
            gpu_features(world.spec, world.store.tables, world.graph, places)
        driver = gpus.driver(0)
        driver.enter_thread()
        with caplog.at_level(logging.WARNING):
            model = world.model(driver, 4 << 20)
        assert model.gpu is None
        assert "rows are looked up on the host" in caplog.text
        pipeline = world.pipeline(model)
        agree(world, pipeline, world.batch(np.random.default_rng(1), 20, absent=0.5))
        pipeline.close()
        model.close()
    finally:
        world.close()
