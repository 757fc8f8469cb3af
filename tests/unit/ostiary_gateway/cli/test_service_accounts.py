"""``ostiary-gateway accounts``: what a running gateway is asked, and what is done in the store of a configuration."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from ostiary.model import UserInfo
from ostiary_gateway.cli import main
from ostiary_gateway.sessions import Tokens
from ostiary_gateway.stores.sqlite.token_store import SqliteTokenStore
from tests.support.gateway import GatewayFolder
from tests.support.http_server import HttpServer, Request, Response

Captured = pytest.CaptureFixture[str]
ACCOUNTS = "/apis/ostiary.dev/v1/namespaces/shop/serviceaccounts"
STATUS = {"token": "the-token", "user": "somebody", "expirationTimestamp": "2030-01-01T00:00:00Z"}
SCOPE = "discovery; get pods -n shop"


@pytest.fixture(autouse=True)
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GatewayFolder:
    monkeypatch.chdir(tmp_path)
    return GatewayFolder(tmp_path)


@pytest.mark.parametrize(
    ("options", "spec"),
    [
        ([], {}),
        (["--for", "1h"], {"expirationSeconds": 3600}),
        (["--can", "get pods -n shop"], {"scope": SCOPE}),
        (["--for", "1h", "--can", "get pods -n shop"], {"expirationSeconds": 3600, "scope": SCOPE}),
    ],
    ids=str,
)
def test_a_running_gateway_is_asked_for_exactly_the_token_that_was_asked_for(
    capsys: Captured, site: GatewayFolder, options: list[str], spec: dict[str, Any]
) -> None:
    with HttpServer(Response(201, {"kind": "TokenRequest", "status": STATUS})).running() as server:
        words = ["--server", server.url, "--token-file", "token", *options]
        assert main(["accounts", "token", "shop/deployer", *words]) == 0
    assert capsys.readouterr().out == "the-token\n"
    (request,) = server.requests
    assert (request.method, request.target, request.json) == ("POST", f"{ACCOUNTS}/deployer/token", {"spec": spec})
    assert request.bearer == "a-token-of-the-gateway"


@pytest.mark.parametrize(
    ("words", "method", "target", "body", "told"),
    [
        (["disable", "shop/deployer"], "PATCH", "/deployer", {"spec": {"disabled": True}}, "disabled\n"),
        (["enable", "shop/deployer"], "PATCH", "/deployer", {"spec": {"disabled": False}}, "enabled\n"),
        (["delete", "shop/deployer"], "DELETE", "/deployer", None, "deleted: 2 tokens ended\n"),
        (["create", "shop/deployer"], "POST", "", {"metadata": {"name": "deployer"}, "spec": {}}, "created: u\n"),
        (
            ["create", "shop/deployer", "--description", "for CI"],
            "POST",
            "",
            {"metadata": {"name": "deployer"}, "spec": {"description": "for CI"}},
            "created: u\n",
        ),
    ],
    ids=str,
)
def test_a_running_gateway_is_told_what_to_change(
    capsys: Captured, words: list[str], method: str, target: str, body: object, told: str
) -> None:
    answer = {"kind": "ServiceAccount", "ended": 2, "status": {"username": "u"}}
    with HttpServer(Response(200, answer)).running() as server:
        assert main(["accounts", *words, "--server", server.url, "--token-file", "token"]) == 0
    assert capsys.readouterr().out == f"service account shop/deployer {told}"
    (request,) = server.requests
    assert (request.method, request.target) == (method, ACCOUNTS + target)
    assert (json.loads(request.body) if request.body else None) == body


def test_all_pages_of_a_list_are_read(capsys: Captured) -> None:
    def item(name: str) -> dict[str, Any]:
        return {
            "metadata": {"namespace": "shop", "name": name},
            "spec": {"description": ""},
            "status": {"state": "active", "source": "api"},
        }

    def answer(request: Request) -> Response:
        first = "continue" not in request.query
        metadata = {"continue": "one"} if first else {}
        return Response(200, {"kind": "List", "metadata": metadata, "items": [item("one" if first else "two")]})

    with HttpServer(answer).running() as server:
        words = ["--namespace", "shop", "--server", server.url, "--token-file", "token"]
        assert main(["accounts", "list", *words]) == 0
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split() == ["NAMESPACE", "NAME", "STATE", "SOURCE", "CREATED", "DESCRIPTION"]
    assert [line.split()[:2] for line in lines] == [["shop", "one"], ["shop", "two"]]
    assert [request.path for request in server.requests] == [ACCOUNTS] * 2


def test_the_same_is_done_in_the_store_of_a_configuration(capsys: Captured, site: GatewayFolder) -> None:
    async def make_store() -> None:
        store = SqliteTokenStore(site.folder / "tokens.db")
        await Tokens(store).issue(UserInfo("alice"), provider="staff")
        await store.close()

    def run(*words: str) -> str:
        assert main(["accounts", *words]) == 0
        return capsys.readouterr().out

    asyncio.run(make_store())
    assert run("list") == "there are no service accounts\n"
    created = "service account shop/deployer created: ostiary:serviceaccount:shop:deployer\n"
    assert run("create", "shop/deployer", "--description", "for CI") == created
    assert "for CI" in run("list", "--namespace", "shop")
    assert run("list", "--namespace", "other") == "there are no service accounts\n"
    assert run("token", "shop/deployer", "--for", "1h").startswith("ost_")
    assert run("disable", "shop/deployer") == "service account shop/deployer disabled\n"
    assert main(["accounts", "token", "shop/deployer"]) == 1
    assert capsys.readouterr().out == ""
    assert run("enable", "shop/deployer") == "service account shop/deployer enabled\n"
    run("token", "shop/deployer")
    assert run("delete", "shop/deployer") == "service account shop/deployer deleted: 1 token ended\n"


@pytest.mark.parametrize("name", ["deployer", "shop/", "/deployer", "shop/a/b", ""])
def test_what_is_no_name_of_an_account_is_a_mistake_on_the_command_line(capsys: Captured, name: str) -> None:
    assert main(["accounts", "create", name]) == 2
    assert "ostiary-gateway accounts create shop/deployer" in capsys.readouterr().err
