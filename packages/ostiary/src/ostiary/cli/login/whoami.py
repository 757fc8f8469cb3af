"""``ostiary whoami``: show your user name and groups at the gateway, and their source."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping

from ostiary.cli.arguments import JSON, add_output
from ostiary.cli.files import token_text
from ostiary.cli.login.gateway import GatewayClient
from ostiary.cli.login.login_lock import session_token
from ostiary.cli.login.options import add_account, add_ca, chosen_account, chosen_authorities
from ostiary.cli.login.platforms.credential import WorkloadTurn
from ostiary.cli.login.platforms.options import add_platform, chosen_platform
from ostiary.cli.login.sessions import GatewayAccount
from ostiary.cli.output import print_json, rows
from ostiary.model import Secret

DESCRIPTION = """\
Show your user at the gateway: name, groups with the provider that each comes from, session and its expiry. Of a token
that is less than its owner: what it may be used for, by whom, and until when. It does not start a sign-in and shows no
token.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    add_account(parser)
    parser.add_argument(
        "--access-token-file",
        metavar="FILE",
        help="the user of the gateway's token in this file (default: your session's)",
    )
    add_ca(parser)
    add_platform(parser)
    add_output(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    choice = chosen_platform(arguments)
    account = chosen_account(arguments) if choice is None else GatewayAccount(choice.server)
    authorities_pem = chosen_authorities(arguments, account)
    if arguments.access_token_file is not None:
        token = Secret(token_text(arguments.access_token_file).strip())
    elif choice is None:
        token, authorities_pem = session_token(account, authorities_pem)
    else:
        token = WorkloadTurn(choice, authorities_pem).token()
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
    # The end of the session, not of the token: by then the user must sign in again.
    labels = {"provider": "provider", "session": "session", "since": "since", "session_expires_at": "until"}
    if user.get("scope"):
        # A scoped token expires before the session does.
        labels = {"scope": "scope", "actor": "actor", **labels, "expires_at": "expires"}
        del labels["session_expires_at"]
    for name, label in labels.items():
        if user.get(name):
            yield label, str(user[name])


def _group(group: Mapping[str, object]) -> str:
    source = group.get("source")
    return f"{group.get('name')} (from {source})" if source else str(group.get("name"))
