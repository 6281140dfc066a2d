"""Makes the server's own token at every start, for processes that may read the files of the server's user."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

from serving.security.tokens import MAX_TOKEN_BYTES, digest_of, new_token

logger = logging.getLogger("emberline.serving")

_MAX_LEFT = 1000


def own_token_path(port: int) -> Path:
    """Returns the path of the token of the server with this HTTP port."""
    return Path.home() / ".cache" / "emberline" / "tokens" / str(port)


def read_own_token(port: int) -> str:
    """Returns the token of the server at this port, "" when there is none for this user."""
    try:
        with own_token_path(port).open("rb") as file:
            return file.read(MAX_TOKEN_BYTES).decode("ascii").strip()
    except (OSError, RuntimeError, ValueError):
        return ""


@contextlib.contextmanager
def own_token(port: int) -> Iterator[str]:
    """Writes a new token for as long as the server runs, and yields its digest; "" where no file can be written."""
    token = new_token()
    try:
        path = own_token_path(port)
        held = _write(path, token)
    except (OSError, RuntimeError) as error:
        logger.warning(
            "the server's own token could not be written (%s): without an access file nobody can load, unload or roll "
            "back over the network",
            error,
        )
        yield ""
        return
    logger.info("the token for operators is in %s", path)
    try:
        yield digest_of(token)
    finally:
        if read_own_token(port) == token:
            path.unlink(missing_ok=True)
        os.close(held)


def _write(path: Path, token: str) -> int:
    """Writes the file and returns its descriptor, locked: as long as it is, its server lives."""
    path.parent.mkdir(parents=True, mode=0o700, exist_ok=True)
    about = path.parent.lstat()
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid():
        raise PermissionError(f"{path.parent} is not a folder of this user's")
    if about.st_mode & 0o077:
        path.parent.chmod(0o700)
    _remove_left(path.parent)
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    file = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(file, token.encode() + b"\n")
        fresh.replace(path)
    except BaseException:
        os.close(file)
        fresh.unlink(missing_ok=True)
        raise
    return file


def _remove_left(folder: Path) -> None:
    """Removes the files of servers that were killed. Their tokens are no longer valid."""
    for path in list(folder.iterdir())[:_MAX_LEFT]:
        with contextlib.suppress(OSError), path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not path.name.startswith("."):  # one that is being written is not locked yet
                path.unlink()
