"""``ostiary kubeconfig``: make a kubectl context whose user signs in at a gateway."""

from __future__ import annotations

import argparse
import os
import secrets
import stat
import sys
from base64 import b64decode
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from ostiary.cli.arguments import UsageError
from ostiary.cli.authorities import authorities, checked_authorities
from ostiary.cli.cached_token import DEFAULT_ACCOUNT
from ostiary.cli.gateway_http import checked_address
from ostiary.cli.kubeconfig.merge import Conflict, Entry, conflicts, merge
from ostiary.cli.output import print_note
from ostiary.cli.signin.options import add_account, chosen_account
from ostiary.cli.signin.platforms.options import add_platform, chosen_platform, platform_words
from ostiary.cli.signin.sessions import GatewayAccount, Sessions
from ostiary.core.config.edit import dump
from ostiary.errors import ConfigurationError
from ostiary.wire.kubeconfig import context_name, gateway_kubeconfig

DESCRIPTION = """\
Print a kubeconfig whose user runs `ostiary get-token`, or put its context into a kubeconfig that you have. It holds no
secret, so you can share it with everybody who signs in at this gateway. With --from it is for a CI job or pod, which
signs in by the token that its platform gives it.

--merge changes nothing else in your file: comments, order and quoting stay, and a copy is kept beside it. An entry of
the same name for another server or another way to sign in is reported and not replaced.
"""
EPILOG = """\
examples:
  ostiary kubeconfig --server https://gateway.example --merge
  ostiary kubeconfig --server https://gateway.example --name staging --prefix /staging --write staging.yaml
  ostiary kubeconfig --server https://gateway.example --account admin --name admin --merge
  ostiary kubeconfig --server https://gateway.example --api-server https://prod.example:6443 --ca prod-ca.pem \\
      --jwt-for https://prod.example --name prod --merge
  ostiary kubeconfig --server https://gateway.example --from github --write kubeconfig
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    add_account(parser)
    add_platform(parser)
    parser.add_argument("--name", metavar="NAME", help="the name of the context (default: the gateway's host)")
    parser.add_argument(
        "--prefix", metavar="PATH", default="", help="the path prefix of this cluster at the gateway, if not /"
    )
    parser.add_argument(
        "--api-server",
        metavar="URL",
        help="a cluster that trusts JWTs of the gateway, and is not behind it; needs --jwt-for. --ca is that server's",
    )
    parser.add_argument("--jwt-for", metavar="AUDIENCE", help="with --api-server: the audience of the cluster's JWTs")
    parser.add_argument("--namespace", metavar="NAME", help="the default namespace of the context")
    parser.add_argument("--ca", metavar="FILE", help="the CA certificate of the gateway, in PEM")
    parser.add_argument(
        "--ca-data", metavar="BASE64", help="the CA certificate as base64, as in certificate-authority-data"
    )
    target = parser.add_mutually_exclusive_group()
    target.add_argument("--write", metavar="FILE", help="write a new kubeconfig")
    target.add_argument(
        "--merge", action="store_true", help="put it into the first file of $KUBECONFIG, or ~/.kube/config"
    )
    parser.add_argument(
        "--force", action="store_true", help="with --merge: also replace entries that belong to another server or user"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    choice = chosen_platform(arguments)
    account = chosen_account(arguments) if choice is None else GatewayAccount(choice.server)
    if arguments.prefix and not arguments.prefix.startswith("/"):
        raise UsageError("--prefix must be a path such as /staging")
    if arguments.force and not arguments.merge:
        raise UsageError("--force needs --merge")
    if (arguments.api_server is None) != (arguments.jwt_for is None):
        raise UsageError("--api-server and --jwt-for need each other")
    if arguments.api_server is not None and arguments.prefix:
        raise UsageError("--prefix and --api-server cannot be combined", hint="leave one of them out")
    own = None if account.name == DEFAULT_ACCOUNT else account.name
    api_server = "" if arguments.api_server is None else checked_address(arguments.api_server)
    kubeconfig = gateway_kubeconfig(
        account.server,
        name=arguments.name or context_name(api_server or account.server, own),
        prefix=arguments.prefix,
        account=own,
        namespace=arguments.namespace,
        authorities_pem=_chosen_authorities(arguments) or (None if api_server else _known_authorities(account)),
        platform=() if choice is None else platform_words(choice),
        api_server=api_server,
        jwt=() if arguments.jwt_for is None else ("--jwt-for", arguments.jwt_for),
    )
    if arguments.merge:
        _merge(kubeconfig, force=arguments.force)
    elif arguments.write:
        _write(arguments.write, dump(kubeconfig).encode())
    else:
        sys.stdout.write(dump(kubeconfig))
    return 0


def _merge(kubeconfig: Entry, *, force: bool) -> None:
    name = kubeconfig["current-context"]
    path, *others = _kubeconfig_files()
    _check_regular(path)
    with _hold_lock(path):
        old = _content(path)
        own_conflicts = conflicts(_text(old, path), kubeconfig, file=path)
        # kubectl takes the first entry of a name, so ours would hide one that stands in a later file.
        other_conflicts = [
            (other, conflicts(_text(_content(other), other), kubeconfig, file=other)) for other in others
        ]
        if not force:
            for file, file_conflicts in ((path, own_conflicts), *other_conflicts):
                if file_conflicts:
                    raise _conflict_error(file, file_conflicts)
        new = merge(_text(old, path), kubeconfig, file=path, force=force).encode()
        backup = _backup(path, old) if old and new != old else None
        if new != old:
            _replace(path, new)
    backup_note = "" if backup is None else f"; backup: {backup}"
    print_note(f"context {name} is in {path}: kubectl --context {name} get pods{backup_note}")


def _conflict_error(file: str, found: list[Conflict]) -> ConfigurationError:
    return ConfigurationError(
        "the kubeconfig has an entry of this name for another server or user",
        cause="; ".join(map(str, found)),
        where=file,
        hint="choose another name with --name, or replace it with --force",
        code="kubeconfig-name-taken",
    )


def _known_authorities(account: GatewayAccount) -> str | None:
    try:
        session = Sessions(account).session()
    except ConfigurationError:
        return None
    return None if session is None else session.authorities_pem


def _chosen_authorities(arguments: argparse.Namespace) -> str | None:
    if arguments.ca_data is None:
        return authorities(arguments.ca)
    if arguments.ca is not None:
        raise UsageError("--ca and --ca-data cannot be combined", hint="leave one of them out")
    try:
        content = b64decode(arguments.ca_data, validate=True)
    except ValueError:
        raise UsageError("--ca-data is not base64") from None
    return checked_authorities(content, where="--ca-data")


# --- files ---


def _kubeconfig_files() -> list[str]:
    """The files that kubectl reads; the first one is written to."""
    listed = [path for path in os.environ.get("KUBECONFIG", "").split(os.pathsep) if path]
    return [os.path.abspath(path) for path in listed or [os.path.expanduser("~/.kube/config")]]


def _check_regular(path: str) -> None:
    """The file is replaced by a new one, which would be the end of a device such as /dev/null."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return  # It is made, or whoever reads it tells what is wrong.
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise ConfigurationError(
            "the kubeconfig cannot be changed in place",
            cause="it is a device or a pipe, and not a file",
            where=path,
            hint="name a file in $KUBECONFIG, or write a new one with --write",
            code="config-unreadable",
        )


def _content(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise ConfigurationError(
            "the kubeconfig cannot be read", cause=error.strerror, where=path, code="config-unreadable"
        ) from None


def _text(content: bytes, path: str) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        pass
    raise ConfigurationError(
        "the kubeconfig cannot be changed in place", cause="it is not UTF-8 text", where=path, code="config-syntax"
    )


def _create(path: str, content: bytes, mode: int = 0o600) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, mode)
        file.write(content)


def _write(path: str, content: bytes) -> None:
    try:
        _create(path, content)
    except OSError as error:
        raise _unwritable(path, error, hint="name a new file, or use --merge") from None


def _backup(path: str, content: bytes) -> str:
    """A copy of the file as it is, as private as the file itself. An older copy is never overwritten."""
    real = os.path.realpath(path)
    number = 1
    while os.path.lexists(f"{real}.backup-{number}"):
        number += 1
    try:
        _create(f"{real}.backup-{number}", content, _mode(real))
    except OSError as error:
        raise _unwritable(f"{real}.backup-{number}", error) from None
    return f"{real}.backup-{number}"


def _replace(path: str, content: bytes) -> None:
    """A kubectl that reads at this moment sees the old file or the new one; its permissions stay as they are."""
    real = os.path.realpath(path)
    new = f"{real}.{secrets.token_hex(4)}"
    try:
        _create(new, content, _mode(real))
        os.replace(new, real)
    except OSError as error:
        with suppress(OSError):
            os.unlink(new)
        raise _unwritable(path, error) from None


def _mode(path: str) -> int:
    return os.stat(path).st_mode & 0o777 if os.path.exists(path) else 0o600


@contextmanager
def _hold_lock(path: str) -> Iterator[None]:
    """The lock that ``kubectl config`` uses: beside the file as it is named, and beside what a link leads to."""
    with ExitStack() as locks:
        for name in dict.fromkeys((path, os.path.realpath(path))):
            locks.enter_context(_lock(name, path))
        yield


@contextmanager
def _lock(name: str, path: str) -> Iterator[None]:
    lock = f"{name}.lock"
    try:
        os.makedirs(os.path.dirname(name), mode=0o700, exist_ok=True)
        os.close(os.open(lock, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise _unwritable(path, error, hint=f"if no other process is changing the file, remove {lock}") from None
    try:
        yield
    finally:
        os.unlink(lock)


def _unwritable(path: str, error: OSError, hint: str | None = None) -> ConfigurationError:
    return ConfigurationError(
        "the kubeconfig cannot be written", cause=error.strerror, where=path, hint=hint, code="config-unreadable"
    )
