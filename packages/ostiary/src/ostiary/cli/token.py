"""``ostiary token``: create a scoped token for a script or an agent.

The gateway issues it by token exchange (RFC 8693) for the token of the ``ostiary login`` session, or for one from a
file. Only the token is written to stdout.
"""

from __future__ import annotations

import argparse
import os
from datetime import timedelta
from typing import TYPE_CHECKING

from ostiary.cli.arguments import JSON, UsageError, add_output
from ostiary.cli.authorities import authorities
from ostiary.cli.files import token_text
from ostiary.cli.login.gateway import ExchangedToken, GatewayClient
from ostiary.cli.login.login_lock import session_token
from ostiary.cli.login.options import add_account, add_ca, chosen_account, chosen_authorities
from ostiary.cli.output import print_json, print_note
from ostiary.core.clock import SYSTEM_CLOCK
from ostiary.core.duration import DurationError, parse_duration
from ostiary.core.scopes import Scope, scope_of_rules
from ostiary.core.text import age_text
from ostiary.errors import ConfigurationError
from ostiary.model import Secret
from ostiary.wire.resource_names import scope_notes

if TYPE_CHECKING:
    from ostiary.cli.login.sessions import GatewayAccount

LIFETIME = "10m"
DESCRIPTION = """\
Make a token that may do less than you, for a script or an agent: what --can says and nothing else, and only as long as
you may do it yourself. It ends after --for, when you sign out, and when it is revoked. It cannot be renewed, it opens
none of the gateway's pages, and only narrower tokens can be made with it.

A rule of --can is VERBS RESOURCES -n NAMESPACES, or -A for all namespaces and for what is in none, such as nodes;
with --name NAMES for some objects, and --upstream NAMES for some upstreams. Or VERBS PATHS. Clients such as kubectl
must read which resources there are before anything else: that is added, unless you say --exact.

THE TOKEN IS A SECRET, and this prints it once, on stdout. With --kubeconfig it is written to a file in place of that.
"""
EPILOG = """\
examples:
  ostiary token --can "get,list pods -n shop"
  ostiary token --can "get,list pods,pods/log -n shop" --can "get deployments.apps -n shop" --for 15m --actor agent
  ostiary token --can "get,list pods -n shop" --kubeconfig agent.yaml
  ostiary token --can "delete pods --name web-1 -n shop" --exact
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    parser.add_argument(
        "--can", action="append", required=True, metavar="RULE", help="what the token may do; may be repeated"
    )
    parser.add_argument(
        "--for",
        dest="lifetime",
        default=LIFETIME,
        metavar="DURATION",
        help="how long it is good, as in 10m (default: %(default)s; never longer than the token it is made with)",
    )
    parser.add_argument("--actor", default="", metavar="NAME", help="who is going to use it: shown in the audit log")
    parser.add_argument(
        "--exact", action="store_true", help="only what --can says: not even the API discovery that kubectl needs"
    )
    parser.add_argument(
        "--token-file", metavar="FILE", help="make it with the token in this file (default: with that of your session)"
    )
    parser.add_argument("--kubeconfig", metavar="FILE", help="write a new kubeconfig with the token, for you alone")
    parser.add_argument(
        "--prefix", metavar="PATH", default="", help="with --kubeconfig: the path prefix of the cluster, if not /"
    )
    add_account(parser)
    add_ca(parser)
    add_output(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    scope, lifetime = _scope(arguments), _lifetime(arguments.lifetime)
    if arguments.prefix and not arguments.prefix.startswith("/"):
        raise UsageError("--prefix must be a path such as /staging")
    account = chosen_account(arguments)
    token, authorities_pem = _own_token(arguments, account, lifetime)
    gateway = GatewayClient(account.server, authorities_pem=authorities_pem)
    narrowed = gateway.narrow(token, scope=str(scope), actor=arguments.actor, lifetime=lifetime)
    for note in (*scope_notes(scope), *_lifetime_note(narrowed, lifetime)):
        print_note(note)
    if arguments.kubeconfig is not None:
        _write_kubeconfig(arguments, narrowed, scope, account, authorities_pem)
    elif arguments.output == JSON:
        print_json(
            {
                "token": narrowed.token.reveal(),
                "expires_at": narrowed.expires_at.isoformat(timespec="seconds"),
                "scope": narrowed.scope,
                "actor": arguments.actor,
                "user": narrowed.user,
                "server": account.server,
            }
        )
    else:
        print(narrowed.token.reveal())
    return 0


def _scope(arguments: argparse.Namespace) -> Scope:
    """Validate locally first: the error has a position and no request is sent."""
    return scope_of_rules(arguments.can, exact=arguments.exact)


def _lifetime(text: str) -> timedelta:
    try:
        lifetime = parse_duration(text)
    except DurationError as error:
        raise UsageError("--for is not a duration", cause=str(error), hint=error.hint) from None
    if lifetime < timedelta(seconds=1):
        raise UsageError("--for must be one second at least", hint="as in --for 10m")
    return lifetime


def _own_token(
    arguments: argparse.Namespace, account: GatewayAccount, lifetime: timedelta
) -> tuple[Secret, str | None]:
    if arguments.token_file is None:
        return session_token(account, chosen_authorities(arguments, account), lasting=lifetime)
    return Secret(token_text(arguments.token_file).strip()), authorities(arguments.ca) or chosen_authorities(
        arguments, account
    )


def _lifetime_note(narrowed: ExchangedToken, wanted: timedelta) -> list[str]:
    remaining = _remaining_lifetime(narrowed)
    if wanted - remaining <= timedelta(seconds=5):
        return []
    return [
        f"the token is good for {age_text(remaining.total_seconds())} only: it ends with the token that it is made with"
    ]


def _remaining_lifetime(narrowed: ExchangedToken) -> timedelta:
    return narrowed.expires_at - SYSTEM_CLOCK.now()


def _write_kubeconfig(
    arguments: argparse.Namespace,
    narrowed: ExchangedToken,
    scope: Scope,
    account: GatewayAccount,
    authorities_pem: str | None,
) -> None:
    # Lazy import, because --kubeconfig is rare.
    from ostiary.core.yaml.edit import dump
    from ostiary.wire.kubeconfig import context_name, token_kubeconfig

    namespaces = {namespace for rule in scope.rules for namespace in rule.namespaces or ()}
    content = token_kubeconfig(
        account.server,
        name=context_name(account.server, arguments.actor or "narrowed"),
        token=narrowed.token.reveal(),
        prefix=arguments.prefix,
        # A single namespace becomes the default of the context.
        namespace=namespaces.pop() if len(namespaces) == 1 else None,
        authorities_pem=authorities_pem,
    )
    path = arguments.kubeconfig
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(dump(content))
    except OSError as error:
        raise ConfigurationError(
            "the kubeconfig cannot be written",
            cause=error.strerror,
            where=path,
            hint="name a new file",
            code="config-unreadable",
        ) from None
    remaining = age_text(_remaining_lifetime(narrowed).total_seconds())
    print_note(f"{path} holds the token, for {remaining}: kubectl --kubeconfig {path}")
