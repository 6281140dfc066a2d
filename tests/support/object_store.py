"""An object store for tests: moto's S3 server, or the real one that EMBERLINE_TEST_STORE names."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage.objects import ObjectStore

BUCKET = "emberline-tests"
_KEYS = {
    "AWS_ACCESS_KEY_ID": "someone",
    "AWS_SECRET_ACCESS_KEY": "hush-hush-hush",
    "AWS_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


@pytest.fixture(scope="session")
def s3() -> Iterator[str]:
    """See `s3_server`."""
    with s3_server() as url:
        yield url


@contextlib.contextmanager
def s3_server() -> Iterator[str]:
    """Runs an S3 server with an empty bucket and points the environment to it; yields its URL."""
    real = os.environ.get("EMBERLINE_TEST_STORE")
    if real:
        yield real.rstrip("/")
        return
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in {**_KEYS, "AWS_ENDPOINT_URL": f"http://{host}:{port}"}.items():
                patch.setenv(name, value)
            import boto3

            boto3.client("s3", endpoint_url=f"http://{host}:{port}").create_bucket(Bucket=BUCKET)
            yield f"s3://{BUCKET}"
    finally:
        server.stop()


@pytest.fixture
def store_url(s3: str) -> Iterator[str]:
    """Yields the URL of an empty repository; what was written there is deleted."""
    url = f"{s3}/{secrets.token_hex(8)}"
    yield url
    ObjectStore(url).delete(keys_of(url))


def cut_off(patch: pytest.MonkeyPatch) -> None:
    """Makes stores that are opened from now on unreachable."""
    patch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    patch.setenv("AZURE_STORAGE_ENDPOINT", "http://127.0.0.1:9/devstoreaccount1")


def keys_of(url: str) -> list[str]:
    """Returns the keys of all objects, in order."""
    import obstore
    import obstore.store

    store = obstore.store.from_url(url, client_options={"allow_http": True})
    return sorted(entry["path"] for page in obstore.list(store) for entry in page)


class DyingStore(ObjectStore):
    """The store as a process sees it that dies before its write number `left`, counted from 0."""

    left = 10**6

    def create(self, key: str, data: bytes) -> str:
        self._write()
        return super().create(key, data)

    def replace(self, key: str, data: bytes, tag: str) -> str:
        self._write()
        return super().replace(key, data, tag)

    def upload(self, key: str, path: Path) -> None:
        self._write()
        super().upload(key, path)

    @classmethod
    def _write(cls) -> None:
        DyingStore.left -= 1
        if DyingStore.left < 0:
            raise KeyboardInterrupt
