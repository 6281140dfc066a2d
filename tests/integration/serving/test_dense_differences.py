"""Deltas whose dense weights are a difference are applied, refused when they do not fit, and restored."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from serving.scoring.scorer import Scorer
from storage import open_delta
from storage.checkpoint import weight_difference
from storage.checkpoint.as_of import find_as_of
from storage.checkpoint.weight_difference import DIFFERENCE
from tests.integration.serving.live import Live
from tests.integration.serving.planted import NAME, Planted, columns_of
from tests.support.storage.delta_parts import replace_file, rewrite


@pytest.fixture
def live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Live]:
    # The planted weights are eight bytes, of which no difference is smaller.
    monkeypatch.setattr(weight_difference, "_MOST_SHARE", 1e9)
    with Live(tmp_path, retain_snapshots=2) as running:
        running.world.full_weights_every = 4
        yield running


def kept(live: Live) -> set[str]:
    return {path.name for path in (live.folder / "store" / NAME / "deltas").iterdir()}


def against(snapshot: Planted) -> str:
    return open_delta(snapshot.path).dense_against


def test_a_chain_of_differences_is_served_kept_and_restored(live: Live) -> None:
    start = live.version()
    live.start()
    newest, published = start, [start]
    for _ in range(7):
        newest = live.delta(newest)
        published.append(newest)
        assert live.served(min_snapshot=newest.id) is newest
    before = [open_delta(each.path).dense_against for each in published[1:]]
    full = [number for number, each in enumerate(before, 1) if not each]
    assert full == [4], "each fourth delta has all weights"
    assert before[:3] == [each.id for each in published[:3]]
    live.until(lambda: live.states() == {"1.5": "base", "1.6": "retained", "1.7": "served"})
    # 1.4 has the full copy that the retained ones are made from.
    live.until(lambda: kept(live) == {each.id for each in published[4:]})
    live.repository.rollback(NAME)
    assert live.served() is published[6]
    live.repository.resume(NAME)
    live.reaches(newest)
    live.stop()
    shutil.rmtree(start.path / "deltas")
    live.start()
    assert live.served() is newest
    live.repository.rollback(NAME, steps=2)
    assert live.served() is published[5]


def test_a_server_that_skips_deltas_takes_a_cumulative_one(live: Live) -> None:
    start = live.version()
    live.start()
    one = live.delta(start)
    live.reaches(one)
    live.repository.pause(NAME)
    two = live.delta(one)
    three = live.delta(two)
    whole = live.delta(three, since=start)
    assert (against(two), against(whole)) == (one.id, start.id)
    for gone in (two, three):
        shutil.rmtree(gone.path)
    live.repository.resume(NAME)
    live.reaches(whole)
    follower = live.delta(whole)
    assert against(follower) == whole.id
    live.reaches(follower)
    assert find_as_of(live.world.model_dir).weights().keys() == find_as_of(live.world.model_dir, "1.0").weights().keys()


def test_a_version_ends_the_chain_and_a_rollback_before_it_begins_another(live: Live) -> None:
    start = live.version()
    live.start()
    one, two = live.chain(start, 2)
    live.reaches(two)
    live.repository.rollback(NAME)
    assert live.served() is one
    rebased = live.delta(one)
    assert against(rebased) == one.id
    live.reaches(rebased)
    version = live.version(equals=rebased)
    live.reaches(version)
    after = live.delta(version)
    assert against(after) == version.id
    live.reaches(after)


def _wrong_parent(live: Live, parent: Planted) -> Planted:
    """Publishes a delta that takes the weights of the version for those of its parent."""
    delta = live.delta(parent)

    def change(content: dict[str, object]) -> None:
        content["dense"] = {"against": parent.base, "depth": 1}

    rewrite(delta.path, change)
    return delta


def _cut(live: Live, parent: Planted) -> Planted:
    delta = live.delta(parent)
    data = (delta.path / DIFFERENCE).read_bytes()
    replace_file(delta.path, DIFFERENCE, data[:-3])
    return delta


def _not_signed(live: Live, parent: Planted) -> Planted:
    delta = live.delta(parent)
    data = bytearray((delta.path / DIFFERENCE).read_bytes())
    data[-1] ^= 1
    (delta.path / DIFFERENCE).write_bytes(data)
    return delta


@pytest.mark.parametrize(
    ("spoiled", "said"),
    [
        (_wrong_parent, "the dense weights are not the trainer's"),
        (_cut, DIFFERENCE),
        (_not_signed, "is not what was published"),
    ],
)
def test_a_difference_that_does_not_fit_is_refused_and_serving_goes_on(
    live: Live, spoiled: Callable[[Live, Planted], Planted], said: str
) -> None:
    start = live.version()
    live.start()
    one = live.delta(start)
    live.reaches(one)
    live.repository.pause(NAME)
    bad = spoiled(live, one)
    live.repository.resume(NAME)
    live.until(lambda: any(said in reason for reason in live.refused()))
    assert live.served() is one
    live.snapshots.pop(bad.id)
    live.world.full_weights_every = 1
    good = live.delta(one)
    assert against(good) == ""
    live.reaches(good)


def test_offline_scores_are_those_of_the_chain(live: Live, tmp_path: Path) -> None:
    start = live.version()
    *_, last = live.chain(start, 3)
    rows = live.world.rows_of(last, 20)
    with Scorer(find_as_of(live.world.model_dir), tmp_path / "scoring") as scorer:
        score, trace = scorer.score(columns_of(rows), len(rows))
    np.testing.assert_array_equal(trace, last.answer(rows)["trace"])
    np.testing.assert_allclose(score, last.answer(rows)["score"], atol=1e-6)
