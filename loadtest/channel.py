"""Opens channels of gRPC."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc

from loadtest.target import Target
from loadtest.wire import Tls

#: The method that scores a request, whose messages are sent and received as bytes.
INFER = "/inference.GRPCInferenceService/ModelInfer"


def open_channel(address: str, tls: Tls | None) -> Any:
    """Returns a channel with a connection of its own. address: HOST:PORT. tls: None for none."""
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
    if tls is None:
        return grpc.insecure_channel(address, options)
    files = (tls.ca, tls.key or tls.cert, tls.cert)
    ca, key, cert = (Path(each).read_bytes() if each else None for each in files)
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(ca, key, cert), options)


def call_once(target: Target, body: bytes, timeout_s: float) -> bytes:
    """Makes one call over a connection of its own; returns the answer. Raises grpc.RpcError."""
    token = (("authorization", f"Bearer {target.token}"),) if target.token else ()
    with open_channel(target.grpc, target.tls if target.url.startswith("https:") else None) as channel:
        answer: bytes = channel.unary_unary(INFER)(body, timeout=timeout_s, metadata=token)
        return answer
