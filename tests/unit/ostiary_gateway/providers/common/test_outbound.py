"""Calls to identity systems: bounded, over TLS, and without a trace of what they carry."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trustme

from ostiary.errors import ConfigurationError, ProviderError
from ostiary.model import Secret
from ostiary_gateway.providers.common.outbound import Outbound, Rest, SecretFile, all_of, is_safe
from ostiary_gateway.testing import FakeClock
from tests.support.http_server import Request, Response
from tests.support.oauth_server import OAuthServer


class Echo(OAuthServer):
    def answer(self, request: Request) -> Response:
        return Response(200, {"path": request.path, "form": dict(request.form)})


@pytest.fixture
async def echo(ca: trustme.CA) -> AsyncIterator[Echo]:
    with Echo(ca).running() as server:
        yield server


@pytest.fixture
async def outbound(ca: trustme.CA, tmp_path: Path) -> AsyncIterator[Outbound]:
    ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    outbound = Outbound("Acme", ca=tmp_path / "ca.pem", seconds=5)
    yield outbound
    await outbound.close()


async def test_an_answer_is_a_status_headers_and_json(echo: Echo, outbound: Outbound) -> None:
    answer = await outbound.ask("POST", f"{echo.url}/a", form={"b": "c d"})
    assert (answer.status, answer.body) == (200, {"path": "/a", "form": {"b": "c d"}})
    assert answer.text("path") == "/a"
    assert answer.text("form") == answer.text("none") == ""
    assert echo.requests[0].headers["accept-encoding"] == "identity"


async def test_no_proxy_of_the_environment_sees_a_call(
    echo: Echo, outbound: Outbound, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    assert (await outbound.ask("GET", f"{echo.url}/a")).status == 200


async def test_a_redirect_is_an_answer_and_not_followed(echo: Echo, outbound: Outbound) -> None:
    echo.failures["/a"] = Response(302, headers={"Location": f"{echo.url}/b"})
    assert (await outbound.ask("GET", f"{echo.url}/a")).status == 302
    assert echo.paths() == ["/a"]


async def test_a_page_in_an_error_is_no_json_and_no_matter(echo: Echo, outbound: Outbound) -> None:
    echo.failures["/a"] = Response(502, b"<html>Bad Gateway</html>")
    answer = await outbound.ask("GET", f"{echo.url}/a")
    assert (answer.status, answer.body) == (502, None)


async def test_an_answer_is_not_shown(echo: Echo, outbound: Outbound) -> None:
    echo.failures["/a"] = Response(200, {"access_token": "canary"}, {"X-Token": "canary"})
    assert "canary" not in repr(await outbound.ask("GET", f"{echo.url}/a"))


async def test_nobody_there_is_an_outage(outbound: Outbound) -> None:
    with pytest.raises(ProviderError, match="Acme is unavailable"):
        await outbound.ask("GET", "https://127.0.0.1:1/secret-path")


async def test_an_error_names_the_host_and_nothing_more(outbound: Outbound) -> None:
    with pytest.raises(ProviderError) as raised:
        await outbound.ask("GET", "https://127.0.0.1:1/secret-path?code=canary", headers={"Authorization": "canary"})
    assert "127.0.0.1:1" in str(raised.value)
    assert "canary" not in str(raised.value)
    assert "secret-path" not in str(raised.value)
    assert raised.value.__context__ is None


@pytest.mark.parametrize(
    ("url", "safe"),
    [
        ("https://github.com/a", True),
        ("http://127.0.0.1:8080/a", True),
        ("http://[::1]/", True),
        ("http://localhost/", True),
        ("http://github.com/", False),
        ("http://localhost.evil.example/", False),
        ("http://127.0.0.1.evil.example/", False),
        ("ftp://localhost/", False),
        ("https://", False),
        ("//github.com", False),
        ("http://[::1", False),
        ("", False),
    ],
)
async def test_secrets_travel_over_tls_or_not_at_all(outbound: Outbound, url: str, safe: bool) -> None:
    assert is_safe(url) is safe


async def test_an_unsafe_address_is_not_called(echo: Echo, outbound: Outbound) -> None:
    with pytest.raises(ProviderError, match="is unavailable"):
        await outbound.ask("GET", "http://github.com/")


async def test_a_second_close_is_harmless_and_a_call_opens_again(echo: Echo, outbound: Outbound) -> None:
    await outbound.ask("GET", f"{echo.url}/a")
    await outbound.close()
    await outbound.close()
    assert (await outbound.ask("GET", f"{echo.url}/a")).status == 200


def test_an_authority_that_is_none_is_a_mistake(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("nothing")
    for path in (tmp_path / "ca.pem", tmp_path / "missing.pem", tmp_path):
        with pytest.raises(ConfigurationError):
            Outbound("Acme", ca=path)


async def test_the_first_error_ends_the_other_questions() -> None:
    ended = asyncio.Event()

    async def wait() -> int:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return 1

    async def fail() -> int:
        await asyncio.sleep(0)
        raise ProviderError("no")

    with pytest.raises(ProviderError):
        await all_of([wait(), fail()])
    assert ended.is_set()


def test_a_rest_lasts_as_long_as_was_asked_for_and_an_hour_at_most(clock: FakeClock) -> None:
    rest = Rest("Acme", clock)
    rest.check()
    rest.begin(1e9)
    clock.advance(3599)
    with pytest.raises(ProviderError):
        rest.check()
    clock.advance(1)
    rest.check()


def test_a_file_without_one_secret_is_refused_and_not_quoted(
    tmp_path_factory: pytest.TempPathFactory, subtests: pytest.Subtests
) -> None:
    for content in [b"", b"\n", b"two words", b"line\nbreak", b"\xff", b"t\x00ken"]:
        with subtests.test(content=content):
            tmp_path = tmp_path_factory.mktemp("case")
            (tmp_path / "secret").write_bytes(content)
            with pytest.raises(ProviderError) as raised:
                SecretFile(tmp_path / "secret", "the secret").current()
            assert raised.value.__context__ is None
            assert "words" not in str(raised.value).replace("more than one word", "")


def test_a_secret_is_read_anew_each_time(tmp_path: Path) -> None:
    file = SecretFile(tmp_path / "secret", "the secret")
    (tmp_path / "secret").write_text("one\n")
    assert file.current() == Secret("one")
    (tmp_path / "secret").write_text("two")
    assert file.current() == Secret("two")
