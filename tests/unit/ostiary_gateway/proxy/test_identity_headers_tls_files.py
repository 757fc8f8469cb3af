"""The TLS files of an upstream: a rotated CA or client certificate is taken up, and half of one never."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme

from ostiary.errors import ProviderError
from ostiary_gateway.config.api_plugins import ApiPluginSettings
from ostiary_gateway.config.listen import ClientTls
from ostiary_gateway.proxy.api_plugin import KIND, ApiPlugin
from ostiary_gateway.proxy.api_plugin_registry import ApiPlugins
from ostiary_gateway.proxy.upstream_client import UpstreamClient
from ostiary_gateway.proxy.upstream_credential import AUTHORITIES, TOKEN_FILE_SECONDS, TlsFiles
from ostiary_gateway.proxy.upstreams import Upstream
from ostiary_gateway.stores.memory import MemoryTokenStore
from ostiary_gateway.testing import FakeClock
from tests.support.http1 import Script, Upstreamed, honest, turn, until, upstream
from tests.support.http1 import Upstream as MadeUpstream
from tests.unit.ostiary_gateway.proxy.gateways import Gateway, at, configured, kubernetes, serving
from tests.unit.ostiary_gateway.proxy.test_upstream_credential import POD, STATUS, WHOLE, credential, says, write

LOOK_AGAIN = TOKEN_FILE_SECONDS + 1


class Rotating:
    """An upstream over TLS whose certificate is from *authority*, and which each new connection is shown."""

    def __init__(self, folder: Path, authority: trustme.CA) -> None:
        self.folder, self.tls = folder, ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.present(authority)
        self.trust(authority)

    def present(self, authority: trustme.CA) -> None:
        authority.issue_cert("localhost").configure_cert(self.tls)

    def trust(self, *authorities: trustme.CA, cut: int = 0) -> None:
        """Write them to the file that ``tls.ca`` names, but for the last *cut* characters."""
        text = "".join(pem_of(each) for each in authorities)
        write(self.folder / "ca.pem", text[: len(text) - cut])

    def section(self, port: int, **more: Any) -> dict[str, Any]:
        # A resumed session is not checked again, and would hide what is tried here.
        tls = {"ca": "ca.pem", "resumption": False, **more.pop("tls", {})}
        server = f"https://localhost:{port}"
        return {"name": "cluster", "server": server, "identity": "none", "attributes": "http", "tls": tls, **more}


def pem_of(authority: trustme.CA) -> str:
    return authority.cert_pem.bytes().decode()


@asynccontextmanager
async def rotating(
    folder: Path, authority: trustme.CA, script: Script = honest, **more: Any
) -> AsyncIterator[tuple[Rotating, MadeUpstream, Gateway]]:
    server = Rotating(folder, authority)
    async with upstream(script, tls=server.tls) as made:
        section = server.section(made.port, **more)
        config = configured(folder, section["server"], upstreams=[section])
        async with serving(config) as site:
            yield server, made, site


async def status_on_new_connection(made: MadeUpstream, site: Gateway) -> int:
    """What a request gets that cannot use a connection from before."""
    for connection in made.connections:
        connection.abort()
    await turn(20)
    return (await site.ask("/x")).status


def look_again(site: Gateway) -> None:
    """A minute passes, and the worker's ticker comes by."""
    site.clock.advance(LOOK_AGAIN)
    site.worker.app.routes.tick(asyncio.get_running_loop().time())


def lines_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.getMessage().startswith("a changed ")]


async def test_a_rotated_ca_is_used_from_the_next_connection_on(
    tmp_path: Path, ca: trustme.CA, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ostiary.gateway")
    other = trustme.CA()
    async with rotating(tmp_path, ca) as (server, made, site):
        assert (await site.ask("/x")).status == 200
        server.present(other)
        server.trust(other)
        assert await status_on_new_connection(made, site) == 503, "the file is looked at once in a while"
        look_again(site)
        assert await status_on_new_connection(made, site) == 200
        server.present(ca)
        assert await status_on_new_connection(made, site) == 503, "the old one is no longer trusted"
        look_again(site)
    assert lines_of(caplog) == ["a changed CA certificate is in use"]


async def test_an_open_connection_outlives_the_ca_and_an_idle_one_does_not(tmp_path: Path, ca: trustme.CA) -> None:
    go_on = asyncio.Event()

    async def script(connection: Upstreamed) -> None:
        while True:
            request = await connection.request()
            if request.target == b"/slow":
                await go_on.wait()
            connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    async with rotating(tmp_path, ca, script) as (server, made, site):
        site.client.send(site.request("/slow"))
        await until(lambda: len(made.connections) == 1)
        await site.ask_once("/x")
        other = trustme.CA()
        server.present(other)
        server.trust(other)
        look_again(site)
        (cluster,) = site.worker.app.routes.upstreams
        assert len(cluster.pool.connections) == 1, "the idle one is closed"
        go_on.set()
        assert (await site.client.answer()).status == 200
        assert (await site.ask("/x")).status == 200
        assert len(made.connections) == 3


@pytest.mark.parametrize("damage", ["missing", "empty", "no certificate", "first cut", "second cut"])
async def test_a_ca_file_that_is_half_written_keeps_the_authorities_of_before(
    tmp_path: Path, ca: trustme.CA, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ostiary.gateway")
    other = trustme.CA()
    async with rotating(tmp_path, ca) as (server, made, site):
        if damage == "missing":
            (tmp_path / "ca.pem").unlink()
        elif damage == "empty":
            write(tmp_path / "ca.pem", "")
        elif damage == "no certificate":
            write(tmp_path / "ca.pem", "soon\n")
        elif damage == "first cut":
            server.trust(other, cut=100)
        else:
            # What is there so far could be used, and the authority that the upstream still has would be missing.
            server.trust(other, ca, cut=100)
        look_again(site)
        assert await status_on_new_connection(made, site) == 200
        # A file that cannot be read is most likely being replaced.
        assert lines_of(caplog) == ([] if damage == "missing" else ["a changed CA certificate cannot be used"])
        server.trust(other, ca)
        look_again(site)
        server.present(other)
        assert await status_on_new_connection(made, site) == 200
        assert lines_of(caplog)[-1] == "a changed CA certificate is in use"


async def test_each_line_of_the_log_names_what_has_changed(
    tmp_path: Path, ca: trustme.CA, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ostiary.gateway")

    def present(name: str) -> None:
        leaf = ca.issue_cert(common_name=name)
        write(tmp_path / "client.pem", leaf.private_key_pem.bytes().decode() + leaf.cert_chain_pems[0].bytes().decode())

    present("one")
    pair = {"certificate": "client.pem", "key": "client.pem"}
    async with rotating(tmp_path, ca, tls=pair) as (server, made, site):
        present("two")
        look_again(site)
        assert lines_of(caplog) == ["a changed client certificate is in use"]
        server.trust(ca, trustme.CA())
        look_again(site)
        assert lines_of(caplog)[1:] == ["a changed CA certificate is in use"]
        present("three")
        server.trust(ca)
        look_again(site)
        assert lines_of(caplog)[2:] == ["a changed client certificate is in use", "a changed CA certificate is in use"]
        write(tmp_path / "client.pem", "")
        server.trust(ca, trustme.CA())
        look_again(site)
        assert lines_of(caplog)[4:] == ["a changed client certificate or CA certificate cannot be used"]
        assert await status_on_new_connection(made, site) == 200


@pytest.mark.parametrize("damage", ["of another key", "empty", "cut off", "not UTF-8"])
async def test_a_client_certificate_that_is_half_replaced_keeps_the_one_of_before(
    tmp_path: Path, ca: trustme.CA, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Certificate and key are two files, and one of them is written first."""
    caplog.set_level(logging.INFO, "ostiary.gateway")

    def present(*, key: bool = True) -> str:
        leaf = ca.issue_cert(common_name="gateway")
        if key:
            write(tmp_path / "client.key", leaf.private_key_pem.bytes().decode())
        write(tmp_path / "client.pem", text := leaf.cert_chain_pems[0].bytes().decode())
        return text

    text = present()
    pair = {"certificate": "client.pem", "key": "client.key"}
    async with rotating(tmp_path, ca, tls=pair) as (_, made, site):
        if damage == "of another key":
            present(key=False)
        elif damage == "not UTF-8":
            (tmp_path / "client.pem").write_bytes(b"\xff" + text.encode())
        else:
            write(tmp_path / "client.pem", "" if damage == "empty" else text[:-100])
        look_again(site)
        assert await status_on_new_connection(made, site) == 200
        assert site.worker.app.routes.upstreams[0].renewed_credential(b"") is None
        present()
        look_again(site)
        assert await status_on_new_connection(made, site) == 200
    assert {*lines_of(caplog)[:-1]} == {"a changed client certificate cannot be used"}
    assert lines_of(caplog)[-1] == "a changed client certificate is in use"


async def test_a_changed_ca_says_nothing_about_whom_a_401_is_about(tmp_path: Path, ca: trustme.CA) -> None:
    """An API that is given no credential of ours says 401 in its own name, though its CA is configured."""
    async with rotating(tmp_path, ca, says(WHOLE)) as (server, made, site):
        (cluster,) = site.worker.app.routes.upstreams
        assert not cluster.knows_us
        server.trust(ca, trustme.CA())
        look_again(site)
        assert not cluster.knows_us
        answer = await site.ask("/x")
        assert (answer.status, answer.body) == (401, STATUS)
        assert len(made.requests) == 1


def sent_for_user(made: MadeUpstream) -> list[bytes | None]:
    """The credential of each request, but for those by which the gateway itself tries whether it is accepted again."""
    return [request.one("Authorization") for request in made.requests if request.target == POD.encode()]


@pytest.mark.parametrize("has_certificate", [False, True])
async def test_a_changed_ca_is_no_other_credential_to_try_after_a_401(
    tmp_path: Path, ca: trustme.CA, has_certificate: bool
) -> None:
    leaf = ca.issue_cert(common_name="gateway")
    write(tmp_path / "client.pem", leaf.private_key_pem.bytes().decode() + leaf.cert_chain_pems[0].bytes().decode())
    pair = {"certificate": "client.pem", "key": "client.pem"} if has_certificate else {}
    async with rotating(tmp_path, ca, says(WHOLE), tls=pair, **credential(tmp_path)) as (server, made, site):
        server.trust(ca, trustme.CA())
        assert (await site.ask(POD)).status == 503
        assert sent_for_user(made) == [b"Bearer first"]
        write(tmp_path / "token", "second")
        server.trust(ca)
        assert (await site.ask(POD)).status == 503
        assert sent_for_user(made) == [b"Bearer first", b"Bearer first", b"Bearer second"]


async def test_what_is_written_while_the_files_are_read_is_seen_the_next_time(tmp_path: Path, ca: trustme.CA) -> None:
    clock, other = FakeClock(), trustme.CA()
    write(tmp_path / "ca.pem", pem_of(ca))
    files = TlsFiles(ClientTls(ca=tmp_path / "ca.pem"), clock)
    assert files.changes(now=True) == []
    write(tmp_path / "ca.pem", pem_of(other))
    assert files.changes(now=True) == [AUTHORITIES]
    write(tmp_path / "ca.pem", pem_of(other) + pem_of(ca))
    files.mark_used()
    assert files.changes(now=True) == [AUTHORITIES]
    files.mark_used()
    assert files.changes(now=True) == []


async def test_over_plain_http_a_ca_file_has_no_effect(
    tmp_path: Path, ca: trustme.CA, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ostiary.gateway")
    write(tmp_path / "ca.pem", pem_of(ca))
    async with upstream() as made:
        section = {"name": "api", "server": at(made), "attributes": "http", "tls": {"ca": "ca.pem"}}
        async with serving(configured(tmp_path, at(made), upstreams=[section])) as site:
            await site.ask("/x")
            write(tmp_path / "ca.pem", pem_of(trustme.CA()))
            look_again(site)
            await site.ask("/x")
            assert len(made.connections) == 1
    assert lines_of(caplog) == []


async def test_an_authority_that_no_file_holds_stays_until_another_one_is_registered(
    tmp_path: Path, ca: trustme.CA, caplog: pytest.LogCaptureFixture
) -> None:
    """That of an API plugin is in the token store."""
    caplog.set_level(logging.INFO, "ostiary.gateway")
    loop, clock, other = asyncio.get_running_loop(), FakeClock(), trustme.CA()
    store, requests, server = MemoryTokenStore(clock=clock), UpstreamClient({}), Rotating(tmp_path, ca)

    def present(name: str) -> None:
        leaf = ca.issue_cert(common_name=name)
        write(tmp_path / "client.pem", leaf.private_key_pem.bytes().decode() + leaf.cert_chain_pems[0].bytes().decode())

    present("one")
    pair = ApiPluginSettings(certificate=tmp_path / "client.pem", key=tmp_path / "client.pem")
    async with upstream(tls=server.tls) as made:
        config = configured(tmp_path, at(made), upstreams=kubernetes(at(made)))
        cluster = Upstream(config.upstreams[0], loop, clock)
        plugins = ApiPlugins(pair, {"k": cluster}, store, loop=loop, clock=clock)

        async def register(authority: trustme.CA) -> None:
            place = f"https://localhost:{made.port}"
            plugin = ApiPlugin(
                "k", "builds.example", ("v1",), place, authorities_pem=pem_of(authority), created_at=clock.now()
            )
            await store.delete_object(KIND, plugin.name)
            await store.put_object(KIND, plugin.name, plugin.encode(), version=0)
            await plugins.refresh()

        async def ask() -> int:
            return (await requests.ask_place(plugins.all()[0].upstream, "/x")).status

        await register(ca)
        assert await ask() == 200
        present("two")
        clock.advance(LOOK_AGAIN)
        plugins.tick(asyncio.get_running_loop().time())
        assert lines_of(caplog) == ["a changed client certificate is in use"]
        assert await ask() == 200
        server.present(other)
        present("three")
        clock.advance(LOOK_AGAIN)
        plugins.tick(asyncio.get_running_loop().time())
        with pytest.raises(ProviderError):
            await ask()
        await register(other)
        assert await ask() == 200
    assert {*lines_of(caplog)} == {"a changed client certificate is in use"}
