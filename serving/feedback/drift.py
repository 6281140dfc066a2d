"""Compares the inputs and scores of live requests with those of training, by the population stability index.

The reference is the version's golden requests: raw rows of the training data with the trainer's scores. Bins follow
from the reference: deciles of numbers, the nine most frequent of few different values, tenths of the hashes of many
(ids), and the lengths of lists; and one bin for nulls. Counts are those of two windows, of which the older one is
dropped when the newer one is full of time.
"""

from __future__ import annotations

import threading
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from serving.feedback.served_batch import ServedBatch
from storage.checkpoint import PublishedVersion
from storage.features import Column, InputSpec
from storage.features.dtypes import FLOATS

_BINS = 10
# A column with so many different values in the reference has ids, or free text.
_FEW = 200
# A share of nothing is taken for half a row, so that the index stays finite.
_HALF = 0.5
#: Rows of the reference: behind them are those that were made to be hard.
REFERENCE_ROWS = 256
#: Seconds of each of the two windows.
WINDOW_S = 1800.0
#: With fewer live rows there is no index.
MIN_ROWS = 500
# The most rows of a batch, and the shortest time between two batches, that are looked at.
_ROWS_OF_BATCH = 256
_EVERY_S = 0.01


@dataclass(frozen=True)
class Drift:
    """Says how far a column is from its reference."""

    name: str
    rows: int
    #: The population stability index; None with too few rows.
    psi: float | None
    #: What the index is by chance, for rows of the same distribution: the mean.
    by_chance: float
    nulls: float
    nulls_before: float


#: Returns the bin of each row of a column, 0 for null, and the number of bins.
Binning = tuple[Callable[[Column], np.ndarray], int]


class _Counts:
    """Counts the rows of a column by bin, of the present window and the one before."""

    def __init__(self, binning: Binning, reference: np.ndarray) -> None:
        self.place, self.bins = binning
        self.reference = reference
        self.now = np.zeros(self.bins)
        self.before = np.zeros(self.bins)

    def drift(self, name: str) -> Drift:
        """Returns how far the rows of both windows are from the reference."""
        live = self.now + self.before
        rows, base = int(live.sum()), float(self.reference.sum())
        share = np.maximum(live, _HALF) / max(rows, 1)
        was = np.maximum(self.reference, _HALF) / max(base, 1.0)
        used = (live > 0) | (self.reference > 0)
        psi = float(((share - was) * np.log(share / was))[used].sum()) if rows >= MIN_ROWS else None
        by_chance = (int(used.sum()) - 1) * (1 / max(rows, 1) + 1 / max(base, 1.0))
        return Drift(
            name, rows, psi, by_chance, float(live[0]) / max(rows, 1), float(self.reference[0]) / max(base, 1.0)
        )


class DriftOfColumns:
    """Counts the rows of live requests. One thread may add, any thread may ask."""

    def __init__(
        self,
        inputs: Sequence[InputSpec],
        columns: Mapping[str, Column],
        scores: Mapping[str, np.ndarray],
        rows: int,
        window_s: float,
    ) -> None:
        """columns, scores: of the reference, which has `rows` rows. window_s: seconds of the present window."""
        self._window_s = window_s
        self._lock = threading.Lock()
        self._inputs: dict[str, _Counts] = {}
        self._scores: dict[str, _Counts] = {}
        for spec in inputs:
            if spec.name in columns:
                column = columns[spec.name]
                binning = _binning(spec, column)
                self._inputs[spec.name] = _Counts(binning, np.bincount(binning[0](column), minlength=binning[1]))
        for name, values in scores.items():
            flat = values.reshape(rows, -1) if rows else values.reshape(0, 1)
            if flat.shape[1] == 1 and values.dtype.kind == "f":
                column = Column("FP64", rows, 1, flat[:, 0].astype(np.float64))
                binning = _deciles(column)
                self._scores[name] = _Counts(binning, np.bincount(binning[0](column), minlength=binning[1]))
        self._since = self._next = 0.0

    def add(self, batch: ServedBatch, now: float) -> None:
        """Counts rows of a batch, unless one was counted just now. now: of `time.monotonic`."""
        if now < self._next:
            return
        self._next = now + _EVERY_S
        with self._lock:
            if now - self._since >= self._window_s:
                self._since = now
                for counts in (*self._inputs.values(), *self._scores.values()):
                    counts.before, counts.now = counts.now, np.zeros(counts.bins)
            start, stop = batch.ranges()[0]
            stop = min(stop, start + _ROWS_OF_BATCH)
            for name, counts in self._inputs.items():
                column = batch.columns.get(name)
                if column is None:
                    counts.now[0] += stop - start
                elif column.rows != batch.batch:
                    counts.now[int(counts.place(column)[0])] += stop - start
                else:
                    counts.now += np.bincount(counts.place(column.slice(start, stop)), minlength=counts.bins)
            for place, output in enumerate(batch.signature.outputs):
                if output.name in self._scores:
                    counts = self._scores[output.name]
                    values = batch.outputs[place][start:stop].reshape(-1).astype(np.float64)
                    live = Column("FP64", len(values), 1, values)
                    counts.now += np.bincount(counts.place(live), minlength=counts.bins)

    def inputs(self) -> list[Drift]:
        """Returns how far each input is from its reference."""
        with self._lock:
            return [counts.drift(name) for name, counts in self._inputs.items()]

    def scores(self) -> list[Drift]:
        """Returns how far each score is from its reference."""
        with self._lock:
            return [counts.drift(name) for name, counts in self._scores.items()]


def drift_of(published: PublishedVersion) -> DriftOfColumns:
    """Returns the drift from the rows that a version's golden requests begin with, which were drawn from training."""
    golden = published.golden()
    rows = min(golden.batch, REFERENCE_ROWS)
    columns = {
        name: column.slice(0, rows) if column.rows == golden.batch else column
        for name, column in golden.columns.items()
    }
    scores = {name: values[:rows] for name, values in golden.outputs.items()}
    return DriftOfColumns(published.spec.inputs, columns, scores, rows, WINDOW_S)


def _binning(spec: InputSpec, reference: Column) -> Binning:
    if spec.kind == "list":
        lengths = Column("FP64", reference.rows, 1, _lengths(reference).astype(np.float64), None, reference.valid)
        place, bins = _deciles(lengths)
        return lambda column: place(
            Column("FP64", column.rows, 1, _lengths(column).astype(np.float64), None, column.valid)
        ), bins
    if spec.dtype in FLOATS:
        return _deciles(reference)
    values = _first_values(reference)
    counted = Counter(values)
    if len(counted) > _FEW:
        return (lambda column: _placed(column, _hash_bins(_first_values(column)))), _BINS + 1
    known = {value: place for place, (value, _) in enumerate(counted.most_common(_BINS - 1), 1)}
    return (
        lambda column: _placed(column, np.array([known.get(each, _BINS) for each in _first_values(column)], np.int64))
    ), _BINS + 1


def _lengths(column: Column) -> np.ndarray:
    assert column.offsets is not None
    return np.diff(column.offsets)


def _first_values(column: Column) -> list[Any]:
    """Returns the first value of each row of a fixed column."""
    values = column.values
    return values.tolist()[:: column.width]


def _hash_bins(values: Sequence[Any]) -> np.ndarray:
    data = (value if isinstance(value, bytes) else str(value).encode() for value in values)
    return np.fromiter((zlib.crc32(each) % _BINS + 1 for each in data), np.int64, len(values))


def _deciles(reference: Column) -> Binning:
    """Returns bins between the deciles of numbers, of which as many differ as there are different ones."""
    values = np.asarray(reference.values, np.float64)[:: reference.width]
    there = values[_present(reference) & np.isfinite(values)]
    edges = np.unique(np.quantile(there, np.linspace(0, 1, _BINS + 1)[1:-1])) if len(there) else np.empty(0)

    def place(column: Column) -> np.ndarray:
        live = np.asarray(column.values, np.float64)[:: column.width]
        found = np.searchsorted(edges, live, "left") + 1
        return np.where(_present(column) & ~np.isnan(live), found, 0)

    return place, len(edges) + 2


def _present(column: Column) -> np.ndarray:
    if column.valid is None:
        return np.ones(column.rows, np.bool_)
    return column.valid.astype(np.bool_)[:: column.width if column.offsets is None else 1]


def _placed(column: Column, places: np.ndarray) -> np.ndarray:
    return np.where(_present(column), places, 0)
