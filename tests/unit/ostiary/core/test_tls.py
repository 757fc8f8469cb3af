"""TLS contexts that nobody can change, from keys that no disk ever held."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from hypothesis import given
from hypothesis import strategies as st

from ostiary.core.platform.memory_files import PIPE_HOLDS, in_memory_file
from ostiary.core.tls import SealedContext, TlsSettings, build_context, parse_certificate
from ostiary.errors import TransportError
from ostiary.model import ClientCertificate, Secret
from tests.support.descriptors import descriptors
from tests.support.waiting import until

SERVER_NAME = "api.internal.test"
SECONDS = 30.0


@dataclass(frozen=True)
class Pair:
    chain: str
    key: str


def issue(ca: trustme.CA, name: str = "dev", **options: Any) -> Pair:
    leaf = ca.issue_cert(f"{name}@example.test", common_name=name, **options)
    return Pair("".join(pem.bytes().decode() for pem in leaf.cert_chain_pems), leaf.private_key_pem.bytes().decode())


def trusting(ca: trustme.CA, **settings: Any) -> TlsSettings:
    return TlsSettings(ca.cert_pem.bytes().decode(), **settings)


def encrypted(key_pem: str) -> str:
    key = load_pem_private_key(key_pem.encode(), None)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"open")).decode()


@dataclass
class Greeted:
    """What one handshake told the server."""

    asked_for: str | None = None
    certificate: dict[str, Any] | None = None
    protocol: str | None = None


class Greeter:
    """A TLS server that shakes hands, says a word, and remembers who came."""

    def __init__(self, ca: trustme.CA, *, hostname: str = "localhost", protocols: list[str] | None = None) -> None:
        self._ca = ca
        self._protocols = protocols
        self._leaf = ca.issue_cert(hostname)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.address: tuple[str, int] = self._listener.getsockname()
        self.greeted: list[Greeted] = []

    @contextmanager
    def running(self) -> Iterator[Greeter]:
        thread = threading.Thread(target=self._serve)
        thread.start()
        try:
            yield self
        finally:
            # Shutting the listener down wakes the accept; closing it alone would not.
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            thread.join(SECONDS)

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            client.settimeout(SECONDS)
            self._greet(client)

    def _greet(self, client: socket.socket) -> None:
        greeted = Greeted()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._leaf.configure_cert(context)
        self._ca.configure_trust(context)
        context.verify_mode = ssl.CERT_OPTIONAL
        if self._protocols:
            context.set_alpn_protocols(self._protocols)

        def note_name(_: object, name: str | None, __: object) -> None:
            greeted.asked_for = name

        context.sni_callback = note_name
        try:
            with context.wrap_socket(client, server_side=True) as tls:
                greeted.certificate = tls.getpeercert()
                greeted.protocol = tls.selected_alpn_protocol()
                self.greeted.append(greeted)
                tls.sendall(b"welcome")
        except OSError:
            client.close()


@pytest.fixture
def greeter(ca: trustme.CA) -> Iterator[Greeter]:
    with Greeter(ca).running() as server:
        yield server


def greet(context: ssl.SSLContext, server: Greeter, name: str = "localhost") -> bytes:
    with (
        socket.create_connection(server.address, SECONDS) as plain,
        context.wrap_socket(plain, server_hostname=name) as tls,
    ):
        return tls.recv(7)


async def greet_async(context: ssl.SSLContext, server: Greeter, name: str = "localhost") -> bytes:
    reader, writer = await asyncio.open_connection(*server.address, ssl=context, server_hostname=name)
    try:
        return await reader.readexactly(7)
    finally:
        writer.transport.abort()


def names_of(certificate: dict[str, Any] | None) -> list[str]:
    if not certificate:
        return []
    return [value for part in certificate["subject"] for key, value in part if key == "commonName"]


# --- pairs ---


@pytest.fixture(scope="module")
def chain(ca: trustme.CA) -> str:
    return issue(ca).chain


def test_a_pair_is_read_with_its_validity(ca: trustme.CA) -> None:
    pair = issue(ca)
    certificate = parse_certificate(pair.chain, pair.key)
    assert certificate.chain_pem == pair.chain
    assert certificate.key_pem.reveal() == pair.key
    assert certificate.not_before is not None
    assert certificate.not_after is not None
    assert certificate.not_before.tzinfo is not None
    assert certificate.not_before < certificate.not_after


def test_the_validity_is_the_leafs_and_not_the_authoritys(ca: trustme.CA) -> None:
    child = ca.create_child_ca()
    pair = issue(child)
    assert pair.chain.count("BEGIN CERTIFICATE") == 2
    leaf_alone = pair.chain.split("-----END CERTIFICATE-----")[0] + "-----END CERTIFICATE-----\n"
    assert parse_certificate(pair.chain, pair.key).not_after == parse_certificate(leaf_alone, pair.key).not_after


def test_a_key_of_another_certificate_is_refused(ca: trustme.CA) -> None:
    with pytest.raises(ValueError, match="the client key does not belong to the client certificate"):
        parse_certificate(issue(ca).chain, issue(ca).key)


def test_certificate_and_key_in_each_others_place_are_refused(ca: trustme.CA) -> None:
    pair = issue(ca)
    with pytest.raises(ValueError, match="not a PEM certificate"):
        parse_certificate(pair.key, pair.chain)


def test_a_certificate_in_the_place_of_the_key_is_refused(ca: trustme.CA) -> None:
    pair = issue(ca)
    with pytest.raises(ValueError, match="cannot be loaded as PEM"):
        parse_certificate(pair.chain, pair.chain)


def test_an_encrypted_key_is_refused_without_asking_for_its_passphrase(
    ca: trustme.CA,
) -> None:
    # OpenSSL asks on the terminal. Where there is none it fails with another error, so it is the sentence
    # that proves that nobody was asked.
    pair = issue(ca)
    with pytest.raises(ValueError, match="encrypted with a passphrase"):
        parse_certificate(pair.chain, encrypted(pair.key))


@pytest.mark.parametrize(
    ("chain", "key"),
    [
        ("", ""),
        ("garbage", "garbage"),
        ("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "garbage"),
    ],
)
def test_garbage_is_refused_with_a_sentence(chain: str, key: str) -> None:
    with pytest.raises(ValueError, match="not a PEM certificate"):
        parse_certificate(chain, key)


@pytest.mark.parametrize("key", ["", "garbage", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", "\0"])
def test_a_key_that_is_none_is_refused_with_a_sentence(ca: trustme.CA, key: str) -> None:
    with pytest.raises(ValueError, match="cannot be loaded as PEM"):
        parse_certificate(issue(ca).chain, key)


@given(st.text(st.characters()))
def test_whatever_stands_in_the_place_of_a_certificate_is_refused_and_not_quoted(text: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_certificate(text, text)
    assert repr(caught.value) == "ValueError('the client certificate is not a PEM certificate')"


@given(st.text(st.characters()))
def test_whatever_stands_in_the_place_of_a_key_is_refused_and_not_quoted(chain: str, text: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_certificate(chain, text)
    assert type(caught.value) is ValueError
    assert caught.value.args == ("the client certificate and key cannot be loaded as PEM, or are not a pair",)


def test_no_error_of_a_pair_shows_the_key(ca: trustme.CA) -> None:
    key = issue(ca).key
    line = key.splitlines()[1]
    with pytest.raises(ValueError) as caught:
        parse_certificate(issue(ca).chain, key)
    assert line not in repr(caught.value)
    assert caught.value.__suppress_context__


# --- trust ---


def test_the_servers_authority_is_trusted(ca: trustme.CA, greeter: Greeter) -> None:
    assert greet(build_context(trusting(ca)), greeter) == b"welcome"


def test_an_authority_of_somebody_else_is_not(greeter: Greeter) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        greet(build_context(trusting(trustme.CA())), greeter)


def test_with_an_authority_of_its_own_the_systems_are_not_trusted(
    ca: trustme.CA, greeter: Greeter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = tmp_path / "system.pem"
    bundle.write_bytes(ca.cert_pem.bytes())
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    with pytest.raises(ssl.SSLCertVerificationError):
        greet(build_context(trusting(trustme.CA())), greeter)


def test_without_an_authority_the_systems_are_trusted(
    ca: trustme.CA, greeter: Greeter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = tmp_path / "system.pem"
    bundle.write_bytes(ca.cert_pem.bytes())
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    assert greet(build_context(TlsSettings()), greeter) == b"welcome"


def test_a_server_of_another_name_is_refused(ca: trustme.CA, greeter: Greeter) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        greet(build_context(trusting(ca)), greeter, name="elsewhere.test")


def test_insecure_accepts_any_server(greeter: Greeter) -> None:
    assert greet(build_context(TlsSettings(insecure=True)), greeter, name="elsewhere.test") == b"welcome"


def test_insecure_and_an_authority_contradict_each_other(ca: trustme.CA) -> None:
    with pytest.raises(TransportError, match="contradict") as caught:
        build_context(trusting(ca, insecure=True))
    assert caught.value.code == "tls-invalid"
    assert caught.value.hint


@pytest.mark.parametrize("pem", ["", "garbage", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"])
def test_an_authority_that_is_none_is_refused(pem: str) -> None:
    with pytest.raises(TransportError, match="authority of the server cannot be loaded") as caught:
        build_context(TlsSettings(pem))
    assert caught.value.__cause__ is None


def test_an_intermediate_authority_is_trusted_by_itself(ca: trustme.CA) -> None:
    intermediate = ca.create_child_ca()
    with Greeter(intermediate).running() as server:
        assert greet(build_context(trusting(intermediate)), server) == b"welcome"


def test_old_versions_of_tls_are_not_spoken(ca: trustme.CA) -> None:
    assert build_context(trusting(ca)).minimum_version is ssl.TLSVersion.TLSv1_2


# --- the client certificate ---


def test_the_client_certificate_is_presented(ca: trustme.CA, greeter: Greeter) -> None:
    pair = issue(ca, "dev")
    assert greet(build_context(trusting(ca), parse_certificate(pair.chain, pair.key)), greeter) == b"welcome"
    assert names_of(greeter.greeted[0].certificate) == ["dev"]


def test_without_a_client_certificate_none_is_presented(ca: trustme.CA, greeter: Greeter) -> None:
    greet(build_context(trusting(ca)), greeter)
    assert names_of(greeter.greeted[0].certificate) == []


def test_a_client_certificate_that_is_no_pair_never_becomes_a_context(ca: trustme.CA) -> None:
    mismatched = ClientCertificate(issue(ca).chain, Secret(issue(ca).key))
    with pytest.raises(ValueError, match="does not belong"):
        build_context(trusting(ca), mismatched)


# --- sealed ---


def test_authorities_added_later_are_not_trusted(ca: trustme.CA, greeter: Greeter, tmp_path: Path) -> None:
    bundle = tmp_path / "bundle.pem"
    bundle.write_bytes(ca.cert_pem.bytes())
    context = build_context(trusting(trustme.CA()))
    context.load_verify_locations(cadata=ca.cert_pem.bytes().decode())
    context.load_verify_locations(str(bundle))
    context.load_verify_locations(cafile=str(bundle))
    with pytest.raises(ssl.SSLCertVerificationError):
        greet(context, greeter)


def test_the_systems_authorities_cannot_be_added_later(
    ca: trustme.CA, greeter: Greeter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = tmp_path / "system.pem"
    bundle.write_bytes(ca.cert_pem.bytes())
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    context = build_context(trusting(trustme.CA()))
    context.load_default_certs()
    with pytest.raises(ssl.SSLCertVerificationError):
        greet(context, greeter)


def test_protocols_are_negotiated(ca: trustme.CA) -> None:
    context = build_context(trusting(ca))
    context.set_alpn_protocols(["h2", "http/1.1"])
    with Greeter(ca, protocols=["http/1.1"]).running() as server:
        greet(context, server)
        assert server.greeted[0].protocol == "http/1.1"


def test_the_same_protocols_are_set_only_once(ca: trustme.CA, monkeypatch: pytest.MonkeyPatch) -> None:
    reached: list[list[str]] = []
    monkeypatch.setattr(ssl.SSLContext, "set_alpn_protocols", lambda _, protocols: reached.append(list(protocols)))
    context = build_context(trusting(ca))
    for protocols in (["http/1.1"], ["http/1.1"], ("http/1.1",), ["h2", "http/1.1"], ["h2", "http/1.1"]):
        context.set_alpn_protocols(protocols)
    assert reached == [["http/1.1"], ["h2", "http/1.1"]]


# --- tls-server-name ---


@pytest.fixture
def internal(ca: trustme.CA) -> Iterator[Greeter]:
    """A server whose certificate has only the name that tls-server-name says."""
    with Greeter(ca, hostname=SERVER_NAME).running() as server:
        yield server


def test_the_server_name_is_asked_for_and_verified_in_place_of_the_host(ca: trustme.CA, internal: Greeter) -> None:
    assert greet(build_context(trusting(ca, server_name=SERVER_NAME)), internal, name="localhost") == b"welcome"
    assert internal.greeted[0].asked_for == SERVER_NAME


async def test_the_server_name_is_asked_for_and_verified_under_asyncio(ca: trustme.CA, internal: Greeter) -> None:
    context = build_context(trusting(ca, server_name=SERVER_NAME))
    assert await greet_async(context, internal, name="localhost") == b"welcome"
    assert internal.greeted[0].asked_for == SERVER_NAME


async def test_without_a_server_name_the_host_is_verified_under_asyncio(ca: trustme.CA, internal: Greeter) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        await greet_async(build_context(trusting(ca)), internal, name="localhost")


def test_the_server_name_does_not_make_any_server_acceptable(ca: trustme.CA, greeter: Greeter) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        greet(build_context(trusting(ca, server_name=SERVER_NAME)), greeter, name="localhost")


# --- keys are never on a disk ---


@pytest.fixture
def opened_for_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The paths that Python opens for writing meanwhile, with an empty temp dir for whoever wants one."""
    folder = tmp_path / "temp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    paths: list[str] = []
    mine = threading.get_ident()
    watching = True

    def note(event: str, arguments: tuple[Any, ...]) -> None:
        # A hook cannot be taken away again, so it falls silent instead.
        if watching and event == "open" and threading.get_ident() == mine:
            path, _, flags = arguments
            if isinstance(path, (str, bytes)) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                paths.append(os.fsdecode(path))

    sys.addaudithook(note)
    yield paths
    watching = False
    assert list(folder.iterdir()) == []


def test_the_audit_of_opened_files_sees_a_file(opened_for_writing: list[str], tmp_path: Path) -> None:
    (tmp_path / "seen").write_text("")
    assert opened_for_writing == [str(tmp_path / "seen")]


@pytest.fixture(params=["memfd", "pipe"])
def kind_of_memory(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "pipe":
        monkeypatch.delattr(os, "memfd_create", raising=False)
    elif not hasattr(os, "memfd_create"):
        pytest.skip("this system has no memfd_create")
    return str(request.param)


def test_a_key_is_loaded_without_a_file(
    ca: trustme.CA, greeter: Greeter, opened_for_writing: list[str], kind_of_memory: str
) -> None:
    pair = issue(ca, "dev")
    context = build_context(trusting(ca), parse_certificate(pair.chain, pair.key))
    assert opened_for_writing == []
    greet(context, greeter)
    assert names_of(greeter.greeted[0].certificate) == ["dev"]


def test_no_descriptor_stays_open(ca: trustme.CA, kind_of_memory: str) -> None:
    pair = issue(ca)
    parse_certificate(pair.chain, pair.key)
    before = descriptors()
    for _ in range(3):
        build_context(trusting(ca), parse_certificate(pair.chain, pair.key))
        with pytest.raises(ValueError):
            parse_certificate(pair.chain, issue(ca).key)
        with pytest.raises(ValueError):
            parse_certificate(pair.chain, encrypted(pair.key))
        with pytest.raises(ValueError):
            parse_certificate(pair.chain, "garbage")
    until(lambda: descriptors() <= before)


def test_the_file_is_gone_when_the_block_ends(kind_of_memory: str) -> None:
    with in_memory_file(b"content") as path, open(path, "rb") as file:
        assert file.read() == b"content"
        number = path.rpartition("/")[2]
        assert number in dict(descriptors())
    assert not os.path.exists(path)


def test_the_file_is_gone_when_the_block_fails(kind_of_memory: str) -> None:
    before = descriptors()
    with pytest.raises(RuntimeError), in_memory_file(b"content"):
        raise RuntimeError
    until(lambda: descriptors() <= before)


def test_a_child_process_does_not_inherit_the_file(kind_of_memory: str) -> None:
    with in_memory_file(b"content") as path:
        assert not os.get_inheritable(int(path.rpartition("/")[2]))


def test_a_pipe_takes_what_it_surely_holds_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create", raising=False)
    with in_memory_file(b"x" * PIPE_HOLDS) as path, open(path, "rb") as file:
        assert len(file.read()) == PIPE_HOLDS
    with pytest.raises(ValueError, match="larger than"), in_memory_file(b"x" * (PIPE_HOLDS + 1)):
        pass


def test_many_threads_build_and_use_contexts_at_once(ca: trustme.CA, greeter: Greeter) -> None:
    pairs = [issue(ca, f"dev-{number}") for number in range(8)]

    def build_and_greet(pair: Pair) -> bytes:
        return greet(build_context(trusting(ca), parse_certificate(pair.chain, pair.key)), greeter)

    with ThreadPoolExecutor(len(pairs)) as pool:
        assert set(pool.map(build_and_greet, pairs)) == {b"welcome"}
    assert {name for seen in greeter.greeted for name in names_of(seen.certificate)} == {
        f"dev-{number}" for number in range(8)
    }


def test_a_context_says_what_it_is_and_not_whose_key_it_holds(ca: trustme.CA) -> None:
    pair = issue(ca)
    context = build_context(trusting(ca), parse_certificate(pair.chain, pair.key))
    assert isinstance(context, SealedContext)
    assert pair.key.splitlines()[1] not in repr(context) + repr(vars(context))
