"""The kubeconfig of somebody who signs in at a gateway: one context whose user runs ``ostiary get-token``.

Made here and nowhere else, for ``ostiary kubeconfig`` and for the gateway's own page: what a person downloads, what
the command writes, and what kubectl is told to write are the same. It holds no secret, but for the one with a token
that ``ostiary token`` writes. Pure.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from shlex import quote
from typing import Any
from urllib.parse import urlsplit

from ostiary.wire.client_authentication import V1

PROGRAM, COMMAND = "ostiary", "get-token"
INSTALL_HINT = """\
This cluster is behind an ostiary gateway, and kubectl needs the program ostiary to sign in:

  pip install ostiary
"""


def gateway_kubeconfig(
    gateway: str,
    *,
    name: str,
    prefix: str = "",
    account: str | None = None,
    namespace: str | None = None,
    authorities_pem: str | None = None,
    platform: Sequence[str] = (),
    api_server: str = "",
    jwt: Sequence[str] = (),
) -> dict[str, Any]:
    """A whole kubeconfig with one context, called *name* as are its cluster and user.

    *gateway* is where people sign in; its cluster is there too, below *prefix*. With *platform*, which are the options
    of get-token for it, a CI job or pod signs in and nobody is asked. With *api_server* the cluster is there, and
    trusts JWTs of the gateway, for which *jwt* are the options of get-token; *authorities_pem* are that server's.
    """
    cluster: dict[str, Any] = {"server": api_server or gateway + prefix.rstrip("/")}
    if authorities_pem is not None:
        cluster["certificate-authority-data"] = authorities_data(authorities_pem)
    args = [COMMAND, "--server", gateway, *(["--account", account] if account else []), *platform, *jwt]
    user = {
        "exec": {
            "apiVersion": V1,
            # By name: the same file serves people whose program is installed elsewhere.
            "command": PROGRAM,
            "args": args,
            "installHint": INSTALL_HINT,
            # Without a terminal a cached credential, or one that can be renewed, still works.
            "interactiveMode": "Never" if platform else "IfAvailable",
            # get-token trusts the authority that comes along with it.
            "provideClusterInfo": True,
        }
    }
    context = {"cluster": name, "user": name, **({"namespace": namespace} if namespace else {})}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"cluster": cluster, "name": name}],
        "users": [{"user": user, "name": name}],
        "contexts": [{"context": context, "name": name}],
        "current-context": name,
    }


def token_kubeconfig(
    gateway: str,
    *,
    name: str,
    token: str,
    prefix: str = "",
    namespace: str | None = None,
    authorities_pem: str | None = None,
) -> dict[str, Any]:
    """The same whose user has *token* and nothing else: a secret, for whoever was given it."""
    config = gateway_kubeconfig(gateway, name=name, prefix=prefix, namespace=namespace, authorities_pem=authorities_pem)
    return {**config, "users": [{"user": {"token": token}, "name": name}]}


def context_name(gateway: str, account: str | None = None) -> str:
    """What a context is called unless somebody says otherwise."""
    host = urlsplit(gateway).hostname or "gateway"
    return f"{account}@{host}" if account else host


def authorities_data(authorities_pem: str) -> str:
    return b64encode(authorities_pem.encode()).decode()


def ostiary_command(config: dict[str, Any]) -> str:
    """The one line that puts the context of *config* into somebody's kubeconfig."""
    (cluster,), (user,), (context,) = config["clusters"], config["users"], config["contexts"]
    _, *account = user["user"]["exec"]["args"]
    name_option = [] if context["name"] == context_name(*account[1::2]) else ["--name", context["name"]]
    words = [PROGRAM, "kubeconfig", *account, *name_option]
    data = cluster["cluster"].get("certificate-authority-data")
    words += ["--ca-data", data] if data else []
    return " ".join(map(quote, [*words, "--merge"]))


def kubectl_commands(config: dict[str, Any]) -> list[str]:
    """The same with nothing but kubectl, a line each."""
    (cluster,), (user,), (context,) = config["clusters"], config["users"], config["contexts"]
    name, command = quote(context["name"]), user["user"]["exec"]
    data = cluster["cluster"].get("certificate-authority-data")
    lines = []
    trust = ""
    if data:
        lines.append(f"printf %s {data} | base64 -d > {name}-ca.pem")
        trust = f" \\\n  --certificate-authority={name}-ca.pem --embed-certs=true"
    lines.append(f"kubectl config set-cluster {name} --server={quote(cluster['cluster']['server'])}{trust}")
    args = " ".join(f"--exec-arg={quote(argument)}" for argument in command["args"])
    lines += [
        f"kubectl config set-credentials {name} --exec-command={command['command']} \\",
        f"  {args} \\",
        f"  --exec-api-version={command['apiVersion']} --exec-interactive-mode={command['interactiveMode']} \\",
        "  --exec-provide-cluster-info=true",
        f"kubectl config set-context {name} --cluster={name} --user={name}",
        f"kubectl config use-context {name}",
    ]
    return lines
