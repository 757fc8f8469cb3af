"""The gateway of the demo: the files that ``ostiary-gateway serve`` reads, and its process."""

from __future__ import annotations

import re
import secrets
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import bcrypt
import trustme

from examples.gateway.sample_api import SampleApi

GATEWAY = """\
apiVersion: ostiary.dev/v1
kind: Gateway
listen: {{address: "127.0.0.1:0", tls: {{certificate: gateway.pem, key: gateway.pem}}}}
health: {{address: "127.0.0.1:0"}}
store: {{type: sqlite, path: tokens.db}}
identity:
- {{name: staff, type: htpasswd, path: users}}
authorization:
  hideDenied: true        # whoever may see nothing in a namespace is not told what is there
  chain:
  - {{name: policy, type: rbac, paths: [policy]}}
upstreams:
- name: shop
  server: {server}
  identity: impersonation
  tokenFile: api-token
  tls: {{ca: authority.pem}}
audit: {{log: {{path: audit.log}}}}
"""

POLICY = """\
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: reader, namespace: shop}
rules:
- {apiGroups: [""], resources: [pods], verbs: [get, list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: alice-reads, namespace: shop}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: reader}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: alice}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: gateway-operator}
rules:
- {apiGroups: [ostiary.dev], resources: [decisions], verbs: [get]}
- {apiGroups: [ostiary.dev], resources: [revocations], verbs: [create]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: operator}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: gateway-operator}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: operator}]
"""

_SERVING = re.compile(r"serving on https://127\.0\.0\.1:(\d+)")


class Site:
    """The configuration, policy, certificates and users in *folder*. `passwords` are generated for this run."""

    def __init__(self, folder: Path, authority: trustme.CA, api: SampleApi) -> None:
        self.folder = folder
        self.audit_log = folder / "audit.log"
        self.passwords = {user: secrets.token_urlsafe(12) for user in ("alice", "bob", "operator")}
        self.authority = folder / "authority.pem"
        authority.cert_pem.write_to_path(str(self.authority))
        authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(str(folder / "gateway.pem"))
        (folder / "users").write_text("".join(f"{user}:{_hash(word)}\n" for user, word in self.passwords.items()))
        (folder / "policy").mkdir()
        (folder / "policy" / "shop.yaml").write_text(POLICY)
        _write_secret(folder / "api-token", api.token)
        (folder / "gateway.yaml").write_text(GATEWAY.format(server=api.url))

    def token_file(self, token: str) -> Path:
        """Write *token* to a file for the command line, because every user of the machine can read arguments."""
        return _write_secret(self.folder / "operator-token", token)

    @contextmanager
    def serving(self) -> Iterator[str]:
        """Run ``ostiary-gateway serve`` in a process until the block ends, and yield its URL."""
        command = [sys.executable, "-m", "ostiary_gateway", "serve", "--config", str(self.folder / "gateway.yaml")]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            yield f"https://localhost:{_port(process)}"
        finally:
            process.terminate()
            if process.wait(20) != 0:
                raise SystemExit("the gateway did not end well")


def _port(process: subprocess.Popen[str]) -> int:
    said: list[str] = []
    assert process.stderr is not None
    for line in process.stderr:
        said.append(line)
        found = _SERVING.search(line)
        if found is not None:
            # Read the rest in the background: a full pipe would block the gateway.
            threading.Thread(target=process.stderr.read, daemon=True).start()
            return int(found[1])
    raise SystemExit("the gateway did not start:\n" + "".join(said))


def _write_secret(path: Path, text: str) -> Path:
    path.touch(mode=0o600)
    path.write_text(text)
    return path


def _hash(password: str) -> str:
    # The lowest cost, because these passwords live for some seconds. `htpasswd -B` uses a higher one.
    return bcrypt.hashpw(password.encode(), bcrypt.gensalt(4)).decode()
