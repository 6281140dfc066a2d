"""Certificates for tests, made with the openssl command as the documentation says."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

_KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]


@dataclass(frozen=True)
class Certificate:
    """A certificate and its key, as PEM files."""

    certificate: Path
    key: Path


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=60)


def make_ca(folder: Path, name: str = "ca") -> Certificate:
    """Makes a certificate authority that signs the other certificates."""
    made = Certificate(folder / f"{name}.pem", folder / f"{name}.key")
    _openssl(
        *("req", "-x509", *_KEY, "-days", "2", "-subj", f"/CN={name}"),
        *("-addext", "keyUsage=critical,keyCertSign,cRLSign"),
        *("-keyout", str(made.key), "-out", str(made.certificate)),
    )
    return made


def make_certificate(ca: Certificate, folder: Path, name: str) -> Certificate:
    """Makes a certificate of a server on this machine or of a client, with the common name `name`."""
    made = Certificate(folder / f"{name}.pem", folder / f"{name}.key")
    request, extension = folder / f"{name}.csr", folder / f"{name}.ext"
    extension.write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\nauthorityKeyIdentifier=keyid\n")
    _openssl("req", *_KEY, "-subj", f"/CN={name}", "-keyout", str(made.key), "-out", str(request))
    _openssl(
        *("x509", "-req", "-in", str(request), "-CA", str(ca.certificate), "-CAkey", str(ca.key), "-CAcreateserial"),
        *("-days", "2", "-extfile", str(extension), "-out", str(made.certificate)),
    )
    return made
