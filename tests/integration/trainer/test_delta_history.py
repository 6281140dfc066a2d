"""Random histories of a trainer: steps, removals, publishes of every kind, re-bases, crashes and resumes.

Whatever happened: every delta turns each snapshot that it says it applies to into what the trainer had then.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from storage.checkpoint import open_delta
from tests.integration.trainer.published_line import Follower, deltas_of, go_on, publisher_of, some_rows
from trainer.publishing import DeltaPolicy, Lineage

POLICY = DeltaPolicy(cumulative_every=4, version_every_deltas=0, version_at_share=0.0, expire_after={"words": 3})
OPERATIONS = ("step", "step", "step", "erase", "publish", "publish", "cumulative", "rebase", "crash", "never written")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_every_delta_makes_the_trainers_state_of_all_that_it_applies_to(seed: int, models: Path) -> None:
    training, publisher = go_on(models, POLICY)
    version = models / "m" / "1"
    rng = np.random.default_rng(seed)
    base = Follower(version)
    assert base.agrees(training)
    states = {base.snapshot: base}
    names = {"1.0": base.snapshot}

    def take(folder: Path) -> None:
        delta = open_delta(folder)
        for snapshot in delta.applies_to:
            follower = states[snapshot].copy()
            follower.apply(delta)
            assert follower.agrees(training), f"{delta.path}, applied to {snapshot}"
            states[delta.snapshot] = follower
        names[f"{delta.version}.{delta.sequence}"] = delta.snapshot

    for place in range(30):
        match rng.choice(OPERATIONS):
            case "step":
                low = int(rng.integers(0, 300))
                rows = some_rows(int(rng.integers(2, 12)), 100 * seed + place, low=low, high=310)
                publisher.offer(training.step(rows))
            case "erase":
                table = training.model.tables[str(rng.choice(["users", "tags", "words"]))]
                ids = np.array(sorted(training.tables()[table.name]), np.int64)
                table.erase(rng.choice(ids, min(len(ids), 3), replace=False))
            case "publish":
                take(publisher.publish())
            case "cumulative":
                take(publisher.publish("cumulative"))
            case "rebase":
                known = [entry.name for entry in publisher.lineage.published]
                take(publisher.publish(from_snapshot=str(rng.choice(known))))
            case "crash":
                publisher.prepare()
                lineage = Lineage.from_json_value(publisher.lineage.to_json_value())
                if rng.random() < 0.5:
                    publisher.write()
                publisher = publisher_of(training, models, POLICY, lineage)
                take(publisher.write())
            case "never written":
                publisher.prepare()
    take(publisher.publish())
    newest = publisher.lineage.newest
    assert newest is not None
    assert [delta.snapshot for delta in deltas_of(version)][-1] == newest.snapshot
    assert len(set(names.values())) == len(names)
