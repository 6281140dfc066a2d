"""The example in git is a version that this build opens, byte for byte as it was published."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from storage import open_version
from storage.features import FeatureEngine
from tests.reference.scorer import ReferenceScorer

TINY = Path(__file__).parents[3] / "model_repo" / "tiny" / "1"


def test_the_example_opens_with_every_digest_checked_and_is_small() -> None:
    version = open_version(TINY, verify=True)
    assert sum(entry.size for entry in version.manifest.files) < 200_000
    assert {table.name for table in version.tables} == {"item", "tag"}


def test_its_golden_requests_still_go_through_the_feature_engine() -> None:
    version = open_version(TINY)
    golden = version.golden()
    batch = FeatureEngine(version.spec).run(golden.columns, golden.batch)
    assert batch.ids["tags"].offsets[-1] > golden.batch


def test_the_reference_gives_its_golden_scores() -> None:
    version = open_version(TINY)
    golden = version.golden()
    items, tags, price = (golden.columns[name] for name in ("item", "tags", "price"))
    rows = []
    for at in range(golden.batch):
        row = {
            "item": int(items.values[at]),
            "tags": tags.values[tags.offsets[at] : tags.offsets[at + 1]].tolist(),
            "price": float(price.values[at]),
        }
        for name, column in (("item", items), ("tags", tags), ("price", price)):
            if column.valid is not None and not column.valid[at]:
                row[name] = None
        rows.append(row)
    scores = ReferenceScorer(TINY).score(rows)
    assert np.abs(scores - golden.outputs["score"].ravel()).max() <= 5e-6
