"""Removes secrets from texts before they are logged: tokens, credentials in headers and URLs, signatures."""

from __future__ import annotations

import re

_HIDDEN = "[secret]"
# Each keeps its first group.
_SECRETS = (
    # The value of a header or a key that names a secret: `Authorization: Basic x`, `'api_key': 'x'`, token=x.
    re.compile(
        r"""((?:proxy-)?authorization["']?\s*[:=,]\s*\(?\s*(?:b(?=["']))?["']?(?:(?:bearer|basic|digest|negotiate)\s+)?)"""
        r"""[^\s"',;)&]+""",
        re.IGNORECASE,
    ),
    re.compile(
        r"""((?:secret[-_]?(?:access[-_]?)?key|access[-_]?key(?:[-_]?id)?|api[-_]?key|pass(?:word|wd)|(?:session|security|"""
        r"""access|refresh|auth|id)[-_]?token|client[-_]?secret|x-amz-(?:signature|credential|security-token)|"""
        r"""x-goog-(?:signature|credential)|cookie)["']?\s*[:=]\s*(?:b(?=["']))?["']?)[^\s"',;)&]+""",
        re.IGNORECASE,
    ),
    # In the query of a URL.
    re.compile(r"([?&](?:token|sig|signature|key|code|awsaccesskeyid)=)[^\s\"'&]+", re.IGNORECASE),
    # Wherever the scheme of a token stands in front of one, which is not a word.
    re.compile(r"(\bbearer\s+)(?=(?-i:[a-z]*[A-Z0-9+/=._~-]))[A-Za-z0-9+/=._~-]{8,}", re.IGNORECASE),
    # Credentials of a URL: user:password@ and token@; the former also without the scheme.
    re.compile(r"(\b[a-z][a-z0-9+.-]*://)[^\s/?#@\"']+(?=@)", re.IGNORECASE),
    re.compile(r"([\w.%+-]:)[^\s/:@\"']+(?=@[\w\[])"),
)
# Our own tokens: see serving/security/tokens.py.
_OWN = re.compile(r"ember_[A-Za-z0-9_-]{16,}")


def redacted(text: str) -> str:
    """Returns a text without the secrets that can be recognised in it."""
    for secret in _SECRETS:
        text = secret.sub(rf"\g<1>{_HIDDEN}", text)
    return _OWN.sub(_HIDDEN, text)
