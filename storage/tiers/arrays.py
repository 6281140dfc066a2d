"""Names the types of the arrays that the tiers take and return. n ids, D values of a row."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# (n,)
Ids = NDArray[np.int64]
# (n, D)
Rows = NDArray[np.float32]
# (n,): 1 or 0, use counts, or states of a read.
Flags = NDArray[np.uint8]
# (n, row_bytes): rows as they are stored.
Encoded = NDArray[np.uint8]
