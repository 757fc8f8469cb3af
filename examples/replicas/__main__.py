"""Start three replicas of a gateway with one PostgreSQL, behind HAProxy, and show failover and revocation.

Needs no terminal, leaves no files behind, and exits with code 1 if a check fails.
"""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import trustme

from examples.gateway.__main__ import OWN, PODS, SECONDS, NotSo, check, heading, show
from examples.gateway.sample_api import SampleApi
from examples.gateway.site import Site
from examples.replicas.database import RUN_AS, database

COUNT = 3
_HAPROXY = """\
defaults
    mode tcp
    timeout connect 2s
    timeout client 1m
    timeout server 1m
    option redispatch 1
    retries 10
listen gateway
    bind 127.0.0.1:{port}
    option httpchk GET /readyz
    default-server check inter 100ms fall 1 rise 1
{servers}
"""


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]


class Replica:
    """A process of ``ostiary-gateway serve``. The configurations of the replicas differ only in their ports."""

    def __init__(self, site: Site, number: int, port: int, health: int, store: Path) -> None:
        self.name, self.port, self.health = f"replica {number}", port, health
        self.url = f"https://localhost:{port}"
        text = (site.folder / "gateway.yaml").read_text()
        text = text.replace('listen: {address: "127.0.0.1:0"', f'listen: {{address: "127.0.0.1:{port}"')
        text = text.replace('health: {address: "127.0.0.1:0"}', f'health: {{address: "127.0.0.1:{health}"}}')
        text = text.replace(
            "store: {type: sqlite, path: tokens.db}",
            f"store: {{type: postgresql, hosts: [{store}], database: postgres, user: {RUN_AS}}}",
        )
        self.config = site.folder / f"gateway-{number}.yaml"
        self.config.write_text(text)

    def start(self) -> None:
        command = [sys.executable, "-m", "ostiary_gateway", "serve", "--config", str(self.config)]
        # Log to a file beside the configuration: a full pipe without a reader would block the gateway.
        with self.config.with_suffix(".log").open("ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def is_ready(self) -> bool:
        try:
            return httpx.get(f"http://127.0.0.1:{self.health}/readyz", trust_env=False).is_success
        except httpx.TransportError:
            return False

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        self._process.terminate()
        check(self._process.wait(SECONDS) == 0, f"{self.name} ends well")


def wait_until(true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 3 * SECONDS
    while not true():
        check(time.monotonic() < deadline, what)
        time.sleep(0.005)


@contextmanager
def load_balancer(folder: Path, replicas: list[Replica]) -> Iterator[str]:
    """Run HAProxy, which forwards TCP connections to the ready replicas, and yield its URL."""
    (port,) = free_ports(1)
    servers = "\n".join(f"    server replica-{each.port} 127.0.0.1:{each.port} port {each.health}" for each in replicas)
    (folder / "haproxy.cfg").write_text(_HAPROXY.format(port=port, servers=servers))
    if shutil.which("haproxy") is None:
        raise SystemExit("this demo needs HAProxy: apt-get install haproxy")
    command = ["haproxy", "-db", "-f", str(folder / "haproxy.cfg")]
    with (folder / "haproxy.log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            yield f"https://localhost:{port}"
        finally:
            process.kill()


class Demo:
    def __init__(self, site: Site, replicas: list[Replica], url: str, trust: ssl.SSLContext) -> None:
        self._site, self._replicas, self._url, self._trust = site, replicas, url, trust

    def run(self) -> None:
        alice, operator = self._sign_in("alice"), self._sign_in("operator")
        self._one_gateway(alice)
        self._one_is_lost(alice)
        self._withdrawn(alice, operator)

    def _sign_in(self, user: str) -> str:
        answer = self._client(self._url).get("/auth", auth=(user, self._site.passwords[user]))
        check(answer.status_code == 200, f"{user} can sign in")
        return str(answer.json()["token"])

    def _one_gateway(self, alice: str) -> None:
        heading("Three replicas are one gateway")
        for replica in self._replicas:
            check(self._asks(replica.url, alice) == 200, f"{replica.name} knows alice")
        show("alice signed in once, at the load balancer; each of the three knows her token.")
        self._show_status()

    def _one_is_lost(self, alice: str) -> None:
        heading("One is lost")
        lost = self._replicas[1]
        lost.kill()
        answers = [self._asks(self._url, alice) for _ in range(20)]
        check(answers == [200] * 20, "nobody notices")
        show(f"kill -9 {lost.name}. The next 20 requests of alice: {len(answers)} times 200.")
        lost.start()
        wait_until(lost.is_ready, f"{lost.name} is ready again")
        check(self._asks(lost.url, alice) == 200, f"{lost.name} knows alice still")
        show(f"{lost.name} is started again, and knows her still: nobody was signed out.")

    def _withdrawn(self, alice: str, operator: str) -> None:
        heading("Access is withdrawn everywhere")
        first, *others = self._replicas
        with self._client(first.url, operator) as client:
            answer = client.post(f"{OWN}/revocations", json={"type": "user", "value": "alice"})
        began = time.monotonic()
        check(answer.status_code == 201, "the operator may revoke")
        show(f"The operator revokes alice at {first.name}.")
        for replica in others:
            wait_until(lambda url=replica.url: self._asks(url, alice) == 401, f"{replica.name} refuses alice")  # type: ignore[misc]
            show(f"{replica.name} refuses her token {(time.monotonic() - began) * 1000:.0f} ms later.")

    def _show_status(self) -> None:
        # Reads the database directly, with the configuration of any replica.
        command = [sys.executable, "-m", "ostiary_gateway", "status", "--config", str(self._replicas[0].config)]

        def ask() -> subprocess.CompletedProcess[str]:
            return subprocess.run(command, check=False, capture_output=True, text=True, timeout=SECONDS)

        wait_until(lambda: ask().returncode == 0, "all three are seen")
        show("$ ostiary-gateway status")
        for line in ask().stdout.splitlines():
            show(line)

    def _client(self, url: str, token: str = "") -> httpx.Client:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return httpx.Client(base_url=url, verify=self._trust, headers=headers, timeout=SECONDS, trust_env=False)

    def _asks(self, url: str, token: str) -> int:
        """Send a request on a new connection, which may go to any replica, and return the status code."""
        with self._client(url, token) as client:
            try:
                return client.get(PODS).status_code
            except httpx.RemoteProtocolError:
                # The request was in flight when her access was revoked, and the connection was closed.
                return 0


def main() -> int:
    authority = trustme.CA()
    trust = ssl.create_default_context()
    authority.configure_trust(trust)
    api = SampleApi(authority)
    try:
        with ExitStack() as stack:
            stack.enter_context(api.running())
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            print("Starting a PostgreSQL, three replicas of a gateway, and HAProxy before them.", flush=True)
            store = stack.enter_context(database())
            site = Site(folder, authority, api)
            ports = free_ports(2 * COUNT)
            replicas = [
                Replica(site, number + 1, ports[2 * number], ports[2 * number + 1], store) for number in range(COUNT)
            ]
            for replica in replicas:
                replica.start()
                stack.callback(replica.stop)
            url = stack.enter_context(load_balancer(folder, replicas))
            wait_until(lambda: all(replica.is_ready() for replica in replicas), "all replicas become ready")
            Demo(site, replicas, url, trust).run()
    except NotSo as error:
        print(f"\nThis is not so: {error}.", file=sys.stderr)
        return 1
    print("\nAll of this was one configuration with `store: {type: postgresql}`, started three times.")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
