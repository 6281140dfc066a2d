"""Reads the page and its files, which lie in the folder `page` of this package, and gives them their headers."""

from __future__ import annotations

import functools
import hashlib
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from serving.http.encoding import accepted_encoding
from serving.http.messages import Headers, HttpResponse

FOLDER = Path(__file__).parent / "page"
PAGE = "console.html"
_TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".svg": "image/svg+xml",
    ".js": "text/javascript",
    ".mjs": "text/javascript",
}
# In the page, what stands for the folder of its files.
_PLACE = b"@assets@"
# Scripts and styles come from this server alone, no text is ever taken for HTML or script, and no other page may show
# this one.
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
SAFE_HEADERS: Headers = [
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
]


@dataclass(frozen=True)
class Asset:
    """One file, as it is and compressed."""

    content: bytes
    packed: bytes
    content_type: bytes

    def response(self, accepts: bytes, cache: bytes) -> HttpResponse:
        """Returns the response with it. accepts: the request's Accept-Encoding. cache: the header Cache-Control."""
        headers = [*SAFE_HEADERS, (b"content-type", self.content_type), (b"cache-control", cache)]
        headers.append((b"vary", b"accept-encoding"))
        if accepted_encoding(accepts) != b"gzip":
            return HttpResponse(200, self.content, headers)
        return HttpResponse(200, self.packed, [*headers, (b"content-encoding", b"gzip")])


@dataclass(frozen=True)
class Assets:
    """The page and its files."""

    #: A digest of all files, which is a part of their addresses, so that browsers may keep them for good.
    digest: str
    page: Asset
    files: Mapping[str, Asset]


@functools.cache
def read_assets() -> Assets:
    """Reads everything."""
    paths = sorted(path for path in FOLDER.rglob("*") if path.suffix in _TYPES)
    contents = {path.relative_to(FOLDER).as_posix(): path.read_bytes() for path in paths}
    digest = hashlib.sha256(b"".join(name.encode() + content for name, content in contents.items())).hexdigest()[:16]
    page = contents.pop(PAGE).replace(_PLACE, f"console/{digest}".encode())
    return Assets(digest, _asset(PAGE, page), {name: _asset(name, content) for name, content in contents.items()})


def _asset(name: str, content: bytes) -> Asset:
    encoder = zlib.compressobj(9, zlib.DEFLATED, 31)
    kind = f"{_TYPES[Path(name).suffix]}; charset=utf-8"
    return Asset(content, encoder.compress(content) + encoder.flush(), kind.encode())
