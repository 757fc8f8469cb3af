"""What can be read of a ``Negotiate`` header before any key is used; everything else is refused."""

from __future__ import annotations

import contextlib
from base64 import b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostiary.errors import LoginRefused
from ostiary_gateway.providers.kerberos.negotiate import (
    KRB5,
    MS_KRB5,
    NTLM,
    SPNEGO,
    BadEncoding,
    fields,
    next_element,
    only_element,
    read_header,
    read_token,
)
from ostiary_gateway.providers.kerberos.principals import Principal

CIPHER = b"the encrypted authenticator"


def tlv(tag: int, *parts: bytes) -> bytes:
    content = b"".join(parts)
    size = len(content)
    if size < 0x80:
        return bytes((tag, size)) + content
    length = size.to_bytes((size.bit_length() + 7) // 8)
    return bytes((tag, 0x80 | len(length))) + length + content


def encrypted(cipher: bytes, version: bytes = b"\x02") -> bytes:
    return tlv(
        0x30, tlv(0xA0, tlv(2, b"\x12")), tlv(0xA1, tlv(2, version)) if version else b"", tlv(0xA2, tlv(4, cipher))
    )


def ap_req(cipher: bytes = CIPHER, *, realm: bytes = b"EXAMPLE.COM", version: bytes = b"\x02") -> bytes:
    name = tlv(0x30, tlv(0xA0, tlv(2, b"\1")), tlv(0xA1, tlv(0x30, tlv(0x1B, b"HTTP"), tlv(0x1B, b"gateway"))))
    ticket = tlv(
        0x61,
        tlv(
            0x30,
            tlv(0xA0, tlv(2, b"\5")),
            tlv(0xA1, tlv(0x1B, realm)),
            tlv(0xA2, name),
            tlv(0xA3, encrypted(b"ticket" * 60, version)),
        ),
    )
    request = tlv(
        0x30,
        tlv(0xA0, tlv(2, b"\5")),
        tlv(0xA1, tlv(2, b"\x0e")),
        tlv(0xA2, tlv(3, bytes(5))),
        tlv(0xA3, ticket),
        tlv(0xA4, encrypted(cipher, b"")),
    )
    return tlv(0x60, tlv(6, KRB5), b"\1\0", tlv(0x6E, request))


def spnego(inner: bytes, *mechanisms: bytes) -> bytes:
    listed = tlv(0x30, *(tlv(6, each) for each in mechanisms or (KRB5,)))
    return tlv(0x60, tlv(6, SPNEGO), tlv(0xA0, tlv(0x30, tlv(0xA0, listed), tlv(0xA2, tlv(4, inner)))))


def header(token: bytes) -> str:
    return f"Negotiate {b64encode(token).decode()}"


def refusal(value: str) -> LoginRefused:
    with pytest.raises(LoginRefused) as refused:
        read_header(value)
    return refused.value


def test_a_ticket_says_whom_it_is_for_and_with_which_key() -> None:
    ticket = read_header(header(spnego(ap_req())))
    assert ticket is not None
    assert (ticket.service, ticket.key_version) == (Principal(("HTTP", "gateway"), "EXAMPLE.COM"), 2)
    assert ticket.mechanism_token == ap_req()
    assert "authenticator" not in repr(ticket)
    assert read_token(ap_req(version=b"")).key_version == 0


def test_a_copy_is_recognised_however_it_is_wrapped() -> None:
    copies = [ap_req(), spnego(ap_req()), spnego(ap_req(), MS_KRB5, KRB5, NTLM), ap_req(version=b"")]
    assert len({read_token(token).proof_id for token in copies}) == 1
    assert read_token(ap_req(CIPHER + b"!")).proof_id != read_token(ap_req()).proof_id


@pytest.mark.parametrize("value", ["Basic YTpi", "Bearer token", "", "negotiated abc"])
def test_another_scheme_is_no_ticket(value: str) -> None:
    assert read_header(value) is None


def test_the_scheme_may_be_in_any_capitals() -> None:
    assert read_header(header(ap_req()).replace("Negotiate", "NEGOTIATE")) is not None


@pytest.mark.parametrize("token", [b"NTLMSSP\0\1", spnego(b"NTLMSSP\0\1", NTLM)])
def test_ntlm_is_refused_by_name(token: bytes) -> None:
    assert "NTLM" in refusal(header(token)).summary


@pytest.mark.parametrize("token", [spnego(ap_req(), NTLM, KRB5), spnego(ap_req(), SPNEGO)])
def test_a_mechanism_before_kerberos_would_need_a_second_request(token: bytes) -> None:
    assert "first request" in refusal(header(token)).summary


def test_what_is_not_encoded_as_it_must_be_is_refused(subtests: pytest.Subtests) -> None:
    cases = [
        b"\0",
        ap_req() + b"\0",
        spnego(ap_req() + b"\0"),
        spnego(spnego(ap_req())),
        ap_req()[:-1],
        ap_req(realm=b"\xff"),
        tlv(0x60, tlv(6, KRB5), b"\2\0", b""),
        tlv(0x60, tlv(6, MS_KRB5), b"\1\0", b""),
        b"\x60\x80" + ap_req()[4:] + b"\0\0",
    ]
    for token in cases:
        with subtests.test(token=token):
            assert refusal(header(token)).summary == "this is not a Kerberos ticket: run kinit, and try again"


@given(st.binary(max_size=200))
def test_no_bytes_do_any_harm(token: bytes) -> None:
    for value in (header(token), header(spnego(token)), "Negotiate " + token.decode("latin-1")):
        refusal(value)


@given(st.integers(0, len(spnego(ap_req())) - 1), st.integers(0, 255))
def test_a_changed_byte_gives_a_ticket_or_a_refusal(position: int, byte: int) -> None:
    token = bytearray(spnego(ap_req()))
    token[position] = byte
    with contextlib.suppress(LoginRefused):
        assert read_header(header(bytes(token))) is not None


def test_lengths_are_definite_and_as_short_as_possible(subtests: pytest.Subtests) -> None:
    for data in [b"", b"\x30", b"\x30\x01", b"\x30\x81\x01\x00", b"\x30\x80\0\0", b"\x3f\x01\0", b"\x30\x85\1\1\1\1\1"]:
        with subtests.test(data=data), pytest.raises(BadEncoding):
            next_element(data)


def test_fields_stand_once_and_in_order() -> None:
    first, second = tlv(0xA0, b"x"), tlv(0xA1, b"y")
    assert fields(tlv(0x30, first, second)) == {0: b"x", 1: b"y"}
    for wrong in (tlv(0x30, second, first), tlv(0x30, first, first), tlv(0x30, tlv(4, b"x"))):
        with pytest.raises(BadEncoding):
            fields(wrong)
    with pytest.raises(BadEncoding):
        only_element(first + second, 0xA0)
