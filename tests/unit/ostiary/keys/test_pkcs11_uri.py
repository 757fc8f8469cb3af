"""PKCS#11 URIs: what RFC 7512 says, and what is refused although it allows it."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostiary.keys.pkcs11 import Pkcs11Uri, parse_uri

texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=30)


def test_the_usual_uri_is_read() -> None:
    text = "token=My%20card;object=kube;id=%01%ff;type=private?module-path=/usr/lib/p11.so&pin-source=file:/etc/pin"
    expected = Pkcs11Uri(
        token="My card", object="kube", id=b"\x01\xff", module_path="/usr/lib/p11.so", pin_source="file:/etc/pin"
    )
    assert parse_uri(text) == expected


@given(token=texts, label=texts, serial=texts, key_id=st.binary(min_size=1, max_size=20), path=texts)
def test_what_is_percent_encoded_comes_back(token: str, label: str, serial: str, key_id: bytes, path: str) -> None:
    encoded = {"token": token.encode(), "object": label.encode(), "serial": serial.encode(), "id": key_id}
    text = ";".join(f"{name}={quote(value, safe='')}" for name, value in encoded.items())
    uri = parse_uri(f"{text}?module-path={quote(path, safe='/')}")
    assert (uri.token, uri.object, uri.serial, uri.id, uri.module_path) == (token, label, serial, key_id, path)


@given(st.text(st.sampled_from("abtokenidjcslh=;&?%0123456789/-:"), max_size=60))
def test_any_text_is_read_or_refused_with_a_sentence(text: str) -> None:
    reason = ""
    try:
        parse_uri(text)
    except ValueError as error:
        # Not the words of a decoder.
        reason = type(error).__name__
    assert reason in ("", "ValueError")


@given(texts)
def test_no_error_quotes_a_value(secret: str) -> None:
    canary = "canary-4d1f"
    with pytest.raises(ValueError) as error:
        parse_uri(f"object=a?pin-value={quote(canary + secret, safe='')}")
    assert canary not in str(error.value)


def test_what_is_wrong_is_told(subtests: pytest.Subtests) -> None:
    cases = [
        ("", "names no key"),
        ("token=card", "names no key"),
        ("object=a;object=b", "duplicate"),
        ("object=a;tokn=card", "none of"),
        ("object=a;library-version=3", "says nothing about the key"),
        ("object=a;type=cert", "not private"),
        ("object=a b", "percent-encoded"),
        ("object=a;id=%0", "percent-encoded"),
        ("object=%ff", "not UTF-8"),
        ("object=a%00b", "NUL"),
        ("object", "no value"),
        ("object=a;", "no value"),
        ("object=a?pin-value=1234", "pin-source"),
        ("object=a?module-name=softhsm2", "module-path"),
        ("object=a?x-vendor=1", "none of"),
        ("object=a;slot-id=one", "not a number"),
    ]
    for text, reason in cases:
        with subtests.test(text=text, reason=reason), pytest.raises(ValueError, match=reason):
            parse_uri(text)
