"""Paths that callers give: everything is read from and written to local folders, and a URL is refused by name."""

from __future__ import annotations

import re
from pathlib import Path

from storage.errors import ConfigError

# pathlib makes the two slashes of a URL one, so that a Path that was made of one has a single slash.
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/+")


def local_path(path: Path | str, field: str) -> Path:
    """The path, which must be one of this machine. field: names it in the error.

    Raises ConfigError for a URL such as s3://bucket/models. It would otherwise be a relative path, and a folder `s3:`
    would be made in the working directory.
    """
    found = _URL.match(str(path))
    if found is None:
        return Path(path)
    scheme, rest = found[1].lower(), str(path)[found.end() :]
    url = f"{scheme}://{'/' if scheme == 'file' else ''}{rest}"
    if scheme == "file":
        advice = f"give the path itself: /{rest}"
    else:
        advice = f"{scheme}:// is not supported; mount the storage or copy the files, and give the local path"
    raise ConfigError(f"{field}: expected a path of this machine, got {url!r}; {advice}", field=field)
