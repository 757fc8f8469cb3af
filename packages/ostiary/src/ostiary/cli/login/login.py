"""``ostiary login``: sign in at a gateway, for kubectl and every other client."""

from __future__ import annotations

import argparse
import sys

from ostiary.cli.login.gateway import GatewayClient
from ostiary.cli.login.login_lock import Turn
from ostiary.cli.login.options import add_account, add_ways, chosen_account, chosen_authorities, wishes
from ostiary.cli.login.platforms.credential import WorkloadTurn, describe
from ostiary.cli.login.platforms.options import add_platform, chosen_platform
from ostiary.cli.login.platforms.proof import PlatformChoice
from ostiary.cli.login.sessions import GatewayAccount, Sessions, check_store
from ostiary.cli.login.step_up import ANY_RULE, prove_rule
from ostiary.cli.login.terminal import AtTerminal
from ostiary.cli.output import print_note

DESCRIPTION = """\
Sign in at a gateway: with the Kerberos ticket that you have, if the gateway takes it; with your browser; without one,
as over SSH, with a short code and a browser on another machine; or with a password, if the gateway asks for one.
kubectl then needs no sign-in until the session ends, and runs `ostiary get-token` (see `ostiary kubeconfig`).

With --step-up you confirm, in the session that you have, that it is you: see "require a second factor".

With --from, a script signs in as the CI job or pod that it runs in, by the token that the platform gives it.
"""
EPILOG = """\
examples:
  ostiary login --server https://gateway.example
  ostiary login --device
  ostiary login --account admin --provider staff
  ostiary login --server https://gateway.example --from auto
  ostiary login --step-up
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    add_account(parser)
    add_ways(parser)
    add_platform(parser)
    parser.add_argument(
        "--step-up",
        metavar="RULE",
        nargs="?",
        const=ANY_RULE,
        help="confirm that it is you, as a step-up rule of the gateway requires: the named one, or the first that is"
        " not met; before a script, say. The session and its tokens stay",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    choice = chosen_platform(arguments)
    return _sign_in_person(arguments) if choice is None else _sign_in_workload(arguments, choice)


def _sign_in_workload(arguments: argparse.Namespace, choice: PlatformChoice) -> int:
    """Exchange the proof now, so that a script fails here and not in the middle of its work."""
    account = GatewayAccount(choice.server)
    authorities_pem = chosen_authorities(arguments, account)
    answer, granted = WorkloadTurn(choice, authorities_pem).credential()
    assert answer.token is not None
    assert answer.expires_at is not None
    name = GatewayClient(choice.server, authorities_pem=authorities_pem).whoami(answer.token).get("user")
    until = answer.expires_at.astimezone().strftime("%H:%M")
    print_note(f"signed in at {choice.server} as {name}, until {until}; {describe(granted)}")
    return 0


def _step_up(turn: Turn, rule: str) -> int:
    ticket = prove_rule(turn, rule)
    if ticket is None:
        print_note(f"nothing to confirm at {turn.account.server}")
    else:
        print_note(f"confirmed at {turn.account.server}: {ticket.requires} (rule {ticket.rule})")
    sys.stderr.flush()
    return 0


def _sign_in_person(arguments: argparse.Namespace) -> int:
    account = chosen_account(arguments)
    if arguments.store is not None:
        check_store(arguments.store)
    authorities_pem = chosen_authorities(arguments, account)
    turn = Turn(account, wishes(arguments), AtTerminal(quiet=False), arguments.store, authorities_pem)
    if arguments.step_up is not None:
        return _step_up(turn, arguments.step_up)
    turn.sign_in()
    session = Sessions(account).session()
    if session is not None:
        until = session.expires_at.astimezone().strftime("%a %H:%M")
        print_note(f"signed in at {account.server} as {session.user}, until {until}")
    sys.stderr.flush()
    return 0
