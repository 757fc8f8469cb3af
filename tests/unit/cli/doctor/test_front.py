"""The client's side: which URLs it takes, and how it reads answers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ostiary.cli.arguments import UsageError
from ostiary.cli.doctor.traffic.front import Front, proxy_address


@pytest.mark.parametrize(
    ("url", "host", "authority", "port"),
    [
        ("https://shop.example", None, "shop.example", 443),
        ("https://shop.example/", None, "shop.example", 443),
        ("https://shop.example:8443", None, "shop.example:8443", 8443),
        ("http://127.0.0.1:8080", "shop.example", "shop.example", 8080),
        ("http://[::1]:80", None, "[::1]", 80),
    ],
)
def test_a_url_of_a_proxy(url: str, host: str | None, authority: str, port: int) -> None:
    address = proxy_address(url, host)
    assert (address.authority, address.port) == (authority, port)


def test_what_is_no_url_of_a_proxy_is_refused_and_not_quoted(subtests: pytest.Subtests) -> None:
    cases = [
        *("shop.example", "ftp://shop.example", "https://", "https://user:password@shop.example", "https://a:99999"),
        *("https://shop.example/path", "https://shop.example?q", "http://shop.example", "https://shöp.example"),
    ]
    for url in cases:
        with subtests.test(url=url):
            with pytest.raises(UsageError) as refusal:
                proxy_address(url, None)
            assert "password" not in str(refusal.value)


@pytest.mark.parametrize("host", ["a b", "a/b", "a@b", "a\r\nX: y", "ä"])
def test_what_is_no_host_is_refused(host: str) -> None:
    with pytest.raises(UsageError):
        proxy_address("https://shop.example", host)


@contextmanager
def answering(data: bytes) -> Iterator[Front]:
    """A server that says *data* to the first who comes, and hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(data)

        thread = threading.Thread(target=serve)
        thread.start()
        yield Front(proxy_address(f"http://127.0.0.1:{server.getsockname()[1]}", None))
        thread.join(30)


def test_an_answer_is_read(subtests: pytest.Subtests) -> None:
    cases = [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", 200, b"hi"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n", 200, b"hi"),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 403 No\r\nContent-Length: 0\r\n\r\n", 403, b""),
        (b"HTTP/1.0 400 Bad\r\n\r\nuntil the end", 400, b"until the end"),
        (b"HTTP/1.1 204 No\r\n\r\n", 204, b""),
        (b"", 0, b""),
        (b"nonsense", 0, b"nonsense"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\nhalf", 0, b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\nhalf"),
    ]
    for data, status, body in cases:
        with subtests.test(data=data, status=status, body=body):
            with answering(data) as front:
                answer = front.send(b"GET / HTTP/1.1\r\n\r\n")
            assert (answer.status, answer.body) == (status, body)
            assert front.sent == 1
