"""An examination proves the echo first, waits for limits, and takes nothing for granted that it did not see."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from ostiary.cli.doctor import examination as module
from ostiary.cli.doctor.examination import PROOFS, Examination
from ostiary.cli.doctor.probe import Finding, Ground, Group
from ostiary.cli.doctor.traffic.echo import Echo
from ostiary.cli.doctor.traffic.front import Front, proxy_address
from ostiary.core.conformance import Result
from ostiary.errors import ProviderError
from ostiary.model import Secret

RUN = "0123456789abcdef"
GROUND = Ground(host=b"shop.example", path=b"/", claim=b"doctor-claim", token=Secret("a-token"))
FORWARD = b""
NO = b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n"
TOO_MANY = b"HTTP/1.1 429 Too Many\r\nRetry-After: 0\r\nContent-Length: 0\r\n\r\n"


@contextmanager
def examining(answer: Callable[[int], bytes], *groups: Group) -> Iterator[Examination]:
    """An examination of a proxy that forwards every byte, or says what *answer* gives for the nth request."""
    with Echo("127.0.0.1", 0, RUN) as echo, socket.create_server(("127.0.0.1", 0), backlog=128) as server:
        threading.Thread(target=_relay, args=(server, echo.port, answer), daemon=True).start()
        front = Front(proxy_address(f"http://127.0.0.1:{server.getsockname()[1]}", None))
        yield Examination(front, echo, RUN, GROUND, groups=groups or tuple(Group))
        with suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)


def _relay(server: socket.socket, port: int, answer: Callable[[int], bytes]) -> None:
    number = 0
    with suppress(OSError):
        while True:
            connection, _ = server.accept()
            with connection:
                data, own = connection.recv(65536), answer(number)
                connection.sendall(own or _from_echo(port, data))
                # So that what was sent is read before the connection ends.
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(65536):
                    pass
            number += 1


def _from_echo(port: int, data: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), 30) as behind:
        behind.sendall(data)
        behind.shutdown(socket.SHUT_WR)
        answer = b""
        while part := behind.recv(65536):
            answer += part
    return answer


def by_name(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.name: finding for finding in findings}


def test_nothing_is_sent_after_a_plain_request_that_did_not_arrive() -> None:
    with examining(lambda number: NO) as examination:
        with pytest.raises(ProviderError) as error:
            examination.prove()
        assert (error.value.code, examination.front.sent) == ("echo-not-reached", 1)
        assert "may not use this path" in str(error.value.hint)


def test_all_plain_requests_must_arrive() -> None:
    with examining(lambda number: NO if number == PROOFS - 1 else FORWARD) as examination:
        with pytest.raises(ProviderError) as error:
            examination.prove()
        assert "more than one backend" in str(error.value.hint)


def test_a_limit_is_waited_for() -> None:
    with examining(lambda number: TOO_MANY if number in (0, 1) else FORWARD) as examination:
        assert examination.prove().status == 200
        assert examination.front.sent == PROOFS + 2


def test_who_is_shut_out_altogether_proves_nothing() -> None:
    with examining(lambda number: FORWARD if number < PROOFS else NO, Group.USER, Group.LEAK) as examination:
        examination.prove()
        findings = by_name(list(examination.findings()))
    assert findings["no-token"].result is Result.SKIPPED
    assert "a plain request did not arrive either" in findings["no-token"].seen
    assert findings["token-leak"].result is Result.SKIPPED


def test_what_is_refused_by_a_limit_was_not_tested() -> None:
    with examining(lambda number: FORWARD if number < PROOFS else TOO_MANY, Group.LEAK) as examination:
        examination.prove()
        findings = by_name(list(examination.findings()))
    assert "429" in findings["token-leak"].seen
    assert findings["token-leak"].result is Result.SKIPPED


def test_the_number_of_requests_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_REQUESTS", PROOFS + 10)
    with examining(lambda number: FORWARD, Group.LEAK, Group.USER) as examination:
        examination.prove()
        findings = list(examination.findings())
        assert examination.front.sent <= PROOFS + 10
    assert any("and no more are" in finding.seen for finding in findings)


def test_a_proxy_that_forwards_everything_fails_nearly_everything() -> None:
    with examining(lambda number: FORWARD) as examination:
        examination.prove()
        findings = by_name(list(examination.findings()))
    failed = {name for name, finding in findings.items() if finding.result is Result.FAIL}
    assert {"no-token", "garbage-token", "user", "identity-headers", "token-leak", "smuggling-both", "host"} <= failed
    assert findings["path-dots"].seen.startswith("needs a path")
