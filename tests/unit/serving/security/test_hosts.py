"""Host names by which a browser may reach a server: none that a stranger can let point at it."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from pydantic import ValidationError

from serving.config import ServerConfig
from serving.errors import Forbidden, Unauthenticated
from serving.security.gate import Gate
from serving.security.hosts import KnownHosts
from serving.security.principals import NOBODY
from serving.security.tokens import digest_of


@pytest.mark.parametrize(
    "host",
    [
        "",
        "127.0.0.1:8002",
        "10.0.0.7",
        "[::1]:8002",
        "[fe80::1]",
        "localhost:8002",
        "LOCALHOST",
        "gpu7:8002",
        "shop.localhost",
        "printer.local:80",
        "emberline.corp.internal",
        "nas.home.arpa",
        "ranker.shop.svc:8002",
        "ranker.shop.svc.cluster.local.",
        "console.example.com",
        "Console.Example.COM:443",
        socket.gethostname(),
    ],
)
def test_names_that_no_stranger_can_own_are_known(host: str) -> None:
    assert KnownHosts(["Console.example.com"]).knows(host)


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8002",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "local.evil.example",
        "console.example.com.evil.example",
        "not-console.example.com",
        "evil.example:80:80",
        "[evil.example]:8002",
        "evil.example.",
    ],
)
def test_names_that_somebody_owns_are_not(host: str) -> None:
    assert not KnownHosts(["console.example.com"]).knows(host)


def test_callers_with_a_token_may_use_any_name_and_others_are_told_what_to_do(tmp_path: Path) -> None:
    gate = Gate(ServerConfig(model_repository=tmp_path), digest_of("own"))
    gate.check_host(b"localhost:8002", None, NOBODY)
    gate.check_host(b"evil.example", b"Bearer own", NOBODY)
    for authorization in (None, b"Bearer guessed", b"Basic x"):
        with pytest.raises(Forbidden, match=r"'evil\.example' is not known .* --allowed-host NAME"):
            gate.check_host(b"evil.example", authorization, NOBODY)


def test_where_everybody_needs_a_token_the_refusal_says_that(tmp_path: Path) -> None:
    access = tmp_path / "access.yaml"
    access.write_text("tokens: []\n")
    access.chmod(0o600)
    gate = Gate(ServerConfig(model_repository=tmp_path, access_file=access))
    gate.check_host(b"evil.example", None, NOBODY)  # the check of the role refuses it
    with pytest.raises(Unauthenticated):
        gate.check_host(b"evil.example", b"Bearer guessed", NOBODY)


@pytest.mark.parametrize("name", ["https://a.example", "a.example:8002", "", "a b", "-a.example", "*.example"])
def test_a_name_that_is_none_is_refused_by_its_field(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValidationError, match=r"allowed_hosts\.0\n.*a name such as console\.example\.com"):
        ServerConfig(model_repository=tmp_path, allowed_hosts=(name,))
