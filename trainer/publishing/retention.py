"""Removes older versions and deltas from a repository once newer ones replace them.

A folder is renamed to a name that no reader looks at before its files are removed, so no reader sees half of one.
Versions of other trainers stay, and so do the deltas through which a kept delta is reached.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from storage.checkpoint import PublishedDelta
from storage.checkpoint.deltas import DELTAS
from storage.checkpoint.install import UNFINISHED, remove_hidden, sweep
from storage.errors import ReadError
from trainer.publishing.lineage import Lineage
from trainer.publishing.policy import DeltaPolicy
from trainer.publishing.repository import read_deltas, read_version, version_numbers

logger = logging.getLogger("emberline.trainer")


def retain(model_dir: Path, lineage: Lineage, policy: DeltaPolicy) -> None:
    """Removes the older versions of this lineage, and older deltas of those that stay. What cannot be removed stays.

    Nothing is removed when a folder cannot be read now: what else is needed would be unknown.
    """
    try:
        _retain(model_dir, lineage, policy)
    except (ReadError, OSError) as error:
        logger.warning("%s: older versions and deltas stay for now: %s", model_dir, error)


def _retain(model_dir: Path, lineage: Lineage, policy: DeltaPolicy) -> None:
    line = set(lineage.line())
    ours: list[int] = []
    for number in version_numbers(model_dir):
        version = read_version(model_dir, number)
        if version is not None and version.snapshot in line:
            ours.append(number)
    kept = {*ours[-policy.keep_versions :], lineage.version}
    for number in ours:
        if number not in kept:
            remove_hidden(model_dir / str(number))
            continue
        deltas = read_deltas(model_dir / str(number))
        needed = needed_deltas(deltas, policy.keep_deltas)
        for delta in deltas:
            if delta.sequence not in needed:
                remove_hidden(delta.path)
        sweep(model_dir / str(number) / DELTAS)
    sweep(model_dir)


def remove_older(model_dir: Path, lineage: Lineage, holds: Callable[[Path], bool]) -> None:
    """Removes every version but the newest of this lineage, with its deltas, and what crashed publishers left.

    holds: returns whether a version of another trainer, by its folder, is to go too. Raises ReadError or OSError when a
    folder cannot be read or removed now.
    """
    line = set(lineage.line())
    for number in version_numbers(model_dir):
        folder = model_dir / str(number)
        if number == lineage.version:
            if (folder / DELTAS).is_dir():
                _remove_all(folder / DELTAS, lambda entry: entry.name.startswith(UNFINISHED))
            continue
        version = read_version(model_dir, number)
        if (version is not None and version.snapshot in line) or holds(folder):
            remove_hidden(folder)
    _remove_all(model_dir, lambda entry: entry.name.startswith(UNFINISHED) and holds(entry))


def _remove_all(parent: Path, is_gone: Callable[[Path], bool]) -> None:
    for entry in parent.iterdir():
        if is_gone(entry):
            shutil.rmtree(entry, ignore_errors=True)


def needed_deltas(deltas: Sequence[PublishedDelta], keep: int) -> set[int]:
    """Returns sequences of the newest `keep` deltas, and of those through which one of them is reached from the
    version.

    deltas: all of one version, in the order of their sequences.
    """
    by_snapshot = {delta.snapshot: delta for delta in deltas}
    waiting = list(deltas[-keep:])
    kept = {delta.sequence for delta in waiting}
    while waiting:
        delta = waiting.pop()
        before = [by_snapshot[name] for name in delta.applies_to if name in by_snapshot]
        if delta.base in delta.applies_to or any(other.sequence in kept for other in before) or not before:
            continue
        nearest = max(before, key=lambda other: other.sequence)
        kept.add(nearest.sequence)
        waiting.append(nearest)
    return kept
