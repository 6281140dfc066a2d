"""Mounts a small file system, which can be full."""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path

from storage.errors import Unavailable

_BLOCK = bytes(1 << 16)


class SmallDisk:
    """An ext4 file system in a file, mounted at `folder` until `close`.

    Raises Unavailable where that is not allowed.
    """

    def __init__(self, folder: Path, mib: int) -> None:
        self.folder = folder
        self._image = folder.with_suffix(".img")
        self._ballast = folder / "ballast"
        folder.mkdir()
        with self._image.open("wb") as image:
            image.truncate(mib << 20)
        for command in (
            ["mkfs.ext4", "-q", "-F", "-m", "0", str(self._image)],
            ["mount", "-o", "loop", str(self._image), str(folder)],
        ):
            try:
                done = subprocess.run(command, capture_output=True, text=True, check=False)
            except OSError as error:
                raise Unavailable(f"{command[0]} does not run: {error}") from None
            if done.returncode:
                raise Unavailable(f"{' '.join(command)}: {done.stderr.strip()[-200:]}")

    def fill(self) -> None:
        """Takes the space that is left. Others may free some of theirs later, so call it again and again."""
        with self._ballast.open("ab", buffering=0) as file, contextlib.suppress(OSError):
            for block in (_BLOCK, _BLOCK[:1]):
                with contextlib.suppress(OSError):
                    while file.write(block):
                        pass
            # Space is given out when blocks are written back; until then others may think that there is some.
            os.fsync(file.fileno())

    def empty(self) -> None:
        """Gives the space back."""
        self._ballast.unlink(missing_ok=True)

    def close(self) -> None:
        """Takes it away with what is in it."""
        subprocess.run(["umount", "-l", str(self.folder)], capture_output=True, check=False)
        self._image.unlink(missing_ok=True)
