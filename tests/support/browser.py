"""Starts headless Chromium for tests of pages: an installed one, or Debian's, unpacked under build/chromium."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.peers import PeerMissingError
from tests.support.debian import unpack

if TYPE_CHECKING:
    from playwright.sync_api import Browser

FOLDER = Path(__file__).parents[2] / "build" / "chromium"
PROGRAM = FOLDER / "usr" / "lib" / "chromium" / "chromium"
PACKAGES = ("chromium", "fonts-dejavu-core")


def fetch() -> Path:
    """Returns Chromium's program, downloaded and unpacked once with what it needs. Raises PeerMissingError."""
    installed = shutil.which("chromium") or shutil.which("google-chrome")
    if installed is not None:
        return Path(installed)
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests run in several processes
        if not PROGRAM.exists():
            try:
                unpack(FOLDER, _missing(), PROGRAM)
            except PeerMissingError:  # the list of packages may be old
                subprocess.run(["apt-get", "update"], capture_output=True, check=False)
                unpack(FOLDER, _missing(), PROGRAM)
    return PROGRAM


def environment() -> dict[str, str]:
    """Returns the environment that the program needs: its libraries and fonts, where they were unpacked."""
    place = FOLDER / "usr" / "lib" / "x86_64-linux-gnu"
    libraries = [str(place), str(place / "pulseaudio"), os.environ.get("LD_LIBRARY_PATH", "")]
    fonts = FOLDER / "etc" / "fonts"
    return {
        **os.environ,
        "LD_LIBRARY_PATH": ":".join(filter(None, libraries)),
        "XDG_DATA_HOME": str(FOLDER / "usr" / "share"),
        **({"FONTCONFIG_PATH": str(fonts)} if fonts.exists() else {}),
    }


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """Runs the browser for the length of the `with` block. Raises PeerMissingError."""
    try:
        from playwright.sync_api import Error, sync_playwright
    except ImportError as error:
        raise PeerMissingError(f"playwright is not installed: {error}") from None
    program = fetch()
    with sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(executable_path=program, env={**environment()})
        except Error as error:
            raise PeerMissingError(f"{program} does not start: {_reason(str(error))}") from None
        try:
            yield browser
        finally:
            browser.close()


def _reason(text: str) -> str:
    """Returns the line of a launch's log that says what is missing, else its last one."""
    lines = [line for line in text.splitlines() if line.strip()]
    return next((line for line in lines if "error while loading" in line), lines[-1])[:200]


def _missing() -> list[str]:
    """Returns the packages that an installation of Chromium would bring to this machine."""
    command = ["apt-get", "install", "--simulate", "--no-install-recommends", *PACKAGES]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise PeerMissingError(f"apt-get does not run: {error}") from None
    found = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("Inst ")]
    if done.returncode or "chromium" not in found:
        raise PeerMissingError(f"Debian has no chromium here: {done.stderr.strip()[-200:]}")
    return found
