"""Describes how the old server may differ from the new model, as changes that the new model can be scored with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

import numpy as np


@dataclass(frozen=True)
class Change:
    """Says what is scored otherwise than published. An empty change is the model as it is."""

    #: By feature: added to each id.
    shifts: Mapping[str, int] = field(default_factory=dict)
    #: By feature: the table that it reads.
    tables: Mapping[str, str] = field(default_factory=dict)
    #: By feature: the one whose values it gets, of the same kind; of columns of dense groups by (group, column).
    sources: Mapping[str, str] = field(default_factory=dict)
    columns: Mapping[tuple[str, int], tuple[str, int]] = field(default_factory=dict)
    #: By table: the first id that is not known, and the id that is read for it and all behind it.
    beyond: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    #: By table: what ids without a row read as, (D,) float32.
    defaults: Mapping[str, np.ndarray] = field(default_factory=dict)
    #: By feature: sum, mean, sqrtn or max.
    pooling: Mapping[str, str] = field(default_factory=dict)
    #: By table: ids that have no row.
    missing: Mapping[str, frozenset[int]] = field(default_factory=dict)
    #: By table: the row type that rows are rounded to.
    rounding: Mapping[str, str] = field(default_factory=dict)
    #: The precision of matrix products, fp16 or bf16; "" for float32.
    precision: str = ""

    def and_(self, other: Change) -> Change:
        """Returns both changes together; where both say something, the other one's."""
        merged = {
            each.name: {**getattr(self, each.name), **getattr(other, each.name)}
            for each in fields(Change)
            if each.name != "precision"
        }
        return Change(**merged, precision=other.precision or self.precision)


@dataclass(frozen=True)
class Hypothesis:
    """One possible explanation."""

    change: Change
    #: In words, of the old server.
    text: str
    #: Whether it is rounding alone.
    is_rounding: bool = False
    #: The feature or the table that it is about.
    about: str = ""
    #: Rows that it explains without a change that could be computed here.
    rows: frozenset[int] = frozenset()
