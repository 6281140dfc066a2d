"""Writes and reads the file with a model's state: checked by a digest, written twice, never wrongly taken for empty.

The decisions of operators are recorded only here, so a state that cannot be read must not be replaced by an empty one:
then the model is not ready, with the reason, and the file is read again at the next try.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from serving.updates.state import ModelState
from storage.checkpoint.install import sync_directory
from storage.checkpoint.signed import digest_of
from storage.checkpoint.strict_json import canonical_json, parse_json
from storage.errors import ReadError, StoreError, UnsafeArtifact

logger = logging.getLogger("emberline.serving")

STATE = "state.json"
# A copy with the same bytes. It is written first, so it is never older than the file itself.
COPY = "state.json.copy"

_FORMAT = "emberline-state-2"
# The format before, without a digest and a copy.
_OLD_FORMAT = "emberline-state-1"
_MAX_BYTES = 64 << 20


class _DamagedStateError(Exception):
    """The bytes are not those that were written."""


class StateFile:
    """The state file of one model. Not thread-safe: the caller's lock admits one writer at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / STATE
        self._copy = folder / COPY
        # Content that both files had last, as far as this process knows.
        self._last: bytes | None = None

    def read(self) -> ModelState:
        """Returns the state that was written last; an empty one when there is none.

        A damaged file is replaced by its copy. Raises ReadError when the file cannot be read now, StoreError when it is
        damaged beyond that or was written by a newer server; nothing may be served then.
        """
        data = _bytes_of(self._path)
        damage = f"{self._path} is missing"
        if data is not None:
            try:
                state = _decode(self._path, data)
            except _DamagedStateError as error:
                damage = str(error)
            else:
                self._drop_other_copy(data)
                self._last = data
                return state
        copy = _bytes_of(self._copy)
        if copy is None:
            if data is None:
                return ModelState()
            raise StoreError(f"{damage}, and there is no {COPY}; {self._advice()}")
        try:
            state = _decode(self._copy, copy)
        except _DamagedStateError as error:
            raise StoreError(f"{damage}, and {error}; {self._advice()}") from None
        logger.error("%s; %s has the same content and is used instead", damage, self._copy)
        self._last = copy
        return state

    def write(self, state: ModelState) -> None:
        """Replaces the file and its copy; both are on the disk when this returns.

        A crash meanwhile leaves the old state or the new one, whole. Raises StoreError; then the old state stays.
        """
        data = _encode(state)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._replace(data)
        except OSError as error:
            raise StoreError(f"writing {self._path}: {error}") from error
        self._last = data

    def _replace(self, data: bytes) -> None:
        targets = [(_written(path.with_name(f".{path.name}.new"), data), path) for path in (self._copy, self._path)]
        try:
            for fresh, path in targets:
                os.replace(fresh, path)
                # The name of the copy is on the disk before that of the file changes.
                sync_directory(self._folder)
        except OSError:
            self._put_back()
            raise

    def _put_back(self) -> None:
        """Makes both files say what they said before, as far as the disk allows; at least the copy is not newer."""
        for path in (self._path, self._copy):
            with suppress(OSError):
                if self._last is None:
                    path.unlink(missing_ok=True)
                else:
                    os.replace(_written(path.with_name(f".{path.name}.new"), self._last), path)
        if self._last is not None:
            with suppress(OSError):
                self._drop_other_copy(self._last)

    def _drop_other_copy(self, data: bytes) -> None:
        """Removes a copy with other content: a crash between the two writes left it, and it was never in force."""
        try:
            is_same = _bytes_of(self._copy) in (None, data)
        except ReadError:
            is_same = False
        if is_same:
            return
        try:
            self._copy.unlink(missing_ok=True)
        except OSError as error:
            raise StoreError(f"{self._copy} is not what {STATE} says and cannot be removed: {error}") from error

    def _advice(self) -> str:
        return (
            f"put a good copy of {STATE} into {self._folder}, or delete {STATE} and {COPY} there: then the newest "
            "version is served, and what was rolled back, pinned, paused or refused is forgotten"
        )


def _encode(state: ModelState) -> bytes:
    content = {**state.model_dump(mode="json"), "format": _FORMAT}
    return canonical_json({**content, "digest": digest_of(content)})


def _decode(path: Path, data: bytes) -> ModelState:
    """Decodes a state. Raises _DamagedStateError, or StoreError for a whole file that is not of this server."""
    try:
        content = parse_json(data, what=str(path), max_bytes=_MAX_BYTES)
    except UnsafeArtifact as error:
        raise _DamagedStateError(f"{error}; it is damaged") from None
    if not isinstance(content, dict):
        raise _DamagedStateError(f"{path} is no JSON object; it is damaged")
    digest, found = content.get("digest"), content.get("format")
    is_old = digest is None and found == _OLD_FORMAT
    if not is_old and (digest != digest_of(content) or canonical_json(content) != data):
        raise _DamagedStateError(f"{path} is damaged: its content is not what its digest says")
    if not is_old and found != _FORMAT:
        raise _newer(path, f"its format is {str(found)[:40]!r}, expected {_FORMAT!r}")
    fields: dict[str, Any] = {key: value for key, value in content.items() if key not in ("digest", "format")}
    try:
        return ModelState.model_validate_json(canonical_json(fields))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise _newer(path, f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def _newer(path: Path, what: str) -> StoreError:
    return StoreError(
        f"{path} cannot be understood ({what}); it is probably that of a newer server: start that one again, or "
        f"delete {STATE} and {COPY} there: then the newest version is served, and what was rolled back, pinned, paused "
        "or refused is forgotten"
    )


def _bytes_of(path: Path) -> bytes | None:
    """Returns the bytes of a file; None when there is no such file. Raises ReadError."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ReadError(
            f"{path} cannot be read now: {error.strerror or error}; it says what was rolled back, pinned or paused, so "
            "nothing is served until it can be read"
        ) from error


def _written(path: Path, data: bytes) -> Path:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return path
