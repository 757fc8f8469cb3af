"""Gateways for the tests: a real ``ostiary-gateway serve``, or one worker in a thread of this process.

    site = Site(folder, ca)
    site.users("alice"); site.policy(role("team", "dev", User="alice"))
    with site.serving(upstreams=[site.impersonating(cluster)]) as gateway:
        kubectl = gateway.kubectl(gateway.login("alice").token)

Both kinds are talked to in the same way, over TLS. The worker in a thread starts in no time, and its providers can be
objects of the test; signals, several workers and crashes need the process.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

import bcrypt
import httpx
import trustme
import yaml

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary_gateway.config import loads
from ostiary_gateway.config.gateway_config import GatewayConfig
from ostiary_gateway.server.listener import bind
from ostiary_gateway.server.worker import Worker
from tests.support.cluster import Cluster
from tests.support.cluster.client import Kubectl
from tests.support.plugins import write_kubeconfig

T = TypeVar("T")
SECONDS = 30.0
"""How long a test waits for what must happen at once; only a failure takes that long."""
RBAC = "rbac.authorization.k8s.io"
_SERVING = re.compile(r"serving on (?P<scheme>https?)://127\.0\.0\.1:(?P<port>\d+) \(process (?P<pid>\d+)\)")
_HEALTH = re.compile(r"health and metrics on (http://127\.0\.0\.1:\d+)")


def password(user: str) -> str:
    return f"password-of-{user}"


@dataclass(frozen=True)
class Login:
    """What ``/auth`` answered."""

    token: str
    renewal_token: str
    session: str
    user: str
    groups: tuple[str, ...]


# --- the folder of a gateway ---

DEFAULTS: dict[str, Any] = {
    "apiVersion": "ostiary.dev/v1",
    "kind": "Gateway",
    "store": {"type": "sqlite", "path": "tokens.db"},
    "authorization": {"chain": [{"name": "cluster", "type": "rbac", "paths": ["policy"]}]},
    "audit": {"log": {"path": "audit.log"}},
}


class GatewayFolder:
    """A folder with a ``gateway.yaml`` and the policy that it names, for commands that read them."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.path = folder / "gateway.yaml"
        self.audit_log = folder / "audit.log"
        self.policy()
        self.prepare()

    def prepare(self) -> None:
        self._write("token", "a-token-of-the-gateway")
        self.write_config()

    def policy(self, *manifests: Sequence[Mapping[str, Any]], folder: str = "policy") -> Path:
        (self.folder / folder).mkdir(exist_ok=True)
        documents = [document for manifest in manifests for document in manifest]
        return self._write(f"{folder}/policy.yaml", yaml.safe_dump_all(documents)).parent

    def config(self, **sections: Any) -> dict[str, Any]:
        """A whole ``gateway.yaml``; each of *sections* replaces the default."""
        upstream = {"name": "cluster", "server": "https://127.0.0.1:1", "attributes": {"type": "kubernetes"}}
        return {
            **DEFAULTS,
            "identity": [{"name": "me", "type": "single_user"}],
            "upstreams": [{**upstream, "identity": "impersonation", "tokenFile": "token"}],
            **sections,
        }

    def write_config(self, name: str = "gateway.yaml", /, **sections: Any) -> Path:
        return self._write(name, json.dumps(self.config(**sections)))

    def _write(self, name: str, text: str) -> Path:
        # Renamed into place: a gateway that looks at this moment sees the old one or the new one, whole.
        path, new = self.folder / name, self.folder / ".new"
        new.write_text(text)
        os.replace(new, path)
        return path


class Site(GatewayFolder):
    """The folder of a gateway that serves: with certificate, users, groups and credentials as well."""

    def __init__(self, folder: Path, ca: trustme.CA) -> None:
        self.ca = ca
        super().__init__(folder)

    def prepare(self) -> None:
        self.ca.cert_pem.write_to_path(str(self.folder / "ca.pem"))
        self.new_certificate()
        self.users()

    def new_certificate(self) -> None:
        """Another certificate for the listener, in the place of the one before."""
        self._write_leaf("server", self.ca.issue_cert("localhost", "127.0.0.1"))

    def users(self, *names: str) -> None:
        # The cheapest cost that is allowed: what bcrypt costs is not tried here.
        rows = [f"{name}:{bcrypt.hashpw(password(name).encode(), bcrypt.gensalt(4)).decode()}\n" for name in names]
        self._write("users", "".join(rows))

    def groups(self, members: Mapping[str, Sequence[str]]) -> None:
        self._write("groups.yaml", json.dumps({group: list(users) for group, users in members.items()}))

    def impersonating(self, cluster: Cluster, **more: Any) -> dict[str, Any]:
        """An upstream that believes a token which may impersonate."""
        self._write("token", cluster.add_token("gateway", may_impersonate=True))
        return self._kubernetes(cluster, identity="impersonation", tokenFile="token", **more)

    def by_request_header(self, cluster: Cluster, *, common_name: str = "front-proxy", **more: Any) -> dict[str, Any]:
        """An upstream that believes a client certificate of the front proxy's authority."""
        self._write_leaf("proxy", cluster.proxy_certificate(common_name))
        files = {"certificate": "proxy.pem", "key": "proxy.key"}
        return self._kubernetes(cluster, identity="requestHeader", tls=files, **more)

    def _kubernetes(self, cluster: Cluster, *, tls: Mapping[str, str] | None = None, **more: Any) -> dict[str, Any]:
        tls = {"ca": "ca.pem", **(tls or {})}
        return {"name": "cluster", "server": cluster.url, "attributes": {"type": "kubernetes"}, "tls": tls, **more}

    def config(self, **sections: Any) -> dict[str, Any]:
        listen = {"address": "127.0.0.1:0", "tls": {"certificate": "server.pem", "key": "server.key"}}
        return {
            **DEFAULTS,
            "listen": {**listen, **sections.pop("listen", {})},
            "health": {"address": "127.0.0.1:0"},
            "identity": [{"name": "staff", "type": "htpasswd", "path": "users"}],
            **sections,
        }

    def serving(
        self, *, environment: Mapping[str, str] | None = None, early: bool = False, **sections: Any
    ) -> ServedGateway:
        """A gateway in a process of its own; it begins with the ``with`` block and ends with it."""
        return ServedGateway(self, self.write_config(**sections), environment or {}, early=early)

    def in_process(
        self,
        change: Callable[[GatewayConfig], GatewayConfig] = lambda config: config,
        *,
        clock: Clock = SYSTEM_CLOCK,
        **sections: Any,
    ) -> InProcessGateway:
        """A worker in a thread. *change* may put objects of the test into its configuration."""
        config = loads(json.dumps(self.config(**sections)), directory=self.folder, clock=clock)
        return InProcessGateway(self, change(config), clock)

    def events(self) -> list[dict[str, Any]]:
        """The audit events so far; each line must be one."""
        return [json.loads(line) for line in self.audit_log.read_text().splitlines()]

    def _write_leaf(self, name: str, leaf: trustme.LeafCert) -> None:
        self._write(f"{name}.pem", "".join(pem.bytes().decode() for pem in leaf.cert_chain_pems))
        self._write(f"{name}.key", leaf.private_key_pem.bytes().decode())


def role(namespace: str, *rules: Mapping[str, Any] | str, **subjects: str) -> list[dict[str, Any]]:
    """A role in *namespace* (everywhere, if it is empty), bound to *subjects*, as in ``User="alice"``.

    A rule that is a text are resources of the core group, with all verbs.
    """
    full = [_rule(rule) for rule in rules]
    name = f"{'-'.join(subjects.values())}-{abs(hash(json.dumps(full)))}".lower()
    name = re.sub("[,:/]", "-", name)
    kind = "Role" if namespace else "ClusterRole"
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    bound = [{"kind": who, "name": called, "apiGroup": RBAC} for who, called in subjects.items()]
    binding = {"roleRef": {"apiGroup": RBAC, "kind": kind, "name": name}, "subjects": bound}
    return [
        {"apiVersion": f"{RBAC}/v1", "kind": kind, "metadata": metadata, "rules": full},
        {"apiVersion": f"{RBAC}/v1", "kind": f"{kind}Binding", "metadata": metadata, **binding},
    ]


def _rule(rule: Mapping[str, Any] | str) -> dict[str, Any]:
    if isinstance(rule, str):
        return {"apiGroups": [""], "resources": rule.split(), "verbs": ["*"]}
    return dict(rule)


# --- talking to a gateway ---


class Gateway:
    """One that runs: sign in, ask, and give its users their kubeconfigs."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.scheme, self.port = "https", 0
        # Made once, and without the system's authorities: reading those takes longer than most tests.
        self.trust = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        site.ca.configure_trust(self.trust)

    def url(self, host: str = "localhost") -> str:
        return f"{self.scheme}://{host}:{self.port}"

    def http(self, token: str | None = None, *, host: str = "localhost", **options: Any) -> httpx.Client:
        """A client that presents *token*; it trusts the site's authority and nothing else."""
        headers = [*options.pop("headers", ())]
        if token is not None:
            headers.append(("Authorization", f"Bearer {token}"))
        return httpx.Client(
            base_url=self.url(host),
            verify=self.trust,
            headers=headers,
            timeout=options.pop("timeout", SECONDS),
            trust_env=False,
            **options,
        )

    def get(self, path: str, token: str | None = None, **options: Any) -> httpx.Response:
        with self.http(token) as http:
            return http.get(path, **options)

    def login(self, user: str, *, path: str = "/auth") -> Login:
        """Sign in with the user's password."""
        answer = self.get(path, auth=(user, password(user)))
        assert answer.status_code == 200, answer.text
        said = answer.json()
        return Login(said["token"], said["renewal_token"], said["session"], said["user"], tuple(said["groups"]))

    def kubectl(self, token: str, *, host: str = "localhost", namespace: str = "team", **environment: str) -> Kubectl:
        folder = self.site.folder / "kubeconfigs"
        folder.mkdir(exist_ok=True)
        # One name for one user: kubectl's discovery cache lies beside it.
        path = folder / f"{host}-{self.port}-{token[-12:]}"
        authority = {"certificate-authority": str(self.site.folder / "ca.pem")}
        user = {"token": token}
        write_kubeconfig(path, server=self.url(host), user=user, cluster=authority, namespace=namespace)
        return Kubectl(path, **environment)

    def connect(self) -> ssl.SSLSocket:
        """A connection for bytes that no client library would send."""
        plain = socket.create_connection(("127.0.0.1", self.port), timeout=SECONDS)
        return self.trust.wrap_socket(plain, server_hostname="localhost")


class ServedGateway(Gateway):
    """``ostiary-gateway serve`` in a process. Leaving the block sends SIGTERM, and it must end well.

    With *early* the block begins when its addresses are bound: nobody answers requests yet.
    """

    def __init__(self, site: Site, config: Path | None, environment: Mapping[str, str], *, early: bool = False) -> None:
        super().__init__(site)
        self._config, self._environment, self._early = config, environment, early
        self.lines: list[str] = []
        self.health = ""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self.kill()
            error.add_note("".join(["what the gateway said:\n", *self.lines]))
        elif self.process.poll() is None:
            self.stop()
        self._reader.join(SECONDS)

    def command(self) -> list[str]:
        arguments = ["--config", str(self._config)] if self._config is not None else []
        return [sys.executable, "-m", "ostiary_gateway", "serve", *arguments]

    def start(self) -> None:
        self.process = subprocess.Popen(
            self.command(),
            cwd=self.site.folder,
            env={**os.environ, **self._environment},
            stdin=subprocess.DEVNULL,
            stdout=(self.site.folder / "stdout").open("ab"),
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            # A group of its own, so that a crash of all its processes can be tried.
            start_new_session=True,
        )
        self._news = threading.Condition()
        self._began = len(self.lines)
        self._reader = threading.Thread(target=self._read, args=(self.process,))
        self._reader.start()
        try:
            self._read_addresses()
        except BaseException:
            self.kill()
            raise

    def _read_addresses(self) -> None:
        health = _HEALTH.search(self.line("health and metrics on"))
        assert health is not None
        self.health = health[1]
        if self._early:
            return
        serving = _SERVING.search(self.line("serving on"))
        assert serving is not None
        self.scheme, self.port = serving["scheme"], int(serving["port"])

    def line(self, text: str, *, after: int = 0) -> str:
        """The first line on stderr with *text* in it, waited for; *after* leaves out that many of such lines."""

        def found() -> str | None:
            fitting = [line for line in self.lines[self._began :] if text in line]
            if len(fitting) > after:
                return fitting[after]
            return "" if self._ended else None

        with self._news:
            line = self._news.wait_for(found, SECONDS)
        assert line, f"the gateway did not say {text!r}:\n{self.stderr}"
        return line

    @property
    def stderr(self) -> str:
        return "".join(self.lines)

    @property
    def pid(self) -> int:
        return self.process.pid

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def stop(self) -> None:
        """SIGTERM; what was begun may end, and the exit code is 0."""
        self.signal(signal.SIGTERM)
        self.wait()

    def wait(self) -> None:
        code = self.process.wait(SECONDS)
        self._reader.join(SECONDS)
        assert code == 0, self.stderr

    def kill(self) -> None:
        """SIGKILL to all its processes."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(SECONDS)
        self._reader.join(SECONDS)

    def workers(self) -> set[int]:
        """The processes of its workers."""
        shown = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text()
        return {int(each) for each in shown.split()}

    def probe(self, path: str) -> httpx.Response:
        # With a context of ours: httpx would read the system's authorities each time, though no TLS is spoken here.
        return httpx.get(self.health + path, timeout=SECONDS, trust_env=False, verify=self.trust)

    def metric(self, name: str, **labels: str) -> float:
        """The sum of all samples of *name* that have these labels."""
        total = 0.0
        for row in self.probe("/metrics").text.splitlines():
            fits = row.startswith((f"{name} ", f"{name}{{"))
            if fits and all(f'{key}="{value}"' in row for key, value in labels.items()):
                total += float(row.rpartition(" ")[2])
        return total

    _ended = False

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stderr is not None
        self._ended = False
        with process.stderr as stream:
            for line in stream:
                with self._news:
                    self.lines.append(line)
                    self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()


class InProcessGateway(Gateway):
    """A worker on a loop of its own, in a thread."""

    def __init__(self, site: Site, config: GatewayConfig, clock: Clock) -> None:
        super().__init__(site)
        self._config, self._clock = config, clock
        self._started: Future[int] = Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), name="gateway")

    def __enter__(self) -> InProcessGateway:
        self._thread.start()
        self.port = self._started.result(SECONDS)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Nobody listens any more; the second time nothing is left to do."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(SECONDS)
        assert not self._thread.is_alive()

    def call(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run *work* on the gateway's loop, and wait for it."""
        return asyncio.run_coroutine_threadsafe(work(), self._loop).result(SECONDS)

    async def _main(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        try:
            listener = bind(self._config.listen.address)
            grpc = None if self._config.listen.grpc is None else bind(self._config.listen.grpc.address)
            self.grpc_port = 0 if grpc is None else int(grpc.getsockname()[1])
            self.worker = Worker(self._config, listener, clock=self._clock, grpc_listener=grpc)
            await self.worker.start()
        except BaseException as error:
            self._started.set_exception(error)
            raise
        self._started.set_result(listener.getsockname()[1])
        await self._stop.wait()
        await self.worker.close(drain=0.0)
        listener.close()


@contextmanager
def threads(*work: Callable[[], None]) -> Iterator[list[threading.Thread]]:
    """Each of *work* in a thread; the block ends when all have."""
    running = [threading.Thread(target=each) for each in work]
    for thread in running:
        thread.start()
    try:
        yield running
    finally:
        for thread in running:
            thread.join(SECONDS)
            assert not thread.is_alive()
