"""Trained tables beside a numpy reference."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage._table import TrainingTable
from tests.support.examples import examples
from tests.support.training_tables import pooled, step_rows, training_table

F32 = np.float32
MASK = 2**64 - 1
EDGES = [-1, 0, 2**63 - 1, -(2**63)]


def mix(value: int) -> int:
    value ^= value >> 30
    value = value * 0xBF58476D1CE4E5B9 & MASK
    value ^= value >> 27
    value = value * 0x94D049BB133111EB & MASK
    return value ^ value >> 31


def initial_row(seed: int, id_: int, dim: int, scale: float) -> np.ndarray:
    golden = 0x9E3779B97F4A7C15
    base = mix((id_ + golden) & MASK) + mix(seed)
    bits = [mix((base + j * golden) & MASK) >> 40 for j in range(dim)]
    return F32(scale) * (np.array(bits, F32) * F32(2**-23) - F32(1))


class Reference:
    def __init__(self, dim: int, slots: int, seed: int, scale: float, admit_after: int) -> None:
        self.dim, self.n_slots, self.seed, self.scale, self.admit_after = dim, slots, seed, scale, admit_after
        self.rows: dict[int, np.ndarray] = {}
        self.slots: dict[int, np.ndarray] = {}
        self.counts: Counter[int] = Counter()

    def lookup(self, ids: np.ndarray, train: bool, initial_slot: float) -> np.ndarray:
        if train:
            self.counts.update(ids.tolist())
            for id_ in ids.tolist():
                if id_ not in self.rows and self.counts[id_] >= self.admit_after:
                    self.rows[id_] = initial_row(self.seed, id_, self.dim, self.scale)
                    self.slots[id_] = np.full(self.n_slots, initial_slot, F32)
        return np.array([self.rows.get(i, np.zeros(self.dim, F32)) for i in ids.tolist()], F32).reshape(-1, self.dim)

    def step(self, ids: np.ndarray, grads: np.ndarray, lr: float, eps: float | None) -> int:
        sums: dict[int, np.ndarray] = {}
        for id_, grad in zip(ids.tolist(), grads, strict=True):
            if id_ in self.rows:
                sums[id_] = sums[id_] + grad if id_ in sums else grad.copy()
        for id_, grad in sums.items():
            if eps is None:
                self.rows[id_] = self.rows[id_] - F32(lr) * grad
            else:
                self.slots[id_] = self.slots[id_] + grad * grad
                self.rows[id_] = self.rows[id_] - F32(lr) * grad / (np.sqrt(self.slots[id_]) + F32(eps))
        return len(sums)


id_batches = st.lists(st.lists(st.sampled_from(EDGES) | st.integers(-5, 12), max_size=25), min_size=1, max_size=6)


def arrays_of(table: TrainingTable) -> list[np.ndarray]:
    return [*table.export_rows(), *table.export_counts()]


@settings(max_examples=examples(80), deadline=None)
@given(batches=id_batches, admit_after=st.integers(1, 4), adagrad=st.booleans(), dim=st.sampled_from([1, 4, 9]))
def test_training_is_the_reference_bit_for_bit(
    batches: list[list[int]], admit_after: int, adagrad: bool, dim: int
) -> None:
    slots = dim if adagrad else 0
    rule = "adagrad" if adagrad else "sgd"
    table = training_table(dim, rule=rule, seed=2**63 + 5, scale=0.3, admit_after=admit_after)
    model = Reference(dim, slots, 2**63 + 5, 0.3, admit_after)
    rng = np.random.default_rng(len(batches))
    for number, batch in enumerate(batches):
        ids = np.array(batch, np.int64)
        train = number % 3 != 2
        out = np.full((len(ids), dim), np.nan, F32)
        hits = table.lookup(ids, out, train)
        assert out.tobytes() == model.lookup(ids, train, 0.1).tobytes()
        assert hits == sum(i in model.rows for i in batch)
        grads = rng.standard_normal((len(ids), dim)).astype(F32)
        assert step_rows(table, ids, grads, rule=rule, lr=0.05) == model.step(
            ids, grads, 0.05, 1e-8 if adagrad else None
        )
    ids, rows, slot_rows, counts, stamps, ticks = table.export_rows()
    assert ids.tolist() == sorted(model.rows)
    assert rows.tobytes() == np.array([model.rows[i] for i in ids.tolist()], F32).tobytes()
    assert slot_rows.shape == (len(ids), slots)
    assert slot_rows.tobytes() == np.array([model.slots[i] for i in ids.tolist()], F32).tobytes()
    assert counts.tolist() == [model.counts[i] for i in ids.tolist()]
    waiting, seen = table.export_counts()
    assert dict(zip(waiting.tolist(), seen.tolist(), strict=True)) == {
        i: n for i, n in model.counts.items() if i not in model.rows
    }
    assert waiting.tolist() == sorted(waiting.tolist())

    copy = training_table(dim, rule=rule, seed=2**63 + 5, scale=0.3, admit_after=admit_after)
    copy.restore(ids, rows, slot_rows, counts, stamps, ticks)
    copy.restore_counts(waiting, seen)
    for before, after in zip(arrays_of(table), arrays_of(copy), strict=True):
        assert np.array_equal(before, after)


@pytest.mark.parametrize("mode", [0, 1])
def test_pooling_is_the_reference(mode: int) -> None:
    rng = np.random.default_rng(3)
    table = training_table(6, rule="sgd", seed=1, scale=1.0)
    values = rng.integers(0, 300, 2000)
    offsets = np.concatenate([[0, 0], np.sort(rng.integers(0, 2000, 97)), [2000]])
    out = pooled(table, values, offsets, mode, train=True)
    expected = np.zeros_like(out)
    for b in range(99):
        for i in values[offsets[b] : offsets[b + 1]].tolist():
            expected[b] += initial_row(1, i, 6, 1.0)
        if mode == 1 and offsets[b + 1] > offsets[b]:
            expected[b] /= F32(offsets[b + 1] - offsets[b])
    assert out.tobytes() == expected.tobytes()


def test_evaluation_changes_nothing() -> None:
    table = training_table(2, admit_after=2)
    out = np.empty((3, 2), F32)
    table.lookup(np.array([1, 1, 2]), out, True)
    before = arrays_of(table)
    table.lookup(np.array([1, 2, 3]), out, False)
    pooled(table, np.array([1, 2, 3]), np.array([0, 1, 2, 3]), 0, train=False)
    after = arrays_of(table)
    assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))
