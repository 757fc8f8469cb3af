"""``ostiary kubeconfig``: a context for kubectl whose user signs in at a gateway."""

from __future__ import annotations

import argparse
import os
import secrets
import sys
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import yaml

from ostiary.cli.arguments import UsageError
from ostiary.cli.authorities import authorities
from ostiary.cli.get_token import DEFAULT_ACCOUNT
from ostiary.cli.output import print_note
from ostiary.cli.signin.options import add_account, chosen_account
from ostiary.cli.signin.sessions import Account, Sessions
from ostiary.core.config import read
from ostiary.errors import ConfigurationError
from ostiary.wire.client_authentication import V1

DESCRIPTION = """\
Print a kubeconfig whose user runs `ostiary get-token`, or put its context into a kubeconfig that you have. It holds no
secret, and can be given to everybody who signs in at this gateway.
"""
EPILOG = """\
examples:
  ostiary kubeconfig --server https://gateway.example --merge
  ostiary kubeconfig --server https://gateway.example --name staging --prefix /staging --write staging.yaml
  ostiary kubeconfig --server https://gateway.example --account admin --name admin --merge
"""
INSTALL_HINT = """\
This cluster is behind an ostiary gateway, and kubectl needs the program ostiary to sign in:

  pip install ostiary
"""
SECTIONS = ("clusters", "users", "contexts")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    add_account(parser)
    parser.add_argument("--name", metavar="NAME", help="of the context (default: the gateway's host)")
    parser.add_argument("--prefix", metavar="PATH", default="", help="where the gateway has this cluster, if not at /")
    parser.add_argument("--namespace", metavar="NAME", help="the default namespace of the context")
    parser.add_argument("--ca", metavar="FILE", help="the authority of the gateway's certificate, in PEM")
    target = parser.add_mutually_exclusive_group()
    target.add_argument("--write", metavar="FILE", help="write a new kubeconfig")
    target.add_argument(
        "--merge", action="store_true", help="put it into the first file of $KUBECONFIG, or ~/.kube/config"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    account = chosen_account(arguments)
    if arguments.prefix and not arguments.prefix.startswith("/"):
        raise UsageError("--prefix is a path, as in /staging")
    name = arguments.name or _default_name(account)
    authorities_pem = authorities(arguments.ca) or _known_authorities(account)
    made = kubeconfig(
        account, name=name, prefix=arguments.prefix, namespace=arguments.namespace, authorities_pem=authorities_pem
    )
    if arguments.merge:
        path = _first_kubeconfig()
        with _locked(path):
            _replace(path, _yaml(merged(_existing(path), made)))
        print_note(f"context {name} is in {path}: kubectl --context {name} get pods")
    elif arguments.write:
        _create(arguments.write, _yaml(made))
    else:
        sys.stdout.write(_yaml(made))
    return 0


def kubeconfig(
    account: Account, *, name: str, prefix: str = "", namespace: str | None = None, authorities_pem: str | None = None
) -> dict[str, Any]:
    """A whole kubeconfig with one context, called *name* as are its cluster and user."""
    cluster: dict[str, Any] = {"server": account.server + prefix.rstrip("/")}
    if authorities_pem is not None:
        cluster["certificate-authority-data"] = b64encode(authorities_pem.encode()).decode()
    args = ["get-token", "--server", account.server]
    if account.name != DEFAULT_ACCOUNT:
        args += ["--account", account.name]
    user = {
        "exec": {
            "apiVersion": V1,
            # By name: the same file serves people whose program lies elsewhere.
            "command": "ostiary",
            "args": args,
            "installHint": INSTALL_HINT,
            # Without a terminal a credential that lies ready, or can be renewed, is still had.
            "interactiveMode": "IfAvailable",
            # The authority comes along with it.
            "provideClusterInfo": True,
        }
    }
    context = {"cluster": name, "user": name, **({"namespace": namespace} if namespace else {})}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": cluster}],
        "users": [{"name": name, "user": user}],
        "contexts": [{"name": name, "context": context}],
        "current-context": name,
    }


def merged(existing: dict[str, Any], made: dict[str, Any]) -> dict[str, Any]:
    """*existing* with the entries of *made* in the place of those of the same name. Its current context stays."""
    found = {**made, **existing}
    for section in SECTIONS:
        entries = existing.get(section) or []
        if not isinstance(entries, list):
            raise ConfigurationError("the kubeconfig cannot be changed", cause=f"{section} is not a list")
        (new,) = made[section]
        names = [entry.get("name") if isinstance(entry, dict) else None for entry in entries]
        if new["name"] in names:
            found[section] = [new if called == new["name"] else old for called, old in zip(names, entries, strict=True)]
        else:
            found[section] = [*entries, new]
    found["current-context"] = existing.get("current-context") or made["current-context"]
    return found


def _default_name(account: Account) -> str:
    host = urlsplit(account.server).hostname or "gateway"
    return host if account.name == DEFAULT_ACCOUNT else f"{account.name}@{host}"


def _known_authorities(account: Account) -> str | None:
    try:
        session = Sessions(account).session()
    except ConfigurationError:
        return None
    return None if session is None else session.authorities_pem


# --- files ---


def _first_kubeconfig() -> str:
    for path in os.environ.get("KUBECONFIG", "").split(os.pathsep):
        if path:
            return os.path.realpath(path)
    return os.path.realpath(os.path.expanduser("~/.kube/config"))


def _existing(path: str) -> dict[str, Any]:
    if not os.path.exists(path) or os.path.getsize(path) == 0:
        return {}
    found: Any = read(path).value
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise ConfigurationError("the kubeconfig cannot be changed", cause="it is not an object", where=path)
    return found


def _yaml(value: dict[str, Any]) -> str:
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True)


def _create(path: str, text: str) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _unwritable(path, error, hint="name a new file, or use --merge") from None
    with os.fdopen(descriptor, "w") as file:
        file.write(text)


def _replace(path: str, text: str) -> None:
    """A kubectl that reads at this moment sees the old file or the new one; its permissions stay as they are."""
    new = f"{path}.{secrets.token_hex(4)}"
    try:
        mode = os.stat(path).st_mode & 0o777 if os.path.exists(path) else 0o600
        _create(new, text)
        os.chmod(new, mode)
        os.replace(new, path)
    except OSError as error:
        with suppress(OSError):
            os.unlink(new)
        raise _unwritable(path, error) from None


@contextmanager
def _locked(path: str) -> Iterator[None]:
    """The lock that ``kubectl config`` uses."""
    lock = f"{path}.lock"
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        os.close(os.open(lock, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise _unwritable(path, error, hint=f"if nobody else is changing it, remove {lock}") from None
    try:
        yield
    finally:
        os.unlink(lock)


def _unwritable(path: str, error: OSError, hint: str | None = None) -> ConfigurationError:
    return ConfigurationError(
        "the kubeconfig cannot be written", cause=error.strerror, where=path, hint=hint, code="config-unreadable"
    )
