"""A trainer that learns flipped labels publishes what is sound by digest and score, and is refused all the same."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from storage.checkpoint import list_deltas, open_delta
from tests.e2e.storm_clients import Operator, until
from tests.support.server_process import ServerProcess
from tests.support.transports import ask_binary, requests_of
from trainer import auc, load_trained, train, update
from trainer.config import parse_text
from trainer.datasets import write_synthetic

CONFIGS = Path(__file__).parents[2] / "trainer" / "configs"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Writes first and newer clicks, the newer ones with their labels flipped, and test rows."""
    folder = tmp_path_factory.mktemp("clicks")
    write_synthetic(folder, rows=150_000, ids=2_000)
    whole = pq.read_table(folder / "train.parquet")
    parts = {"first": whole.slice(0, 40_000), "newer": whole.slice(40_000, 20_000)}
    wrong = whole.slice(40_000, 80_000)
    place = wrong.schema.get_field_index("label")
    flipped = pc.subtract(pa.scalar(1, wrong["label"].type), wrong["label"])
    parts["flipped"] = wrong.set_column(place, wrong.schema.field(place), flipped)
    found = {"test": folder / "test.parquet"}
    for name, table in parts.items():
        found[name] = folder / f"{name}.parquet"
        pq.write_table(table, found[name])
    return found


def test_flipped_labels_are_refused_by_the_live_guard(data: dict[str, Path], tmp_path: Path) -> None:
    config = parse_text((CONFIGS / "synthetic.yaml").read_text(encoding="utf-8"))
    run, models = tmp_path / "run", tmp_path / "models"
    train(config, data["first"], output=run, repository=models, progress=False)
    name = config.model_name
    version = models / name / "1"
    first = str(json.loads((version / "manifest.json").read_text())["snapshot"])
    labels = pq.read_table(data["test"], columns=["label"])["label"].to_numpy()
    with (
        ServerProcess(models, tmp_path / "store", tmp_path / "server.log") as server,
        Operator(server.http_port, name) as operator,
    ):
        requests = requests_of(server.url, name, data["test"], len(labels))

        def served() -> np.ndarray:
            return np.concatenate([ask_binary(server.url, name, tensors) for tensors in requests])

        before = served()
        assert auc(labels[: len(before)], before) > 0.6

        update(run, data["flipped"], repository=models, progress=False)
        bad = [open_delta(version / "deltas" / f"{number:06d}").snapshot for number in list_deltas(version)]
        until(
            lambda: bad[-1] in {entry["snapshot"] for entry in operator.state()["quarantined"]},
            lambda: f"the delta of flipped labels is refused; the server says {operator.state()}",
        )
        reason = operator.state()["quarantined"][-1]["reason"]
        assert "live guard" in reason
        assert operator.served() == first
        assert np.array_equal(served(), before)
        wrong = load_trained(run).predict(data["test"])
        assert auc(labels, wrong) < 0.5, "the labels were flipped and the model did not learn it"

        # The trainer goes back to what is served and learns the right labels from there.
        update(run, data["newer"], repository=models, progress=False, from_snapshot=first)
        good = open_delta(version / "deltas" / f"{list_deltas(version)[-1]:06d}")
        assert good.parent == first
        operator.wait_for(good.snapshot)
        after = served()
        expected = load_trained(run).predict(data["test"])
        assert np.abs(after.astype(np.float64) - expected[: len(after)]).max() <= 1e-6
        assert auc(labels[: len(after)], after) > auc(labels[: len(before)], before) - 0.01
