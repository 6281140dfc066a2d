"""Searches for what explains the differences between an old server and a published snapshot.

Hypotheses are computed with the snapshot, not asked: each says how the old server may differ, and the snapshot scored
so must give its answers. The one that explains most is taken, and the search goes on with what is left.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
import torch

from emberline.proving.batches import Batch, merged_outputs, rows_of
from emberline.proving.candidates import candidates, roundings, shifted
from emberline.proving.changes import Change, Hypothesis
from emberline.proving.comparison import Comparison, compare, paired, unpaired
from emberline.proving.experiments import Attribution, attribute, places, row, shrunk
from emberline.proving.fitting import fitted_default, rows_without
from emberline.proving.local_model import LocalModel, taken
from emberline.proving.lower_precision import looks_rounded
from emberline.proving.row_suspects import suspects
from emberline.proving.vocabularies import truncated
from storage.features import FeatureBatch, Jagged, concat_batches

OldScore = Callable[[Batch], Mapping[str, np.ndarray]]

# A hypothesis is taken if it leaves less than this of the differences, or makes one in ten rows equal.
_LEFT, _EQUAL = 0.7, 0.1
_ROUNDS, _PAIRED = 6, 12
# Rows by which hypotheses are ranked, and how many are then compared on all rows.
_FEW, _CHECKED = 32, 24
# Differences up to here may be lower precision of the old server's arithmetic.
_SMALL = 5e-2
# Rows of a table that are tried to find any shift.
_TRIED = 20_000


@dataclass(frozen=True)
class Explained:
    """A hypothesis that holds, with the rows that differed before and after it was taken."""

    hypothesis: Hypothesis
    before: int
    after: int


@dataclass(frozen=True)
class Proof:
    """The result of a comparison."""

    rows: int
    #: As both sides answered.
    first: Comparison
    explained: tuple[Explained, ...] = ()
    #: Under all that is explained.
    last: Comparison | None = None
    attributions: tuple[Attribution, ...] = ()
    #: The smallest request found that shows what is not explained.
    example: Batch | None = None
    #: Outputs that only one side has: of the old server, and of the new model.
    unpaired: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    #: Rows that the old server refused, so that they are not compared, and its words about the first.
    refused: int = 0
    refusal: str = ""
    #: Golden requests that no tensor can hold, and rows above the number that was asked for.
    unsent: int = 0
    left_out: int = 0

    @property
    def unexplained(self) -> int:
        """The number of rows that differ and are not explained."""
        return (self.last or self.first).count

    @property
    def is_whole(self) -> bool:
        """True if the old server answered every request that it was sent, and every output has one to compare with."""
        return not self.refused and self.unpaired == ((), ())

    @property
    def is_equal(self) -> bool:
        """True if all rows are equal, or differ by rounding alone."""
        return self.unexplained == 0 and all(each.hypothesis.is_rounding for each in self.explained)


class Prover:
    """Compares batches, whose inputs may differ in shape from one to the other."""

    def __init__(self, model: LocalModel, old: OldScore, batches: Sequence[Batch], tolerance: float) -> None:
        self._model, self._old, self._batches, self._tolerance = model, old, batches, tolerance
        self._features = concat_batches([model.features(batch) for batch in batches])
        self._answers = merged_outputs([old(batch) for batch in batches])
        self._ends = np.cumsum([rows_of(batch) for batch in batches])
        self._change = Change()
        # Rows that are explained by what cannot be computed here.
        self._aside = np.zeros(self._features.batch, bool)

    def prove(self) -> Proof:
        """Runs the whole search."""
        new = self._model.score(taken(self._features, np.arange(1)))
        return replace(self._searched(), unpaired=unpaired(self._answers, new))

    def _searched(self) -> Proof:
        first = here = self._compared(Change())
        explained: list[Explained] = []
        for _ in range(_ROUNDS):
            if here.count == 0:
                break
            found = self._next(here)
            if not found:
                break
            for hypothesis in found:
                self._take(hypothesis)
                before, here = here, self._compared(Change())
                explained.append(Explained(hypothesis, before.count, here.count))
        if here.count:
            explained, here = self._certain(explained, here)
        rows = self._features.batch
        if here.count == 0:
            return Proof(rows, first, tuple(explained), here)
        known, example = places(self._model.spec), int(np.argmax(here.apart))
        batch, start = self._batch_of(example)
        # Rows that are explained without a change would differ when they are asked again.
        asked = start + np.flatnonzero(~self._aside[start : start + rows_of(batch)])
        batch = {name: values[asked - start] for name, values in batch.items()}
        seen = replace(here, apart=here.apart[asked])
        followed = attribute(batch, seen, known, self._ask)
        return Proof(rows, first, tuple(explained), here, tuple(followed), shrunk(self._row(example), known, self._ask))

    def _certain(self, explained: list[Explained], here: Comparison) -> tuple[list[Explained], Comparison]:
        """Drops hypotheses that made differences smaller and few rows equal: no proof where some rows are left."""
        least = _EQUAL * len(here.apart)
        kept = [each for each in explained if each.hypothesis.rows or each.before - each.after >= least]
        if len(kept) == len(explained):
            return explained, here
        self._change, self._aside[:] = Change(), False
        counted: list[Explained] = []
        here = self._compared(Change())
        for each in kept:
            before = here.count
            self._take(each.hypothesis)
            here = self._compared(Change())
            counted.append(Explained(each.hypothesis, before, here.count))
        return counted, here

    def _take(self, hypothesis: Hypothesis) -> None:
        self._change = self._change.and_(hypothesis.change)
        self._aside[list(hypothesis.rows)] = True

    def _next(self, here: Comparison) -> list[Hypothesis]:
        """Returns the hypotheses that explain most of what is left, none when nothing does."""
        for each in roundings(self._model) if here.largest <= _SMALL else ():
            if self._compared(each.change).count == 0:
                return [each]
        ranked = self._ranked(here)
        if ranked and ranked[0][0].count == 0:
            return [ranked[0][1]]
        for search in (self._default, self._any_shift, self._truncated, self._suspect_rows):
            found = search(here)
            if found is not None:
                return [found]
        best = [each for compared, each in ranked[:_PAIRED] if compared.total < here.total]
        for pair in combinations(best, 2):
            if self._compared(pair[0].change.and_(pair[1].change)).count == 0:
                return list(pair)
        # Last of what explains everything: any small fault would pass for it.
        lowered = self._lowered(here)
        if lowered is not None:
            return [lowered]
        if ranked and self._is_better(ranked[0][0], here):
            return [ranked[0][1]]
        return []

    def _ranked(self, here: Comparison) -> list[tuple[Comparison, Hypothesis]]:
        """Returns the hypotheses that leave least, with the comparison under each: all on a few rows, some on all."""
        different, equal = np.flatnonzero(here.differs), np.flatnonzero(~here.differs)
        rows = np.sort(np.concatenate([different[:_FEW], equal[: _FEW // 2]]))
        few = taken(self._features, rows)
        answers = {name: values[rows] for name, values in self._answers.items()}

        def left(hypothesis: Hypothesis) -> float:
            new = self._model.score(few, self._change.and_(hypothesis.change))
            return compare(answers, new, self._tolerance).total

        best = sorted(candidates(self._model, self._features), key=left)[:_CHECKED]
        return sorted(((self._compared(each.change), each) for each in best), key=lambda entry: entry[0].total)

    def _is_better(self, compared: Comparison, here: Comparison) -> bool:
        made_equal = (here.count - compared.count) / len(here.apart)
        return compared.total <= _LEFT * here.total or (made_equal >= _EQUAL and compared.total < here.total)

    def _lowered(self, here: Comparison) -> Hypothesis | None:
        if here.largest > _SMALL or self._aside.any():
            return None
        own = self._model.score(self._features, self._change)
        for precision in ("fp16", "bf16"):
            lowered = self._model.score(self._features, self._change.and_(Change(precision=precision)))
            kind = torch.float16 if precision == "fp16" else torch.bfloat16
            # Some servers answer in this precision, too.
            wholly = {
                name: torch.from_numpy(values).to(kind).to(torch.float32).numpy() for name, values in lowered.items()
            }
            if any(looks_rounded(self._answers, own, each) for each in (lowered, wholly)):
                self._tolerance = max(self._tolerance, here.largest)
                return Hypothesis(Change(), f"computes its matrix products in {precision}, or as roughly", True)
        return None

    def _default(self, here: Comparison) -> Hypothesis | None:
        """Looks for another default vector of a table, where no row differs but those with an id without a row."""
        for table, without in rows_without(self._model, self._features, self._change).items():
            if (here.differs & ~without).any():
                continue

            def residuals(change: Change, without: np.ndarray = without) -> np.ndarray:
                signed: np.ndarray = self._signed(change)[without]
                return signed

            found = fitted_default(self._model, table, self._compared, residuals)
            if found is not None:
                return found
        return None

    def _any_shift(self, here: Comparison) -> Hypothesis | None:
        """Looks over all rows of a table for those that give the old answers, and for one distance to all of them."""
        rows = np.flatnonzero(here.differs)[:4]
        for feature, table in self._model.tables.items():
            bags, ids = self._features.ids[feature], self._model.rows[table].ids
            if (
                self._model.pooling[feature] == "none"
                or not 1 < len(ids) <= _TRIED
                or (bags.lengths()[rows] != 1).any()
            ):
                continue
            common: set[int] | None = None
            for number in rows.tolist():
                scores = self._model.score(self._with_ids(number, feature, ids), self._change)
                old = {
                    name: np.repeat(values[number : number + 1], len(ids), 0) for name, values in self._answers.items()
                }
                fits = ids[~compare(old, scores, self._tolerance).differs]
                distances = set((fits - bags.values[bags.offsets[number]]).tolist())
                common = distances if common is None else common & distances
                if not common:
                    break
            for shift in sorted(common or (), key=abs)[:8]:
                hypothesis = shifted(feature, shift)
                if shift and self._compared(hypothesis.change).count == 0:
                    return hypothesis
        return None

    def _truncated(self, here: Comparison) -> Hypothesis | None:
        equal = ~here.differs & ~self._aside
        return truncated(self._model, self._features, here, self._change, self._compared, equal)

    def _suspect_rows(self, here: Comparison) -> Hypothesis | None:
        equal = ~here.differs & ~self._aside
        return suspects(self._model, self._features, self._row, here, self._change, self._compared, self._ask, equal)

    def _with_ids(self, number: int, feature: str, ids: np.ndarray) -> FeatureBatch:
        """Returns a row of the batch once for each id, with that as the only id of a feature."""
        count = len(ids)
        dense = {
            name: np.repeat(values[number : number + 1], count, 0) for name, values in self._features.dense.items()
        }
        bags: dict[str, Jagged] = {}
        for name, each in self._features.ids.items():
            start, stop = each.offsets[number : number + 2]
            length = 1 if name == feature else int(stop - start)
            values = ids if name == feature else np.tile(each.values[start:stop], count)
            weights = None if each.weights is None else np.tile(each.weights[start:stop], count)
            bags[name] = Jagged(values, np.arange(count + 1, dtype=np.int64) * length, weights)
        return FeatureBatch(count, dense, bags)

    def _compared(self, change: Change) -> Comparison:
        """Compares the old answers with the snapshot's under what is known and one more change."""
        new = self._model.score(self._features, self._change.and_(change))
        found = compare(self._answers, new, self._tolerance)
        return replace(found, apart=np.where(self._aside, 0.0, found.apart))

    def _signed(self, change: Change) -> np.ndarray:
        """Returns the differences of the first value of the first output that both sides have, (B,)."""
        new = self._model.score(self._features, self._change.and_(change))
        name, old = next(iter(paired(self._answers, new).items()))
        ours, theirs = (np.asarray(values, np.float64).reshape(len(old), -1)[:, 0] for values in (new[name], old))
        return np.asarray(ours - theirs)

    def _batch_of(self, number: int) -> tuple[Batch, int]:
        """Returns the batch that a row lies in, and the number of its first row."""
        place = int(np.searchsorted(self._ends, number, side="right"))
        batch = self._batches[place]
        return batch, int(self._ends[place]) - rows_of(batch)

    def _row(self, number: int) -> Batch:
        batch, start = self._batch_of(number)
        return row(batch, number - start)

    def _ask(self, batch: Batch) -> Comparison:
        """Compares both sides on other requests."""
        new = self._model.score(self._model.features(batch), self._change)
        return compare(self._old(batch), new, self._tolerance)
