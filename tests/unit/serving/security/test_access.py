"""Tests how a caller is identified, also when the access file changes."""

from __future__ import annotations

import logging
import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from serving.errors import Unauthenticated
from serving.security import access as access_module
from serving.security.access import Access
from serving.security.principals import ADMIN, OWNER_NAME, PREDICT, READ, Principal
from serving.security.tokens import MAX_TOKEN_BYTES, digest_of, new_token, token_of
from storage.errors import ConfigError


def write(path: Path, *tokens: dict[str, Any], **rest: Any) -> Path:
    path.write_text(yaml.safe_dump({"tokens": list(tokens), **rest}))
    path.chmod(0o600)
    return path


def entry(token: str, name: str = "web", **rest: Any) -> dict[str, Any]:
    return {"name": name, "sha256": digest_of(token), "roles": ["predict"], **rest}


def bearer(token: str) -> bytes:
    return b"Bearer " + token.encode()


@pytest.fixture
def looks_always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes each call check whether the file has changed."""
    monkeypatch.setattr(access_module, "LOOK_S", 0.0)


def test_a_token_is_known_by_its_digest_in_any_case_of_the_scheme(tmp_path: Path) -> None:
    token = new_token()
    access = Access(write(tmp_path / "a.yaml", entry(token)))
    for scheme in (b"Bearer ", b"bearer ", b"BEARER   "):
        assert access.find(scheme + token.encode()).name == "web"
    assert access.find(bearer(token)) is access.find(bearer(token))


@pytest.mark.parametrize(
    "header", [b"", b"Bearer", b"Bearer ", b"Bearer wrong", b"Basic d2ViOng=", b"Bearer \xff\xfe", b"x" * 70_000]
)
def test_what_nobody_knows_is_refused_also_where_anybody_may_ask(tmp_path: Path, header: bytes) -> None:
    access = Access(write(tmp_path / "a.yaml", entry("right"), anonymous={"roles": ["predict"]}))
    assert access.find(None).roles == PREDICT
    with pytest.raises(Unauthenticated) as refused:
        access.find(header)
    assert "wrong" not in str(refused.value)


def test_without_a_file_a_header_is_between_the_caller_and_a_proxy() -> None:
    access = Access(None, digest_of("own"))
    assert access.find(b"Basic d2ViOng=").roles == PREDICT | READ
    assert access.find(None).is_known is False
    owner = access.find(bearer("own"))
    assert (owner.name, owner.roles) == (OWNER_NAME, PREDICT | READ | ADMIN)
    assert Access(None, open_admin=True).find(None).roles == PREDICT | READ | ADMIN


def test_no_own_token_is_nobodys_token() -> None:
    access = Access(None, "")
    for header in (b"Bearer ", bearer(""), b"Bearer " + b" " * 10):
        assert access.find(header).is_known is False


def test_the_own_token_goes_on_beside_a_file(tmp_path: Path) -> None:
    assert Access(write(tmp_path / "a.yaml"), digest_of("own")).find(bearer("own")).roles == PREDICT | READ | ADMIN


def test_a_certificate_says_who_asks_unless_a_token_does(tmp_path: Path) -> None:
    path = write(tmp_path / "a.yaml", entry("t"), certificates=[{"common_name": "job", "roles": ["read"]}])
    access = Access(path)
    assert access.find(None, "job").name == "CN=job"
    assert access.find(bearer("t"), "job").name == "web"
    assert access.find(None, "stranger").roles == 0


def test_access_ends_after_its_last_day(tmp_path: Path) -> None:
    today = datetime.now(UTC).date()
    access = Access(
        write(
            tmp_path / "a.yaml",
            entry("now", "now", expires=today),
            entry("before", "before", expires=today - timedelta(days=1)),
            certificates=[{"common_name": "old", "roles": ["read"], "expires": today - timedelta(days=1)}],
        )
    )
    assert access.find(bearer("now")).name == "now"
    for shown in ((bearer("before"), ""), (None, "old")):
        for _ in range(2):
            with pytest.raises(Unauthenticated, match="has expired"):
                access.find(*shown)


def test_one_who_is_known_is_refused_from_the_moment_of_expiry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    access = Access(write(tmp_path / "a.yaml", entry("t", expires=datetime.now(UTC).date())))
    access.find(bearer("t"))
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 86_400)
    with pytest.raises(Unauthenticated):
        access.find(bearer("t"))


@pytest.mark.usefixtures("looks_always")
def test_a_changed_file_counts_from_the_next_look(tmp_path: Path) -> None:
    path = write(tmp_path / "a.yaml", entry("one"))
    access = Access(path)
    access.find(bearer("one"))
    write(path, entry("two", "other"))
    assert access.find(bearer("two")).name == "other"
    with pytest.raises(Unauthenticated):
        access.find(bearer("one"))  # The header that was accepted before is refused, too.


@pytest.mark.usefixtures("looks_always")
def test_a_bad_file_changes_nothing_and_is_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write(tmp_path / "a.yaml", entry("one"))
    access = Access(path)
    for bad in ("tokens: [", "tokns: []"):
        caplog.clear()
        path.write_text(bad)
        for _ in range(3):
            assert access.find(bearer("one")).name == "web"
        assert [record.levelname for record in caplog.records] == ["ERROR"]
    caplog.clear()
    path.unlink()
    for _ in range(3):
        assert access.find(bearer("one")).name == "web"
    assert len(caplog.records) == 1
    write(path, entry("two"))
    assert access.find(bearer("two")).name == "web"


@pytest.mark.usefixtures("looks_always")
def test_a_folder_that_is_exchanged_by_a_link_is_a_changed_file(tmp_path: Path) -> None:
    """Exchanges the folder as Kubernetes does it with secrets."""
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        write(tmp_path / name / "a.yaml", entry(name))
    stamp = (tmp_path / "first" / "a.yaml").stat().st_mtime_ns
    os.utime(tmp_path / "second" / "a.yaml", ns=(stamp, stamp))
    link = tmp_path / "now"
    link.symlink_to("first")
    access = Access(link / "a.yaml")
    link.unlink()
    link.symlink_to("second")
    assert access.find(bearer("second")).name == "web"


def test_a_server_does_not_start_with_a_bad_file(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("tokens: 7")
    with pytest.raises(ConfigError, match="tokens"):
        Access(tmp_path / "a.yaml")


@pytest.mark.parametrize(("mode", "word"), [(0o600, ""), (0o640, ""), (0o644, "read"), (0o660, "write")])
def test_a_file_that_others_may_read_or_write_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int, word: str
) -> None:
    path = write(tmp_path / "a.yaml")
    path.chmod(mode)
    with caplog.at_level(logging.WARNING):
        Access(path)
    assert [word in record.getMessage() for record in caplog.records] == ([True] if word else [])


def test_headers_are_remembered_within_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_module, "_MAX_HEADERS", 4)
    access = Access(write(tmp_path / "a.yaml", entry("t")))
    for count in range(50):
        access.find(b"Bearer " + b" " * count + b"t")
        with pytest.raises(Unauthenticated):
            access.find(b"Bearer %d" % count)
    assert len(access._by_header) <= 4


def test_tokens_are_long_random_words() -> None:
    first, second = new_token(), new_token()
    assert first != second
    assert len(first) >= 43
    assert token_of(bearer(first)) == first.encode()
    assert token_of(b"Bearer " + b"x" * (MAX_TOKEN_BYTES + 1)) == b""


@pytest.mark.parametrize(
    ("patterns", "model", "is_covered"),
    [
        (["*"], "anything", True),
        (["ranker"], "ranker", True),
        (["ranker"], "ranker2", False),
        (["ranker"], "Ranker", False),
        (["ranker"], "ranker.item", True),
        (["ranker"], "rankerX.item", False),
        (["ranker.item"], "ranker", False),
        (["ranker.item"], "ranker.user", False),
        (["rank*", "x?"], "xy", True),
        (["rank*", "x?"], "other.ranker", False),
        (["[ab]"], "b", True),
        (["ranker"], "ranker\n", False),
        (["ranker"], "../ranker", False),
        (["ranker"], "", False),
    ],
)
def test_patterns_are_those_of_a_shell_and_tables_belong_to_models(
    patterns: list[str], model: str, is_covered: bool
) -> None:
    assert Principal("p", PREDICT, patterns).covers(model) is is_covered


def test_a_hostile_name_costs_no_time() -> None:
    principal = Principal("p", PREDICT, ["*a*b*c*d*e*f*", "x"])
    began = time.process_time()
    assert principal.covers("." * 60_000 + "a" * 5000) is False
    assert time.process_time() - began < 2.0
