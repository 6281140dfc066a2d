"""Applies the gate to gRPC calls: to the metadata before a message is read, to the message before it is answered."""

from __future__ import annotations

import hmac
import urllib.parse
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from serving.errors import Unauthenticated, UnknownModel
from serving.grpc.needs import GRPC_NEEDS, UNKNOWN_CALL
from serving.security.audit import short_text
from serving.security.forwarded import forwarded_metadata, refuse_forwarded
from serving.security.gate import Admission, Gate
from serving.security.needs import INFER, REGIONS
from serving.security.principals import ANONYMOUS_NAME

#: The metadata key by which the native server says whose call it passes on, after its secret.
CLIENT_KEY = "emberline-client"
#: The metadata key by which it says, with its secret, that a call is one request of a stream whose caller was let in.
PART_KEY = "emberline-part"
_MAX_SHOWN_BYTES = 4096


class GrpcCaller:
    """Implements Caller; reads address and certificate from the call when they are needed."""

    __slots__ = ("_context", "_secret")

    def __init__(self, context: Any, secret: str) -> None:
        """secret: that of the native server; see GrpcGate."""
        self._context = context
        self._secret = secret

    @property
    def address(self) -> str:
        """See Caller."""
        peer = str(self._context.peer())
        if peer.startswith("unix"):
            secret, _, client = _value_of(self._context.invocation_metadata(), CLIENT_KEY).partition(" ")
            peer = client if _is_secret(secret, self._secret) else peer
        return address_of(peer)

    @property
    def certificate(self) -> str:
        """See Caller."""
        names = self._context.auth_context().get("x509_common_name", ())
        return names[0].decode("utf-8", "replace") if names else ""


class GrpcGate:
    """Admits or refuses gRPC calls by the rules of a Gate, on one event loop."""

    def __init__(self, gate: Gate, secret: str = "") -> None:
        """secret: by which a native server proves that it passed a call on; "" where there is none."""
        self._gate = gate
        self._secret = secret

    def begin(self, method: str, metadata: Iterable[Any]) -> None:
        """Refuses a call before its message is read, where that can be decided. Raises Unauthenticated, Forbidden.

        A request of a stream that was let in is refused by `admit_inference`, so that the stream goes on.
        """
        if not self._gate.is_open and not self._is_part(metadata):
            self._gate.begin(GRPC_NEEDS.get(method, UNKNOWN_CALL).need, authorization_of(metadata))

    def _is_part(self, metadata: Iterable[Any]) -> bool:
        return _is_secret(_value_of(metadata, PART_KEY), self._secret)

    def refused(self, method: str, context: Any, error: BaseException) -> None:
        """Records that `begin` refused a call."""
        need = GRPC_NEEDS.get(method, UNKNOWN_CALL).need
        self._gate.refused(need, "", GrpcCaller(context, self._secret), "grpc", need.call or method, error)

    def admit_inference(self, model: str, context: Any) -> None:
        """Admits a request for a model's scores. Raises Unauthenticated, Forbidden, RateLimited."""
        if not self._gate.is_open:
            authorization = authorization_of(context.invocation_metadata())
            self._gate.admit(INFER, model, authorization, GrpcCaller(context, self._secret), "grpc", "infer")

    def admit(self, method: str, message: Any, context: Any) -> Admission | None:
        """Admits any other call, or raises as `admit_inference` does. message: the request."""
        entry = GRPC_NEEDS.get(method, UNKNOWN_CALL)
        if entry.need is REGIONS:
            refuse_forwarded(forwarded_metadata(context.invocation_metadata()))
        if self._gate.is_open and not entry.may_control:
            return None
        need, model = entry.of(message)
        authorization = authorization_of(context.invocation_metadata())
        return self._gate.admit(
            need, model, authorization, GrpcCaller(context, self._secret), "grpc", need.call or method
        )

    def caller(self, context: Any) -> GrpcCaller:
        """Returns the other end of a call."""
        return GrpcCaller(context, self._secret)

    def name_of(self, context: Any, *, is_infer: bool) -> str:
        """Returns the name of a caller's principal; "" for a caller with a wrong token, or with several."""
        if is_infer and self._gate.is_open:
            return ANONYMOUS_NAME  # a token that comes along is not looked at, by native code neither
        try:
            authorization = authorization_of(context.invocation_metadata())
        except Unauthenticated:
            return ""
        return self._gate.name_of(authorization, self.caller(context))

    def told(self, error: BaseException, context: Any) -> BaseException:
        """Returns the error with only what the caller is allowed to know."""
        if not isinstance(error, UnknownModel):
            return error
        if self._gate.is_open:
            return error.told_to(lambda name: True)
        authorization, caller = authorization_of(context.invocation_metadata()), GrpcCaller(context, self._secret)
        return error.told_to(lambda name: self._gate.sees(name, authorization, caller))

    async def audited(self, admission: Admission, message: Any, answer: Callable[[], Awaitable[bytes]]) -> bytes:
        """Answers a control call that was admitted, and writes it to the audit log."""
        outcome = "cancelled"
        try:
            content = await answer()
            outcome = "OK"
            return content
        except Exception as error:
            outcome = type(error).__name__
            raise
        finally:
            self._gate.done(admission, _arguments_of(message), outcome)


def _value_of(metadata: Iterable[Any] | None, name: str) -> str:
    return next((str(value) for key, value in metadata or () if key == name), "")


def _is_secret(said: str, secret: str) -> bool:
    """Returns whether a caller has said the secret; "": there is none."""
    return bool(secret) and hmac.compare_digest(said.encode(), secret.encode())


def _arguments_of(message: Any) -> str:
    """Formats a request for the audit log; a long one as its size, since formatting megabytes would block the loop."""
    size = message.ByteSize()
    return short_text(str(message)) if size <= _MAX_SHOWN_BYTES else f"{size} bytes"


def authorization_of(metadata: Iterable[Any] | None) -> bytes | None:
    """Returns the value of the header `authorization`, or None. Raises Unauthenticated when there are several."""
    found: str | bytes | None = None
    for key, value in metadata or ():
        if key == "authorization":
            if found is not None:
                raise Unauthenticated("there is more than one 'authorization'; send one")
            found = value
    return found.encode("latin-1", "replace") if isinstance(found, str) else found


def address_of(peer: str) -> str:
    """Returns the IP address in gRPC's name of a peer, such as ipv4:127.0.0.1:5000 or ipv6:%5B::1%5D:5000."""
    address = urllib.parse.unquote(peer).partition(":")[2].rpartition(":")[0]
    return address.strip("[]")
