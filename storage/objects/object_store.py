"""Reads and writes the objects under a URL such as s3://bucket/models, with the conditional writes of object stores.

Credentials come from the environment, as every client of that cloud takes them, and never from a URL. They are in no
message either: a message names the object and the store's own reason, without what follows a question mark.
"""

from __future__ import annotations

import fcntl
import logging
import secrets
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from storage.errors import ConfigError, NotFound, ObjectStoreError, Unsupported
from storage.objects.requests import FailedRequest, Requests, Traffic, reason_of
from storage.objects.urls import url_of

T = TypeVar("T")

_CONNECT_S, _REQUEST_S = 5, 60
# A store that answers 5xx is asked again for this long; whoever reads asks again at the next look anyway.
_RETRY_S = 30
_RETRIES = 1000
# What S3, Azure and Google Cloud Storage say where there is no such bucket or container.
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound", "The specified bucket does not exist")
# Writers of one object that may be first, one after the other.
_EDITS = 100
# Files beyond this go up in several pieces.
_PIECE_BYTES = 16 << 20


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


@dataclass(frozen=True)
class ObjectInfo:
    """The tag, size and age of an object, which are known without reading it."""

    tag: str
    size: int
    #: When it was written, by the clock of the store.
    modified_unix: float

    @property
    def age_s(self) -> float:
        """Seconds since it was written; 0 where the clocks differ by more."""
        return max(0.0, time.time() - self.modified_unix)


class ObjectStore:
    """The objects under one URL. Thread-safe; opened after the process has forked."""

    def __init__(self, url: str, *, retry_s: float = _RETRY_S, stop: threading.Event | None = None) -> None:
        """Opens it without asking the store anything. Raises ConfigError for a URL that means none.

        stop: every call raises Stopped once it is set, those under way too.
        """
        self.url = url_of(url)
        scheme, _, rest = self.url.partition("://")
        self.traffic = Traffic()
        self._requests = Requests(self.traffic, retry_s, stop)
        self._folder = Path(rest) if scheme == "file" else None
        self._store = _opened(self.url, self._folder, retry_s)

    def share_traffic(self, traffic: Traffic) -> None:
        """Counts what is asked from now on there."""
        self.traffic = self._requests.traffic = traffic

    def read(self, key: str, *, unless: str | None = None) -> Object | None:
        """Returns an object; None when it still is the one of the tag `unless`.

        Raises NotFound when it is not there, ObjectStoreError when that cannot be told now.
        """
        import obstore
        from obstore.exceptions import NotModifiedError

        options = {"if_none_match": unless} if unless is not None else {}

        async def read() -> Object:
            result = await obstore.get_async(self._store, key, options=options)  # type: ignore[arg-type]
            return Object(bytes(await result.bytes_async()), str(result.meta["e_tag"]))

        try:
            found = self._ask("read", key, read)
        except NotModifiedError:
            return None
        self.traffic.count(bytes_read=len(found.data))
        return found

    def stat(self, key: str) -> ObjectInfo:
        """Returns what is known of an object without reading it. See `read`."""
        import obstore

        meta = self._ask("read", key, lambda: obstore.head_async(self._store, key))
        return ObjectInfo(str(meta["e_tag"]), meta["size"], meta["last_modified"].timestamp())

    def read_range(self, key: str, start: int, length: int) -> Any:
        """Returns `length` bytes of an object from `start` on as a buffer, fewer where it ends before. See `read`."""
        import obstore

        data = self._ask("read", key, lambda: obstore.get_range_async(self._store, key, start=start, length=length))
        self.traffic.count(bytes_read=len(data))
        return data

    def create(self, key: str, data: bytes) -> str:
        """Writes an object that is not there yet, and returns its tag.

        Raises Taken when it is there, which it also is after an earlier try of this call whose answer got lost.
        """
        import obstore
        from obstore.exceptions import AlreadyExistsError

        try:
            result = self._ask(
                "write", key, lambda: obstore.put_async(self._store, key, data, mode="create", use_multipart=False)
            )
        except AlreadyExistsError:
            raise Taken(key) from None
        self.traffic.count(bytes_written=len(data))
        return str(result["e_tag"])

    def replace(self, key: str, data: bytes, tag: str) -> str:
        """Writes an object in the place of the one with this tag, and returns the new tag.

        Raises Changed for another one, also after an earlier try of this call whose answer got lost.
        """
        import obstore
        from obstore.exceptions import PreconditionError

        with self._alone(key) as is_alone:
            if is_alone and self.read(key, unless=tag) is not None:
                raise Changed(key)
            mode: Any = "overwrite" if is_alone else {"e_tag": tag}  # the local file system has no such request
            try:
                result = self._ask(
                    "write", key, lambda: obstore.put_async(self._store, key, data, mode=mode, use_multipart=False)
                )
            except PreconditionError:
                raise Changed(key) from None
        self.traffic.count(bytes_written=len(data))
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

    def put(self, key: str, data: bytes) -> None:
        """Writes an object, whatever was there."""
        import obstore

        self._ask("write", key, lambda: obstore.put_async(self._store, key, data, use_multipart=False))
        self.traffic.count(bytes_written=len(data))

    def names(self, prefix: str) -> dict[str, str]:
        """Returns the last parts of the keys right under a prefix, with what names their content.

        It is a listing, which is slow and expensive.
        """
        import obstore

        found = self._ask("list", prefix, lambda: obstore.list_with_delimiter_async(self._store, f"{prefix}/"))
        return {entry["path"].rpartition("/")[2]: str(entry["e_tag"]) for entry in found["objects"]}

    def upload(self, key: str, path: Path) -> None:
        """Writes a file, whatever was there."""
        import obstore

        size = path.stat().st_size
        self._ask(
            "write", key, lambda: obstore.put_async(self._store, key, path, chunk_size=_PIECE_BYTES, max_concurrency=4)
        )
        self.traffic.count(bytes_written=size)

    def delete(self, keys: Iterable[str]) -> None:
        """Deletes objects; those that are not there are left out."""
        import obstore

        for key in keys:
            try:
                self._ask("delete", key, partial(obstore.delete_async, self._store, key))
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

    def _ask(self, what: str, key: str, request: Callable[[], Awaitable[T]]) -> T:
        """Returns what the store answers to a request. Raises NotFound, ObjectStoreError, or obstore's refusals."""
        try:
            return self._requests.ask(request)
        except FileNotFoundError as error:
            if any(each in str(error) for each in _NO_BUCKET):
                raise ObjectStoreError(f"{self.url}: there is no such bucket") from None
            raise NotFound(f"{self.url}/{key} is not there") from None
        except FailedRequest as error:
            raise ObjectStoreError(f"{self.url}/{key}: cannot {what} it now: {error}") from None

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
        raise ConfigError(f"{url}: {reason_of(error)}", field="repository") from None


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
