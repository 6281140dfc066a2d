"""Who the load says to be, where the server asks: EMBERLINE_TOKEN of the environment."""

from __future__ import annotations

import os


def access_headers() -> dict[str, str]:
    """What every request carries. In lower case, as gRPC wants its metadata."""
    token = os.environ.get("EMBERLINE_TOKEN", "").strip()
    return {"authorization": f"Bearer {token}"} if token else {}
