"""Recognises the URLs of repositories in object stores, and joins the keys of what lies there."""

from __future__ import annotations

import re

from storage.errors import ConfigError

SCHEMES = ("s3", "gs", "az", "file")
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://?(/?.*)", re.DOTALL)


def is_url(text: object) -> bool:
    """Returns whether a path is the URL of an object store."""
    found = _URL.fullmatch(str(text))
    return found is not None and ":/" in str(text) and len(found[1]) != 1


def url_of(text: object) -> str:
    """Returns a URL as it is written; pathlib takes one of two slashes away. Raises ConfigError for another scheme."""
    scheme, rest = _parts(str(text))
    return f"{scheme}://{rest}".rstrip("/")


def join(*parts: str | int) -> str:
    """Joins the parts of a key."""
    return "/".join(str(part) for part in parts if part != "")


def _parts(url: str) -> tuple[str, str]:
    found = _URL.fullmatch(url)
    scheme = "" if found is None else found[1].lower()
    if found is None or scheme not in SCHEMES:
        known = ", ".join(f"{name}://" for name in SCHEMES)
        raise ConfigError(f"{_shown(url)}: expected a URL of an object store, one of {known}", field="repository")
    rest = found[2].lstrip("/") if scheme == "file" else found[2]
    if "@" in rest.partition("/")[0] or "?" in rest or "#" in rest:
        raise ConfigError(
            f"{scheme}://…: a URL of a repository has no user, password or options in it; credentials and endpoints "
            "come from the environment (AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL and so on)",
            field="repository",
        )
    if any(part in (".", "..") for part in rest.split("/")):
        raise ConfigError(f"{url}: has '.' or '..' in it; write the whole path", field="repository")
    if scheme == "file":
        if "://" in url and not found[2].startswith("/"):
            raise ConfigError(f"{url}: expected a whole path, such as file:///shared/models", field="repository")
        return scheme, "/" + rest
    if not rest or rest.startswith("/"):
        raise ConfigError(f"{scheme}://: the bucket is missing; expected {scheme}://bucket/models", field="repository")
    return scheme, rest


def _shown(url: str) -> str:
    return re.sub(r"(?<=://)[^/@]*@", "", url.partition("?")[0])
