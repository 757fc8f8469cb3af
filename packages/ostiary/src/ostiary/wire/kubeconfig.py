"""The kubeconfig of somebody who signs in with ``ostiary get-token``: one context, or one for each cluster.

The context of ``ostiary connect``, which has its own exec plugin, is made here too.

Made here and nowhere else, for ``ostiary kubeconfig`` and for the gateway's own page: what a person downloads, what
the command writes, and what kubectl is told to write are the same. It holds no secret, but for the one with a token
that ``ostiary token`` writes. Pure.
"""

from __future__ import annotations

import os
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from shlex import quote
from typing import Any
from urllib.parse import urlsplit

from ostiary.wire.client_authentication import V1

PROGRAM, COMMAND = "ostiary", "get-token"
# The words of the exec plugin that asks the proxy of ``ostiary connect``; the name of the context follows them.
CONNECT, TOKEN = "connect", "token"
# The extension of a context that says which upstream of which gateway it is for.
MARK = "ostiary.dev/upstream"
# The extension of a cluster that clients hand to exec plugins (``spec.cluster.config``).
EXEC_EXTENSION = "client.authentication.k8s.io/exec"
# Of a user: the address of a key that is kept elsewhere, in place of client-key. Ours; kubectl ignores it.
CLIENT_KEY_EXTENSION = "ostiary.dev/client-key"
GATEWAY = "gateway"
INSTALL_HINT = """\
This cluster is behind an ostiary gateway, and kubectl needs the program ostiary to sign in:

  pip install ostiary
"""
CONNECT_HINT = """\
This context goes through ostiary connect, a proxy on this machine that holds the key:

  pip install 'ostiary[connect]'
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
    return _one_context(name, cluster, user, namespace)


def connect_kubeconfig(server: str, *, name: str, authorities_pem: str, namespace: str | None = None) -> dict[str, Any]:
    """The same for the proxy of ``ostiary connect`` at *server*. It is of use on one machine, to one user."""
    cluster = {"server": server, "certificate-authority-data": authorities_data(authorities_pem)}
    user = {
        "exec": {
            "apiVersion": V1,
            "command": PROGRAM,
            "args": [CONNECT, TOKEN, name],
            "installHint": CONNECT_HINT,
            # It asks nobody: the proxy in the background has no terminal.
            "interactiveMode": "Never",
        }
    }
    return _one_context(name, cluster, user, namespace)


def _one_context(name: str, cluster: dict[str, Any], user: dict[str, Any], namespace: str | None) -> dict[str, Any]:
    context = {"cluster": name, "user": name, **({"namespace": namespace} if namespace else {})}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"cluster": cluster, "name": name}],
        "users": [{"user": user, "name": name}],
        "contexts": [{"context": context, "name": name}],
        "current-context": name,
    }


@dataclass(frozen=True, slots=True)
class OfferedCluster:
    """A cluster of the gateway that somebody may use: its upstream's name there, and where kubectl finds it."""

    name: str
    server: str


def clusters_kubeconfig(
    gateway: str,
    clusters: Sequence[OfferedCluster],
    *,
    name: str,
    account: str | None = None,
    namespace: str | None = None,
    authorities_pem: str | None = None,
    platform: Sequence[str] = (),
) -> dict[str, Any]:
    """A context for each of *clusters*, called ``<name>/<cluster>``; one user, *name*, and so one session, for all.

    Contexts keep their names when a cluster is added or goes. A mark in each tells by whom it was written.
    """
    base = gateway_kubeconfig(gateway, name=name, account=account, authorities_pem=authorities_pem, platform=platform)
    (template,) = base["clusters"]
    names = [cluster_context(name, cluster.name) for cluster in clusters]
    return {
        **base,
        "clusters": [
            {"cluster": {**template["cluster"], "server": cluster.server, **_of_gateway(gateway)}, "name": context}
            for context, cluster in zip(names, clusters, strict=True)
        ],
        "contexts": [
            {
                "context": {
                    "cluster": context,
                    "user": name,
                    **({"namespace": namespace} if namespace else {}),
                    "extensions": [{"name": MARK, "extension": {GATEWAY: gateway, "upstream": cluster.name}}],
                },
                "name": context,
            }
            for context, cluster in zip(names, clusters, strict=True)
        ],
        "current-context": names[0] if names else "",
    }


def cluster_context(name: str, cluster: str) -> str:
    return f"{name}/{cluster}"


def _of_gateway(gateway: str) -> dict[str, Any]:
    """What get-token is told of the cluster: it is behind *gateway*, whose authority is the same."""
    return {"extensions": [{"name": EXEC_EXTENSION, "extension": {GATEWAY: gateway}}]}


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


def is_our_program(command: object) -> bool:
    """Whether the *command* of an exec plugin is this program, wherever it is installed."""
    return os.path.basename(str(command)) in (PROGRAM, f"kubectl-{PROGRAM}")


def authorities_data(authorities_pem: str) -> str:
    return b64encode(authorities_pem.encode()).decode()


def ostiary_command(config: dict[str, Any]) -> str:
    """The one line that puts the contexts of *config* into somebody's kubeconfig."""
    (user,), context, cluster = config["users"], config["contexts"][0], config["clusters"][0]
    _, *account = user["user"]["exec"]["args"]
    every = ["--all"] if _is_marked(context) else []
    name_option = [] if user["name"] == context_name(*account[1::2]) else ["--name", user["name"]]
    words = [PROGRAM, "kubeconfig", *account, *every, *name_option]
    data = cluster["cluster"].get("certificate-authority-data")
    words += ["--ca-data", data] if data else []
    return " ".join(map(quote, [*words, "--merge"]))


def kubectl_commands(config: dict[str, Any]) -> list[str]:
    """The same with nothing but kubectl, a line each."""
    (user,) = config["users"]
    name, command = quote(user["name"]), user["user"]["exec"]
    data = config["clusters"][0]["cluster"].get("certificate-authority-data")
    lines = []
    trust = ""
    if data:
        lines.append(f"printf %s {data} | base64 -d > {name}-ca.pem")
        trust = f" \\\n  --certificate-authority={name}-ca.pem --embed-certs=true"
    for cluster in config["clusters"]:
        server = quote(cluster["cluster"]["server"])
        lines.append(f"kubectl config set-cluster {quote(cluster['name'])} --server={server}{trust}")
    args = " ".join(f"--exec-arg={quote(argument)}" for argument in command["args"])
    lines += [
        f"kubectl config set-credentials {name} --exec-command={command['command']} \\",
        f"  {args} \\",
        f"  --exec-api-version={command['apiVersion']} --exec-interactive-mode={command['interactiveMode']} \\",
        "  --exec-provide-cluster-info=true",
    ]
    for context in config["contexts"]:
        called = quote(context["name"])
        lines.append(f"kubectl config set-context {called} --cluster={called} --user={name}")
    return [*lines, f"kubectl config use-context {quote(config['current-context'])}"]


def mark_of(context: object) -> dict[str, Any]:
    """Which upstream of which gateway a context was written for by `clusters_kubeconfig`; empty if it was not."""
    extensions = context.get("extensions") if isinstance(context, dict) else None
    for extension in extensions if isinstance(extensions, list) else ():
        if isinstance(extension, dict) and extension.get("name") == MARK:
            mark = extension.get("extension")
            return mark if isinstance(mark, dict) else {}
    return {}


def _is_marked(context: dict[str, Any]) -> bool:
    return bool(mark_of(context["context"]))
