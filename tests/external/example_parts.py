"""Runs one of Triton's example scripts where it cannot run as it is: python example_parts.py HOW SCRIPT.py URL

elsewhere     its address is fixed: it is sent to URL
named-triton  it wants a server that is called 'triton': it sees that name, and checks the rest
identity      only what it does with `simple_identity`
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http


def elsewhere(script: Path, url: str) -> None:
    """Runs the script once over HTTP, as it runs without --protocol."""
    own = triton_http.InferenceServerClient
    triton_http.InferenceServerClient = lambda **options: own(**{**options, "url": url})
    sys.argv = [str(script)]
    runpy.run_path(str(script), run_name="__main__")


def named_triton(script: Path, url: str) -> None:
    """Runs the script with a server name of 'triton', so that it makes all its other checks."""
    if "_grpc_" in script.name:
        of_grpc = triton_grpc.InferenceServerClient.get_server_metadata

        def renamed(self: Any, *given: Any, **options: Any) -> Any:
            answer = of_grpc(self, *given, **options)
            answer.name = "triton"
            return answer

        triton_grpc.InferenceServerClient.get_server_metadata = renamed
    else:
        of_http = triton_http.InferenceServerClient.get_server_metadata
        triton_http.InferenceServerClient.get_server_metadata = lambda self, *given, **options: {
            **of_http(self, *given, **options),
            "name": "triton",
        }
    sys.argv = [str(script), "-u", url]
    runpy.run_path(str(script), run_name="__main__")


def identity(script: Path, url: str) -> None:
    """Strings with a zero byte in them, and bytes that are no text, as its own main part sends them."""
    check = runpy.run_path(str(script), run_name="part")["identity_inference"]
    with_zero = np.array([[b"he\x00llo"] * 16], np.object_)
    no_text = np.array([[b"\x00\x01\x02\x03"] * 16], np.bytes_)
    if "_grpc_" in script.name:
        for values in (with_zero, no_text):
            check(triton_grpc.InferenceServerClient(url), values)
    else:
        for values in (with_zero, no_text):
            for is_binary in (True, False):
                check(triton_http.InferenceServerClient(url), values, is_binary)


def main() -> None:
    """Parses the command line."""
    how, script, url = sys.argv[1:]
    {"elsewhere": elsewhere, "named-triton": named_triton, "identity": identity}[how](Path(script), url)


if __name__ == "__main__":
    main()
