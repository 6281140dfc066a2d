"""Credentials of the load: EMBERLINE_TOKEN of the environment."""

from __future__ import annotations

import os


def access_headers() -> dict[str, str]:
    """Returns the headers of every request, in lower case, as gRPC requires for metadata."""
    token = os.environ.get("EMBERLINE_TOKEN", "").strip()
    return {"authorization": f"Bearer {token}"} if token else {}
