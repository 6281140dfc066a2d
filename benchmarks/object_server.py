"""Runs moto's S3 server in a process of its own, and points this process's clients at it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.peers import PeerMissingError

BUCKET = "emberline-bench"
_KEYS = {"AWS_ACCESS_KEY_ID": "someone", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1"}


@contextmanager
def object_server(script: str) -> Iterator[str]:
    """Yields the endpoint of a server with an empty bucket. Raises PeerMissingError.

    script: Python that runs the server and prints its endpoint, which begins with http://, as a line.
    """
    try:
        import boto3
        import moto  # noqa: F401
    except ImportError:
        raise PeerMissingError("moto is not installed; pip install 'emberline[dev]'") from None
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        endpoint = next(line.strip() for line in server.stdout if line.startswith("http://"))
        before = {name: os.environ.get(name) for name in (*_KEYS, "AWS_ENDPOINT_URL")}
        os.environ.update(_KEYS, AWS_ENDPOINT_URL=endpoint)
        try:
            boto3.client("s3", endpoint_url=endpoint).create_bucket(Bucket=BUCKET)
            yield endpoint
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value
            server.terminate()
