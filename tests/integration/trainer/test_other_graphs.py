"""Runs whose network computes something else than the graph that they have published."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage.checkpoint import list_deltas, open_version
from storage.errors import Unsupported
from tests.integration.trainer.published_line import go_on, publisher_of, some_rows


def test_after_a_change_of_what_the_module_computes_the_next_snapshot_is_a_version(models: Path) -> None:
    training, publisher = go_on(models)
    training.step(some_rows(12, 5))
    publisher.prepare()
    pending = publisher.lineage
    training.model.top.register_forward_hook(lambda _, given, values: 0.5 * values)
    with pytest.raises(Unsupported, match="the model computes something else with the same weights"):
        publisher_of(training, models, lineage=pending).write()
    changed = publisher_of(training, models, lineage=pending)
    assert changed.published_path() is None
    for kind in ("delta", "cumulative"):
        with pytest.raises(Unsupported, match=r"the model's code.*publish a version"):
            changed.publish(kind)
    assert changed.publish() == models / "m" / "2"
    assert open_version(models / "m" / "2").manifest.equals is None
    training.step(some_rows(12, 6))
    assert changed.publish() == models / "m" / "2" / "deltas" / "000001"
    assert list_deltas(models / "m" / "1") == []
