"""Collects the metrics of a server as a whole: whether it is ready, its start, and the disk of its stores."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from prometheus_client import Metric

from serving.http.prometheus import family, label_value
from serving.repository.model_repository import ModelRepository
from serving.repository.starts import Start

# Label: model.
_OF_STARTS: list[tuple[str, str, Callable[[Start], float]]] = [
    ("ready_after_seconds", "From the start of the process until the model was ready", lambda s: s.seconds),
    ("ready_read_bytes", "Bytes that had come from the object store by then, for all models", lambda s: s.read_bytes),
    ("ready_dram_rows", "Rows in DRAM then", lambda s: s.dram_rows),
]


def readiness(repository: ModelRepository) -> Iterator[Metric]:
    """Yields what the health routes answer, as numbers."""
    ready = float(repository.is_ready())
    yield family("emberline_ready", "gauge", "1 while the server is ready", [({}, ready)])
    of_models = [({"model": label_value(name)}, float(repository.is_model_ready(name))) for name in repository.names]
    yield family("emberline_model_ready", "gauge", "1 while a request for the model would be taken", of_models)


def starts(repository: ModelRepository) -> Iterator[Metric]:
    """Yields what it took until each model was ready for the first time."""
    known = [(start, {"model": label_value(name)}) for name, start in repository.starts.all().items()]
    for name, meaning, value in _OF_STARTS:
        yield family(f"emberline_{name}", "gauge", meaning, [(of, value(start)) for start, of in known])
    rates = [(of, start.hit_rate) for start, of in known if start.hit_rate is not None]
    meaning = "Share of lookups that these rows were expected to answer; not there without hot ids"
    yield family("emberline_ready_hit_rate", "gauge", meaning, rates)


def disks(stores: Path, repository: Path) -> Iterator[Metric]:
    """Yields the sizes of the file systems of the stores and of the repository, and the bytes that are free.

    Free is what an ordinary user may still write. A disk that has gone has no size: the models say what failed.
    """
    if (space := _space(stores)) is not None:
        yield family("emberline_disk_bytes", "gauge", "Size of the file system of the stores", [({}, space[0])])
        yield family("emberline_disk_free_bytes", "gauge", "What a server may still write there", [({}, space[1])])
    if (space := _space(repository)) is not None:
        meaning = "Size of the file system of the repository, or of its copy"
        yield family("emberline_repository_disk_bytes", "gauge", meaning, [({}, space[0])])
        meaning = "What may still be written there"
        yield family("emberline_repository_disk_free_bytes", "gauge", meaning, [({}, space[1])])


def _space(folder: Path) -> tuple[float, float] | None:
    there = next(place for place in (folder, *folder.parents) if place.exists())
    try:
        status = os.statvfs(there)
    except OSError:
        return None
    return float(status.f_blocks * status.f_frsize), float(status.f_bavail * status.f_frsize)
