"""Step-ups on the user's machine: a request waits at the gateway until its user completes a step-up.

    accompany       a background process beside kubectl: polls the gateway for waiting requests
    after_refusal   in the exec plugin that kubectl runs after a 401: the next command will work
    prove_rule      ``ostiary login --step-up``: in advance

One process of a user prompts at a time; the others check again when it is done, and find nothing left. The session
keeps its tokens.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import suppress

from ostiary.cli.companion import LOOK_AGAIN_SECONDS, runs
from ostiary.cli.login import sessions as files
from ostiary.cli.login.gateway import GatewayClient, StepUpTicket
from ostiary.cli.login.login_lock import Turn
from ostiary.cli.login.sessions import GatewayAccount, Sessions
from ostiary.cli.login.terminal import AtTerminal, Person, Wishes
from ostiary.errors import CredentialError, OstiaryError
from ostiary.model import Secret

# How long the gateway may delay its response, and the timeout for that response.
WAIT_SECONDS = 15
ANSWER_SECONDS = 45.0
# A client that runs for longer gets the usual 401, and the next run of the plugin starts another companion.
LONGEST = 12 * 3600.0
ANY_RULE = "*"


def main() -> None:
    """Entry point of the process that `ostiary.cli.companion` starts. Arguments: server, account, client process id."""
    server, account, program = sys.argv[1:]
    accompany(server, account, int(program))


def accompany(server: str, account: str, program: int) -> None:
    """Prompt the user whenever a request of their session waits, until *program* ends. Never raises."""
    threading.Thread(target=_end_with, args=(program,), daemon=True).start()
    with suppress(OstiaryError, KeyboardInterrupt):
        # The gateway is unreachable or does not support step-ups. kubectl's own request reports any error.
        _accompany(Turn(GatewayAccount(server.rstrip("/"), account)), AtTerminal(quiet=True), Wishes())


def _end_with(program: int) -> None:
    while runs(program):
        time.sleep(LOOK_AGAIN_SECONDS)
    os._exit(0)


def _accompany(turn: Turn, person: Person, wishes: Wishes) -> None:
    gateway = _gateway(turn)
    end = time.monotonic() + LONGEST
    while time.monotonic() < end:
        token = _ready_token(turn.account)
        if token is None:
            return
        ticket = gateway.step_up_needed(token, wait=WAIT_SECONDS)
        if ticket is not None and not _ask_in_turn(gateway, turn.account, person, wishes, token):
            return


def _ready_token(account: GatewayAccount) -> Secret | None:
    answer = Sessions(account).ready()
    return None if answer is None else answer.token


def _gateway(turn: Turn) -> GatewayClient:
    trusted = turn.gateway().authorities_pem
    return GatewayClient(turn.account.server, authorities_pem=trusted, seconds=ANSWER_SECONDS)


def _ask_in_turn(
    gateway: GatewayClient, account: GatewayAccount, person: Person, wishes: Wishes, token: Secret
) -> bool:
    """Prompt the user for the step-up, unless another process already does. False if it was not completed."""
    with files.hold_lock(account.path("step-up-lock"), wishes.seconds) as ours:
        # It may have been completed while this process waited for the lock.
        ticket = gateway.step_up_needed(token) if ours else None
        if ticket is None:
            return True
        try:
            _prove(gateway, person, wishes, token, ticket)
        except OstiaryError as error:
            person.tell(
                ": ".join(filter(None, (error.summary, error.cause))) + (f" ({error.hint})" if error.hint else "")
            )
            return False
    return True


def _prove(gateway: GatewayClient, person: Person, wishes: Wishes, token: Secret, ticket: StepUpTicket) -> None:
    # Lazy import: usually no request waits, and no browser is needed.
    from ostiary.cli.login.login_methods import step_up

    what = f'"{ticket.request}"' if ticket.request else f"the rule {ticket.rule}"
    person.tell(f"{what} needs {ticket.requires}")
    try:
        step_up(gateway, person, wishes, ticket.ticket)
    except BaseException:
        with suppress(OstiaryError):
            gateway.refuse_step_up(token, ticket)
        raise


def after_refusal(turn: Turn) -> None:
    """Handle a 401 for a credential that is valid: perhaps a step-up is required."""
    token = _ready_token(turn.account)
    if token is None or not Sessions(turn.account).has_step_up():
        return
    gateway = _gateway(turn)
    try:
        ticket = gateway.step_up_needed(token)
    except OstiaryError:
        # The gateway is unreachable, so use the cached credential.
        return
    if ticket is None:
        return
    if turn.person is None:
        hint = f"ostiary login --step-up {ticket.rule} --server {turn.account.server}"
        cause = f"the rule {ticket.rule} requires {ticket.requires}, and this client does not allow anybody to be asked"
        raise CredentialError("step-up required", cause=cause, where=gateway.server, hint=hint, code="step-up-needed")
    if _ask_in_turn(gateway, turn.account, turn.person, turn.wishes, token):
        # kubectl already has the 401 and will print it.
        turn.person.tell("confirmed; run the command that failed again")


def prove_rule(turn: Turn, rule: str) -> StepUpTicket | None:
    """Complete the step-up of *rule*, or of the first unmet rule. None if there is nothing to do."""
    assert turn.person is not None
    token = turn.credential().token
    assert token is not None
    gateway = _gateway(turn)
    with files.hold_lock(turn.account.path("step-up-lock"), turn.wishes.seconds):
        ticket = gateway.step_up_needed(token, rule=rule)
        if ticket is not None:
            _prove(gateway, turn.person, turn.wishes, token, ticket)
        return ticket
