"""Chooses the source of a stream by what was given."""

from __future__ import annotations

from pathlib import Path

from storage.data.columns import Wanted
from storage.data.index import BlockIndex
from storage.data.options import DataOptions
from storage.data.streams.base import StreamSource
from storage.data.streams.folder import FolderSource


def open_stream(
    source: Path | str, wanted: Wanted, options: DataOptions, index: BlockIndex | None = None
) -> StreamSource:
    """Opens what a path or URL means. index: where compressed text is unpacked. Raises ConfigError."""
    return FolderSource(source, wanted, options, index)
