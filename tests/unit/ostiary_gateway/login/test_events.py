"""What went wrong at /auth: the person is told a summary, the operator the cause, and nobody a secret."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest

from ostiary.errors import LoginRefused, ProviderError
from ostiary.model import UserInfo
from ostiary_gateway.audit.sign_ins import LoginEventKind
from ostiary_gateway.interfaces.identity import LoginRequest
from tests.unit.ostiary_gateway.signing_in import (
    SECRET,
    Make,
    Says,
    SaysGroups,
    body,
    nobody_came_in,
)


@pytest.mark.parametrize(
    ("refusal", "status", "header"),
    [
        (LoginRefused("no such user", cause=SECRET), 403, None),
        (LoginRefused("wrong", cause=SECRET, www_authenticate="Basic x"), 401, ("WWW-Authenticate", "Basic x")),
        (LoginRefused("later", cause=SECRET, retry_after=0.2), 429, ("Retry-After", "1")),
    ],
)
async def test_a_refusal_says_its_summary_and_no_more(
    make: Make, refusal: LoginRefused, status: int, header: tuple[str, str] | None
) -> None:
    """S20."""
    gateway = make(Says(refusal))
    answer = await gateway.get()
    assert answer.status == status
    assert body(answer)["message"] == refusal.summary
    assert body(answer)["kind"] == "Status"
    assert SECRET.encode() not in answer.body
    assert header is None or answer.header(header[0]) == header[1]
    await nobody_came_in(gateway, answer)
    (event,) = gateway.events
    assert event.kind is LoginEventKind.REFUSED
    assert SECRET in event.reason, "the operator learns the cause"


@pytest.mark.parametrize(
    ("error", "status"),
    [(ProviderError("down", cause="x"), 503), (ConnectionError("no route"), 503), (RuntimeError("a bug"), 500)],
)
async def test_an_outage_is_not_a_refusal(make: Make, error: Exception, status: int) -> None:
    """S20: and whoever runs the gateway reads what the provider said, which the person does not."""
    for gateway in (make(Says(error)), make(Says(UserInfo("a")), groups=[SaysGroups(error)])):
        answer = await gateway.get()
        assert answer.status == status
        await nobody_came_in(gateway, answer)
        assert [event.kind for event in gateway.events] == [LoginEventKind.OUTAGE]
        assert str(error).encode() not in answer.body
    reason = gateway.events[0].reason
    assert reason == ("down: x" if isinstance(error, ProviderError) else f"{type(error).__name__}: {error}")


async def test_what_a_provider_could_not_read_is_named(make: Make, tmp_path: Path) -> None:
    class Forgetful(Says):
        async def handle_client(self, request: LoginRequest) -> Any:
            return (tmp_path / "users").read_text()

    gateway = make(Forgetful())
    assert (await gateway.get()).status == 503
    # The path may be cut: how long it is depends on where the tests run.
    assert "No such file or directory: '/" in gateway.events[0].reason


PASSWORD = f"pass'w\u00f6rd &+ {SECRET}"


IN_BASE64 = [base64.b64encode(text.encode()).decode() for text in (PASSWORD, f"ann:{PASSWORD}")]


@pytest.mark.parametrize(
    "text",
    [
        PASSWORD,
        f"the password {PASSWORD!r} is wrong",
        f"cannot ask https://idp.test/?{urlencode({'p': PASSWORD})}",
        f"cannot ask https://idp.test/{quote(PASSWORD)}",
        f"bad answer: {json.dumps(PASSWORD)}",
        *(f"bad header: {encoded}" for encoded in IN_BASE64),
    ],
)
@pytest.mark.parametrize("how", ["basic", "form", "query", "cookie", "header"])
async def test_what_a_person_sent_is_never_repeated_with_an_error(make: Make, text: str, how: str) -> None:
    """S20: a foreign library may say in its error what it was given."""
    parts: dict[str, Any] = {}
    target = "/auth"
    match how:
        case "basic":
            parts["headers"] = (("authorization", f"Basic {IN_BASE64[1]}"),)
        case "form":
            parts |= {"method": "POST", "form": (("username", "ann"), ("password", PASSWORD))}
        case "query":
            target += "?" + urlencode({"code": PASSWORD})
        case "cookie":
            parts["headers"] = (("cookie", f"other=1; sso={PASSWORD}"),)
        case _:
            parts["headers"] = (("x-badge", PASSWORD),)
    gateway = make(Says(RuntimeError(text)))
    await gateway.get(target, **parts)
    (event,) = gateway.events
    assert event.reason.startswith("RuntimeError")
    assert not [secret for secret in (SECRET, *IN_BASE64) if secret in event.reason]


async def test_also_a_short_password_is_not_repeated(make: Make) -> None:
    """S20."""
    gateway = make(Says(RuntimeError("no xyz here")))
    await gateway.get(headers=(("authorization", f"Basic {base64.b64encode(b'ann:xyz').decode()}"),))
    assert gateway.events[0].reason == "RuntimeError, and its text, which repeats what was sent, is left out"


@pytest.mark.parametrize(
    "secret", ["ost_" + "a1B2" * 6, "ghp_" + "a1B2" * 9, "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhbm4ifQ.x"]
)
async def test_what_looks_like_a_secret_is_not_told_either(make: Make, secret: str) -> None:
    """S20."""
    gateway = make(Says(RuntimeError(f"refused {secret}"), ProviderError("no", cause=f"refused {secret}")))
    await gateway.get()
    await gateway.get("/auth/provider")
    assert [event.reason for event in gateway.events] == ["RuntimeError: refused ***", "no: refused ***"]


async def test_an_error_that_cannot_even_be_printed_is_told_by_its_name(make: Make) -> None:
    class Odd(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    gateway = make(Says(Odd()))
    assert (await gateway.get()).status == 500
    assert gateway.events[0].reason == "Odd"
