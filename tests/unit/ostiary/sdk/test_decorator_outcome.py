"""What a plugin's function may end with, and what becomes of it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ostiary.core.tls import parse_certificate
from ostiary.errors import AnswerInvalid
from ostiary.model import Secret
from ostiary.sdk import Certificate, Token
from ostiary.sdk.decorator import answer_of
from ostiary.wire.client_authentication import ExecAnswer

NOW = datetime(2026, 1, 1, tzinfo=UTC)
CANARY = "c4n4ry-c4n4ry-c4n4ry"
Issue = Callable[[str], tuple[str, str]]


@pytest.mark.parametrize("text", ["t", Secret("t")])
def test_a_token_is_answered_as_it_is(text: str | Secret) -> None:
    assert answer_of(Token(text), now=NOW) == ExecAnswer(Secret("t"), None, None, None)


def test_a_token_expires_after_a_time_or_at_a_time() -> None:
    later = NOW + timedelta(minutes=15)
    assert answer_of(Token("t", expires_in=timedelta(minutes=15)), now=NOW).expires_at == later
    assert answer_of(Token("t", expires_at=later), now=NOW).expires_at == later


def test_a_certificate_expires_with_itself_unless_told_otherwise(client_certificate: Issue) -> None:
    chain, key = client_certificate("dev")
    soon = NOW + timedelta(hours=1)
    answer = answer_of(Certificate(chain, key), now=NOW)
    assert (answer.token, answer.certificate_pem, answer.key_pem) == (None, chain, Secret(key))
    assert answer.expires_at == parse_certificate(chain, key).not_after
    assert answer_of(Certificate(chain, key, expires_at=soon), now=NOW).expires_at == soon


def test_both_may_come_together_and_expire_with_the_first_of_them(client_certificate: Issue) -> None:
    token = Token("t", expires_in=timedelta(hours=2))
    certificate = Certificate(*client_certificate("dev"), expires_in=timedelta(hours=1))
    answer = answer_of((token, certificate), now=NOW)
    assert answer.token == Secret("t")
    assert answer.certificate_pem == certificate.chain_pem
    assert answer.expires_at == NOW + timedelta(hours=1)


def test_anything_else_is_refused_and_its_text_not_quoted(subtests: pytest.Subtests) -> None:
    cases: list[Any] = [None, "token", (), (Token("a"), Token("b")), (Token("a"), None), {"token": "t"}]
    for result in cases:
        with subtests.test(result=result):
            with pytest.raises(AnswerInvalid) as caught:
                answer_of(result, now=NOW)
            assert "returned" in str(caught.value.cause)
            assert "Token" in str(caught.value.hint)


@pytest.mark.parametrize("expiry", [{"expires_in": timedelta(0)}, {"expires_at": NOW}, {"expires_in": timedelta(-1)}])
def test_a_credential_that_has_expired_is_not_handed_out(expiry: dict[str, Any]) -> None:
    """E54."""
    with pytest.raises(AnswerInvalid, match="no usable answer") as caught:
        answer_of(Token("t", **expiry), now=NOW)
    assert "expired" in str(caught.value.cause)


def test_a_key_that_does_not_belong_to_the_certificate_is_refused(client_certificate: Issue) -> None:
    """E54."""
    chain, _ = client_certificate("dev")
    _, key = client_certificate("ops")
    with pytest.raises(AnswerInvalid) as caught:
        answer_of(Certificate(chain, key), now=NOW)
    assert "does not belong" in str(caught.value.cause)


def test_an_expiry_is_told_once_and_with_its_zone() -> None:
    with pytest.raises(ValueError, match="keep one"):
        Token("t", expires_in=timedelta(1), expires_at=NOW)
    with pytest.raises(ValueError, match="time zone"):
        Certificate("c", "k", expires_at=datetime(2030, 1, 1))


def test_neither_token_nor_key_is_in_the_repr() -> None:
    assert CANARY not in repr(Token(CANARY))
    assert CANARY not in repr(Certificate("chain", CANARY))


def test_a_certificate_may_have_the_address_of_its_key(client_certificate: Issue) -> None:
    chain, key = client_certificate("alice")
    answer = answer_of(Certificate(chain, key_address="pkcs11:object=alice"), now=NOW)
    assert (answer.key_address, answer.key_pem) == ("pkcs11:object=alice", None)
    assert answer.expires_at == parse_certificate(chain, key).not_after


def test_a_certificate_has_one_key(client_certificate: Issue) -> None:
    chain, key = client_certificate("alice")
    for key_pem, address in (("", ""), (key, "pkcs11:object=alice")):
        with pytest.raises(ValueError, match="give one of key_pem and key_address"):
            Certificate(chain, key_pem, key_address=address)
    with pytest.raises(AnswerInvalid):
        answer_of(Certificate(chain, key_address="key.pem"), now=NOW)
