"""Implements the classification extension, which returns the indices of an output's largest values instead of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from serving.protocol.dtypes import WIRE_TYPES
from storage.errors import InvalidInput

# The most classes of one request; each is written as a text of its own.
MAX_CLASSES = 1 << 16

_KEY = "classification"


def wanted_classes(name: str, dtype: str, parameters: Mapping[str, Any]) -> int:
    """Returns how many classes an output's parameters ask for; 0 for the output itself. Raises InvalidInput."""
    count = parameters.get(_KEY)
    if count is None:
        return 0
    if type(count) is str and count.isdecimal() and count.isascii() and len(count) < 10:
        count = int(count)
    if type(count) is not int or not 0 <= count < 2**31:
        raise InvalidInput(f"output {name!r}: {_KEY} must be a number of classes, got {str(count)[:40]!r}", field=_KEY)
    if count and WIRE_TYPES[dtype].family not in ("integer", "small integer", "float"):
        raise InvalidInput(f"output {name!r}: {_KEY} needs numbers, the output is {dtype}", field=_KEY)
    return count


def classify(values: np.ndarray, count: int, labels: Sequence[str], *, has_batch: bool) -> np.ndarray:
    """Returns the `count` largest values of each row as "VALUE:INDEX" or "VALUE:INDEX:LABEL", the largest first.

    values: (B, ...), or all of one row without a batch. Returns bytes objects, (B, min(count, values of a row)) or one
    row of them. Of equal values the first comes first. Raises InvalidInput when there are too many.
    """
    if not has_batch:
        return classify(values[None], count, labels, has_batch=True).reshape(-1)
    rows = values.reshape(values.shape[0], math.prod(values.shape[1:]))
    count = min(count, rows.shape[1])
    if count * len(rows) > MAX_CLASSES:
        raise InvalidInput(
            f"{_KEY}: {count} classes of {len(rows)} rows, at most {MAX_CLASSES} a request; take the output itself",
            field=_KEY,
        )
    # Reversing twice gives a stable descending order, for unsigned numbers too.
    order = rows.shape[1] - 1 - np.argsort(rows[:, ::-1], axis=1, kind="stable")[:, ::-1][:, :count]
    texts = np.empty(order.shape, object)
    for row, indices in enumerate(order.tolist()):
        for place, index in enumerate(indices):
            text = f"{_number(rows[row, index])}:{index}"
            if index < len(labels):
                text += f":{labels[index]}"
            texts[row, place] = text.encode()
    return texts


def _number(value: Any) -> str:
    return f"{value:f}" if isinstance(value, np.floating) else str(value)
