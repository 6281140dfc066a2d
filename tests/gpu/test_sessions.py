"""Tests the server's sessions on a real GPU, with the same checks as on the simulated one."""

from __future__ import annotations

from pathlib import Path

import pytest

from serving.engine.devices import FP32_TOLERANCE
from serving.gpu.driver import Gpus
from tests.e2e.conftest import Served, models, place, plain
from tests.e2e.gpu_parity import PRECISIONS, check_every_size, check_every_transport, check_one_user, check_plain
from tests.soak.gpu import GpuSoak

__all__ = ["models", "place", "plain"]  # fixtures

SOAK_S = 20.0


@pytest.fixture(scope="module")
def gpus(all_gpus: Gpus) -> Gpus:
    return all_gpus


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_trainers_scores_through_every_transport(
    gpus: Gpus, models: dict[str, Served], tmp_path: Path, precision: str
) -> None:
    check_every_transport(gpus, models, tmp_path, precision, PRECISIONS[precision])


def test_every_size_and_padding_has_the_processors_scores(
    gpus: Gpus, models: dict[str, Served], tmp_path: Path
) -> None:
    check_every_size(gpus, models, tmp_path, FP32_TOLERANCE)


def test_one_row_of_a_user_stands_for_all_their_items(gpus: Gpus, models: dict[str, Served], tmp_path: Path) -> None:
    check_one_user(gpus, models["din"], tmp_path, FP32_TOLERANCE)


@pytest.mark.usefixtures("plain")
def test_a_plain_torch_module_runs_there_too(gpus: Gpus, place: Path, tmp_path: Path) -> None:
    check_plain(gpus, place / "models" / "plain" / "1", tmp_path, FP32_TOLERANCE)


def test_answers_under_deltas_rollbacks_and_resizing_are_their_snapshots_own(gpus: Gpus, tmp_path: Path) -> None:
    soak = GpuSoak(tmp_path, gpus)
    soak.run(SOAK_S)
    for what in ("answers", "deltas", "rollbacks", "resized", "weight uploads"):
        assert soak.counts[what] > 0, f"no {what}: {soak.counts}"
