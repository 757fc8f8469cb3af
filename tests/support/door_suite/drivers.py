"""The doors that carry requests to an upstream: the built-in proxy, and every other one."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any

from ostiary_gateway.extauth.identity_headers import split_values
from tests.support.door_cases import Case, Headers
from tests.support.door_suite.outcome import HUNG_UP, Arrived, Outcome
from tests.support.door_suite.policy import EXTRA
from tests.support.doors import Client, EchoUpstream, Reply

# They tell each group in a line of its own.
REPEAT_LINES = ("built-in", "traefik")


def ask(client: Client, request: bytes, *, head_only: bool, alone: bool) -> Reply | None:
    """The answer to *request*; None if the other side hung up."""
    if alone:
        client.close()
    try:
        return client.send(request, head_only=head_only)
    except (ConnectionError, EOFError, ssl.SSLError):
        client.close()
        return None
    finally:
        if alone:
            client.close()


class CarryingDoor:
    """*echoes* are the upstreams, by name; they say what arrived."""

    def __init__(
        self, name: str, client: Client, echoes: Mapping[str, EchoUpstream], tokens: Mapping[str, str]
    ) -> None:
        self.name, self.client = name, client
        self._echoes, self._tokens = echoes, tokens

    def send(self, case: Case) -> Outcome:
        for echo in self._echoes.values():
            echo.seen.pop(case.name, None)
        reply = self._reply(case, None if case.user is None else self._tokens[case.user])
        arrivals = [
            arrival(self.name, upstream, echo.seen[case.name])
            for upstream, echo in self._echoes.items()
            if case.name in echo.seen
        ]
        assert len(arrivals) < 2, f"{case.name} arrived at two upstreams"
        return Outcome(HUNG_UP if reply is None else reply.status, arrivals[0] if arrivals else None, reply)

    def _reply(self, case: Case, token: str | None) -> Reply | None:
        return ask(self.client, case.request(token), head_only=case.method == "HEAD", alone=case.alone)


def arrival(door: str, upstream: str, seen: Mapping[str, Any]) -> Arrived:
    """What an upstream says that it got through *door*."""
    headers = tuple((name, value) for name, value in seen["headers"])
    return Arrived(
        users=tuple(_utf8(value) for name, value in headers if name.lower() == "x-remote-user"),
        uid=",".join(value for name, value in headers if name.lower() == "x-remote-uid"),
        groups=_values(door, headers, "x-remote-group"),
        extra=_values(door, headers, f"x-remote-extra-{EXTRA}"),
        method=seen["method"],
        target=seen["target"],
        upstream=upstream,
        headers=headers,
        body=seen.get("body", b""),
    )


def _values(door: str, headers: Headers, name: str) -> tuple[str, ...]:
    lines = [_utf8(value) for key, value in headers if key.lower() == name and value]
    return tuple(lines if door in REPEAT_LINES else [value for line in lines for value in split_values(line)])


def _utf8(value: str) -> str:
    return value.encode("latin-1").decode("utf-8")
