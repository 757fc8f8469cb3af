"""The echo keeps what is marked, sees what hides in a body, and answers once."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from ostiary.cli.doctor.traffic.echo import BODY, Echo

RUN = "0123456789abcdef"


@pytest.fixture
def echo() -> Iterator[Echo]:
    with Echo("127.0.0.1", 0, RUN) as made:
        yield made


def send(echo: Echo, data: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", echo.port), 30) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        while part := connection.recv(65536):
            answer += part
    return answer


def test_a_marked_request_is_kept_with_its_bytes(echo: Echo) -> None:
    data = b"GET /x?doctor=%s-0003 HTTP/1.1\r\nX-A: 1\r\nx_a:2\r\n\r\n" % RUN.encode()
    assert send(echo, data).endswith(BODY)
    (arrival,) = echo.arrivals(3)
    assert (arrival.method, arrival.headers) == (b"GET", ((b"X-A", b"1"), (b"x_a", b"2")))
    assert data.startswith(arrival.head)
    assert echo.arrivals(3) == ()


def test_what_others_send_is_answered_and_not_kept(echo: Echo) -> None:
    assert send(echo, b"GET /somebody HTTP/1.1\r\n\r\n").endswith(BODY)
    assert echo.arrivals(0) == ()


def test_a_request_inside_of_a_body_is_seen_and_not_answered(echo: Echo) -> None:
    mark = RUN.encode()
    inner = b"GET /?doctor=%s-0004i HTTP/1.1\r\nHost: x\r\n\r\n" % mark
    head = b"POST /?doctor=%s-0004 HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n" % mark
    assert send(echo, head + b"0\r\n\r\n" + inner).count(b"HTTP/1.1 200") == 1
    outer, smuggled = echo.arrivals(4)
    assert (outer.is_inner, outer.number) == (False, 0)
    assert (smuggled.is_inner, smuggled.number) == (True, 1)


def test_half_a_request_is_kept(echo: Echo) -> None:
    send(echo, b"POST /?doctor=%s-0005 HTTP/1.1\r\nContent-Length: 50\r\n\r\nhalf" % RUN.encode())
    assert len(echo.arrivals(5)) == 1


def test_the_mark_in_the_header_is_enough(echo: Echo) -> None:
    send(echo, b"GET / HTTP/1.1\r\nDoctor-Probe: %s-0006\r\n\r\n" % RUN.encode())
    assert len(echo.arrivals(6)) == 1


@pytest.mark.parametrize("data", [b"", b"\0\0\0", b"nonsense\r\n\r\n", b"GET\r\n\r\n"])
def test_nonsense_ends_nothing(echo: Echo, data: bytes) -> None:
    send(echo, data)
    assert send(echo, b"GET / HTTP/1.1\r\n\r\n").endswith(BODY)
