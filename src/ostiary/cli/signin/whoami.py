"""``ostiary whoami``: show your user name and groups at the gateway, and their source."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping

from ostiary.cli.arguments import JSON, add_output
from ostiary.cli.output import print_json, rows
from ostiary.cli.signin.gateway import GatewayClient
from ostiary.cli.signin.options import add_account, add_ca, chosen_account, chosen_authorities
from ostiary.cli.signin.turn import session_token

DESCRIPTION = """\
Show your user at the gateway: name, groups with the provider that each comes from, session and its expiry. It does not
start a sign-in and shows no token.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    add_account(parser)
    add_ca(parser)
    add_output(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    account = chosen_account(arguments)
    token, authorities_pem = session_token(account, chosen_authorities(arguments, account))
    user = GatewayClient(account.server, authorities_pem=authorities_pem).whoami(token)
    if arguments.output == JSON:
        print_json({"server": account.server, "account": account.name, **user})
        return 0
    for row in rows(_rows(account.server, user), stream=sys.stdout, width=8):
        print(row)
    return 0


def _rows(server: str, user: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    yield "user", str(user.get("user", ""))
    listed = user.get("groups")
    groups = [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
    yield "groups", "\n".join(_group(each) for each in groups) or "none"
    yield "gateway", server
    # The session's end, and not the token's: by then the person must sign in again.
    labels = {"provider": "provider", "session": "session", "since": "since", "session_expires_at": "until"}
    for name, label in labels.items():
        if user.get(name):
            yield label, str(user[name])


def _group(group: Mapping[str, object]) -> str:
    source = group.get("source")
    return f"{group.get('name')} (from {source})" if source else str(group.get("name"))
