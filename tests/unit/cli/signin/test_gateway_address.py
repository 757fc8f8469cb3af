"""Which addresses of a gateway are taken, and as what."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostiary.cli.signin.gateway import checked_address
from ostiary.errors import ConfigurationError


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ("https://gateway.example", "https://gateway.example"),
        ("HTTPS://Gateway.Example:8443/", "https://gateway.example:8443"),
        ("https://gateway.example/Sub/", "https://gateway.example/Sub"),
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
        ("http://[::1]:8080", "http://[::1]:8080"),
        ("http://localhost", "http://localhost"),
    ],
)
def test_one_gateway_has_one_address(given: str, taken: str) -> None:
    assert checked_address(given) == taken
    assert checked_address(taken) == taken


@pytest.mark.parametrize(
    "address",
    [
        "",
        "gateway.example",
        "ftp://gateway.example",
        "http://gateway.example",
        "http://localhost.evil.example",
        "https://ann:word@gateway.example",
        "https://gateway.example?x",
        "https://gateway.example#x",
        "https://gateway.example:port",
        "https://gateway.example/a b",
        "https://gateway.example/\n",
        "https://[::1",
    ],
)
def test_what_is_no_address_or_shows_the_token_is_refused_and_not_quoted(address: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        checked_address(address)
    assert "ann:word" not in str(caught.value)


@settings(max_examples=200)
@given(st.text(max_size=30))
def test_any_text_is_taken_or_refused(text: str) -> None:
    with contextlib.suppress(ConfigurationError):
        assert checked_address(checked_address(text)) == checked_address(text)
