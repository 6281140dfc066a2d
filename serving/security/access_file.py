"""Reads the access file, which says who is allowed to do what.

It is YAML, read strictly; tokens are given by their digests.
"""

from __future__ import annotations

import contextlib
import difflib
import logging
import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from serving.security.principals import ALL_MODELS, ANONYMOUS_NAME, NEVER, OWNER_NAME, ROLES, Principal
from storage.errors import ConfigError

logger = logging.getLogger("emberline.serving")

# The bound on the file's size. A server reads the file between two requests, so it has to be read quickly. Some six
# thousand tokens fit.
MAX_FILE_BYTES = 1 << 20
_FIELD = "access_file"
_TAKEN = (OWNER_NAME, ANONYMOUS_NAME)
_TAKEN_BEGINNINGS = ("@", "CN=")

RoleName = Literal["predict", "read", "feedback", "admin"]
_Pattern = Annotated[str, Field(min_length=1, max_length=200)]


def _not_taken(name: str) -> str:
    """Refuses names that the audit log and the rates use for other callers."""
    if name in _TAKEN or name.startswith(_TAKEN_BEGINNINGS):
        raise ValueError(f"{' and '.join(_TAKEN)}, and names that begin with @ or CN=, are the server's own")
    return name


_Name = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[\w.@:/+-]+$"), AfterValidator(_not_taken)]


def _as_date(value: Any) -> Any:
    """Turns text into a date: YAML has dates of its own; in quotes they are text."""
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            return date.fromisoformat(value)
    if value is None or (isinstance(value, date) and not isinstance(value, datetime)):
        return value
    raise ValueError("expected a date such as 2027-01-31")


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    roles: Annotated[list[RoleName], Field(min_length=1)]
    models: Annotated[list[_Pattern], Field(min_length=1, max_length=1000)] = list(ALL_MODELS)
    requests_per_second: Annotated[float, Field(gt=0, le=1e9)] | None = None


class _Named(_Entry):
    expires: Annotated[date | None, BeforeValidator(_as_date)] = None


class TokenEntry(_Named):
    """A token."""

    name: _Name
    #: SHA-256 of the token's text, in hex.
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class CertificateEntry(_Named):
    """A client that has a certificate signed by `tls_client_ca`, identified by the common name in it."""

    common_name: Annotated[str, Field(min_length=1, max_length=200)]


class AnonymousEntry(_Entry):
    """Permissions of callers that show neither token nor certificate."""

    roles: list[RoleName] = []


class AccessFile(BaseModel):
    """The whole file."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    tokens: list[TokenEntry] = []
    certificates: list[CertificateEntry] = []
    anonymous: AnonymousEntry = AnonymousEntry()


@dataclass(frozen=True)
class AccessRules:
    """The file's entries, indexed as requests look them up."""

    by_digest: Mapping[str, Principal] = field(default_factory=dict)
    by_certificate: Mapping[str, Principal] = field(default_factory=dict)
    anonymous: Principal = field(default_factory=lambda: Principal(ANONYMOUS_NAME, 0, is_known=False))


def read_access_file(path: Path) -> tuple[AccessFile, os.stat_result]:
    """Reads the file, and its status at that time. Raises ConfigError that names the entry at fault."""
    try:
        with path.open("rb") as file:
            about = os.fstat(file.fileno())
            text = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{_FIELD}: cannot read {path}: {error.strerror or error}", field=_FIELD) from None
    if len(text) > MAX_FILE_BYTES:
        raise ConfigError(f"{_FIELD}: {path} has over {MAX_FILE_BYTES} bytes", field=_FIELD)
    return parse_access_file(text, path), about


def parse_access_file(text: bytes | str, path: Path) -> AccessFile:
    """Parses the file's text. Raises ConfigError, which repeats keys and places of the file, never a value."""
    try:
        content = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark is not None else ""
        raise ConfigError(f"{_FIELD}: {path}{where}: this is not YAML", field=_FIELD) from None
    if content is None:
        content = {}
    if not isinstance(content, dict):
        raise ConfigError(f"{_FIELD}: {path}: expected keys {', '.join(AccessFile.model_fields)}", field=_FIELD)
    try:
        found = AccessFile.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        message = first["msg"].removeprefix("Value error, ")
        if first["type"] == "extra_forbidden":
            message = _unknown_key(first["loc"])
        elif first["type"] in ("model_type", "dict_type"):
            message = "expected keys and their values"
        raise ConfigError(f"{_FIELD}: {path}: {where}: {message}", field=where) from None
    _refuse_twins(path, "tokens", "name", [entry.name for entry in found.tokens])
    _refuse_twins(path, "tokens", "sha256", [entry.sha256 for entry in found.tokens])
    _refuse_twins(path, "certificates", "common_name", [entry.common_name for entry in found.certificates])
    return found


def rules_of(file: AccessFile) -> AccessRules:
    """Indexes the file's entries by the credentials that callers show."""
    return AccessRules(
        {entry.sha256: _principal(entry.name, entry) for entry in file.tokens},
        {entry.common_name: _principal(f"CN={entry.common_name}", entry) for entry in file.certificates},
        Principal(
            ANONYMOUS_NAME,
            _bits(file.anonymous.roles),
            file.anonymous.models,
            requests_per_second=file.anonymous.requests_per_second,
            is_known=False,
        ),
    )


def warn_of_mode(path: Path, about: os.stat_result) -> None:
    """Warns if others may write the file.

    Digests are no secret that opens anything; a writer of the file may do everything.
    """
    if about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        logger.warning("%s: others may write it, and so let in whom they like: chmod 600", path)
    elif about.st_mode & stat.S_IROTH:
        logger.warning("%s: everybody on this machine may read who has access: chmod 600", path)


def _principal(name: str, entry: _Named) -> Principal:
    expires = NEVER
    if entry.expires is not None:
        end = entry.expires + timedelta(days=1) if entry.expires < date.max else date.max
        expires = datetime(end.year, end.month, end.day, tzinfo=UTC).timestamp()
    return Principal(
        name,
        _bits(entry.roles),
        entry.models,
        requests_per_second=entry.requests_per_second,
        expires_unix=expires,
    )


def _bits(roles: Iterable[str]) -> int:
    found = 0
    for role in roles:
        found |= ROLES[role]
    return found


def _unknown_key(place: tuple[int | str, ...]) -> str:
    parts: dict[str, type[BaseModel]] = {
        "tokens": TokenEntry,
        "certificates": CertificateEntry,
        "anonymous": AnonymousEntry,
    }
    part = parts.get(str(place[0]), AccessFile) if len(place) > 1 else AccessFile
    known = list(part.model_fields)
    close = difflib.get_close_matches(str(place[-1])[:100], known, n=1)
    return f"unknown key; did you mean {close[0]!r}?" if close else f"unknown key; expected {', '.join(known)}"


def _refuse_twins(path: Path, part: str, key: str, values: list[str]) -> None:
    first: dict[str, int] = {}
    for place, value in enumerate(values):
        if value in first:
            raise ConfigError(
                f"{_FIELD}: {path}: {part}.{place}.{key}: the same as of {part}.{first[value]}; each is given once",
                field=f"{part}.{place}.{key}",
            )
        first[value] = place
