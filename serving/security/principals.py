"""Defines principals: callers and their permissions, roles as bits, models as patterns."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

PREDICT, READ, ADMIN, FEEDBACK = 1, 2, 4, 8
# Bits of the roles. An operator sees what it controls; it does not ask models.
ROLES = {"predict": PREDICT, "read": READ, "feedback": FEEDBACK, "admin": ADMIN | READ}
ALL_MODELS = ("*",)
# Names of principals that are in no access file.
OWNER_NAME = "own-token"
ANONYMOUS_NAME = "anonymous"
NEVER = float("inf")


class Principal:
    """A named caller, or the anonymous one."""

    __slots__ = ("_covered", "expires_unix", "is_known", "models", "name", "requests_per_second", "roles")

    def __init__(
        self,
        name: str,
        roles: int,
        models: Iterable[str] = ALL_MODELS,
        *,
        requests_per_second: float | None = None,
        expires_unix: float = NEVER,
        is_known: bool = True,
    ) -> None:
        self.name = name
        #: Bits of the roles.
        self.roles = roles
        #: Patterns as of a shell; a table MODEL.TABLE belongs to MODEL.
        self.models = tuple(models)
        #: None for the server's own bound.
        self.requests_per_second = requests_per_second
        #: Time when it stops being valid.
        self.expires_unix = expires_unix
        #: True if it has shown a token or a certificate.
        self.is_known = is_known
        self._covered = None if "*" in self.models else re.compile("|".join(map(fnmatch.translate, self.models)))

    @property
    def is_for_all(self) -> bool:
        """True if no model is out of its reach."""
        return self._covered is None

    def covers(self, model: str) -> bool:
        """Returns whether a model, or the table of one, is within its reach."""
        if self._covered is None:
            return True
        match = self._covered.match
        if match(model):
            return True
        return any(letter == "." and match(model[:place]) for place, letter in enumerate(model[:300]))


class Caller(Protocol):
    """The other end of a connection. Its properties are computed when they are read, which may cost something."""

    @property
    def address(self) -> str:
        """Its IP address, "" when there is none."""

    @property
    def certificate(self) -> str:
        """The common name of the certificate that it has proved to own, "" without one."""


@dataclass(frozen=True, slots=True)
class Connection:
    """A caller with known properties. See Caller."""

    address: str = ""
    certificate: str = ""


NOBODY = Connection()
