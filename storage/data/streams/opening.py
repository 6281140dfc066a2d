"""Chooses the source of a stream by what was given."""

from __future__ import annotations

from pathlib import Path

from storage.data.columns import Wanted
from storage.data.index import BlockIndex
from storage.data.options import DataOptions
from storage.data.streams import kafka_topic, redis_stream
from storage.data.streams.base import Credentials, StreamSource
from storage.data.streams.folder import FolderSource


def open_stream(
    source: Path | str,
    wanted: Wanted,
    options: DataOptions,
    index: BlockIndex | None = None,
    credentials: Credentials = Credentials(),  # noqa: B008
) -> StreamSource:
    """Opens what a path or URL means. index: where compressed text is unpacked. Raises ConfigError."""
    scheme = str(source).partition(":")[0].lower()
    if scheme in kafka_topic.SCHEMES:
        return kafka_topic.KafkaSource(str(source), wanted, options, credentials)
    if scheme in redis_stream.SCHEMES:
        return redis_stream.RedisSource(str(source), wanted, options, credentials)
    return FolderSource(source, wanted, options, index)
