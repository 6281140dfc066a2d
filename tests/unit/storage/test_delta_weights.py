"""Weights of a delta that are a difference: read with the right weights before them, and with no others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from storage.checkpoint import (
    PublishedDelta,
    PublishedVersion,
    open_delta,
    open_version,
    weight_difference,
    write_delta,
)
from storage.checkpoint.as_of import newest_of
from storage.checkpoint.delta_writer import EarlierWeights
from storage.checkpoint.weight_difference import DIFFERENCE
from storage.errors import IntegrityError, LineageError, ParityError, UnsafeArtifact
from tests.support.storage.delta_parts import delta_parts, rewrite

Arrays = dict[str, np.ndarray]
WEIGHT = "state.linear.weight"


@pytest.fixture
def version(copy_version: Callable[[], Path], monkeypatch: pytest.MonkeyPatch) -> PublishedVersion:
    # The weights of the test are too small for a difference to be smaller.
    monkeypatch.setattr(weight_difference, "_MOST_SHARE", 1e9)
    return open_version(copy_version())


def arrays_of(version: PublishedVersion, by: float = 0.0) -> Arrays:
    arrays = {name: value.numpy().copy() for name, value in version.weights().items()}
    arrays[WEIGHT] = arrays[WEIGHT] + np.float32(by)
    return arrays


def write(version: PublishedVersion, sequence: int, by: float, before: EarlierWeights | None, **parts: Any) -> Path:
    snapshot = f"{sequence:x}" * 32
    options = {"snapshot": snapshot, "sequence": sequence, "from_sequence": sequence - 1, **parts}
    return write_delta(
        version.path, **delta_parts(version, weights=arrays_of(version, by), weights_before=before, **options)
    )


def chain(version: PublishedVersion) -> list[PublishedDelta]:
    """Publishes a difference to the version, one to that, and a cumulative one to the version."""
    own = [version.snapshot, "1" * 32, "2" * 32]
    write(version, 1, 1.0, EarlierWeights(own[0], 0, arrays_of(version)))
    line = {"parent": own[1], "applies_to": [own[1]]}
    write(version, 2, 2.0, EarlierWeights(own[1], 1, arrays_of(version, 1.0)), **line)
    whole = {"parent": own[2], "applies_to": own, "from_sequence": 0}
    write(version, 3, 3.0, EarlierWeights(own[0], 0, arrays_of(version)), **whole)
    return [open_delta(version.path / "deltas" / f"00000{number}") for number in (1, 2, 3)]


def test_weights_are_made_of_those_before_them_which_stay_as_they_are(version: PublishedVersion) -> None:
    one, two, whole = chain(version)
    assert (one.dense_against, two.dense_against, whole.dense_against) == (version.snapshot, "1" * 32, version.snapshot)
    assert not (one.path / "dense.safetensors").exists()
    before = version.weights()
    kept = {name: value.clone() for name, value in before.items()}
    after = one.weights(before)
    assert after[WEIGHT].numpy().tobytes() == arrays_of(version, 1.0)[WEIGHT].tobytes()
    assert all(torch.equal(before[name], kept[name]) for name in kept)
    assert all((after[name] is before[name]) == (name != WEIGHT) for name in kept), "the others are shared"
    assert two.weights(after)[WEIGHT].numpy().tobytes() == arrays_of(version, 2.0)[WEIGHT].tobytes()
    assert one.changed_weights() == [WEIGHT]


def test_a_snapshots_weights_are_put_together_from_the_last_full_copy(version: PublishedVersion) -> None:
    chain(version)
    found = newest_of(version.path)
    assert len(found.deltas) == 1
    assert found.weights()[WEIGHT].numpy().tobytes() == arrays_of(version, 3.0)[WEIGHT].tobytes()
    line = {"parent": "3" * 32, "applies_to": ["3" * 32]}
    write(version, 4, 4.0, EarlierWeights("3" * 32, 1, arrays_of(version, 3.0)), **line)
    assert newest_of(version.path).weights()[WEIGHT].numpy().tobytes() == arrays_of(version, 4.0)[WEIGHT].tobytes()
    write(version, 5, 5.0, None, parent="4" * 32, applies_to=["4" * 32])
    assert newest_of(version.path).weights()[WEIGHT].numpy().tobytes() == arrays_of(version, 5.0)[WEIGHT].tobytes()


def test_other_weights_before_it_are_found_out(version: PublishedVersion) -> None:
    one, two, _ = chain(version)
    with pytest.raises(ParityError, match=r"is what they are a difference to 1{32}\?"):
        two.weights(version.weights())
    with pytest.raises(LineageError, match="a difference to those of"):
        one.weights()
    wrong = version.weights()
    del wrong[WEIGHT]
    with pytest.raises(UnsafeArtifact, match="no weight"):
        one.weights(wrong)


def test_a_difference_to_weights_that_a_server_may_not_have_is_refused(version: PublishedVersion) -> None:
    one, _, whole = chain(version)
    for delta, other in ((one, "e" * 32), (whole, "2" * 32)):
        rewrite(delta.path, lambda content, other=other: content["dense"].update(against=other))  # type: ignore[misc]
        with pytest.raises(UnsafeArtifact, match="neither the version nor the only snapshot"):
            open_delta(delta.path)


def test_a_difference_that_makes_nan_is_refused(version: PublishedVersion) -> None:
    one = chain(version)[0]
    before = version.weights()
    before[WEIGHT] = torch.full_like(before[WEIGHT], torch.nan)
    with pytest.raises((IntegrityError, ParityError)):
        one.weights(before)


def test_a_reader_of_an_earlier_release_names_the_file(version: PublishedVersion) -> None:
    """Such a reader refuses the path before it looks at anything else."""
    content = chain(version)[0].manifest.model_dump(mode="json")
    assert {entry["path"] for entry in content["files"]} >= {DIFFERENCE}
    assert content["dense"] == {"against": version.snapshot, "depth": 1}
    full = open_delta(write(version, 6, 1.0, None))
    assert "dense" not in full.manifest.model_dump(mode="json")
