"""Logs labels as Parquet files, in a folder for each output, as the trainer joins them to the log of requests."""

from __future__ import annotations

import threading
import time
from urllib.parse import quote

import pyarrow as pa

from serving.feedback.log_files import FileCounts, LogFolder
from serving.feedback.score_window import Label
from serving.feedback.settings import LogSettings
from storage.served_log import AT, ID, LABEL, ROW

#: The folder of labels in that of a model.
LABELS = "labels"
# Labels that wait for their file.
_MAX_WAITING = 100_000
_SCHEMA = pa.schema([(ID, pa.string()), (ROW, pa.int32()), (AT, pa.timestamp("us", "UTC")), (LABEL, pa.float64())])


def folder_name(output: str) -> str:
    """Returns the name of the folder of an output's labels: its name, with what no folder may have as %XX."""
    name = quote(output, safe=" ()[]{},;=+@!#$&'")
    return f"%2E{name[1:]}" if name.startswith(".") else name


class LabelLog:
    """Writes the labels of rows in the log that are above 0. `add` may be called by any thread, the rest by one."""

    def __init__(self, settings: LogSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._waiting: list[Label] = []
        self._since = 0.0
        self._folders: dict[str, LogFolder] = {}
        #: Labels that found no room.
        self.dropped = 0

    def add(self, label: Label) -> None:
        """Keeps a label until it is written. Those that are not above 0 are what rows without a label are."""
        if label.value <= 0:
            return
        with self._lock:
            if len(self._waiting) >= _MAX_WAITING:
                self.dropped += 1
                return
            if not self._waiting:
                self._since = time.monotonic()
            self._waiting.append(label)

    @property
    def counts(self) -> FileCounts:
        """Returns what all folders got and lost."""
        found = FileCounts()
        for folder in list(self._folders.values()):
            for name, count in vars(folder.counts).items():
                setattr(found, name, getattr(found, name) + count)
        return found

    @property
    def trouble(self) -> str:
        """Returns why the last write failed; "" when it did not."""
        return next((folder.trouble for folder in list(self._folders.values()) if folder.trouble), "")

    def tick(self, now: float) -> None:
        """Writes what has waited long enough."""
        if self._waiting and now - self._since >= self._settings.every_s:
            self.close()
        for folder in self._folders.values():
            folder.tick(now)

    def close(self) -> None:
        """Writes what waits."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
        by_output: dict[str, list[Label]] = {}
        for label in waiting:
            by_output.setdefault(label.output, []).append(label)
        for output, labels in by_output.items():
            if output not in self._folders:
                self._folders[output] = LogFolder(
                    self._settings.folder / LABELS / folder_name(output),
                    self._settings.max_bytes,
                    self._settings.max_age_s,
                    self._settings.every_s,
                )
            table = pa.table(
                {
                    ID: [label.id.encode("utf-8", "replace").decode() for label in labels],
                    ROW: [label.row for label in labels],
                    AT: [round(label.at * 1e6) for label in labels],
                    LABEL: [label.value for label in labels],
                },
                _SCHEMA,
            )
            self._folders[output].write(table)
            self._folders[output].close()
