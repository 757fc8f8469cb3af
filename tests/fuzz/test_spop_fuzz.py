"""Any bytes at all from whoever connects as a HAProxy: understood, or refused, and never anything else.

`one_input` takes bytes and raises if something is wrong, so that a fuzzer can drive it as well:

    atheris.Setup(sys.argv, one_input); atheris.Fuzz()
"""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from ostiary_gateway.extauth.haproxy import spop
from ostiary_gateway.extauth.haproxy.handler import haproxy_question, upstream_of
from ostiary_gateway.extauth.request import BadQuestion
from ostiary_gateway.http1.request_head import RequestRefused

HEADERS = spop.text(b"host") + spop.text(b"shop.example") + b"\x00\x00"
ARGUMENTS = {
    b"secret": spop.string(b"s"),
    b"method": spop.string(b"GET"),
    b"target": spop.string(b"/x"),
    b"version": spop.string(b"1.1"),
    b"headers": b"\x09" + spop.text(HEADERS),
    b"address": b"\x06\x7f\x00\x00\x01",
    b"stale": b"\x00",
}
QUESTION = spop.text(b"ostiary-shop") + bytes((len(ARGUMENTS),)) + spop.pairs(ARGUMENTS)
PIECES = (
    *(spop.text(name) for name in ARGUMENTS),
    *ARGUMENTS.values(),
    *(b"\x00", b"\x01", b"\x08", b"\x09", b"\xf0", b"\xff", b"\x80", b"\x07", spop.text(b"ostiary-shop"), HEADERS),
)


def one_input(data: bytes) -> None:
    """The payload of a question."""
    try:
        messages = spop.read_messages(data)
    except spop.SpopError:
        return
    assert len(messages) <= spop.MOST_MESSAGES + 1
    for message in messages:
        assert len(message.arguments) <= spop.MOST_ARGUMENTS
        try:
            upstream_of(message)
            question = haproxy_question(message)
        except (BadQuestion, RequestRefused):
            continue
        head = question.request.head
        assert head.method
        assert head.host
        assert head.target
        assert sum(len(name) + len(value) for name, value in head.headers) <= len(data)


@given(st.binary(max_size=300))
@settings(max_examples=300, deadline=None)
@example(QUESTION)
def test_random_bytes(data: bytes) -> None:
    one_input(data)


@given(st.lists(st.sampled_from(PIECES), max_size=16))
@settings(max_examples=300, deadline=None)
def test_what_looks_like_questions(pieces: list[bytes]) -> None:
    one_input(b"".join(pieces))


@given(st.integers(0, len(QUESTION) - 1), st.integers(0, 255), st.integers(0, 8))
@settings(max_examples=300, deadline=None)
def test_a_question_with_a_byte_changed_or_bytes_cut_out(at: int, byte: int, cut: int) -> None:
    one_input(QUESTION[:at] + bytes((byte,)) + QUESTION[at + 1 :])
    one_input(QUESTION[:at] + QUESTION[at + cut :])


def test_the_question_itself_is_understood() -> None:
    (message,) = spop.read_messages(QUESTION)
    assert haproxy_question(message).request.head.target == b"/x"
