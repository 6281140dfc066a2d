"""The kinds of files that tables are imported from, one file each."""

from __future__ import annotations

from storage.importing.kinds import numpy_files, parquet, safetensors_files
from storage.importing.kinds.base import Kind

__all__ = ["KINDS", "Kind"]

KINDS: dict[str, Kind] = {kind.name: kind for kind in (parquet.KIND, safetensors_files.KIND, numpy_files.KIND)}
