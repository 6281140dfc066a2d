"""Unpacks Debian's packages into a folder, for programs that need not be installed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.peers import PeerMissingError
from benchmarks.peers.environment import call


def unpack(folder: Path, packages: Sequence[str], program: Path) -> None:
    """Downloads packages and unpacks them, unless the program is there. Raises PeerMissingError."""
    if program.exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    try:
        call(["apt-get", "download", *packages], folder=folder)
    except OSError as error:
        raise PeerMissingError(f"apt-get does not run: {error}") from None
    for package in folder.glob("*.deb"):
        call(["dpkg", "-x", str(package), str(folder)])
