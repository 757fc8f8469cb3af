"""Builds kubeconfigs for users who sign in with ``ostiary get-token``: one context, or one per cluster. Pure.

Also builds the context of ``ostiary connect``, which has its own exec plugin. Used by ``ostiary kubeconfig`` and by the
gateway's page, so that downloads, the command and the printed kubectl commands agree. Contains no secret, except with a
token of ``ostiary token``.
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
# Arguments of the exec plugin that calls the proxy of ``ostiary connect``, before the name of the context.
CONNECT, TOKEN = "connect", "token"
# The extension of a context that names its upstream and gateway.
MARK = "ostiary.dev/upstream"
# The extension of a cluster that clients pass to exec plugins (``spec.cluster.config``).
EXEC_EXTENSION = "client.authentication.k8s.io/exec"
# The extension of a user with the address of an external key, instead of client-key. kubectl ignores it.
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
    """Return a kubeconfig with one context; *name* is the name of the context, its cluster and its user.

    *gateway* is where users sign in and where the cluster is, below *prefix*. With *platform*, which are the options of
    get-token for it, a CI job or pod signs in without a user. With *api_server* the cluster is there, and trusts JWTs
    of the gateway, for which *jwt* are the options of get-token; *authorities_pem* are that server's.
    """
    cluster: dict[str, Any] = {"server": api_server or gateway + prefix.rstrip("/")}
    if authorities_pem is not None:
        cluster["certificate-authority-data"] = authorities_data(authorities_pem)
    args = [COMMAND, "--server", gateway, *(["--account", account] if account else []), *platform, *jwt]
    user = {
        "exec": {
            "apiVersion": V1,
            # By name: the file also works where the program is installed at another path.
            "command": PROGRAM,
            "args": args,
            "installHint": INSTALL_HINT,
            # Without a terminal a cached credential, or one that can be refreshed, still works.
            "interactiveMode": "Never" if platform else "IfAvailable",
            # get-token trusts the CA in it.
            "provideClusterInfo": True,
        }
    }
    return _one_context(name, cluster, user, namespace)


def connect_kubeconfig(server: str, *, name: str, authorities_pem: str, namespace: str | None = None) -> dict[str, Any]:
    """Like `gateway_kubeconfig`, for the proxy of ``ostiary connect`` at *server*.

    Works for one user on one machine.
    """
    cluster = {"server": server, "certificate-authority-data": authorities_data(authorities_pem)}
    user = {
        "exec": {
            "apiVersion": V1,
            "command": PROGRAM,
            "args": [CONNECT, TOKEN, name],
            "installHint": CONNECT_HINT,
            # The proxy runs in the background and has no terminal for prompts.
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
    """A cluster of the gateway that the user may use: the name of its upstream, and its URL for kubectl."""

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
    """Return a context ``<name>/<cluster>`` for each of *clusters*, with one user *name* and so one session for all.

    Adding or removing a cluster does not rename the others. An extension in each context names the gateway that it is
    for.
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
    """Return the extension that declares the cluster to be behind *gateway*, which uses the same CA."""
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
    """Like `gateway_kubeconfig`, but the user has a static *token*. The result is a secret."""
    config = gateway_kubeconfig(gateway, name=name, prefix=prefix, namespace=namespace, authorities_pem=authorities_pem)
    return {**config, "users": [{"user": {"token": token}, "name": name}]}


def context_name(gateway: str, account: str | None = None) -> str:
    """Return the default name of a context."""
    host = urlsplit(gateway).hostname or "gateway"
    return f"{account}@{host}" if account else host


def is_our_program(command: object) -> bool:
    """Return whether the *command* of an exec plugin is this program, wherever it is installed."""
    return os.path.basename(str(command)) in (PROGRAM, f"kubectl-{PROGRAM}")


def authorities_data(authorities_pem: str) -> str:
    return b64encode(authorities_pem.encode()).decode()


def ostiary_command(config: dict[str, Any]) -> str:
    """Return the shell command that merges the contexts of *config* into the user's kubeconfig."""
    (user,), context, cluster = config["users"], config["contexts"][0], config["clusters"][0]
    _, *account = user["user"]["exec"]["args"]
    every = ["--all"] if _is_marked(context) else []
    name_option = [] if user["name"] == context_name(*account[1::2]) else ["--name", user["name"]]
    words = [PROGRAM, "kubeconfig", *account, *every, *name_option]
    data = cluster["cluster"].get("certificate-authority-data")
    words += ["--ca-data", data] if data else []
    return " ".join(map(quote, [*words, "--merge"]))


def kubectl_commands(config: dict[str, Any]) -> list[str]:
    """Like `ostiary_command`, with kubectl only, one command per line."""
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
    """Return the upstream and gateway that `clusters_kubeconfig` wrote a context for; empty if it did not."""
    extensions = context.get("extensions") if isinstance(context, dict) else None
    for extension in extensions if isinstance(extensions, list) else ():
        if isinstance(extension, dict) and extension.get("name") == MARK:
            mark = extension.get("extension")
            return mark if isinstance(mark, dict) else {}
    return {}


def _is_marked(context: dict[str, Any]) -> bool:
    return bool(mark_of(context["context"]))
