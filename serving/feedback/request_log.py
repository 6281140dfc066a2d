"""Logs a sample of served requests as Parquet files."""

from __future__ import annotations

import logging
import time
from functools import partial

from serving.feedback.log_files import LogFolder
from serving.feedback.rows import ServedBatch, served_table
from serving.feedback.settings import LogSettings
from serving.protocol.signature import ModelSignature
from storage.data.served_log import keyed_hash
from storage.errors import ConfigError
from storage.features import InputSpec

logger = logging.getLogger("emberline.serving")

#: The folder of requests in that of a model.
REQUESTS = "requests"
# Requests are written when they take so much memory.
_BUFFER_BYTES = 8 << 20


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
        #: Why they are not; "" when they are.
        self.refusal = ""
        self._model = model
        self._hashed = {name: partial(keyed_hash, settings.key) for name in settings.hash}
        self._kept: list[ServedBatch] = []
        self._bytes = 0
        self._since = 0.0
        self._signature: ModelSignature | None = None
        self._columns: list[tuple[InputSpec, str]] = []

    def take(self, batch: ServedBatch) -> None:
        """Keeps its requests until they are written."""
        if batch.signature is not self._signature:
            self._begin(batch.signature)
        parts = batch.parts(self.settings.share)
        count = sum(len(part.requests) for part in parts)
        if self.refusal:
            self.refused += count
            return
        if not self._kept:
            self._since = time.monotonic()
        self._kept += parts
        self.requests += count
        self.rows += sum(part.rows for part in parts)
        self._bytes += sum(part.size_bytes for part in parts)
        if self._bytes >= _BUFFER_BYTES:
            self._write()

    def tick(self, now: float) -> None:
        """Writes what has waited long enough."""
        if self._kept and now - self._since >= self.settings.every_s:
            self._write()
            self.files.close()
        self.files.tick(now)

    def close(self) -> None:
        """Writes what waits."""
        self._write()
        self.files.close()

    def _begin(self, signature: ModelSignature) -> None:
        self._write()
        self._signature = signature
        before = self.refusal
        try:
            self._columns = self.settings.columns(signature.raw)
            self.refusal = ""
        except ConfigError as error:
            self.refusal = str(error)
            if self.refusal != before:
                logger.error("%s: requests are not logged: %s", self._model, error)

    def _write(self) -> None:
        kept, self._kept, self._bytes = self._kept, [], 0
        if kept:
            self._write_all(kept)

    def _write_all(self, kept: list[ServedBatch]) -> None:
        try:
            table = served_table(kept, self._columns, self._hashed)
        except Exception as error:
            if len(kept) == 1:
                self.files.lose(error, kept[0].rows)
                return
            for batch in kept:  # one that cannot be written takes no others along
                self._write_all([batch])
        else:
            self.files.write(table)
