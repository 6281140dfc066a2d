"""Reads the URL of a stream: its broker, its name and its options."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote, urlsplit

from storage.errors import ConfigError
from storage.features.strict_model import did_you_mean


@dataclass(frozen=True)
class Address:
    """The parts of a URL such as redis://user:password@host:port/0?stream=clicks."""

    scheme: str
    #: The hosts with their ports, as they are written.
    hosts: str
    path: str
    options: dict[str, str]
    user: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)

    @classmethod
    def of(cls, url: str, known: Collection[str], *, dotted: bool = False) -> Address:
        """Splits a URL. Raises ConfigError, without passwords.

        known: the names of options. dotted: names with a dot are options too.
        """
        parts = urlsplit(url)
        credentials, _, hosts = parts.netloc.rpartition("@")
        user, _, password = credentials.partition(":")
        options: dict[str, str] = {}
        for name, value in parse_qsl(parts.query, keep_blank_values=True):
            if name not in known and not (dotted and "." in name):
                raise ConfigError(
                    f"{parts.scheme}://{hosts}: unknown option {name!r}{did_you_mean(name, known)}", field="follow"
                )
            if name in options:
                raise ConfigError(f"{parts.scheme}://{hosts}: {name} is given twice", field="follow")
            options[name] = value
        if not hosts:
            raise ConfigError(f"{parts.scheme}://: names no host", field="follow")
        path = unquote(parts.path.strip("/"))
        return cls(parts.scheme, hosts, path, options, unquote(user) or None, unquote(password) or None)
