"""The cluster itself: TLS on loopback, a thread with a loop of its own, and what tests ask of it."""

from __future__ import annotations

import asyncio
import ssl
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import trustme
from cryptography import x509

from ostiary.model import UserInfo
from tests.support.cluster.account_tokens import AccountTokens
from tests.support.cluster.api import Admit, Api, Refuse
from tests.support.cluster.http import (
    MAX_HEAD,
    Disconnected,
    Exchange,
    Malformed,
    Record,
    read_body,
    read_head,
    text_answer,
)
from tests.support.cluster.identity import Trust, authenticate, common_name, impersonate
from tests.support.cluster.resources import RESOURCES, Asked
from tests.support.cluster.status import Refused
from tests.support.cluster.store import Object, Signal
from tests.support.cluster.token_requests import API_SERVER_AUDIENCE
from tests.support.http_server import server_context
from tests.support.plugins import write_kubeconfig

T = TypeVar("T")
SECONDS = 60.0
"""How long a test waits for what must happen at once; only a failure takes that long."""


class Cluster:
    """A Kubernetes API server for tests: ``with Cluster(ca) as cluster: ...``.

    Its certificate is signed by *ca*, and so are its users'. A proxy that sends ``X-Remote-*`` needs a certificate
    of another authority, `proxy_certificate`. It lets everybody do everything who has a credential, unless *refuse*
    is given, and remembers every request in `requests`.
    """

    def __init__(self, ca: trustme.CA, *, hostname: str = "localhost", refuse: Refuse | None = None) -> None:
        self._ca, self._proxy_ca = ca, trustme.CA()
        self._hostname = hostname
        self.trust = Trust(_certificate(ca), _certificate(self._proxy_ca))
        self.requests: list[Record] = []
        self._news = threading.Condition()
        self._connections = 0
        self._writers: dict[Record, asyncio.StreamWriter] = {}
        self._failures: list[Exception] = []
        self._api = Api()
        self._api.refuse = refuse
        self._api.accept_token = self.trust.tokens.__setitem__
        self._started: Future[int] = Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), name="cluster")

    def serve_groups(self, *groups: str) -> None:
        """Serve these API groups from now on besides, and none that were named so before."""
        self._api.more_groups = groups

    def aggregate_discovery(self, aggregates: bool = True) -> None:
        """Answer whoever asks for it with all groups and resources at once, as kube-apiserver does."""
        self._api.aggregates = aggregates

    # --- its life ---

    def __enter__(self) -> Self:
        self._thread.start()
        self.port = self._started.result(SECONDS)
        self.url = self._api.server = f"https://{self._hostname}:{self.port}"
        for namespace in ("default", "kube-system"):
            self.add_namespace(namespace)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(SECONDS)
        assert not self._thread.is_alive()
        if self._failures and error is None:
            raise self._failures[0]

    async def _main(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        try:
            server = await asyncio.start_server(self._connected, "127.0.0.1", 0, ssl=self._tls(), limit=MAX_HEAD)
        except BaseException as error:
            self._started.set_exception(error)
            raise
        self._started.set_result(server.sockets[0].getsockname()[1])
        await self._stop.wait()
        server.close()
        # What is still being served is cancelled by asyncio.run.

    def _tls(self) -> ssl.SSLContext:
        # The real server takes a certificate of an unknown authority and then answers 401; here TLS fails.
        context = server_context(self._ca, self._hostname, "127.0.0.1", client_certificates=ssl.CERT_OPTIONAL)
        self._proxy_ca.configure_trust(context)
        return context

    def _on_loop(self, function: Callable[..., T], *args: Any) -> T:
        async def call() -> T:
            return function(*args)

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result(SECONDS)

    # --- serving ---

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        number = self._connections
        der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        certificate = x509.load_der_x509_certificate(der) if der else None
        try:
            with suppress(Disconnected, OSError):
                while await self._exchange(reader, writer, number, certificate):
                    pass
        except Malformed as error:
            await Exchange(_nothing(number), reader, writer).answer(text_answer(400, f"400 Bad Request: {error}"))
        except Exception as error:
            # A mistake of this double must not look like one of what is being tested.
            self._failures.append(error)
        finally:
            writer.close()

    async def _exchange(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        number: int,
        certificate: x509.Certificate | None,
    ) -> bool:
        """Serve one request; whether another can follow."""
        record = await read_head(reader, connection=number, certificate=common_name(certificate))
        if record is None:
            return False
        exchange = Exchange(record, reader, writer)
        self._writers[record] = writer
        self._remember(record)
        try:
            await read_body(record, reader, writer)
            await self._serve(exchange, certificate)
        finally:
            del self._writers[record]
            record.ended.set()
            self._notify()
        return exchange.reusable and "close" not in [each.lower() for each in record.tokens("Connection")]

    async def _serve(self, exchange: Exchange, certificate: x509.Certificate | None) -> None:
        record = exchange.record
        try:
            record.authenticated = authenticate(record, certificate, self.trust)
            record.user = impersonate(record, record.authenticated, self.trust)
            self._notify()
            await self._api.serve(exchange, record.user)
        except Refused as refused:
            await exchange.answer(refused.answer)

    def _remember(self, record: Record) -> None:
        with self._news:
            self.requests.append(record)
            self._news.notify_all()

    def _notify(self) -> None:
        with self._news:
            self._news.notify_all()

    # --- what was asked of it ---

    def wait_for(self, wanted: Callable[[Record], bool]) -> Record:
        """The first request for which *wanted* holds, waited for if need be."""

        def found() -> Record | None:
            return next((record for record in self.requests if wanted(record)), None)

        with self._news:
            record = self._news.wait_for(found, SECONDS)
        assert record is not None, f"none of {len(self.requests)} requests is the one waited for"
        return record

    def to(self, path: str) -> list[Record]:
        """The requests for exactly this path, whatever their parameters."""
        return [record for record in self.requests if record.path == path]

    def cut(self, record: Record) -> None:
        """Tear down the connection on which *record* is being served, as when the server dies."""
        self._on_loop(self._writers[record].transport.abort)

    # --- credentials ---

    def add_token(self, user: UserInfo | str, *, may_impersonate: bool = False) -> str:
        """A new bearer token for *user*."""
        known = user if isinstance(user, UserInfo) else UserInfo(user)
        token = f"token-{uuid.uuid4()}"
        self.trust.tokens[token] = known
        if may_impersonate:
            self.trust.impersonators.add(known.username)
        return token

    @property
    def accounts(self) -> AccountTokens:
        """What signs the tokens of its service accounts, to be rotated, or to forge one."""
        return self._api.accounts

    def request_token(
        self, namespace: str, account: str, *, audiences: Sequence[str] = (), pod: str = "", seconds: int = 3600
    ) -> str:
        """A token of a service account, which is made if there is none, as TokenRequest gives it."""
        try:
            known = self.get("serviceaccounts", namespace, account)
        except Refused:
            known = self.add("serviceaccounts", namespace, {"metadata": {"name": account}})
        spec = {"audiences": list(audiences) or [API_SERVER_AUDIENCE], "expirationSeconds": seconds}
        return self.accounts.issue(known, spec, self.get("pods", namespace, pod) if pod else None)[0]

    def certificate(self, username: str, *, group: str = "people") -> trustme.LeafCert:
        return self._ca.issue_cert(f"{uuid.uuid4()}.test", common_name=username, organization_name=group)

    def proxy_certificate(self, name: str = "front-proxy") -> trustme.LeafCert:
        """For a proxy that names its users by ``X-Remote-*``; `Trust.proxy_names` says which names count."""
        return self._proxy_ca.issue_cert(f"{uuid.uuid4()}.test", common_name=name)

    @property
    def proxy_ca(self) -> trustme.CA:
        """The authority of those certificates, for a proxy that has a key already."""
        return self._proxy_ca

    def kubeconfig(self, path: Path, user: Mapping[str, Any], *, namespace: str | None = None) -> Path:
        """A kubeconfig at *path*. *user* is its user, as ``{"token": cluster.add_token("jane")}``."""
        authority = path.with_suffix(".ca.pem")
        self._ca.cert_pem.write_to_path(str(authority))
        cluster = {"certificate-authority": str(authority)}
        return write_kubeconfig(path, server=self.url, user=dict(user), cluster=cluster, namespace=namespace)

    @property
    def refuse(self) -> Refuse | None:
        return self._api.refuse

    @refuse.setter
    def refuse(self, refuse: Refuse | None) -> None:
        self._api.refuse = refuse

    @property
    def admit(self) -> Admit | None:
        return self._api.admit

    @admit.setter
    def admit(self, admit: Admit | None) -> None:
        self._api.admit = admit

    # --- what is in it ---

    def add_namespace(self, name: str) -> Object:
        return self.add("namespaces", "", {"metadata": {"name": name}, "status": {"phase": "Active"}})

    def add_pod(
        self,
        namespace: str,
        name: str,
        *,
        labels: Mapping[str, str] | None = None,
        containers: tuple[str, ...] = ("main",),
        ports: Mapping[int, int] | None = None,
        log: bytes = b"",
    ) -> Object:
        """A running pod. *ports* maps its ports to ports on loopback; *log* is what its first container said."""
        pod = {
            "metadata": {"name": name, **({"labels": dict(labels)} if labels else {})},
            "spec": {"nodeName": "node-1", "containers": [{"name": each, "image": "test"} for each in containers]},
            "status": {"phase": "Running"},
        }
        self._on_loop(self._api.container(namespace, name).ports.update, dict(ports or {}))
        self.append_log(namespace, name, log, container=containers[0])
        return self.add("pods", namespace, pod)

    def add(self, resource: str, namespace: str, content: Object) -> Object:
        """Create an object as if somebody had posted it; no request is recorded."""
        return self._on_loop(self._api.store.create, _asked(resource, namespace), content)

    def update(self, resource: str, namespace: str, content: Object) -> Object:
        asked = _asked(resource, namespace, content["metadata"]["name"])
        return self._on_loop(self._api.store.update, asked, content)

    def get(self, resource: str, namespace: str, name: str) -> Object:
        return self._on_loop(self._api.store.get, _asked(resource, namespace, name))

    def remove(self, resource: str, namespace: str, name: str) -> Object:
        return self._on_loop(self._api.store.delete, _asked(resource, namespace, name))

    def append_log(self, namespace: str, pod: str, data: bytes, *, container: str = "main") -> None:
        self._on_loop(lambda: self._api.container(namespace, pod).log(container).append(data))

    def end_log(self, namespace: str, pod: str, *, container: str = "main") -> None:
        """The container has ended: whoever follows its log sees the end of it."""
        self._on_loop(lambda: self._api.container(namespace, pod).log(container).end())

    def bookmark(self) -> None:
        """Send a bookmark to every open watch that allows them."""
        self._on_loop(self._api.store.signal, Signal.BOOKMARK)

    def end_watches(self) -> None:
        """End every open watch in good order, as the server does after ``timeoutSeconds``."""
        self._on_loop(self._api.store.signal, Signal.END)


def _certificate(ca: trustme.CA) -> x509.Certificate:
    return x509.load_pem_x509_certificate(ca.cert_pem.bytes())


def _asked(resource: str, namespace: str, name: str = "") -> Asked:
    kind = next(each for each in RESOURCES if each.plural == resource)
    return Asked("", "", kind.group, kind.version, resource, "", namespace, name)


def _nothing(connection: int) -> Record:
    """Stands for a request that could not be read."""
    return Record(connection, b"", "", b"", [], None)
