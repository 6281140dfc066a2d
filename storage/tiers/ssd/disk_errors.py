"""Translates errors of a disk or of the database into messages that say what to do."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from storage._pages import CorruptPageError
from storage.errors import CorruptStoreError, EmberlineError, StoreError

_ADVICE = {
    errno.ENOSPC: "the disk is full; free space, or give the store another folder",
    errno.EDQUOT: "the quota of the disk is used up; raise it, or give the store another folder",
    errno.EFBIG: "files of this process may not grow that large; raise the limit of file sizes",
    errno.EROFS: "the file system is read-only",
    errno.EACCES: "permission denied; the user of this process must own the folder",
    errno.EPERM: "permission denied; the user of this process must own the folder",
    errno.EIO: "the disk fails; replace it, the store is rebuilt from the version",
    errno.EMFILE: "this process has too many files open; raise its limit of open files",
    errno.ENOENT: "the file is gone; was the folder removed while the store was open?",
}
_PHRASES = {
    "No space left": errno.ENOSPC,
    "File too large": errno.EFBIG,
    "Read-only": errno.EROFS,
    "Permission denied": errno.EACCES,
}
_DAMAGED = "the store is damaged; a server loads it anew from the published version"


@contextmanager
def disk_errors(doing: str) -> Iterator[None]:
    """Raises StoreError, with what was being done and what to do, when a disk or the database fails in the context."""
    try:
        yield
    except EmberlineError:
        raise  # one of ours, such as for a shard that is not what was published
    except CorruptPageError as error:
        raise CorruptStoreError(f"{doing}: {_DAMAGED} ({error})") from error
    except OSError as error:
        raise store_error(doing, error) from error
    except Exception as error:  # rocksdict raises plain Exception with RocksDB's text
        if type(error).__module__ not in ("builtins", "rocksdict"):
            raise  # the caller's own exception, raised to end what was under way
        text = str(error)
        if "LOCK" in text or "lock hold" in text:
            raise StoreError(
                f"{doing}: the store is open in another process or by another model; give each its own folder ({text})"
            ) from error
        if _is_damage(text):
            raise CorruptStoreError(f"{doing}: {_DAMAGED} ({text})") from error
        for phrase, code in _PHRASES.items():
            if phrase in text:
                raise StoreError(f"{doing}: {_ADVICE[code]} ({text})") from error
        raise StoreError(f"{doing}: {text}") from error


def store_error(doing: str, error: OSError) -> StoreError:
    """Returns the StoreError of an error of the operating system: what was being done, and what to do."""
    advice = _ADVICE.get(error.errno or 0)
    return StoreError(f"{doing}: {error}" if advice is None else f"{doing}: {advice} ({error})")


def _is_damage(text: str) -> bool:
    """Returns whether RocksDB reports that its files are not what it wrote, or that one of them is gone.

    RocksDB also says "Corruption" when it cannot access a file, which may work later; that is no damage.
    """
    if "No such file" in text:
        return True
    return "Corruption" in text and "IO error" not in text
