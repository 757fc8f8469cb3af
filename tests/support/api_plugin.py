"""The API plugin of the examples in a process of its own, with certificates that it and the gateway exchange."""

from __future__ import annotations

import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import trustme

from tests.support.gateway import Site

GROUP = "builds.example.com"
GATEWAY_NAME = "ostiary-gateway"
ROOT = Path(__file__).parents[2]
ALL_OF_BUILDS = {"apiGroups": [GROUP], "resources": ["builds"], "verbs": ["*"]}


class PluginFiles:
    """Both sides' certificates, each of an authority of its own, in the folder of a gateway."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.authority, self.gateway_authority = trustme.CA(), trustme.CA()
        self.write("builds-ca.pem", self.authority.cert_pem.bytes())
        self.write("gateway-client-ca.pem", self.gateway_authority.cert_pem.bytes())
        self.write_pair("builds", self.authority.issue_cert("localhost", "127.0.0.1"))
        self.write_pair("gateway-client", self.gateway_authority.issue_cert("gateway", common_name=GATEWAY_NAME))

    def write(self, name: str, data: bytes) -> Path:
        path = self.site.folder / name
        path.write_bytes(data)
        return path

    def write_pair(self, name: str, leaf: trustme.LeafCert) -> None:
        self.write(f"{name}.pem", b"".join(pem.bytes() for pem in leaf.cert_chain_pems))
        self.write(f"{name}.key", leaf.private_key_pem.bytes())

    @property
    def section(self) -> dict[str, Any]:
        """``apiPlugins`` with the gateway's certificate, and without plugins."""
        return {"certificate": "gateway-client.pem", "key": "gateway-client.key"}

    def declared(self, url: str, **more: Any) -> dict[str, Any]:
        """The same with the plugin at *url*."""
        plugin = {
            "group": GROUP,
            "versions": ["v1"],
            "upstream": "cluster",
            "server": url,
            "health": "/readyz",
            "tls": {"ca": "builds-ca.pem"},
            **more,
        }
        return {**self.section, "declared": [plugin]}

    def client_context(self, *, with_certificate: str = "") -> ssl.SSLContext:
        """For a direct call to the plugin, with the pair of this name."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.authority.configure_trust(context)
        if with_certificate:
            folder = self.site.folder
            context.load_cert_chain(folder / f"{with_certificate}.pem", folder / f"{with_certificate}.key")
        return context


class PluginProcess:
    """The plugin. It can be stopped, and started again at the same port."""

    def __init__(self, files: PluginFiles, *, port: int = 0) -> None:
        self._files, self.port = files, port
        self.start()

    def start(self) -> None:
        folder = self._files.site.folder
        command = [sys.executable, "-m", "examples.api_plugin", "--port", str(self.port)]
        command += ["--certificate", str(folder / "builds.pem"), "--key", str(folder / "builds.key")]
        command += ["--gateway-ca", str(folder / "gateway-client-ca.pem"), "--gateway-name", GATEWAY_NAME]
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        words = self.process.stdout.readline().split()
        assert words, "the plugin did not start"
        self.url = words[-1]
        self.port = int(self.url.rpartition(":")[2])

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(10)
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextmanager
def api_plugin(files: PluginFiles, *, port: int = 0) -> Iterator[PluginProcess]:
    plugin = PluginProcess(files, port=port)
    try:
        yield plugin
    finally:
        plugin.stop()
