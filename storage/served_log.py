"""Names the columns of logs of served requests, and hashes personal values for them.

The server writes such logs, the trainer reads them as it reads any Parquet files, and `emberline forget` looks in them.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from storage.errors import ConfigError

#: The id of the request, as the client or the server gave it.
ID = "served_id"
#: Which row of its request it is, from 0 on.
ROW = "served_row"
#: When the request arrived, or, in a file of labels, when what was labelled happened.
AT = "served_at"
#: The snapshot that answered, such as 1.17.
SNAPSHOT = "served_snapshot"
#: The arm that answered, main or canary.
ARM = "served_arm"
#: Begins the names of the columns of scores; the name of the output follows.
SCORE = "served_score."
#: The value of a label, in files of labels.
LABEL = "label"
#: Ends the name of a column whose values are hashed.
HASHED = ".hash"

_DIGEST_BYTES = 16
_KEY_BYTES = (16, 64)


def keyed_hash(key: bytes, value: Any) -> str:
    """Returns the keyed BLAKE2b digest of a value, 32 hex digits. Whole numbers are hashed as their decimal text."""
    data = value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(data, key=key, digest_size=_DIGEST_BYTES).hexdigest()


def read_hash_key(path: Path) -> bytes:
    """Returns the key in a file, without white space at its ends. Raises ConfigError."""
    try:
        key = path.read_bytes().strip()
    except OSError as error:
        raise ConfigError(f"the key of the log of requests cannot be read: {error}", field="feature_log_key") from None
    low, high = _KEY_BYTES
    if not low <= len(key) <= high:
        raise ConfigError(
            f"{str(path)!r} holds {len(key)} bytes; expected a key of {low} to {high}, such as `openssl rand -hex 32` "
            "writes",
            field="feature_log_key",
        )
    return key
