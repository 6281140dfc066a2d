"""Secrets are replaced before they are logged, and other texts are left alone."""

from __future__ import annotations

import pytest

from serving.observing.redaction import redacted
from serving.security.tokens import new_token

SECRET = "s3cr3t-Zx81"


@pytest.mark.parametrize(
    "text",
    [
        f"Authorization: Bearer {SECRET}",
        f"{{'authorization': 'Basic {SECRET}', 'host': 'a'}}",
        f'{{"Authorization": "{SECRET}"}}',
        f"('authorization', b'Bearer {SECRET}')",
        f"proxy-authorization: {SECRET}",
        f"sent Bearer {SECRET} to it",
        f"https://user:{SECRET}@store.example/bucket",
        f"the header Host is no host: 'user:{SECRET}@127.0.0.1'",
        f"redis://:{SECRET}@127.0.0.1:6379/0",
        f"https://{SECRET}@store.example/bucket",
        f"GET /models?X-Amz-Signature={SECRET}&X-Amz-Date=1",
        f"GET /models?a=1&token={SECRET}",
        f"https://a.example/x?sig={SECRET}",
        f"aws_secret_access_key={SECRET}",
        f"AWS_SECRET_ACCESS_KEY: '{SECRET}'",
        f"password={SECRET}; user=a",
        f'"session_token": "{SECRET}"',
        f"cookie: {SECRET}",
    ],
)
def test_secrets_are_replaced(text: str) -> None:
    said = redacted(text)
    assert SECRET not in said
    assert "[secret]" in said


def test_a_token_of_ours_is_replaced_wherever_it_stands() -> None:
    token = new_token()
    assert redacted(f"the token is {token}, as it is") == "the token is [secret], as it is"


@pytest.mark.parametrize(
    "text",
    [
        "model 'ranker': version 3 was refused: score differs in row 4",
        "the own token is in /home/a/.cache/emberline/tokens/8000",
        "HTTP     http://127.0.0.1:8000",
        "s3://bucket/models: 3 folders",
        "took 3.5 ms at 12:30:01, mail to a@b.example",
        "http://[::1]:8000/v2/models?limit=5",
        "basic features are made",
    ],
)
def test_other_texts_are_left_alone(text: str) -> None:
    assert redacted(text) == text
