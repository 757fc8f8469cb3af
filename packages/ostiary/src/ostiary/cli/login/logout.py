"""``ostiary logout``: end the session, here and at the gateway."""

from __future__ import annotations

import argparse

from ostiary.cli.authorities import authorities
from ostiary.cli.login.gateway import GatewayClient
from ostiary.cli.login.options import add_account, add_ca, chosen_account, kubeconfig_authorities
from ostiary.cli.login.sessions import SavedSession, Sessions
from ostiary.cli.output import print_note
from ostiary.errors import ConfigurationError, CredentialError, OstiaryError

DESCRIPTION = """\
End the session at the gateway at once, and delete its tokens here. With --everywhere all your sessions at this
gateway end, on all machines.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    add_account(parser)
    parser.add_argument("--everywhere", action="store_true", help="end all your sessions, on all machines")
    add_ca(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    account = chosen_account(arguments)
    sessions = Sessions(account)
    authorities_pem = authorities(arguments.ca)
    session, problem = _session(sessions)
    # Delete local files first: a user who leaves a shared machine must not leave a token, even if the gateway is
    # unreachable.
    sessions.forget()
    if problem is not None:
        raise problem
    if session is None:
        if arguments.everywhere:
            raise CredentialError(
                "your other sessions are still active",
                cause="there is no session here, so the gateway cannot tell whose sessions to end",
                hint="sign in with ostiary login, then run this command again",
                code="sign-in-needed",
            )
        print_note(f"there was no session at {account.server}")
        return 0
    try:
        authorities_pem = authorities_pem or kubeconfig_authorities(account) or session.authorities_pem
        gateway = GatewayClient(account.server, authorities_pem=authorities_pem)
        gateway.logout(session.renewal, everywhere=arguments.everywhere)
    except OstiaryError as error:
        ends = session.expires_at.astimezone().strftime("%a %H:%M")
        error.hint = f"deleted here; at the gateway the session stays active, at most until {ends}"
        raise
    ended = "all your sessions" if arguments.everywhere else f"the session of {session.user}"
    print_note(f"ended {ended} at {account.server}")
    return 0


def _session(sessions: Sessions) -> tuple[SavedSession | None, ConfigurationError | None]:
    try:
        return sessions.session(), None
    except ConfigurationError as error:
        return None, error
