"""The access file: strict, and silent about what it holds."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from serving.security.access_file import MAX_FILE_BYTES, AccessFile, parse_access_file, read_access_file, rules_of
from serving.security.principals import ADMIN, PREDICT, READ
from storage.errors import ConfigError

DIGEST = hashlib.sha256(b"a token").hexdigest()
PATH = Path("access.yaml")


def parse(content: Any) -> AccessFile:
    return parse_access_file(yaml.safe_dump(content), PATH)


def token(**changes: Any) -> dict[str, Any]:
    return {"name": "web", "sha256": DIGEST, "roles": ["predict"], **changes}


def test_a_whole_file_becomes_rules() -> None:
    rules = rules_of(
        parse(
            {
                "tokens": [token(models=["ranker*"], requests_per_second=5, expires=datetime(2027, 1, 31).date())],
                "certificates": [{"common_name": "job", "roles": ["admin"]}],
                "anonymous": {"roles": ["read"], "models": ["open"]},
            }
        )
    )
    web, job, anonymous = rules.by_digest[DIGEST], rules.by_certificate["job"], rules.anonymous
    assert (web.name, web.roles, web.models, web.requests_per_second) == ("web", PREDICT, ("ranker*",), 5)
    assert web.expires_unix == datetime(2027, 2, 1, tzinfo=UTC).timestamp()  # good on its last day
    assert (job.name, job.roles, job.is_for_all) == ("CN=job", ADMIN | READ, True)
    assert (anonymous.roles, anonymous.models, anonymous.is_known) == (READ, ("open",), False)


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "tokens: []\n"])
def test_an_empty_file_lets_nobody_in(text: str) -> None:
    rules = rules_of(parse_access_file(text, PATH))
    assert (dict(rules.by_digest), rules.anonymous.roles) == ({}, 0)


@pytest.mark.parametrize(
    ("content", "place", "hint"),
    [
        ({"token": []}, "token", "did you mean 'tokens'"),
        ({"tokens": [token(role=["read"])]}, "tokens.0.role", "did you mean 'roles'"),
        ({"tokens": [token(), token(secret="x")]}, "tokens.1.secret", "expected roles, models"),
        ({"tokens": [token(roles=["reader"])]}, "tokens.0.roles.0", "'predict', 'read', 'feedback' or 'admin'"),
        ({"tokens": [token(roles=[])]}, "tokens.0.roles", "at least 1"),
        ({"tokens": [token(models=[])]}, "tokens.0.models", "at least 1"),
        ({"tokens": [token(models="ranker")]}, "tokens.0.models", "valid list"),
        ({"tokens": [token(sha256="a token")]}, "tokens.0.sha256", "pattern"),
        ({"tokens": [token(sha256=7)]}, "tokens.0.sha256", "valid string"),
        ({"tokens": [token(name="a\nb")]}, "tokens.0.name", "pattern"),
        ({"tokens": [token(name="own-token")]}, "tokens.0.name", "the server's own"),
        ({"tokens": [token(name="anonymous")]}, "tokens.0.name", "the server's own"),
        ({"tokens": [token(name="@192.0.2.7")]}, "tokens.0.name", "the server's own"),
        ({"tokens": [token(name="CN=job")]}, "tokens.0.name", "pattern"),
        ({"tokens": [token(requests_per_second=0)]}, "tokens.0.requests_per_second", "greater than 0"),
        ({"tokens": [token(expires="soon")]}, "tokens.0.expires", "2027-01-31"),
        ({"tokens": [token(expires=20270131)]}, "tokens.0.expires", "2027-01-31"),
        ({"tokens": [token(expires=datetime(2027, 1, 31, 10))]}, "tokens.0.expires", "2027-01-31"),
        ({"tokens": [token(), token(name="other")]}, "tokens.1.sha256", "the same as of tokens.0"),
        ({"tokens": [token(), token(sha256="0" * 64)]}, "tokens.1.name", "the same as of tokens.0"),
        ({"certificates": [{"common_name": "a", "roles": ["read"]}] * 2}, "certificates.1.common_name", "the same"),
        ({"anonymous": {"roles": ["everything"]}}, "anonymous.roles.0", "'predict'"),
        ({"anonymous": None}, "anonymous", "expected keys"),
    ],
)
def test_what_is_wrong_is_named(content: Any, place: str, hint: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse(content)
    assert refused.value.field == place
    assert hint in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize("text", ["tokens: [", "- 1\n", "just words", "tokens: {a: 1}", "\x00", "a: &a [*a, *a]"])
def test_what_is_no_such_file_is_a_config_error(text: str) -> None:
    with pytest.raises(ConfigError, match=r"access_file: access\.yaml"):
        parse_access_file(text, PATH)


def test_errors_repeat_nothing_of_what_the_file_holds() -> None:
    secret = "ember_do-not-repeat-me"
    for content in (
        {"tokens": [token(sha256=secret)]},
        {"tokens": [token(roles=[secret])]},
        {"tokens": [token(expires=secret)]},
        {"tokens": secret},
        {"certificates": [secret]},
    ):
        with pytest.raises(ConfigError) as refused:
            parse(content)
        assert secret not in str(refused.value)
    with pytest.raises(ConfigError) as refused:
        parse_access_file(f"tokens:\n  - {secret}: [", PATH)
    assert secret not in str(refused.value)


def test_a_file_that_is_not_there_or_too_long(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_access_file(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="Is a directory"):
        read_access_file(tmp_path)
    long = tmp_path / "long.yaml"
    long.write_bytes(b"#" * (MAX_FILE_BYTES + 1))
    with pytest.raises(ConfigError, match="over 1048576 bytes"):
        read_access_file(long)
