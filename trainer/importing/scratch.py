"""Lends a folder of temporary files to an import that publishes nothing."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from storage.errors import StoreError


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Yields a folder that is gone afterwards. Raises StoreError where the disk fails meanwhile."""
    where = tempfile.gettempdir()
    try:
        with tempfile.TemporaryDirectory(prefix="emberline-import-") as where:
            yield Path(where)
    except OSError as error:
        raise StoreError(
            f"{error.filename or where}: {error.strerror or error}; rows beyond --memory go through files in "
            f"{tempfile.gettempdir()}, and TMPDIR names another folder"
        ) from error
