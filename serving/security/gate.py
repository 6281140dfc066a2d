"""Checks every call first: who calls, whether it is allowed, and whether it comes too often."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from serving._front import Callers
from serving.config import ServerConfig
from serving.errors import Forbidden, Unauthenticated
from serving.security.access import LOOK_S, SEND_TOKEN, Access
from serving.security.audit import AuditLog
from serving.security.hosts import KnownHosts
from serving.security.needs import INFER, MODEL, SERVER, Need
from serving.security.principals import PREDICT, ROLES, Caller, Principal
from serving.security.rates import Rates, client_of
from storage.errors import EmberlineError

logger = logging.getLogger("emberline.serving")

_OWN_TOKEN = (
    "only the holder of the server's own token may do this: its file is named in the server's log, and the `emberline` "
    "command finds it on the server's machine; or start the server with an access file, or with --open-admin"
)


@dataclass(frozen=True, slots=True)
class Admission:
    """A control call that was let in."""

    principal: str
    caller: Caller
    transport: str
    call: str
    model: str
    began: float


class Gate:
    """Checks every call. Not thread-safe: one event loop uses it."""

    def __init__(self, config: ServerConfig, own_digest: str = "") -> None:
        """Reads the access file. own_digest: that of the server's own token. Raises ConfigError."""
        self._rates = Rates()
        #: Whom native code may answer without asking here again, and for what.
        self.callers = Callers(self._rates.native, config.access_file is None)
        #: Returns whether native code answers requests for a model; None where it answers none.
        self.natively: Callable[[str], bool] | None = None
        self._access = Access(config.access_file, own_digest, open_admin=config.open_admin, changed=self.callers.forget)
        self._audit = AuditLog(config.audit_log)
        self._hosts = KnownHosts(config.allowed_hosts)
        self._rate = config.max_requests_per_second
        self._asks_certificates = config.tls_client_ca is not None
        # Then nothing needs to be looked up: every caller may do all but control.
        self.is_open = self._access.is_open and self._rate is None

    def begin(self, need: Need, authorization: bytes | None) -> None:
        """Refuses a call whose message has not been read, as far as its caller is known. Raises EmberlineError."""
        if self._access.is_open or not need.roles:
            return
        principal = self._access.find(authorization)
        if authorization is None and self._asks_certificates:
            return
        self._check_role(principal, need)
        self._let_in(principal, authorization)

    def admit(
        self, need: Need, model: str, authorization: bytes | None, caller: Caller, transport: str, call: str
    ) -> Admission | None:
        """Lets a call in, or raises Unauthenticated, Forbidden or RateLimited. Returns the admission that `done` needs.

        Calls that are no control calls return None.
        """
        if not need.roles or (self.is_open and need.is_for_everybody):
            return None
        if not need.is_control:
            principal = self._find(authorization, caller)
            self._check(principal, need, model, caller)
            self._let_in(principal, authorization, model if need is INFER else "")
            return None
        name = ""
        try:
            principal = self._find(authorization, caller)
            name = principal.name
            self._check(principal, need, model, caller)
        except EmberlineError as error:
            self.refused(need, model, caller, transport, call, error, name)
            raise
        return Admission(name, caller, transport, call, model, time.monotonic())

    async def follow(self) -> None:
        """Looks once a second whether the access file has changed, until it is cancelled.

        Otherwise it is looked at when a call comes here, and those that native code answers do not.
        """
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                self._access.refresh()
            except Exception:
                logger.exception("the access file could not be looked at")

    def sees(self, model: str, authorization: bytes | None, caller: Caller) -> bool:
        """Returns whether the caller may know that this model exists."""
        if self._access.is_open:
            return True
        try:
            return self._find(authorization, caller).covers(model)
        except EmberlineError:
            return False

    def identify(self, need: Need, authorization: bytes | None, caller: Caller) -> Principal:
        """Returns who calls, for calls that go on for long: it counts against no rate.

        Raises Unauthenticated, and Forbidden for a caller without the role.
        """
        principal = self._find(authorization, caller)
        self._check_role(principal, need)
        return principal

    def check_host(self, host: bytes, authorization: bytes | None, caller: Caller) -> None:
        """Refuses what a browser may have sent for a page whose owner lets its name point at this server.

        host: the header. Such a page has no token, so callers that have one may use any name. Raises Forbidden, and
        Unauthenticated for a wrong token.
        """
        name = host.decode("latin-1")
        if self._hosts.knows(name):
            return
        principal = self._find(authorization, caller)
        # Without a role nothing is answered anyway, and the refusal of that says what to do.
        if principal.is_known or not principal.roles:
            return
        raise Forbidden(
            f"{name[:200]!r} is not known to be a name of this server, and a page of that name may be anybody's: use "
            "an IP address or localhost, send a token, or start the server with --allowed-host NAME"
        )

    def name_of(self, authorization: bytes | None, caller: Caller) -> str:
        """Returns the name of the caller's principal, for the access log; "" for a caller with a wrong token."""
        try:
            return self._find(authorization, caller).name
        except EmberlineError:
            return ""

    def refused(
        self,
        need: Need,
        model: str,
        caller: Caller,
        transport: str,
        call: str,
        error: BaseException,
        principal: str = "",
    ) -> None:
        """Logs that control was refused. principal: "" for an unknown caller."""
        if need.is_control:
            self._audit.write(
                principal=principal,
                address=caller.address,
                transport=transport,
                call=call,
                model=model,
                arguments={},
                outcome=type(error).__name__,
                took_ms=0.0,
                is_refused=True,
            )

    def done(self, admission: Admission, arguments: Any, outcome: int | str) -> None:
        """Logs the outcome of a control call."""
        self._audit.write(
            principal=admission.principal,
            address=admission.caller.address,
            transport=admission.transport,
            call=admission.call,
            model=admission.model,
            arguments=arguments,
            outcome=outcome,
            took_ms=(time.monotonic() - admission.began) * 1e3,
        )

    def _find(self, authorization: bytes | None, caller: Caller) -> Principal:
        certificate = caller.certificate if self._asks_certificates and authorization is None else ""
        return self._access.find(authorization, certificate)

    def _check(self, principal: Principal, need: Need, model: str, caller: Caller) -> None:
        self._check_role(principal, need)
        if not principal.is_for_all and need.about in (MODEL, SERVER):
            self._check_scope(principal, need, model)
        rate = principal.requests_per_second or self._rate
        if rate is not None:
            self._rates.take(principal.name if principal.is_known else f"@{client_of(caller.address)}", rate)

    def _let_in(self, principal: Principal, authorization: bytes | None, model: str = "") -> None:
        """Lets native code answer the next requests of a caller. model: that it was just let in for, "" for none."""
        if self.natively is None or not principal.roles & PREDICT:
            return
        shown = authorization if principal.is_known else b""
        if shown is None:
            return  # it is known by its certificate
        # The name may be anything that the caller wrote.
        model = model if self.natively(model) else ""
        rate, by_address = principal.requests_per_second or self._rate or 0.0, not principal.is_known
        self.callers.let_in(shown, model, principal.name, rate, by_address, principal.expires_unix)

    def _check_role(self, principal: Principal, need: Need) -> None:
        if need.is_met(principal.roles):
            return
        if not principal.is_known:
            raise Unauthenticated(_OWN_TOKEN if self._access.is_open else f"this needs a token; {SEND_TOKEN}")
        word = " and " if need.all_roles else " or "
        wanted = word.join(name for name, bits in ROLES.items() if bits & need.roles and name != "admin") or "admin"
        raise Forbidden(f"{principal.name!r} does not have the role {wanted}")

    def _check_scope(self, principal: Principal, need: Need, model: str) -> None:
        if need.about == MODEL and principal.covers(model):
            return
        if not principal.is_known:
            raise Unauthenticated(f"this needs a token; {SEND_TOKEN}")
        allowed = ", ".join(principal.models[:5])
        if need.about == MODEL:
            raise Forbidden(f"{principal.name!r} may ask for the models {allowed} only, not for {model[:200]!r}")
        raise Forbidden(f"{principal.name!r} may not ask for what is about all models; ask for one of {allowed}")
