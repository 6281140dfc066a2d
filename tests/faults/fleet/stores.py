"""Object stores as a publisher sees them whose writes come to harm."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from storage.objects import ObjectStore
from tests.support.object_store import DyingStore


class ForgettingStore(DyingStore):
    """Dies like DyingStore, and takes back the last write before that."""

    def create(self, key: str, data: bytes) -> str:
        tag = super().create(key, data)
        self._undo = lambda: ObjectStore.delete(self, [key])
        return tag

    def replace(self, key: str, data: bytes, tag: str) -> str:
        before = self.read(key)
        new = super().replace(key, data, tag)
        assert before is not None
        self._undo = lambda: ObjectStore.replace(self, key, before.data, new)
        return new

    def upload(self, key: str, path: Path) -> None:
        super().upload(key, path)
        self._undo = lambda: ObjectStore.delete(self, [key])

    _undo: Callable[[], object] = staticmethod(lambda: None)

    def forget(self) -> None:
        """Takes back the last write."""
        self._undo()


class ShorteningStore(ObjectStore):
    """Keeps only half of the file of one name."""

    def __init__(self, url: str, name: str) -> None:
        super().__init__(url)
        self._name = name

    def create(self, key: str, data: bytes) -> str:
        """See ObjectStore."""
        return super().create(key, self._kept(key, data))

    def upload(self, key: str, path: Path) -> None:
        """See ObjectStore."""
        with tempfile.NamedTemporaryFile() as file:
            file.write(self._kept(key, path.read_bytes()))
            file.flush()
            super().upload(key, Path(file.name))

    def _kept(self, key: str, data: bytes) -> bytes:
        return data[: len(data) // 2] if key.rpartition("/")[2] == self._name else data
