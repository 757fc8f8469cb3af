"""What an issuer says went wrong: quoted, but short, harmless for a terminal, and without what was sent there."""

from __future__ import annotations

from ostiary_gateway.providers.common.authorization_code import reported_error


def test_code_and_description_are_quoted() -> None:
    assert reported_error("invalid_scope") == "invalid_scope"
    assert reported_error("invalid_scope", 'no scope "groups"') == """invalid_scope ("no scope 'groups'")"""
    assert reported_error("", "no code") == ""
    assert reported_error("access_denied", "  ") == "access_denied"


def test_it_is_short_and_steers_no_terminal() -> None:
    assert reported_error("e" * 100, "d" * 1000) == f'{"e" * 64} ("{"d" * 200}…")'
    assert reported_error("bad\r\nx", "a\x1b[31m\n b\u202ec") == 'bad x ("aU+001B[31m bU+202Ec")'


def test_what_was_sent_there_is_not_in_it() -> None:
    text = reported_error("invalid_client", "the secret s3cret-canary is wrong", sent=("s3cret-canary",))
    assert text == 'invalid_client ("the secret *** is wrong")'
    assert "canary" not in reported_error("s3cret-canary", sent=("s3cret-canary",))
