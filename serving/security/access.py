"""Identifies callers: by the access file, which is read again when it changes, and by the server's own token."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

from serving.errors import Unauthenticated
from serving.security.access_file import AccessRules, read_access_file, rules_of, warn_of_mode
from serving.security.principals import ADMIN, ANONYMOUS_NAME, OWNER_NAME, PREDICT, READ, Principal
from serving.security.tokens import digest_of, token_of
from storage.errors import ConfigError

logger = logging.getLogger("emberline.serving")

#: Seconds between two looks at the file.
LOOK_S = 1.0
# Bound of the known headers that are kept as they were sent: a client sends the same one each time.
_MAX_HEADERS = 4096
SEND_TOKEN = "send 'Authorization: Bearer TOKEN'"


class Access:
    """Finds the principal of a caller. Not thread-safe: one event loop uses it.

    Without a file every caller may predict and read, and `open_admin` lets every caller control; the server's own token
    may do everything in any case.
    """

    def __init__(
        self,
        path: Path | None,
        own_digest: str = "",
        *,
        open_admin: bool = False,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        """Reads the access file.

        own_digest: "" where the server has no token of its own. changed: called when the file was read again. Raises
        ConfigError.
        """
        self.is_open = path is None
        self._path = path
        self._owner = {own_digest: Principal(OWNER_NAME, PREDICT | READ | ADMIN)} if own_digest else {}
        roles = PREDICT | READ | (ADMIN if open_admin else 0)
        self._rules = AccessRules(anonymous=Principal(ANONYMOUS_NAME, roles, is_known=False))
        self._by_header: dict[bytes, Principal] = {}
        self._stamp: tuple[int, ...] | None = None
        self._look_at = 0.0
        self._changed = changed
        if path is not None:
            file, about = read_access_file(path)
            warn_of_mode(path, about)
            self._rules, self._stamp = rules_of(file), _stamp(about)
            self._look_at = time.monotonic() + LOOK_S

    @property
    def anonymous(self) -> Principal:
        """The principal of callers that show no credentials."""
        return self._rules.anonymous

    def find(self, authorization: bytes | None, certificate: str = "") -> Principal:
        """Returns the principal of this header, else of this certificate's name, else of neither. Raises
        Unauthenticated.

        An unknown header is refused, also where anonymous callers are allowed: its sender believes to be someone. Only
        without an access file it is ignored, for it is between the caller and a proxy then.
        """
        self.refresh()
        if authorization is not None:
            # Finding the bytes takes as long for a wrong token as for another one: the dictionary compares hashes
            # with a secret of the process in them, and digests of what was sent.
            found = self._by_header.get(authorization)
            if found is None:
                found = self._read(authorization)
            if found is not None:
                return self._still_good(found)
            if not self.is_open:
                raise Unauthenticated(f"the token is not one of this server's; {SEND_TOKEN}")
        elif certificate:
            found = self._rules.by_certificate.get(certificate)
            if found is not None:
                return self._still_good(found)
        return self._rules.anonymous

    def refresh(self) -> None:
        """Reads the file again if it has changed; looks once a second."""
        if self._path is not None and time.monotonic() >= self._look_at:
            self._look()

    def _read(self, authorization: bytes) -> Principal | None:
        token = token_of(authorization)
        if not token:
            return None
        digest = digest_of(token)
        found = self._owner.get(digest) or self._rules.by_digest.get(digest)
        if found is not None:
            if len(self._by_header) >= _MAX_HEADERS:
                self._by_header.clear()
            self._by_header[authorization] = found
        return found

    def _still_good(self, principal: Principal) -> Principal:
        if principal.expires_unix < time.time():
            raise Unauthenticated(f"the access of {principal.name!r} has expired; ask for a new token")
        return principal

    def _look(self) -> None:
        """Reads a changed file; a bad one is logged once, and the last good one stays in use."""
        self._look_at = time.monotonic() + LOOK_S
        assert self._path is not None
        try:
            stamp = _stamp(self._path.stat())
            if stamp == self._stamp:
                return
            self._stamp = stamp
            file, about = read_access_file(self._path)
        except (OSError, ConfigError) as error:
            if self._stamp is not None:
                logger.error("%s; what it said before goes on", error)
            self._stamp = None if isinstance(error, OSError) else self._stamp
            return
        self._stamp = _stamp(about)
        self._rules, self._by_header = rules_of(file), {}
        self._changed()
        logger.info("%s was read again: %d token(s)", self._path, len(file.tokens))


def _stamp(about: os.stat_result) -> tuple[int, ...]:
    return about.st_mtime_ns, about.st_ctime_ns, about.st_size, about.st_ino
