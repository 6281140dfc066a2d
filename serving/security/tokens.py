"""Makes, reads and digests bearer tokens. A server keeps digests only."""

from __future__ import annotations

import hashlib
import secrets

# The prefix lets scanners of repositories and logs recognise a token.
_PREFIX = "ember_"
_BYTES = 32
_SCHEME = b"bearer "
MAX_TOKEN_BYTES = 512


def new_token() -> str:
    """Returns a token that cannot be guessed: 256 random bits."""
    return _PREFIX + secrets.token_urlsafe(_BYTES)


def digest_of(token: str | bytes) -> str:
    """Returns the digest by which a server knows a token: SHA-256 in hex.

    That is enough for random tokens, which no dictionary has.
    """
    return hashlib.sha256(token.encode() if isinstance(token, str) else token).hexdigest()


def token_of(authorization: bytes) -> bytes:
    """Returns the token in an Authorization header, b"" when it holds none that could be one of ours."""
    if authorization[: len(_SCHEME)].lower() != _SCHEME:
        return b""
    token = authorization[len(_SCHEME) :].strip()
    return token if len(token) <= MAX_TOKEN_BYTES else b""
