"""Reads a column of times as milliseconds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def unix_ms(column: Any) -> np.ndarray[Any, Any]:
    """Returns the times in a column, (N,) int64, in milliseconds since 1970; -1 where there is none.

    Numbers are seconds.
    """
    kind = column.type
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        found = column.cast(pa.timestamp("ms"), safe=False).cast(pa.int64())
        return np.asarray(pc.fill_null(found, -1).to_numpy(), np.int64)
    seconds = pc.fill_null(column.cast(pa.float64(), safe=False), -1.0).to_numpy()
    known = (seconds >= 0.0) & (seconds < 2.0**40)
    return np.where(known, seconds * 1000.0, -1.0).astype(np.int64)
