"""Who registers a plugin is told no where anything about it cannot be known for sure."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme

from ostiary.errors import ProviderError
from ostiary_gateway.interfaces.store_capabilities import StoredObject
from ostiary_gateway.proxy.api_plugin import KIND, ApiPlugin, decode_plugin
from ostiary_gateway.testing import FakeClock
from tests.support.http1 import Script, Upstreamed, upstream
from tests.unit.ostiary_gateway.proxy.gateways import Gateway, at, configured, kubernetes, serving

API = "/apis/ostiary.dev/v1/apiplugins"
NAME = "k.builds.example.com"


def answering(status: int) -> Script:
    """A cluster that says this about any group."""

    async def script(connection: Upstreamed) -> None:
        while True:
            connection.upstream.requests.append(await connection.request())
            connection.send(b"HTTP/1.1 %d Whatever\r\nContent-Length: 2\r\n\r\n{}" % status)

    return script


@pytest.fixture
def files(tmp_path: Path, ca: trustme.CA) -> Path:
    leaf = ca.issue_cert("gateway")
    leaf.cert_chain_pems[0].write_to_path(str(tmp_path / "tls.pem"))
    leaf.private_key_pem.write_to_path(str(tmp_path / "tls.key"))
    ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    return tmp_path


@asynccontextmanager
async def gateway(folder: Path, status: int, **sections: Any) -> AsyncIterator[Gateway]:
    pair = {"certificate": "tls.pem", "key": "tls.key"}
    async with upstream(answering(status)) as made:
        more = {"upstreams": kubernetes(at(made)), "apiPlugins": pair, **sections}
        async with serving(configured(folder, at(made), **more)) as site:
            yield site


async def register(site: Gateway, folder: Path, **more: Any) -> tuple[int, dict[str, Any]]:
    spec = {"upstream": "k", "group": "builds.example.com", "versions": ["v1"], "server": "https://127.0.0.1:1"}
    body = json.dumps({"spec": {**spec, "ca": (folder / "ca.pem").read_text(), **more}}).encode()
    head = (
        f"POST {API} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {site.token}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    answer = await site.client.ask(head.encode() + body, "POST")
    return answer.status, json.loads(answer.body)


async def test_a_group_that_is_free_is_registered_and_kept(files: Path) -> None:
    async with gateway(files, 404) as site:
        status, plugin = await register(site, files)
        assert (status, plugin["metadata"]["name"]) == (201, NAME)
        assert plugin["status"]["createdBy"] == "alice"
        (stored,) = await site.store.list_objects(KIND)
        assert decode_plugin(stored).server == "https://127.0.0.1:1"
        assert (await register(site, files))[0] == 409
        listed = json.loads((await site.ask(API)).body)
        assert [item["metadata"]["name"] for item in listed["items"]] == [NAME]
        assert (await site.ask(f"{API}/{NAME}", method="DELETE")).status == 200
        assert (await site.ask(f"{API}/{NAME}")).status == 404
        assert (await site.ask(f"{API}/{NAME}", method="DELETE")).status == 404


async def test_a_group_of_the_cluster_is_a_conflict(files: Path) -> None:
    async with gateway(files, 200) as site:
        assert (await register(site, files))[0] == 409
        assert await site.store.list_objects(KIND) == []


@pytest.mark.parametrize("status", [401, 403, 500, 503, 302])
async def test_where_the_cluster_does_not_say_the_answer_is_no(files: Path, status: int) -> None:
    async with gateway(files, status) as site:
        assert (await register(site, files))[0] == 503
        assert await site.store.list_objects(KIND) == []


async def test_without_a_certificate_of_the_gateway_nothing_is_registered(files: Path) -> None:
    async with gateway(files, 404, apiPlugins={}) as site:
        status, refused = await register(site, files)
        assert status == 422
        assert "apiPlugins.certificate" in refused["message"]


async def test_another_name_than_that_of_upstream_and_group_is_refused(files: Path) -> None:
    async with gateway(files, 404) as site:
        spec = {"upstream": "k", "group": "builds.example.com", "versions": ["v1"], "server": "https://127.0.0.1:1"}
        body = json.dumps({"metadata": {"name": "other"}, "spec": {**spec, "pins": ["ab" * 32]}}).encode()
        head = f"POST {API} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {site.token}\r\n"
        answer = await site.client.ask(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body, "POST")
        assert answer.status == 400
        assert NAME in answer.body.decode()


async def test_what_the_configuration_declares_is_removed_there(files: Path) -> None:
    declared = {
        "group": "builds.example.com",
        "versions": ["v1"],
        "upstream": "k",
        "server": "https://127.0.0.1:1",
        "tls": {"ca": "ca.pem"},
    }
    pair = {"certificate": "tls.pem", "key": "tls.key"}
    async with gateway(files, 404, apiPlugins={**pair, "declared": [declared]}) as site:
        refused = await site.ask(f"{API}/{NAME}", method="DELETE")
        assert refused.status == 422
        assert "declared in the configuration" in refused.body.decode()
        assert (await register(site, files))[0] == 409


def test_a_plugin_in_the_store_is_read_as_it_was_written(clock: FakeClock) -> None:
    plugin = ApiPlugin(
        "k",
        "builds.example.com",
        ("v1", "v1beta1"),
        "https://127.0.0.1:1",
        "/readyz",
        "PEM",
        frozenset({"ab" * 32}),
        "builds",
        created_at=clock.now(),
        created_by="alice",
        version=7,
    )
    assert decode_plugin(StoredObject(KIND, plugin.name, plugin.encode(), 7, clock.now())) == plugin


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b'{"versions": 7}'])
def test_an_object_that_is_none_is_an_error_and_not_guessed(clock: FakeClock, data: bytes) -> None:
    with pytest.raises(ProviderError):
        decode_plugin(StoredObject(KIND, NAME, data, 1, clock.now()))
