"""A gateway before the real cluster: under the name localhost it impersonates, under 127.0.0.1 it sends X-Remote-*.

Its policy is the dump of the cluster's roles, as the how-to page takes it over, and its own role in the cluster is the
one that ``ostiary-gateway impersonation-role`` prints.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import trustme

from tests.interop.support.cluster import RealCluster, token_for
from tests.interop.support.kubectl import RealKubectl
from tests.interop.support.people import GROUP_OF
from tests.support.gateway import Login, ServedGateway, Site
from tests.support.programs import module_of

IMPERSONATION, REQUEST_HEADER = "localhost", "127.0.0.1"
GROUPS = [{"name": "teams", "type": "file", "path": "groups.yaml"}]
POLICY = {"chain": [{"name": "policy", "type": "rbac", "paths": ["policy"]}]}


class ClusterSite(Site):
    """The folder of a gateway that stands before *cluster*, with the cluster's people as its users."""

    def __init__(self, folder: Path, cluster: RealCluster, *, people: Iterable[str] = tuple(GROUP_OF)) -> None:
        super().__init__(folder, trustme.CA())
        self.cluster = cluster
        self.users(*people)
        self.groups({GROUP_OF[user]: [user] for user in people})
        shutil.copy(cluster.folder / "ca.pem", folder / "cluster-ca.pem")
        self._write_leaf("front-proxy", cluster.front_proxy_certificate())
        self.token("none-yet")
        self.take_over_roles()

    def token(self, token: str) -> None:
        """The gateway's own token at the cluster."""
        self._write("cluster-token", token)

    def take_over_roles(self, selector: str = "") -> None:
        self._write("policy/policy.yaml", self.cluster.roles(selector))

    def by_impersonation(self, **more: Any) -> dict[str, Any]:
        return self._upstream("cluster", identity="impersonation", tokenFile="cluster-token", **more)

    def by_front_proxy(self, **more: Any) -> dict[str, Any]:
        files = {"certificate": "front-proxy.pem", "key": "front-proxy.key"}
        return self._upstream("by-header", identity="requestHeader", tls=files, **more)

    def _upstream(self, name: str, *, tls: dict[str, str] | None = None, **more: Any) -> dict[str, Any]:
        trust = {"ca": "cluster-ca.pem", **(tls or {})}
        return {"name": name, "server": self.cluster.url, "attributes": "kubernetes", "tls": trust, **more}

    def sections(self, **more: Any) -> dict[str, Any]:
        """What stands in ``gateway.yaml``; *more* takes the place of some of it."""
        upstreams = [self.by_impersonation(hosts=[IMPERSONATION]), self.by_front_proxy(hosts=[REQUEST_HEADER])]
        return {"upstreams": upstreams, "groups": GROUPS, "authorization": POLICY, **more}

    def ostiary(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """The program that has the command, in the folder of ``gateway.yaml``."""
        command = [sys.executable, "-m", module_of(arguments[0]), *arguments]
        return subprocess.run(
            command, cwd=self.folder, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL
        )

    def impersonation_role(self, account: str, *options: str) -> str:
        """What the cluster must allow *account*, as ``ostiary-gateway impersonation-role`` prints it."""
        classic = [] if self.cluster.kubernetes.has_constrained_impersonation else ["--legacy"]
        done = self.ostiary("impersonation-role", "--service-account", account, *classic, *options)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def give_role(self, account: str = "ostiary/gateway", *options: str, name: str = "ostiary-gateway") -> str:
        """Apply the generated role, make a token of *account* in the cluster, and have the gateway use it."""
        role = self.impersonation_role(account, "--name", name, *options)
        self.cluster.admin.output("apply", "-f", "-", stdin=role)
        token = token_for(self.cluster.admin, *account.split("/"))
        self.token(token)
        return token


@dataclass
class Front:
    """One way through a gateway that runs."""

    site: ClusterSite
    gateway: ServedGateway
    host: str
    logins: dict[str, Login] = field(default_factory=dict)

    @property
    def impersonates(self) -> bool:
        return self.host == IMPERSONATION

    def token(self, user: str) -> str:
        if user not in self.logins:
            self.logins[user] = self.gateway.login(user)
        return self.logins[user].token

    def kubectl(self, user: str, *, program: Path | None = None, namespace: str = "team", **env: str) -> RealKubectl:
        plain = self.gateway.kubectl(self.token(user), host=self.host, namespace=namespace)
        return RealKubectl(program or self.site.cluster.kubernetes.program("kubectl"), plain.kubeconfig, **env)

    def http(self, user: str, **options: Any) -> httpx.Client:
        return self.gateway.http(self.token(user), host=self.host, **options)


@contextmanager
def served(site: ClusterSite, **sections: Any) -> Iterator[ServedGateway]:
    with site.serving(**site.sections(**sections)) as gateway:
        yield gateway
