"""The form of a token, and its digest."""

from __future__ import annotations

import re
from hashlib import sha256

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostiary_gateway.sessions import ACCESS_PREFIX, RENEWAL_PREFIX, digest, digest_hex, new_token, well_formed


def test_a_token_is_one_word_that_a_scanner_recognises() -> None:
    """S8, T4."""
    token = new_token().reveal()
    assert re.fullmatch(r"ost_[0-9A-Za-z]{43}[0-9a-f]{8}", token)
    assert well_formed(token.encode())
    assert not well_formed(token.encode(), RENEWAL_PREFIX)
    assert repr(new_token()) == "Secret(***)"


def test_tokens_are_random() -> None:
    """S8, T4: the alphabet is used up in every place that is random, and nothing repeats."""
    made = [new_token().reveal() for _ in range(500)]
    assert len(set(made)) == 500
    for place in range(4, 4 + 42):
        assert len({token[place] for token in made}) > 55


@given(st.data())
@settings(max_examples=200)
def test_a_mistyped_token_is_told_without_any_look_up(data: st.DataObject) -> None:
    """T4."""
    token = new_token().reveal()
    place = data.draw(st.integers(0, len(token) - 1))
    letter = data.draw(st.characters(max_codepoint=0x17F).filter(lambda letter: letter != token[place]))
    assert not well_formed((token[:place] + letter + token[place + 1 :]).encode("utf-8", "surrogatepass"))


@given(st.binary(max_size=80))
def test_no_other_bytes_pass_for_a_token(data: bytes) -> None:
    assert not well_formed(data)
    assert not well_formed(ACCESS_PREFIX + data)


def test_a_store_sees_the_sha256_of_a_token() -> None:
    """C3."""
    assert digest("ost_x") == digest(b"ost_x") == sha256(b"ost_x").digest()
    assert digest("\ud800\xe9")  # a header may hold anything


def test_an_operator_names_a_token_by_itself_or_by_its_digest() -> None:
    token = new_token().reveal()
    renewal = new_token(RENEWAL_PREFIX).reveal()
    assert digest_hex(token) == digest_hex(digest(token).hex().upper()) == digest(token).hex()
    assert digest_hex(renewal) == digest(renewal).hex()
    with pytest.raises(ValueError) as caught:
        digest_hex(token[:-1])
    assert token[4:20] not in str(caught.value)


def test_every_character_is_as_likely_as_any_other() -> None:
    drawn = "".join(new_token().reveal()[4:-8] for _ in range(2000))
    counts = [drawn.count(character) for character in set(drawn)]
    assert len(counts) == 62
    # 1387 of each are expected; six standard deviations away from that is one run in ten million.
    assert all(abs(count - len(drawn) / 62) < 6 * (len(drawn) / 62) ** 0.5 for count in counts)
