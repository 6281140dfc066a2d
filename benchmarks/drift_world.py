"""Clicks of users whose taste turns, and on items of which some are new each day."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

USERS, ITEMS = 400, 200
# A taste turns by this angle in a day, and this share of the items is replaced by new ones.
TURN, NEW_ITEMS = np.pi / 3, 0.5
_DIM = 4

CONFIG = """
model_name: {name}
label: clicked
inputs:
  - {{name: user, dtype: INT64}}
  - {{name: item, dtype: INT64}}
features:
  - {{name: user, inputs: [user], output: ids, table: users}}
  - {{name: item, inputs: [item], output: ids, table: items}}
tables:
  - {{name: users, dim: 8}}
  - {{name: items, dim: 8}}
model: {{type: deepfm, hidden: [32]}}
optimizer: {{sparse: {{lr: 0.3, initial_accumulator: 1.0e-4}}, dense: {{lr: 0.005}}}}
training: {{batch_size: 64, seed: 1, time_column: at, shuffle: false}}
"""


@dataclass(frozen=True)
class Clicks:
    """Rows of one moment: a pyarrow Table (N,), and the probability of each click, (N,)."""

    table: Any
    probabilities: np.ndarray[Any, Any]


class DriftWorld:
    """Draws clicks of any moment. day_s: seconds that a day takes. begin: time at which day 0 begins."""

    def __init__(self, day_s: float, begin: float) -> None:
        self._day_s, self._begin = day_s, begin
        rng = np.random.default_rng(11)
        self._users = rng.normal(size=(USERS, _DIM))
        self._items = rng.normal(size=(100 * ITEMS, _DIM))
        self._biases = rng.normal(size=100 * ITEMS)
        self._rng = np.random.default_rng(12)

    def clicks(self, rows: int, seconds: float) -> Clicks:
        """Returns clicks at a time, by time.time()."""
        days = (seconds - self._begin) / self._day_s
        user = self._rng.integers(0, USERS, rows)
        # New items come one by one, and the oldest go.
        item = self._rng.integers(0, ITEMS, rows) + int(max(0.0, days + 1.0) * ITEMS * NEW_ITEMS)
        turned = self._users[user].copy()
        angle = TURN * days
        for first, second in ((0, 1), (2, 3)):
            left, right = turned[:, first].copy(), turned[:, second].copy()
            turned[:, first] = np.cos(angle) * left - np.sin(angle) * right
            turned[:, second] = np.sin(angle) * left + np.cos(angle) * right
        logits = 0.9 * (turned * self._items[item]).sum(axis=1) + 0.7 * self._biases[item] - 1.0
        probabilities = 1 / (1 + np.exp(-logits))
        clicked = self._rng.random(rows) < probabilities
        table = pa.table({"user": user, "item": item, "clicked": clicked, "at": np.full(rows, seconds)})
        return Clicks(table, probabilities)
