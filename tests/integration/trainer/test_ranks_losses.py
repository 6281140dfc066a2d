"""Losses that compare rows of a batch, or leave some out: several ranks learn what one process learns."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.e2e.test_tasks_served import config_of as config_of_tasks
from tests.integration.trainer.ranks_process import train_with_ranks
from tests.integration.trainer.test_missing_labels import LEARNED, holed
from tests.integration.trainer.test_missing_labels import config_of as config_of_holed
from tests.support.films import made_up_films
from trainer import load_trained, train
from trainer.config import TrainConfig, parse_text

PAIRS = LEARNED.replace("loss: listwise", "loss: pairwise")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("rows")
    pq.write_table(holed(2000, 1), place / "holed.parquet")
    pq.write_table(made_up_films(2000, 1), place / "films.parquet")
    return place


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "rows"),
    [
        pytest.param(config_of_holed(), "holed", id="listwise, missing labels"),
        pytest.param(config_of_holed(PAIRS), "holed", id="pairwise, missing labels"),
        pytest.param(config_of_tasks("movielens_two_tower"), "films", id="in_batch_softmax"),
    ],
)
def test_ranks_learn_what_one_process_learns(data: Path, tmp_path: Path, config: TrainConfig, rows: str) -> None:
    changed = {"batch_size": 100, "epochs": 1, "threads": 1}
    config = config.model_copy(update={"training": config.training.model_copy(update=changed)})
    text = json.dumps(config.model_dump(mode="json", exclude_unset=True))
    one, several = tmp_path / "one", tmp_path / "several"
    limit = 1901  # two ranks have no row of the last batch
    train(parse_text(text), data / f"{rows}.parquet", output=one, progress=False, limit=limit)
    assert train_with_ranks(3, text, data / f"{rows}.parquet", several, limit=limit) == [0, 0, 0]
    losses = [json.loads((each / "report.json").read_text())["epochs"][0]["loss"] for each in (one, several)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    a, b = load_trained(one), load_trained(several)
    for name, table in a.tables.items():
        mine, theirs = table.export_rows(), b.tables[name].export_rows()
        np.testing.assert_array_equal(mine[0], theirs[0])
        np.testing.assert_allclose(mine[1], theirs[1], atol=1e-4)
    weights = b.model.state_dict()
    for name, value in a.model.state_dict().items():
        if value.dim() > 1:  # the bias of a head whose loss compares rows follows rounding alone
            np.testing.assert_allclose(value.numpy(), weights[name].numpy(), atol=1e-4)
