"""Validate the selected cluster and user.

Reports all errors. Only the selection is checked, because kubeconfigs often contain broken entries. Checks that the
named files are readable, but does not read them.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from urllib.parse import urlsplit

from ostiary.kubeconfig.model import Cluster, ExecConfig, User
from ostiary.model import Place, Problem
from ostiary.wire.kubeconfig import CLIENT_KEY_EXTENSION

INTERACTIVE_MODES = ("Never", "IfAvailable", "Always")
PROXY_SCHEMES = ("http", "https", "socks5", "socks5h")


def cluster_problems(cluster: Cluster) -> Iterator[Problem]:
    place = cluster.place
    if not cluster.server:
        yield Problem(f"cluster {cluster.name!r} has no server", _at(place, "server"))
    if cluster.proxy_url and not _is_proxy(cluster.proxy_url):
        # Not quoted, because the address may contain a password.
        hint = "it begins with " + ", ".join(f"{scheme}://" for scheme in PROXY_SCHEMES) + " and names a host"
        yield Problem("the proxy URL is invalid", _at(place, "proxy-url"), hint)
    yield from _either(
        place, "certificate-authority", cluster.certificate_authority, cluster.certificate_authority_data
    )
    yield from _readable(place, "certificate-authority", cluster.certificate_authority)


def unused_fields(user: User) -> Iterator[tuple[str, str]]:
    """Yield the credential fields of *user* without effect, and the reason. The rules are kubectl's."""
    if user.password and not user.username:
        yield "password", "there is no username"
    if (user.client_key or user.client_key_data) and not user.has_certificate:
        yield "client-key", "there is no client-certificate"
    if user.exec is not None and not user.uses_exec:
        yield "exec", "a token, a username or a client certificate takes precedence"
    if user.auth_provider is not None and user.has_header:
        yield "auth-provider", "a token or a username takes precedence"


def user_problems(user: User, *, is_secure: bool = True) -> Iterator[Problem]:
    place = user.place
    if user.has_certificate:
        yield from _certificate_problems(user)
    elif user.device_key is not None:
        hint = "add client-certificate or client-certificate-data"
        yield Problem("the key that is kept elsewhere has no client certificate", place, hint)
    if not user.token and is_secure:
        yield from _readable(place, "tokenFile", user.token_file)
    # As with kubectl, a token file counts only if it is read, and a password alone only in addition to a token.
    if (user.token and (user.username or user.password)) or (is_secure and user.token_file and user.username):
        yield Problem("there is a token and also a username or password", place, "keep one of the two")
    impersonate = user.impersonate
    if not impersonate.user and (impersonate.uid or impersonate.groups or impersonate.extra):
        yield Problem("it impersonates a uid, groups or extra, but no user", place, "set the user with as")
    if user.exec is not None:
        yield from _exec_problems(user.exec)
        if user.auth_provider is not None:
            yield Problem("there is an exec plugin and also an auth-provider", place, "keep one of the two")


def _certificate_problems(user: User) -> Iterator[Problem]:
    place = user.place
    yield from _either(place, "client-certificate", user.client_certificate, user.client_certificate_data)
    yield from _either(place, "client-key", user.client_key, user.client_key_data)
    if user.device_key is not None and (user.client_key or user.client_key_data):
        yield Problem(
            f"there is a client-key and also the extension {CLIENT_KEY_EXTENSION}", place, "keep one of the two"
        )
    if not user.has_key:
        yield Problem("the client certificate has no key", place, "add client-key or client-key-data")
    yield from _readable(place, "client-certificate", user.client_certificate)
    yield from _readable(place, "client-key", user.client_key)


def _exec_problems(exec_config: ExecConfig) -> Iterator[Problem]:
    place = exec_config.place
    if not exec_config.command:
        yield Problem("the exec plugin has no command", exec_config.command_place)
    if not exec_config.api_version:
        hint = "use client.authentication.k8s.io/v1"
        yield Problem("the exec plugin has no apiVersion", _at(place, "apiVersion"), hint)
    for index, (name, _) in enumerate(exec_config.env):
        if not name:
            yield Problem("an environment variable has no name", _at(place, f"env[{index}].name"))
    if not exec_config.interactive_mode:
        hint = f"this apiVersion requires one of {', '.join(INTERACTIVE_MODES)}"
        yield Problem("the exec plugin has no interactiveMode", _at(place, "interactiveMode"), hint)
    elif exec_config.interactive_mode not in INTERACTIVE_MODES:
        message = f"{exec_config.interactive_mode!r} is not an interactiveMode"
        yield Problem(message, _at(place, "interactiveMode"), f"use one of {', '.join(INTERACTIVE_MODES)}")


def _at(place: Place, field: str) -> Place:
    return Place(place.file, f"{place.path}.{field}" if place.path else field, place.line)


def _either(place: Place, field: str, path: str | None, data: object) -> Iterator[Problem]:
    if path and data:
        # client-go's message suggests that the data wins, but it also rejects the kubeconfig.
        yield Problem(f"{field} and {field}-data are both set", place, "keep one of the two")


def _readable(place: Place, field: str, path: str | None) -> Iterator[Problem]:
    if path and (why := _why_unreadable(path)):
        yield Problem(f"{path!r} cannot be read: {why}", _at(place, field))


def _why_unreadable(path: str) -> str | None:
    # Check without opening: if the file is a pipe, its writer would take this process for the reader.
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        return error.strerror
    except ValueError:
        return "it is not a usable file name"
    if stat.S_ISDIR(mode):
        return "it is a directory"
    return None if os.access(path, os.R_OK) else "permission denied"


def _is_proxy(url: str) -> bool:
    try:
        parts = urlsplit(url)
        # Accessing the port validates it.
        return parts.scheme in PROXY_SCHEMES and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
