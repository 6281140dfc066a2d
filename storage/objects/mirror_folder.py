"""The folder of a mirror: it belongs to one repository for good, and to one process at a time."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import weakref
from pathlib import Path

from storage.errors import ConfigError

# Says which repository a folder is a copy of; the process that keeps it holds the lock.
MARK, LOCK = ".mirror.json", ".mirror.lock"


class MirrorFolder:
    """A folder that a process keeps like a repository, from the constructor until `release()` or the process's end."""

    def __init__(self, root: Path, url: str, *, waits: bool = False) -> None:
        """Makes the folder and locks it. Raises ConfigError when it has another use.

        waits: waits for the process that has it.
        """
        try:
            root.mkdir(parents=True, exist_ok=True)
            _check(root, url)
            descriptor = os.open(root / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            # A mirror that was never stopped gives the folder back with its memory.
            self.release = weakref.finalize(self, os.close, descriptor)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
            except BlockingIOError:
                holder = os.pread(descriptor, 200, 0).decode(errors="replace").strip()
                raise ConfigError(
                    f"{root} is kept by another process{f' ({holder})' if holder else ''}; serve that copy with "
                    f"--model-repository {root}, or choose another folder for this one",
                    field="mirror_dir",
                ) from None
            with contextlib.suppress(OSError):  # the text is for the process that is refused
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, f"{os.getpid()} on {socket.gethostname()}\n".encode(), 0)
            if not (root / MARK).exists():
                _write_mark(root, url)
        except (OSError, ValueError) as error:
            raise ConfigError(f"{root}: cannot be used for the copy of {url}: {error}", field="mirror_dir") from None


def _check(root: Path, url: str) -> None:
    if (root / MARK).exists():
        before = str(json.loads((root / MARK).read_bytes()).get("url"))
        if before != url:
            raise ConfigError(f"{root} is a copy of {before}; choose another folder for {url}", field="mirror_dir")
    elif any(entry.name not in (LOCK, f"{MARK}.part") for entry in root.iterdir()):
        raise ConfigError(
            f"{root} holds something else; a mirror removes what is not in the store, so choose an empty folder",
            field="mirror_dir",
        )


def _write_mark(root: Path, url: str) -> None:
    unfinished = root / f"{MARK}.part"
    unfinished.write_text(json.dumps({"url": url}))
    os.replace(unfinished, root / MARK)
