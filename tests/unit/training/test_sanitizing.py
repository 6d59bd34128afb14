"""Error messages contain no secret."""

from __future__ import annotations

import pytest

from training.sanitizing import masked


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("postgresql://ada:swordfish@db:5432/x does not answer", "postgresql://***@db:5432/x does not answer"),
        (
            'connection to "host=db user=ada password=swordfish port=5432" failed',
            'connection to "host=db user=ada password=*** port=5432" failed',
        ),
        ("login: PWD='sword fish';UID=ada", "login: PWD=***;UID=ada"),
        ("https://acme.blob/x?sv=1&sig=abc%3D&sslpassword=swordfish", "https://acme.blob/x?sv=1&sig=***&sslpassword=***"),
        ('{"access_token": "swordfish", "expires": 3}', '{"access_token": ***, "expires": 3}'),
        ("aws_secret_access_key = swordfish, region = eu", "aws_secret_access_key = ***, region = eu"),
        ("syntax error: unexpected token: SELECT", "syntax error: unexpected token: SELECT"),
        ("tokenizer = bpe, secretary='ada'", "tokenizer = bpe, secretary='ada'"),
        ("column significance = 3, design=4", "column significance = 3, design=4"),
    ],
)
def test_value_of_a_secret_is_masked_and_other_words_stay(text: str, expected: str) -> None:
    assert masked(text, environ={}) == expected


def test_secrets_of_the_environment_are_masked_the_longest_first() -> None:
    environ = {"SHOP_TOKEN": "abcdef", "SHOP_PASSWORD": "abcdef-ghijkl", "SHORT_TOKEN": "ab", "HOME": "/home/ada"}
    assert masked("abcdef-ghijkl and abcdef of /home/ada, ab", environ=environ) == "*** and *** of /home/ada, ab"


def test_password_in_a_url_of_the_environment_is_masked_without_its_url_too() -> None:
    environ = {"NIGHTSHIFT_DATABASE": "postgresql://ada:sword%40fish@db/x", "AIRFLOW_CONN_SLACK_DEFAULT": "slack://:xoxb-secret@"}
    assert masked("sword@fish, sword%40fish, slack://:xoxb-secret@ and db", environ=environ) == "***, ***, *** and db"


def test_value_that_is_no_url_is_no_error() -> None:
    assert masked("text", environ={"A": "http://[::1@x", "B": "a://b:c@d:e"}) == "text"
