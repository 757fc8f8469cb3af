"""Options that select the gateway, the account, the authorities and the sign-in method.

The gateway and the account come from an option, the environment, the kubeconfig, or the only saved session.
"""

from __future__ import annotations

import argparse
import os
from itertools import pairwise
from typing import TYPE_CHECKING

from ostiary.cli.arguments import UsageError, seconds
from ostiary.cli.authorities import authorities, checked_authorities
from ostiary.cli.cached_token import DEFAULT_ACCOUNT
from ostiary.cli.gateway_http import checked_address
from ostiary.cli.login.sessions import FILE, KEYRING, GatewayAccount, known_accounts
from ostiary.cli.login.terminal import SECONDS, Wishes
from ostiary.errors import ConfigurationError

if TYPE_CHECKING:
    from ostiary.kubeconfig import Cluster, Kubeconfig

SERVER_VARIABLE = "OSTIARY_SERVER"


def add_account(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--server",
        metavar="URL",
        help=f"the URL of the gateway (default: ${SERVER_VARIABLE}, the current context's, or the only one you use)",
    )
    parser.add_argument("--account", metavar="NAME", help="a name for one of several accounts at this gateway")


def add_ways(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--provider", metavar="NAME", help="sign in with this identity provider of the gateway")
    parser.add_argument("--device", action="store_true", help="sign in with a browser on another machine and a code")
    parser.add_argument("--no-browser", action="store_true", help="do not open a browser: only print the URL")
    add_ca(parser)
    parser.add_argument(
        "--store", choices=(FILE, KEYRING), help="where the refresh token is stored (default: as before, or file)"
    )
    parser.add_argument(
        "--timeout",
        type=seconds,
        default=SECONDS,
        metavar="SECONDS",
        help="time limit for the sign-in (default: %(default)g)",
    )


def add_ca(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--ca",
        metavar="FILE",
        help="the CA certificate of the gateway, in PEM (default: the kubeconfig's, or the system's)",
    )


def wishes(arguments: argparse.Namespace) -> Wishes:
    return Wishes(arguments.provider, arguments.device, arguments.no_browser, arguments.timeout)


def chosen_account(arguments: argparse.Namespace) -> GatewayAccount:
    """Return the selected account. Raises `UsageError` if it is ambiguous."""
    if arguments.account == "":
        raise UsageError("--account is empty")
    server = arguments.server or os.environ.get(SERVER_VARIABLE)
    if server:
        return GatewayAccount(checked_address(server), arguments.account or DEFAULT_ACCOUNT)
    account = _of_kubeconfig() or _only_known()
    return account if arguments.account is None else GatewayAccount(account.server, arguments.account)


def _only_known() -> GatewayAccount:
    accounts = known_accounts()
    if len(accounts) == 1:
        return accounts[0]
    if len({account.server for account in accounts}) == 1:
        # Several accounts of one gateway: select the default account.
        return GatewayAccount(accounts[0].server)
    cause = "you use several: " + ", ".join(sorted({account.server for account in accounts})) if accounts else None
    raise UsageError(
        f"no gateway is named{'' if cause is None else ': ' + cause}",
        hint=f"--server https://gateway.example, or set {SERVER_VARIABLE}",
    )


def _of_kubeconfig() -> GatewayAccount | None:
    """Return the gateway of the current context, if its user runs ``get-token``."""
    config = _kubeconfig()
    context = None if config is None else config.contexts.get(config.current_context)
    user = None if config is None or context is None else config.users.get(context.user)
    args = () if user is None or user.exec is None else user.exec.args
    if "get-token" not in args:
        return None
    options = dict(pairwise(args)) | dict(arg.split("=", 1) for arg in args if arg.startswith("--") and "=" in arg)
    server = options.get("--server")
    return None if not server else GatewayAccount(checked_address(server), options.get("--account") or DEFAULT_ACCOUNT)


def _kubeconfig() -> Kubeconfig | None:
    listed = [path for path in os.environ.get("KUBECONFIG", "").split(os.pathsep) if path]
    if listed and not any(map(os.path.exists, listed)):
        # `load` would warn. A user who signs in does not need a kubeconfig yet.
        return None
    # Lazy import: not needed with --server and --ca.
    from ostiary.kubeconfig import load

    try:
        return load()
    except ConfigurationError:
        return None


# --- authorities of the gateway's certificate ---


def chosen_authorities(arguments: argparse.Namespace, account: GatewayAccount) -> str | None:
    """Return the authorities of ``--ca``, or of the kubeconfig, or None."""
    return authorities(arguments.ca) or kubeconfig_authorities(account)


def kubeconfig_authorities(account: GatewayAccount) -> str | None:
    """Return the authorities of the cluster behind this gateway, so that we trust what kubectl trusts.

    The current context's cluster takes precedence. Raises `ConfigurationError` if they cannot be used.
    """
    config = _kubeconfig()
    if config is None:
        return None
    context = config.contexts.get(config.current_context)
    current = None if context is None else config.clusters.get(context.cluster)
    for cluster in (*([] if current is None else [current]), *config.clusters.values()):
        authorities_pem = _cluster_authorities(cluster) if is_behind(cluster.server, account) else None
        if authorities_pem is not None:
            return authorities_pem
    return None


def _cluster_authorities(cluster: Cluster) -> str | None:
    # Like kubectl: the data takes precedence.
    if cluster.certificate_authority_data:
        return checked_authorities(cluster.certificate_authority_data, where=cluster.place)
    return authorities(cluster.certificate_authority or None)


def is_behind(server: str, account: GatewayAccount) -> bool:
    """Whether *server* of a kubeconfig is this gateway: then its authority applies to ``/auth`` as well."""
    try:
        address = checked_address(server)
    except UsageError:
        return False
    return address == account.server or address.startswith(f"{account.server}/")
