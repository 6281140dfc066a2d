"""Reads and writes the objects under a URL such as s3://bucket/models, with the conditional writes of object stores.

Credentials come from the environment, as every client of that cloud takes them, and never from a URL. They are in no
message either: a message names the object and the store's own reason, without what follows a question mark.
"""

from __future__ import annotations

import fcntl
import logging
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from storage.errors import ConfigError, NotFound, ObjectStoreError, Unsupported

T = TypeVar("T")

SCHEMES = ("s3", "gs", "az", "file")
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://?(/?.*)", re.DOTALL)
_CONNECT_S, _REQUEST_S = 5, 60
# A store that answers 5xx is asked again for this long; whoever reads asks again at the next look anyway.
_RETRY_S = 30
_RETRIES = 1000
# What obstore says when the connection broke; of conditional writes and of bodies it does not ask again by itself.
_BROKEN = "HTTP error: "
_FIRST_WAIT_S = 0.1
# Writers of one object that may be first, one after the other.
_EDITS = 100
# Files beyond this go up in several pieces.
_PIECE_BYTES = 16 << 20
_WORDS = 300


class Taken(Exception):  # noqa: N818 - an answer, not a failure
    """An object that was to be created is there already."""


class Changed(Exception):  # noqa: N818 - an answer, not a failure
    """An object that was to be replaced is not the one that was read."""


@dataclass(frozen=True)
class Object:
    """An object that was read."""

    data: bytes
    #: Names its content for conditional requests.
    tag: str


@dataclass
class Traffic:
    """Counts of what was asked of a store by this process."""

    requests: int = 0
    failures: int = 0
    bytes_read: int = 0
    bytes_written: int = 0


class ObjectStore:
    """The objects under one URL. Thread-safe; opened after the process has forked."""

    def __init__(self, url: str, *, retry_s: float = _RETRY_S) -> None:
        """Opens it without asking the store anything. Raises ConfigError for a URL that means none."""
        self.url = url_of(url)
        scheme, _, rest = self.url.partition("://")
        self.traffic = Traffic()
        self._retry_s = retry_s
        self._lock = threading.Lock()
        self._folder = Path(rest) if scheme == "file" else None
        self._store = _opened(self.url, self._folder, retry_s)

    def read(self, key: str, *, unless: str | None = None) -> Object | None:
        """Returns an object; None when it still is the one of the tag `unless`.

        Raises NotFound when it is not there, ObjectStoreError when that cannot be told now.
        """
        import obstore
        from obstore.exceptions import NotModifiedError

        options = {"if_none_match": unless} if unless is not None else {}

        def read() -> Object:
            result = obstore.get(self._store, key, options=options)  # type: ignore[arg-type]
            return Object(bytes(result.bytes()), str(result.meta["e_tag"]))

        try:
            found = self._ask("read", key, read)
        except NotModifiedError:
            return None
        self._count(bytes_read=len(found.data))
        return found

    def read_range(self, key: str, start: int, length: int) -> Any:
        """Returns `length` bytes of an object from `start` on as a buffer, fewer where it ends before. See `read`."""
        import obstore

        data = self._ask("read", key, lambda: obstore.get_range(self._store, key, start=start, length=length))
        self._count(bytes_read=len(data))
        return data

    def create(self, key: str, data: bytes) -> str:
        """Writes an object that is not there yet, and returns its tag.

        Raises Taken when it is there, which it also is after an earlier try of this call whose answer got lost.
        """
        import obstore
        from obstore.exceptions import AlreadyExistsError

        try:
            result = self._ask(
                "write", key, lambda: obstore.put(self._store, key, data, mode="create", use_multipart=False)
            )
        except AlreadyExistsError:
            raise Taken(key) from None
        self._count(bytes_written=len(data))
        return str(result["e_tag"])

    def replace(self, key: str, data: bytes, tag: str) -> str:
        """Writes an object in the place of the one with this tag, and returns the new tag.

        Raises Changed for another one, also after an earlier try of this call whose answer got lost.
        """
        import obstore
        from obstore.exceptions import PreconditionError

        def write() -> Any:
            with self._alone(key) as is_alone:
                if not is_alone:
                    return obstore.put(self._store, key, data, mode={"e_tag": tag}, use_multipart=False)
                if self.read(key, unless=tag) is not None:  # the local file system has no such request
                    raise Changed(key)
                return obstore.put(self._store, key, data, use_multipart=False)

        try:
            result = self._ask("write", key, write)
        except PreconditionError:
            raise Changed(key) from None
        self._count(bytes_written=len(data))
        return str(result["e_tag"])

    def edit(self, key: str, change: Callable[[bytes | None], bytes | None]) -> bytes | None:
        """Replaces an object by what `change` makes of it, and returns what is there then.

        change: takes None when there is no object, returns None when nothing is to be changed; called again when
        another writer was first. After a write whose answer got lost it finds its work done. Raises ObjectStoreError.
        """
        for _ in range(_EDITS):
            try:
                found = self.read(key)
            except NotFound:
                found = None
            data = change(None if found is None else found.data)
            if data is None:
                return None if found is None else found.data
            try:
                if found is None:
                    self.create(key, data)
                else:
                    self.replace(key, data, found.tag)
            except (Changed, Taken):
                continue
            return data
        raise ObjectStoreError(f"{self.url}/{key}: other writers keep changing it; try again")

    def upload(self, key: str, path: Path) -> None:
        """Writes a file, whatever was there."""
        import obstore

        size = path.stat().st_size
        self._ask("write", key, lambda: obstore.put(self._store, key, path, chunk_size=_PIECE_BYTES, max_concurrency=4))
        self._count(bytes_written=size)

    def delete(self, keys: Iterable[str]) -> None:
        """Deletes objects; those that are not there are left out."""
        import obstore

        for key in keys:
            try:
                self._ask("delete", key, partial(obstore.delete, self._store, key))
            except NotFound:
                continue

    def check_conditional_writes(self) -> None:
        """Raises Unsupported when the store lets two writers believe that both were first."""
        key = f".probe-{secrets.token_hex(8)}"
        try:
            tag = self.create(key, b"1")
        except Taken:  # its answer got lost
            tag = "" if (found := self.read(key)) is None else found.tag
        missing = ""
        try:
            try:
                self.create(key, b"2")
                missing = "put-if-absent (If-None-Match)"
            except Taken:
                with suppress(Changed):  # likewise
                    self.replace(key, b"3", tag)
            try:
                self.replace(key, b"4", tag)
                missing = missing or "compare-and-swap (If-Match)"
            except Changed:
                pass
        finally:
            self.delete([key])
        if missing:
            raise Unsupported(
                f"{self.url}: the store does not enforce {missing}, so two publishers would overwrite each other; use "
                "one that does, such as S3, GCS, Azure or a recent MinIO"
            )

    def _ask(self, what: str, key: str, request: Callable[[], T]) -> T:
        """Returns what the store answers; asks again, for `retry_s`, when the connection broke before it did.

        Conditional writes are repeated too, so a second try may be refused because of the first: every caller looks
        whether what is there is its own.
        """
        from obstore.exceptions import AlreadyExistsError, BaseError, NotModifiedError, PreconditionError

        give_up_at = time.monotonic() + self._retry_s
        wait_s = _FIRST_WAIT_S
        while True:
            self._count(requests=1)
            try:
                return request()
            except (NotModifiedError, AlreadyExistsError, PreconditionError, Changed, NotFound, ObjectStoreError):
                raise
            except FileNotFoundError as error:
                if "NoSuchBucket" in str(error):
                    raise ObjectStoreError(f"{self.url}: there is no such bucket") from None
                raise NotFound(f"{self.url}/{key} is not there") from None
            except (BaseError, OSError, NotImplementedError, ValueError) as error:
                self._count(failures=1)
                if _BROKEN not in str(error) or time.monotonic() + wait_s > give_up_at:
                    raise ObjectStoreError(f"{self.url}/{key}: cannot {what} it now: {_reason(error)}") from None
            time.sleep(wait_s)
            wait_s *= 2

    @contextmanager
    def _alone(self, key: str) -> Iterator[bool]:
        """Keeps other processes out for the block, where the store is a folder; yields whether it is one."""
        if self._folder is None:
            yield False
            return
        path = self._folder / f"{key}.lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield True

    def _count(self, **more: int) -> None:
        with self._lock:
            for name, count in more.items():
                setattr(self.traffic, name, getattr(self.traffic, name) + count)


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


def _opened(url: str, folder: Path | None, retry_s: float) -> Any:
    import obstore.store
    from obstore.exceptions import BaseError

    if folder is not None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            return obstore.store.LocalStore(folder)
        except (BaseError, ValueError, OSError) as error:
            raise ConfigError(
                f"{url}: cannot be used: {getattr(error, 'strerror', None) or error}", field="repository"
            ) from None
    options: dict[str, Any] = {
        "client_options": {
            "connect_timeout": timedelta(seconds=_CONNECT_S),
            "timeout": timedelta(seconds=_REQUEST_S),
            "allow_http": True,  # for an endpoint that the environment names with http://
        },
        "retry_config": {
            "max_retries": _RETRIES,
            "retry_timeout": timedelta(seconds=retry_s),
            "backoff": {
                "init_backoff": timedelta(milliseconds=100),
                "max_backoff": timedelta(seconds=5),
                "base": 2.0,
            },
        },
    }
    if url.startswith("s3://") and (provider := _profile()) is not None:
        options["credential_provider"] = provider
    try:
        return obstore.store.from_url(url, **options)
    except (BaseError, ValueError, OSError) as error:
        raise ConfigError(f"{url}: {_reason(error)}", field="repository") from None


def _profile() -> Any:
    """Returns a provider that reads AWS's own files too, where they and boto3 are there; else None."""
    if not any(Path(name).expanduser().exists() for name in ("~/.aws/credentials", "~/.aws/config")):
        return None
    try:
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError:
        logging.getLogger("emberline.storage").warning(
            "the profiles of ~/.aws are not read without boto3; pip install boto3, or set AWS_ACCESS_KEY_ID"
        )
        return None
    return Boto3CredentialProvider()


def _reason(error: Exception) -> str:
    """Returns what a store says of a failure, on one line, without queries, which may hold a signature."""
    text = str(error).partition("Debug source:")[0]
    message = re.search(r"<Code>([^<]*)</Code>(?:.*?<Message>([^<]*)</Message>)?", text, re.DOTALL)
    text = re.sub(r"\?\S*", "", text.partition("<?xml")[0])
    text = " ".join(text.split())
    request = re.search(r"Error performing \w+ (\w+://[^/\s]*)\S* in .*? - (.*)", text)
    if request is not None:
        text = f"{request[2]} ({request[1]})"
    if message is not None:
        text += f" {message[1]}" + (f" ({message[2].strip()})" if message[2] else "")
    return text[:_WORDS] or type(error).__name__
