"""Find the pod's own cluster: the service account mounted by the kubelet, and the server.

Reads only the namespace. The client reads the token file periodically, because the kubelet rotates it in place.
"""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ostiary.kubeconfig.model import DEFAULT_NAMESPACE, Cluster, Selection, User
from ostiary.model import Place

log = logging.getLogger("ostiary.client")

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True, slots=True)
class PodServiceAccount:
    """The cluster's address, and the mounted files that authenticate the pod."""

    server: str
    token_file: str
    certificate_authority: str | None
    namespace: str


def in_cluster(environ: Mapping[str, str], root: Path = SERVICE_ACCOUNT) -> Selection | None:
    """Return the cluster that this process runs in, with its pod's service account. None outside of a cluster."""
    account = _find_service_account(environ, root)
    if account is None:
        return None
    name, place = "in-cluster", Place(str(root))
    return Selection(
        context_name=name,
        cluster=Cluster(name, account.server, certificate_authority=account.certificate_authority, place=place),
        user=User(name, token_file=account.token_file, place=place),
        namespace=account.namespace,
    )


def _find_service_account(environ: Mapping[str, str], root: Path) -> PodServiceAccount | None:
    """Return the service account of this pod. None outside of a pod, or if no token is mounted."""
    host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT")
    token = root / "token"
    if not host or not port or not os.path.exists(token) or os.path.isdir(token):
        return None
    return PodServiceAccount(
        server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        token_file=str(token),
        certificate_authority=_authority(root / "ca.crt"),
        namespace=_namespace(environ, root / "namespace"),
    )


def _authority(path: Path) -> str | None:
    # Like client-go: without a usable file the system's authorities apply, and the handshake reports the error.
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=path)
    except OSError as error:
        log.warning("the cluster's certificate authority %s cannot be used: %s", path, error.strerror or error)
        return None
    return str(path)


def _namespace(environ: Mapping[str, str], path: Path) -> str:
    if namespace := environ.get("POD_NAMESPACE"):
        return namespace
    try:
        return path.read_text(encoding="utf-8").strip() or DEFAULT_NAMESPACE
    except (OSError, UnicodeDecodeError):
        return DEFAULT_NAMESPACE
