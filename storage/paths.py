"""Checks the paths that callers give where only local ones will do: a URL is refused with an error."""

from __future__ import annotations

import re
from pathlib import Path

from storage.errors import ConfigError

# pathlib turns the two slashes of a URL into one, so a Path that was made from a URL has a single slash.
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/+")


def local_path(path: Path | str, field: str) -> Path:
    """Returns the path, which must be a local one. field: names it in the error.

    Raises ConfigError for a URL such as s3://bucket/models. It would otherwise be a relative path, and a folder `s3:`
    would be created in the working directory.
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
