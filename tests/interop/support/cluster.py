"""A real cluster on the loopback: etcd, kube-apiserver, kube-controller-manager. No node, so no pod ever runs.

Certificates: one authority for the servers and users, another one for front proxies, as kubeadm makes them.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

import httpx
import trustme
import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.interop.support.kubectl import RealKubectl
from tests.interop.support.process import Server, wait_until
from tests.interop.support.programs import Kubernetes, etcd
from tests.support.plugins import write_kubeconfig
from tests.support.ports import free_port

MASTERS = "system:masters"
FRONT_PROXY = "front-proxy"

# What the tests need, and nothing that looks for nodes or volumes.
CONTROLLERS = (
    "clusterrole-aggregation-controller",
    "deployment-controller",
    "garbage-collector-controller",
    "namespace-controller",
    "replicaset-controller",
    "root-ca-certificate-publisher-controller",
    "serviceaccount-controller",
    "serviceaccount-token-controller",
)

# `group: "*"` is every group, the core group too, since 1.36; the tests compare our log with this server's.
AUDIT_POLICY: dict[str, Any] = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {"level": "None", "namespaces": ["unrecorded"]},
        {"level": "Metadata", "users": ["alice"], "resources": [{"group": "*"}]},
        {"level": "None"},
    ],
}


class RealCluster:
    def __init__(self, folder: Path, kubernetes: Kubernetes) -> None:
        self.folder, self.kubernetes = folder, kubernetes
        self.ca, self.front_ca = trustme.CA(), trustme.CA()
        self.audit_log = folder / "kube-audit.log"
        self._stack = ExitStack()
        self._kubeconfigs = 0
        self.ca.cert_pem.write_to_path(str(folder / "ca.pem"))
        self.front_ca.cert_pem.write_to_path(str(folder / "front-ca.pem"))
        self.write_leaf("server", self.ca.issue_cert("localhost", "127.0.0.1"))
        self._write_service_account_key()
        (folder / "audit-policy.yaml").write_text(yaml.safe_dump(AUDIT_POLICY))

    def __enter__(self) -> Self:
        with self._stack as stack:
            self._etcd_url = stack.enter_context(self._etcd())
            self.url = stack.enter_context(
                self.api_server(
                    f"--audit-policy-file={self.folder / 'audit-policy.yaml'}",
                    f"--audit-log-path={self.audit_log}",
                    "--audit-log-mode=blocking-strict",
                )
            )
            self.admin = self.kubectl("admin", MASTERS)
            stack.enter_context(self._controller_manager())
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._stack.__exit__(kind, error, trace)

    # --- who somebody is ---

    def certificate(self, user: str, group: str | None = None) -> trustme.LeafCert:
        """A client certificate: the common name is the user, the organization the group."""
        return issue(self.ca, user, group or "nobody")

    def front_proxy_certificate(self, name: str = FRONT_PROXY) -> trustme.LeafCert:
        return issue(self.front_ca, name)

    def kubectl(
        self, user: str, group: str | None = None, *, namespace: str = "team", **environment: str
    ) -> RealKubectl:
        """The newest kubectl, directly at the API server, with a certificate of *user*."""
        leaf = self.write_leaf(f"user-{user}", self.certificate(user, group))
        files = {"client-certificate": f"{leaf}.pem", "client-key": f"{leaf}.key"}
        return RealKubectl(
            self.kubernetes.program("kubectl"), self.kubeconfig(files, namespace=namespace), **environment
        )

    def with_token(self, token: str, *, namespace: str = "team") -> RealKubectl:
        """The newest kubectl, directly at the API server, with a bearer token."""
        kubeconfig = self.kubeconfig({"token": token}, namespace=namespace)
        return RealKubectl(self.kubernetes.program("kubectl"), kubeconfig)

    def kubeconfig(self, user: dict[str, Any], *, namespace: str = "team", server: str = "") -> Path:
        self._kubeconfigs += 1
        path = self.folder / f"kubeconfig-{self._kubeconfigs}"
        authority = {"certificate-authority": str(self.folder / "ca.pem")}
        return write_kubeconfig(path, server=server or self.url, user=user, cluster=authority, namespace=namespace)

    def http(self, user: str, group: str | None = None, **options: Any) -> httpx.Client:
        """A bare HTTP client, directly at the API server, with a certificate of *user*."""
        context = self.trust()
        self.certificate(user, group).configure_cert(context)
        return httpx.Client(base_url=self.url, verify=context, timeout=30, trust_env=False, **options)

    def trust(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.ca.configure_trust(context)
        return context

    def write_leaf(self, name: str, leaf: trustme.LeafCert) -> Path:
        """``<name>.pem`` and ``<name>.key``; gives the path without its ending."""
        path = self.folder / name
        path.with_name(f"{name}.pem").write_text("".join(pem.bytes().decode() for pem in leaf.cert_chain_pems))
        path.with_name(f"{name}.key").write_bytes(leaf.private_key_pem.bytes())
        return path

    # --- what is in it ---

    def apply(self, *documents: dict[str, Any]) -> None:
        self.admin.output("apply", "--server-side", "-f", "-", stdin=yaml.safe_dump_all(documents))

    def add_namespace(self, name: str) -> None:
        """A namespace, and the service account that its pods would have."""
        self.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        shown = ("get", "serviceaccount", "default", "-n", name, "--ignore-not-found", "-o", "name")
        wait_until(lambda: bool(self.admin.output(*shown)), what=f"the service account of {name}")

    def roles(self, selector: str = "") -> str:
        """All roles and bindings, as the how-to page dumps them; or those whose labels fit *selector*."""
        kinds = "clusterroles,clusterrolebindings,roles,rolebindings"
        return self.admin.output("get", kinds, "-A", "-o", "yaml", "-l", selector)

    # --- its servers ---

    @contextmanager
    def _etcd(self) -> Iterator[str]:
        client, peer = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
        command: list[str | Path] = [
            etcd(),
            "--data-dir",
            self.folder / "etcd",
            "--unsafe-no-fsync",
            "--log-level=warn",
        ]
        command += [f"--listen-client-urls={client}", f"--advertise-client-urls={client}"]
        command += [f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}"]
        command += [f"--initial-cluster=default={peer}"]
        with Server(command, log=self.folder / "etcd.log") as server:
            server.wait_until(lambda: _answers(f"{client}/health"))
            yield client

    @contextmanager
    def api_server(self, *flags: str, modes: str = "Node,RBAC", port: int = 0) -> Iterator[str]:
        """A kube-apiserver; all of them have the same data, so that a test can have one with flags of its own."""
        port, here = port or free_port(), self.folder
        command: list[str | Path] = [
            self.kubernetes.program("kube-apiserver"),
            f"--etcd-servers={self._etcd_url}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            "--endpoint-reconciler-type=none",
            f"--secure-port={port}",
            f"--tls-cert-file={here / 'server.pem'}",
            f"--tls-private-key-file={here / 'server.key'}",
            f"--client-ca-file={here / 'ca.pem'}",
            f"--service-account-issuer=https://127.0.0.1:{port}",
            f"--service-account-key-file={here / 'service-account.pub'}",
            f"--service-account-signing-key-file={here / 'service-account.key'}",
            "--service-cluster-ip-range=10.0.0.0/24",
            f"--requestheader-client-ca-file={here / 'front-ca.pem'}",
            f"--requestheader-allowed-names={FRONT_PROXY}",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-uid-headers=X-Remote-Uid",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            # With a file of authorizers there is no flag for them.
            *([f"--authorization-mode={modes}"] if modes else []),
            *flags,
        ]
        url = f"https://127.0.0.1:{port}"
        with Server(command, log=here / f"kube-apiserver-{port}.log") as server:
            with httpx.Client(verify=self._admin_context(), trust_env=False) as http:
                server.wait_until(lambda: _answers(f"{url}/readyz", http))
            yield url

    @contextmanager
    def _controller_manager(self) -> Iterator[None]:
        leaf = self.write_leaf("controller-manager", self.certificate("system:kube-controller-manager"))
        files = {"client-certificate": f"{leaf}.pem", "client-key": f"{leaf}.key"}
        command: Sequence[str | Path] = [
            self.kubernetes.program("kube-controller-manager"),
            f"--kubeconfig={self.kubeconfig(files)}",
            "--bind-address=127.0.0.1",
            f"--secure-port={free_port()}",
            f"--cert-dir={self.folder}",
            "--leader-elect=false",
            "--use-service-account-credentials",
            f"--service-account-private-key-file={self.folder / 'service-account.key'}",
            f"--root-ca-file={self.folder / 'ca.pem'}",
            f"--controllers={','.join(CONTROLLERS)}",
        ]
        with Server(command, log=self.folder / "kube-controller-manager.log") as server:
            shown = ("get", "serviceaccount", "default", "-n", "default", "--ignore-not-found", "-o", "name")
            server.wait_until(lambda: bool(self.admin(*shown).stdout))
            yield

    def _admin_context(self) -> ssl.SSLContext:
        context = self.trust()
        self.certificate("admin", MASTERS).configure_cert(context)
        return context

    def _write_service_account_key(self) -> None:
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        pem, kind = serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL
        (self.folder / "service-account.key").write_bytes(key.private_bytes(pem, kind, serialization.NoEncryption()))
        public = key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
        (self.folder / "service-account.pub").write_bytes(public)


def issue(ca: trustme.CA, user: str, group: str = "nobody", **more: Any) -> trustme.LeafCert:
    """A client certificate. The address says nothing: without one Go takes the empty extension for a critical one."""
    return ca.issue_cert("client@example.test", common_name=user, organization_name=group, **more)


def token_for(kubectl: RealKubectl, namespace: str, service_account: str) -> str:
    """A short-lived token of a service account, from the TokenRequest API."""
    return kubectl.output("create", "token", service_account, "-n", namespace, "--duration=10m").strip()


def _answers(url: str, http: httpx.Client | None = None) -> bool:
    try:
        answer = http.get(url) if http is not None else httpx.get(url, trust_env=False)
    except httpx.TransportError:
        return False
    return answer.status_code == 200
