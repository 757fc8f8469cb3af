"""``ostiary login``: sign in at a gateway, so that kubectl and every other client are."""

from __future__ import annotations

import argparse
import sys

from ostiary.cli.output import print_note
from ostiary.cli.signin.options import add_account, add_ways, chosen_account, chosen_authorities, wishes
from ostiary.cli.signin.person import AtTerminal
from ostiary.cli.signin.sessions import Sessions, check_store
from ostiary.cli.signin.turn import Turn

DESCRIPTION = """\
Sign in at a gateway: with your browser; without one, as over SSH, with a short code and a browser on another machine;
or with a password, if the gateway asks for one. kubectl then needs no sign-in until the session ends, and
runs `ostiary get-token` (see `ostiary kubeconfig`).
"""
EPILOG = """\
examples:
  ostiary login --server https://gateway.example
  ostiary login --device
  ostiary login --account admin --provider staff
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    add_account(parser)
    add_ways(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    account = chosen_account(arguments)
    if arguments.store is not None:
        check_store(arguments.store)
    authorities_pem = chosen_authorities(arguments, account)
    turn = Turn(account, wishes(arguments), AtTerminal(quiet=False), arguments.store, authorities_pem)
    turn.sign_in()
    session = Sessions(account).session()
    if session is not None:
        until = session.expires_at.astimezone().strftime("%a %H:%M")
        print_note(f"signed in at {account.server} as {session.user}, until {until}")
    sys.stderr.flush()
    return 0
