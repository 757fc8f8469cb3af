"""What ``ostiary doctor`` examines in the tests: one gateway with all doors, and real proxies before one port.

The echo is the doctor's own. It listens at `Clinic.echo_port` while it runs, so every proxy has that as its backend.
"""

from __future__ import annotations

import io
import json
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import trustme

from ostiary.cli import main
from ostiary.gateway.config.settings import Authorization, GatewayConfig, IdentityMode
from ostiary.model import Attributes, Decision, UserInfo, Verdict
from tests.support.doors import HOST, printed, printed_haproxy
from tests.support.gateway import SECONDS, InProcessGateway, Site
from tests.support.ports import free_port

SECRET = "the-secret-of-this-door"
# The kinds whose whole configuration is printed, and which are programs. `Clinic.printed` makes the configuration of
# each, and `running` runs it.
KINDS = ("nginx", "traefik", "caddy", "envoy", "envoy-grpc", "haproxy")


def _door(kind: str) -> dict[str, Any]:
    agent = {"agent": {"address": f"127.0.0.1:{free_port()}"}} if kind == "haproxy" else {}
    return {"name": kind, "proxy": kind, "callers": {"tokenFile": "secret"}, **agent}


class Rules:
    """Denies what is below ``/admin``, and any method but GET and HEAD below ``/read-only``."""

    async def authorize(self, attributes: Attributes) -> Decision:
        request = attributes.request
        is_denied = request.path.startswith("/admin") or request.verb == "impersonate"
        is_denied |= request.path.startswith("/read-only") and request.verb not in ("get", "head")
        return Decision(Verdict.DENY if is_denied else Verdict.ALLOW, "the rules of the test")

    async def relevant_groups(self) -> frozenset[str]:
        return frozenset()


@dataclass(frozen=True)
class Examined:
    """What the doctor printed."""

    code: int
    report: dict[str, Any]
    stderr: str

    def names(self, result: str) -> set[str]:
        return {finding["name"] for finding in self.report["findings"] if finding["result"] == result}

    def finding(self, name: str) -> dict[str, Any]:
        (finding,) = [each for each in self.report["findings"] if each["name"] == name]
        return dict(finding)


@dataclass(frozen=True)
class Clinic:
    site: Site
    gateway: InProcessGateway
    config: Path
    echo_port: int

    @property
    def token_file(self) -> Path:
        return self.site.folder / "token-of-alice"

    def printed(self, proxy: str, port: int, *options: str) -> str:
        """The shipped configuration of *proxy*."""
        url = f"https://localhost:{self.gateway.grpc_port}" if proxy == "envoy-grpc" else self.gateway.url()
        where = ("--gateway", url, "--ca", str(self.site.folder / "ca.pem"))
        backend = ("--listen", f"127.0.0.1:{port}", "--backend", f"shop=http://127.0.0.1:{self.echo_port}")
        if proxy == "haproxy":
            return printed_haproxy(self.config, *backend, *options)
        return printed(proxy, self.config, *backend, *where, *options)

    def examine(self, url: str, *options: str, host: str = HOST, with_token_file: bool = True) -> Examined:
        """Run the doctor against the proxy at *url*."""
        token = ("--token-file", str(self.token_file)) if with_token_file else ()
        code, out, errors = self._run(url, "--host", host, "--output", "json", *token, *options)
        return Examined(code, json.loads(out or "{}"), errors)

    def report(self, url: str) -> str:
        """What the doctor prints for a person."""
        return self._run(url, "--host", HOST, "--token-file", str(self.token_file))[1]

    def _run(self, url: str, *options: str) -> tuple[int, str, str]:
        words = ["doctor", "--through", url, "--echo", f"127.0.0.1:{self.echo_port}"]
        words += ["--ca", str(self.site.folder / "ca.pem")]
        out, errors = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(errors):
            code = main([*words, *options])
        return code, out.getvalue(), errors.getvalue()


@contextmanager
def clinic(folder: Path) -> Iterator[Clinic]:
    site = Site(folder / "gateway", trustme.CA())
    (site.folder / "secret").write_text(SECRET + "\n")
    echo_port = free_port()
    # Our own proxy is asked for by another host, so that its certificate can be verified.
    upstream = {
        "name": "shop",
        "server": f"http://127.0.0.1:{echo_port}",
        "attributes": "http",
        "hosts": [HOST, "localhost"],
    }
    sections: dict[str, Any] = {
        "upstreams": [upstream],
        "doors": [_door(kind) for kind in KINDS],
        "authorization": {"chain": [{"name": "all", "type": "allow_all"}]},
        "listen": {"grpc": {"address": "127.0.0.1:0"}},
    }
    with ExitStack() as stack:
        gateway = stack.enter_context(site.in_process(_with_rules, **sections))
        tokens = gateway.worker.app.shared.tokens
        issued = gateway.call(lambda: tokens.issue(UserInfo("alice", "7", ("dev",)), provider="staff"))
        made = Clinic(site, gateway, site.write_config(**sections), echo_port)
        made.token_file.write_text(issued.token.reveal() + "\n")
        yield made


def _with_rules(config: GatewayConfig) -> GatewayConfig:
    # Our own proxy tells an upstream the user only over TLS; here it may do so in the clear, as the others do.
    upstreams = tuple(replace(each, identity=IdentityMode.REQUEST_HEADER) for each in config.upstreams)
    chain = (Authorization("rules", "rules", Rules()),)
    return replace(config, upstreams=upstreams, authorization=replace(config.authorization, chain=chain))


# --- HAProxy, which asks by a script of ours: no configuration of it is printed here ---

_ASK = """
core.register_action("ask", {"http-req"}, function(txn)
    local headers = {}
    headers["x-ostiary-door"] = {"@SECRET@"}
    headers["x-original-method"] = {txn.sf:method()}
    headers["x-original-uri"] = {txn.sf:pathq()}
    headers["x-original-host"] = {txn.sf:req_hdr("host")}
    headers["x-forwarded-for"] = {txn.sf:src()}
    local token = txn.sf:req_hdr("authorization")
    if token ~= "" then headers["authorization"] = {token} end
    local reply = core.httpclient():get{url = "@GATEWAY@/doors/nginx/shop", headers = headers}
    if reply and reply.status == 200 then
        txn:set_var("txn.allowed", true)
        txn:set_var("txn.user", reply.headers["x-remote-user"][0])
    end
end, 0)
"""
_ASKING = """
global
    lua-load @FOLDER@/ask.lua
    httpclient.ssl.verify none
defaults
    mode http
    timeout client 10s
    timeout server 10s
    timeout connect 2s
frontend edge
    bind 127.0.0.1:@PORT@
    http-request lua.ask
    http-request return status 401 content-type text/plain string no unless { var(txn.allowed) -m bool }
    @MORE@
    http-request set-header X-Remote-User %[var(txn.user)]
    default_backend shop
backend shop
    server shop 127.0.0.1:@ECHO@
"""
_RAW = """
defaults
    mode tcp
    timeout client 10s
    timeout server 10s
    timeout connect 2s
listen edge
    bind 127.0.0.1:@PORT@
    server shop 127.0.0.1:@ECHO@
"""


@contextmanager
def haproxy(clinic: Clinic, folder: Path, more: str = "", *, raw: bool = False) -> Iterator[str]:
    """HAProxy before the echo, which asks the gateway and has *more* lines; *raw*: which passes every byte."""
    folder.mkdir()
    port = free_port()
    values = {"FOLDER": str(folder), "PORT": str(port), "ECHO": str(clinic.echo_port), "MORE": more}
    values |= {"SECRET": SECRET, "GATEWAY": f"https://127.0.0.1:{clinic.gateway.port}"}
    (folder / "ask.lua").write_text(_filled(_ASK, values))
    (folder / "haproxy.cfg").write_text(_filled(_RAW if raw else _ASKING, values))
    with (folder / "log").open("wb") as log:
        command = [shutil.which("haproxy") or "haproxy", "-f", str(folder / "haproxy.cfg")]
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        _wait_for_port(port, process, folder / "log")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(10)


def _filled(text: str, values: dict[str, str]) -> str:
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    return text


def _wait_for_port(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    pause = threading.Event()
    for _ in range(int(SECONDS / 0.05)):
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        assert process.poll() is None, log.read_text()
        pause.wait(0.05)
    raise AssertionError(log.read_text())
