"""Sets up TLS for HTTP, metrics and gRPC: one certificate, read again when its files change."""

from __future__ import annotations

import logging
import os
import ssl
import threading
import time
from pathlib import Path
from typing import Any

import grpc

from serving.config import ServerConfig
from storage.errors import ConfigError

logger = logging.getLogger("emberline.serving")

_LOOK_S = 1.0
# Seconds for which a client that sends nothing holds a connection.
HANDSHAKE_S = 10.0


class ServerTls:
    """TLS of every port of one process. Thread-safe: gRPC calls it from threads of its own."""

    def __init__(self, certificate: Path, key: Path | None = None, client_ca: Path | None = None) -> None:
        """Loads the files. key: None where the certificate's file holds it too.

        client_ca: signs clients' certificates, which are required then. Raises ConfigError naming the option.
        """
        self._certificate = certificate
        self._key = key or certificate
        self._key_field = "tls_certificate" if key is None else "tls_key"
        self._client_ca = client_ca
        self._lock = threading.Lock()
        self._stamp = self._stamps()
        self._pem: tuple[bytes, bytes, bytes | None] = b"", b"", None
        self._current = self._load()
        self._told = ""
        self._generation = 0
        self._look_at = time.monotonic() + _LOOK_S
        # The context of the listening socket; a handshake switches to the current one.
        self.context = self._current
        self.context.sni_callback = self._choose

    def grpc_credentials(self) -> grpc.ServerCredentials:
        """Returns the credentials to open a gRPC port with."""
        told = 0

        def changed() -> Any:
            nonlocal told
            self.refresh()
            if told == self._generation:
                return None
            told = self._generation
            return self._grpc_certificates()

        return grpc.dynamic_ssl_server_credentials(
            self._grpc_certificates(), changed, require_client_authentication=self._client_ca is not None
        )

    def refresh(self) -> None:
        """Reads changed files, looking once a second; bad ones are logged once, and the last good ones stay in use."""
        if time.monotonic() < self._look_at:
            return
        with self._lock:
            self._look_at = time.monotonic() + _LOOK_S
            try:
                stamp = self._stamps()
                if stamp == self._stamp:
                    return
                self._stamp = stamp
                self._current = self._load()
            except ConfigError as error:
                if str(error) != self._told:
                    self._told = str(error)
                    logger.error("%s; the certificate that was read before goes on", error)
                return
            self._generation += 1
            self._told = ""
        logger.info("%s was read again", self._certificate)

    def _choose(self, handshake: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        """Chooses the current context in every handshake, with a server name or without."""
        self.refresh()
        if self._current is not context:
            handshake.context = self._current

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION
        context.set_alpn_protocols(["http/1.1"])
        certificate, key = _read(self._certificate, "tls_certificate"), _read(self._key, self._key_field)
        if b"CERTIFICATE" not in certificate:
            raise _bad("tls_certificate", self._certificate, "there is no certificate in PEM in it")
        if b"PRIVATE KEY" not in key:
            raise _bad(self._key_field, self._key, "there is no private key in PEM in it")
        try:
            context.load_cert_chain(self._certificate, self._key, password=_no_password)
        except _EncryptedError:
            raise _bad(self._key_field, self._key, "the key is encrypted; give one without a password") from None
        except (ssl.SSLError, OSError) as error:
            why = getattr(error, "reason", None) or error.strerror or str(error)
            raise _bad(self._key_field, self._key, f"not the key of {self._certificate} ({why})") from None
        ca = None
        if self._client_ca is not None:
            ca = _read(self._client_ca, "tls_client_ca")
            try:
                context.load_verify_locations(cafile=self._client_ca)
            except (ssl.SSLError, OSError):
                raise _bad("tls_client_ca", self._client_ca, "there is no certificate in PEM in it") from None
            context.verify_mode = ssl.CERT_REQUIRED
        self._pem = certificate, key, ca
        return context

    def _grpc_certificates(self) -> Any:
        certificate, key, ca = self._pem
        return grpc.ssl_server_certificate_configuration([(key, certificate)], ca)

    def _stamps(self) -> tuple[tuple[int, int, int], ...]:
        paths = [(self._certificate, "tls_certificate"), (self._key, self._key_field)]
        if self._client_ca is not None:
            paths.append((self._client_ca, "tls_client_ca"))
        return tuple(_stamp(path, field) for path, field in paths)


def server_tls(config: ServerConfig) -> ServerTls | None:
    """Returns the TLS that a configuration asks for, None without TLS. Raises ConfigError."""
    if config.tls_certificate is None:
        return None
    return ServerTls(config.tls_certificate, config.tls_key, config.tls_client_ca)


def common_name(handshake: Any) -> str:
    """Returns the common name of a client's certificate, "" without one.

    handshake: an SSLObject, or None without TLS.
    """
    certificate = handshake.getpeercert() if handshake is not None else None
    for part in (certificate or {}).get("subject", ()):
        for key, value in part:
            if key == "commonName":
                return str(value)
    return ""


class _EncryptedError(Exception):
    pass


def _no_password() -> str:
    raise _EncryptedError  # else OpenSSL asks on the terminal


def _bad(field: str, path: Path, text: str) -> ConfigError:
    return ConfigError(f"{field}: {path}: {text}", field=field)


def _read(path: Path, field: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise _bad(field, path, error.strerror or str(error)) from None


def _stamp(path: Path, field: str) -> tuple[int, int, int]:
    try:
        about = os.stat(path)
    except OSError as error:
        raise _bad(field, path, error.strerror or str(error)) from None
    return about.st_mtime_ns, about.st_size, about.st_ino
