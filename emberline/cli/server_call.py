"""Calls to a running server, the caller's identity, and failures in words."""

from __future__ import annotations

import http.client
import ipaddress
import json
import os
import socket
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from emberline.cli.command import LocalPath
from storage.errors import ConfigError, InvalidInput, Unavailable

if TYPE_CHECKING:
    from emberline.proving.transports import Access

_META = "emberline.identity"
Decorated = TypeVar("Decorated", bound=Callable[..., Any])
Answer = TypeVar("Answer")

_MAX_TOKEN_BYTES = 512
_RUNNING = "; is `emberline serve` running, and is --url right?"
_PROBE_S = 2.0
# A day: what sockets take as a time-out is bounded.
_LONGEST_S = 86_400.0
# OpenSSL's names for an answer that is not TLS.
_NO_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST")


class RefusedError(InvalidInput):
    """A server refused a call: `code` is the HTTP status of its answer."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"the server answered {code}: {reason}")
        self.code = code


@dataclass(frozen=True, slots=True)
class Identity:
    """Credentials that a command sends to a server, and the authority it trusts.

    All are files; None for the defaults of the machine.
    """

    token_file: Path | None = None
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None


def IDENTITY(command: Decorated) -> Decorated:  # noqa: N802
    """Adds the options for the caller's identity; `call_server` finds their values."""

    def keep(ctx: click.Context, parameter: click.Parameter, value: Path | None) -> None:
        ctx.meta.setdefault(_META, {})[parameter.name] = value

    file = LocalPath(dir_okay=False)
    options = [
        click.option(
            "--token-file",
            type=file,
            expose_value=False,
            callback=keep,
            help="File that holds your token; default: the environment's EMBERLINE_TOKEN, and for a server of yours on "
            "this machine the token that it wrote itself.",
        ),
        click.option(
            "--ca",
            type=file,
            expose_value=False,
            callback=keep,
            help="Certificate (PEM) of who signed the server's, for https; default: those that this machine trusts.",
        ),
        click.option(
            "--cert", type=file, expose_value=False, callback=keep, help="Your certificate (PEM), where one is asked."
        ),
        click.option("--key", type=file, expose_value=False, callback=keep, help="Its key (PEM)."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def URL(command: Decorated) -> Decorated:  # noqa: N802
    """Adds the options of every command that calls a server."""
    address = click.option(
        "--url",
        default="http://127.0.0.1:8000",
        envvar="EMBERLINE_URL",
        show_envvar=True,
        help="The server's HTTP address.",
    )
    return address(IDENTITY(command))


def timeout_option(default: float) -> Callable[[Decorated], Decorated]:
    """Makes the option --timeout, seconds."""
    return click.option(
        "--timeout",
        type=click.FloatRange(0.1, _LONGEST_S),
        default=default,
        help="Seconds to wait for the answer.",
    )


def call_server(
    url: str, path: str, timeout: float, content: object | None = None, headers: Mapping[str, str] | None = None
) -> tuple[Any, Mapping[str, str]]:
    """Returns the answer's JSON (None when it is empty) and its headers.

    content: sent as JSON by POST; without it a GET. Raises RefusedError with the server's own words when it refuses,
    Unavailable when there is no answer, ConfigError for a file of the caller's that is not what it has to be.
    """
    return _call(url, path, timeout, content, headers, lambda text: json.loads(text) if text else None)


def read_page(url: str, path: str, timeout: float) -> str:
    """Returns a page of text. Raises what `call_server` does."""
    return _call(url, path, timeout, None, None, bytes.decode)[0]


def _call(
    url: str,
    path: str,
    timeout: float,
    content: object | None,
    headers: Mapping[str, str] | None,
    read: Callable[[bytes], Answer],
) -> tuple[Answer, Mapping[str, str]]:
    identity = _identity()
    check_url(url)
    url, token = _with_token(url.rstrip("/"), identity.token_file)
    address = f"{url}{path}"
    body = None if content is None else json.dumps(content).encode()
    opener = urllib.request.build_opener(_NoRedirect, *_handlers(url, identity))
    try:
        request = urllib.request.Request(address, body, {"Content-Type": "application/json", **(headers or {})})
        if token:
            request.add_header("Authorization", f"Bearer {token}")
        with opener.open(request, timeout=timeout) as answer:
            return read(answer.read()), answer.headers
    except urllib.error.HTTPError as error:
        with error:
            refusal = error.read().decode(errors="replace")
        try:
            refusal = json.loads(refusal)["error"]
        except (ValueError, KeyError, TypeError):
            refusal = refusal[:500]
        raise RefusedError(error.code, refusal) from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise Unavailable(f"no answer from {address}: {_why_no_answer(url, identity, error)}") from None


def access_to(url: str) -> tuple[str, Access]:
    """Returns the address to call, and the caller's identity for another server's HTTP or gRPC."""
    from emberline.proving.transports import Access

    identity = _identity()
    url, token = _with_token(url, identity.token_file)
    found: dict[str, bytes | None] = {"ca": None, "cert": None, "key": None}
    if url.startswith("grpcs:"):
        _tls(identity)  # names a file that is not usable
        files = {"ca": identity.ca, "cert": identity.cert, "key": identity.key or identity.cert}
        found = {name: None if file is None else file.read_bytes() for name, file in files.items()}
    opener = urllib.request.build_opener(_NoRedirect, *_handlers(url, identity))
    return url, Access(token, opener, lambda error: _why_no_answer(url, identity, error, hint=""), **found)


def given_identity() -> Identity:
    """Returns the caller's identity, for a command that speaks to a server in another way than `call_server`."""
    return _identity()


def model_path(model: str, verb: str) -> str:
    """Returns the path of a call that controls a model."""
    return f"/v2/repository/models/{urllib.parse.quote(model, safe='')}/{verb}"


def _why_no_answer(url: str, identity: Identity, error: Exception, hint: str = _RUNNING) -> str:
    """Explains what went wrong, and what to do about it. hint: where nothing more is known."""
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(cause, ssl.SSLCertVerificationError):
        return (
            f"its certificate is not trusted ({cause.verify_message}); give the certificate of who signed it with --ca"
        )
    tls_reason = str(cause.reason) if isinstance(cause, ssl.SSLError) else ""
    if tls_reason in _NO_TLS:
        return "the server does not speak TLS there; use http://"
    is_https = url.lower().startswith("https:")
    if isinstance(cause, http.client.HTTPException | ConnectionResetError) and not is_https and _speaks_tls(url):
        return "the server speaks TLS there; use https://, and --ca where you signed its certificate yourself"
    is_refusal = isinstance(cause, http.client.RemoteDisconnected | ssl.SSLError | ConnectionResetError)
    if is_refusal and is_https and identity.cert is None:
        return f"{cause}; if the server asks for a certificate of yours, give it with --cert and --key"
    reason = getattr(cause, "strerror", None) or str(cause)
    reason = reason if reason.isprintable() else "it does not speak HTTP"
    return f"{reason}{hint}"


def _speaks_tls(url: str) -> bool:
    """Returns whether a TLS handshake succeeds, whoever answers."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    parts = urllib.parse.urlsplit(url)
    try:
        with (
            socket.create_connection((parts.hostname or "", parts.port or 80), timeout=_PROBE_S) as plain,
            context.wrap_socket(plain),
        ):
            return True
    except (OSError, ValueError):
        return False


def check_url(url: str, option: str = "url") -> None:
    """Raises ConfigError for an address that is none. option: the name of the one that gave it."""
    try:
        parts = urllib.parse.urlsplit(url)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_good = False
    if not is_good:
        raise ConfigError(f"--{option}: expected http://HOST:PORT or https://HOST:PORT, got {url!r}", field=option)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuses redirects: the server never redirects, and a token is for it alone."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _identity() -> Identity:
    context = click.get_current_context(silent=True)
    found = Identity(**context.meta.get(_META, {})) if context is not None else Identity()
    if found.key is not None and found.cert is None:
        raise ConfigError("--key: it goes with --cert", field="key")
    return found


def _handlers(url: str, identity: Identity) -> list[urllib.request.BaseHandler]:
    found: list[urllib.request.BaseHandler] = []
    if _is_loopback(_host(url)):
        found.append(urllib.request.ProxyHandler({}))  # no proxy is nearer than this machine
    if url.lower().startswith("https:"):
        found.append(urllib.request.HTTPSHandler(context=_tls(identity)))
    return found


def _tls(identity: Identity) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=identity.ca)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"--ca: {identity.ca}: {_why(error)}", field="ca") from None
    if identity.cert is not None:
        try:
            context.load_cert_chain(identity.cert, identity.key)
        except (OSError, ssl.SSLError) as error:
            text = f"--cert: {identity.cert} and its key {identity.key or identity.cert}: {_why(error)}"
            raise ConfigError(text, field="cert") from None
    return context


def _with_token(url: str, file: Path | None) -> tuple[str, str]:
    """Returns the address to call and the token to send: that of a file, of the environment, or of a local server."""
    if file is not None:
        try:
            with file.open("rb") as content:
                return url, _checked(content.read(_MAX_TOKEN_BYTES + 2), f"--token-file: {file}")
        except OSError as error:
            raise ConfigError(f"--token-file: {file}: {_why(error)}", field="token-file") from None
    given = os.environ.get("EMBERLINE_TOKEN")
    if given:
        return url, _checked(given.encode(errors="replace"), "EMBERLINE_TOKEN")
    if not _is_loopback(_host(url)):
        return url, ""
    from serving.security.own_token import read_own_token

    parts = urllib.parse.urlsplit(url)
    token = read_own_token(parts.port or {"https": 443}.get(parts.scheme, 80))
    if token and parts.scheme == "http" and parts.hostname == "localhost":
        # Another user's program may answer to this name, at ::1.
        url = url.replace("localhost", "127.0.0.1", 1)
    return url, token


def _checked(content: bytes, where: str) -> str:
    """Checks a token, which no error repeats."""
    try:
        token = content.decode("ascii").strip()
    except UnicodeDecodeError:
        token = ""
    if not token or not token.isprintable() or " " in token or len(token) > _MAX_TOKEN_BYTES:
        raise ConfigError(f"{where}: expected a token: one word, at most {_MAX_TOKEN_BYTES} characters", field="token")
    return token


def _host(url: str) -> str:
    try:
        return urllib.parse.urlsplit(url).hostname or ""
    except ValueError:
        return ""


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _why(error: OSError) -> str:
    reason = getattr(error, "reason", None)
    return f"not usable as PEM ({reason})" if reason else str(error.strerror or error)
