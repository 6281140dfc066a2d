"""Logs a sample of served requests as Parquet files."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from functools import partial

from serving.feedback.log_files import LogFolder
from serving.feedback.rows import served_table
from serving.feedback.served_batch import ServedBatch
from serving.feedback.settings import LogSettings
from serving.protocol.signature import ModelSignature
from storage.errors import ConfigError
from storage.features import InputSpec
from storage.served_log import keyed_hash

logger = logging.getLogger("emberline.serving")

#: The folder of requests in that of a model.
REQUESTS = "requests"
# Requests are written when they take so much memory.
_BUFFER_BYTES = 8 << 20
# Versions whose requests are kept apart; what is kept is written before there are more.
_MOST_VERSIONS = 4


@dataclass
class _OfVersion:
    """Holds what is kept of the requests that one version answered."""

    columns: list[tuple[InputSpec, str]] = field(default_factory=list)
    #: Why its requests are not logged; "" when they are.
    refusal: str = ""
    batches: list[ServedBatch] = field(default_factory=list)


class RequestLog:
    """Writes requests whose point lies below the share. One thread at a time may use it."""

    def __init__(self, model: str, settings: LogSettings) -> None:
        self.settings = settings
        self.files = LogFolder(settings.folder / REQUESTS, settings.max_bytes, settings.max_age_s, settings.every_s)
        #: Requests and rows that were taken.
        self.requests = 0
        self.rows = 0
        #: Requests that are not logged, because the options do not fit the version that answered.
        self.refused = 0
        #: Why those of the version that answered last are not; "" when they are.
        self.refusal = ""
        self._model = model
        self._hashed = {name: partial(keyed_hash, settings.key) for name in settings.hash}
        # Apart by version: several may answer in turns, and tables of other columns go into other files.
        self._versions: dict[ModelSignature, _OfVersion] = {}
        # Batches that wait to be written, and their memory.
        self._waiting = self._bytes = 0
        self._since = 0.0

    def take(self, batch: ServedBatch) -> None:
        """Keeps its requests until they are written."""
        version = self._versions.get(batch.signature) or self._begin(batch.signature)
        self.refusal = version.refusal
        parts = batch.parts(self.settings.share)
        count = sum(len(part.requests) for part in parts)
        if version.refusal:
            self.refused += count
            return
        if not self._waiting:
            self._since = time.monotonic()
        version.batches += parts
        self._waiting += len(parts)
        self.requests += count
        self.rows += sum(part.rows for part in parts)
        self._bytes += sum(part.size_bytes for part in parts)
        if self._bytes >= _BUFFER_BYTES:
            self._write()

    def tick(self, now: float) -> None:
        """Writes what has waited long enough."""
        if self._waiting and now - self._since >= self.settings.every_s:
            self._write()
            self.files.close()
        self.files.tick(now)

    def close(self) -> None:
        """Writes what waits."""
        self._write()
        self.files.close()

    def _begin(self, signature: ModelSignature) -> _OfVersion:
        if len(self._versions) >= _MOST_VERSIONS:
            self._write()
            self._versions.clear()
        version = self._versions[signature] = _OfVersion()
        try:
            version.columns = self.settings.columns(signature.raw)
        except ConfigError as error:
            version.refusal = str(error)
            if version.refusal != self.refusal:
                logger.error("%s: requests are not logged: %s", self._model, error)
        return version

    def _write(self) -> None:
        self._waiting = self._bytes = 0
        for version in self._versions.values():
            batches, version.batches = version.batches, []
            if batches:
                self._write_batches(batches, version.columns)

    def _write_batches(self, batches: list[ServedBatch], columns: list[tuple[InputSpec, str]]) -> None:
        try:
            table = served_table(batches, columns, self._hashed)
        except Exception as error:
            if len(batches) == 1:
                self.files.lose(error, batches[0].rows)
                return
            for batch in batches:  # one that cannot be written takes no others along
                self._write_batches([batch], columns)
        else:
            self.files.write(table, self._since)
