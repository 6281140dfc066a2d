"""Tests every model of the zoo on a simulated GPU.

Every transport gives the trainer's scores, in every precision and size.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.conftest import Served
from tests.e2e.gpu_parity import PRECISIONS, check_every_size, check_every_transport, check_one_user, check_plain
from tests.e2e.test_parity import TOLERANCE
from tests.simulated_gpu import SimulatedGpus

pytestmark = pytest.mark.long

# The simulation adds as the processor does, and rounds no products to TF32.
SIMULATED = {**PRECISIONS, "fp32": TOLERANCE, "tf32": TOLERANCE}


@pytest.mark.parametrize("precision", SIMULATED)
def test_the_trainers_scores_through_every_transport(models: dict[str, Served], tmp_path: Path, precision: str) -> None:
    gpus = SimulatedGpus(2, schedule="random", seed=5)
    check_every_transport(gpus, models, tmp_path, precision, SIMULATED[precision])


def test_every_size_and_padding_has_the_processors_scores(models: dict[str, Served], tmp_path: Path) -> None:
    check_every_size(SimulatedGpus(schedule="lazy"), models, tmp_path, TOLERANCE)


def test_one_row_of_a_user_stands_for_all_their_items(models: dict[str, Served], tmp_path: Path) -> None:
    check_one_user(SimulatedGpus(schedule="random", seed=1), models["din"], tmp_path, TOLERANCE)


@pytest.mark.usefixtures("plain")
def test_a_plain_torch_module_runs_there_too(place: Path, tmp_path: Path) -> None:
    version = place / "models" / "plain" / "1"
    check_plain(SimulatedGpus(schedule="random", seed=9), version, tmp_path, TOLERANCE)
