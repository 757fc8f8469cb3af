"""``ostiary-gateway sessions``: list who is signed in, and revoke sessions and tokens."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeVar

from ostiary.cli.arguments import JSON, UsageError, add_output
from ostiary.cli.exit_codes import OK
from ostiary.cli.files import token_text
from ostiary.cli.output import print_json, print_note, print_table
from ostiary.errors import ConfigurationError
from ostiary_gateway.cli.local_store import with_store
from ostiary_gateway.cli.options import add_config, add_server, remote

if TYPE_CHECKING:
    from ostiary_gateway.cli.remote import ApiObject
    from ostiary_gateway.sessions import Tokens

T = TypeVar("T")
TOKEN, SESSION, USER, GROUP, BEFORE = KINDS = ("token", "session", "user", "group", "before")
MOST = 1000
NOW = "now"

LIST_HELP = """\
List the active sessions, newest first: user, groups, provider and expiry.
"""
LIST_EXAMPLES = """\
examples:
  ostiary-gateway sessions list --config gateway.yaml
  ostiary-gateway sessions list --group dev --server https://gateway.example.com --output json
"""
REVOKE_HELP = """\
Revoke tokens or sessions. This takes effect at once on every worker, and open streams are closed. The revocation is
stored before the command returns; it prints how many tokens (for token) or sessions ended.

  token FILE      one token; - reads it from stdin. Or its SHA-256 digest, 64 hex digits, in place of FILE
  session ID      one session, with all its tokens
  user NAME       all sessions of a user
  group NAME      all sessions with this group
  before TIME     all sessions that began before a time: 2026-01-31T12:00:00Z, now, or 8h for eight hours ago

A sign-in that began before the revocation is refused for an hour. --undo removes that block only: ended sessions stay
ended. A time in the future is an error.

A revoked user can sign in again: to block a user, disable the account or change the policy.
"""
REVOKE_EXAMPLES = """\
examples:
  ostiary-gateway sessions revoke user alice --config gateway.yaml
  ostiary-gateway sessions revoke token - < leaked-token
  ostiary-gateway sessions revoke --undo user alice
  ostiary-gateway sessions revoke before now --server https://gateway.example.com --token-file token
"""


HELP = """\
A session begins when somebody signs in, and has the tokens that were issued for it. List the sessions of a gateway, or
revoke some: a revocation takes effect at the next request and closes open watches.
"""
EXAMPLES = """\
examples:
  ostiary-gateway sessions list --config gateway.yaml
  ostiary-gateway sessions revoke user alice --config gateway.yaml
  ostiary-gateway sessions list --server https://gateway.example.com
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description, parser.epilog = HELP, EXAMPLES
    verbs = parser.add_subparsers(required=True, metavar="list|revoke")
    _configure_list(
        verbs.add_parser("list", help="list the active sessions", description=LIST_HELP, epilog=LIST_EXAMPLES)
    )
    _configure_revoke(
        verbs.add_parser("revoke", help="end sessions or a token", description=REVOKE_HELP, epilog=REVOKE_EXAMPLES)
    )


def _configure_list(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--user", metavar="NAME", help="only sessions of this user")
    parser.add_argument("--group", metavar="NAME", help="only sessions with this group")
    _add_gateway(parser)
    parser.set_defaults(run=list_sessions)


def _configure_revoke(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kind", choices=KINDS, help="what VALUE is")
    parser.add_argument("value", metavar="VALUE", help="see above")
    parser.add_argument("--undo", action="store_true", help="undo a revocation: allow sign-ins that it refuses")
    _add_gateway(parser)
    parser.set_defaults(run=revoke)


def _add_gateway(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    add_server(parser, beside_config=True)
    add_output(parser)


# --- list ---


def list_sessions(arguments: argparse.Namespace) -> int:
    gateway = remote(arguments)
    if gateway is not None:
        sessions = gateway.get("sessions", user=arguments.user, group=arguments.group)
    else:
        sessions = _with_store(arguments, lambda tokens: _sessions(tokens, arguments.user, arguments.group))
    if arguments.output == JSON:
        print_json(sessions)
    else:
        _print_sessions(sessions["items"])
    if len(sessions["items"]) >= MOST:
        print_note(f"there may be more than these {MOST}: ask for those of one user or group")
    return OK


async def _sessions(tokens: Tokens, user: str | None, group: str | None) -> ApiObject:
    from ostiary_gateway.api.operator_json import sessions_json

    return sessions_json(await tokens.store.sessions(username=user, group=group, limit=MOST))


def _print_sessions(items: Sequence[ApiObject]) -> None:
    if not items:
        print("there are no active sessions")
        return
    header = ("ID", "USER", "GROUPS", "PROVIDER", "CLIENT", "CREATED", "EXPIRES")
    print_table(
        header,
        [
            (
                session["id"],
                session["user"],
                ", ".join(session["groups"]),
                session["provider"],
                _client(session),
                _minute(session["created"]),
                _minute(session["expires"]),
            )
            for session in items
        ],
    )


def _client(session: ApiObject) -> str:
    # A gateway of an earlier version sends no names.
    name = session.get("name")
    return f'API token "{name}"' if name else str(session["client"])


def _minute(text: str) -> str:
    return datetime.fromisoformat(text).astimezone(UTC).strftime("%Y-%m-%d %H:%MZ")


# --- revoke ---


def revoke(arguments: argparse.Namespace) -> int:
    kind = arguments.kind
    value, at = _value(kind, arguments.value)
    if arguments.undo:
        return _undo(arguments, value)
    gateway = remote(arguments)
    if gateway is not None:
        before = at.isoformat() if at is not None else NOW if kind == BEFORE else None
        body = {"type": kind, "value": value} | ({"before": before} if before is not None else {})
        ended = int(gateway.post("revocations", body=body)["ended"])
    else:
        ended = _with_store(arguments, lambda tokens: _revoke(tokens, kind, value, at))
    if arguments.output == JSON:
        print_json({"type": kind, "ended": ended})
        return OK
    what = "token" if kind == TOKEN else "session"
    print(f"{ended} {what}{'' if ended == 1 else 's'} ended")
    if not ended:
        print_note("no active session or token matched: check the spelling, or ostiary-gateway sessions list")
    return OK


def _undo(arguments: argparse.Namespace, value: str) -> int:
    kind, gateway = arguments.kind, remote(arguments)
    if gateway is not None:
        undone = int(gateway.delete("revocations", type=kind, value=value or None)["undone"])
    else:
        undone = _with_store(arguments, lambda tokens: _undo_in(tokens, kind, value))
    if not undone:
        raise ConfigurationError(
            "unknown revocation",
            cause="it was undone before, or is older than an hour, or the name is misspelt",
            code="revocation-not-found",
        )
    if arguments.output == JSON:
        print_json({"type": kind, "undone": undone})
    else:
        print(f"{undone} revocation{'' if undone == 1 else 's'} undone")
    return OK


async def _undo_in(tokens: Tokens, kind: str, value: str) -> int:
    from ostiary_gateway.interfaces.token_store import RevocationKind

    return await tokens.undo(RevocationKind(kind), value)


async def _revoke(tokens: Tokens, kind: str, value: str, at: datetime | None) -> int:
    from ostiary_gateway.cli.options import login_name
    from ostiary_gateway.interfaces.token_store import RevocationKind

    return await tokens.revoke(
        RevocationKind(kind), value, by=f"{login_name()} (ostiary-gateway sessions revoke)", at=at
    )


def _value(kind: str, text: str) -> tuple[str, datetime | None]:
    """Return what to revoke, and as of when. Raises `UsageError`, which never quotes what may be a token."""
    from ostiary_gateway.sessions import ACCESS_PREFIX, API_PREFIX, RENEWAL_PREFIX

    prefixes = tuple(prefix.decode() for prefix in (ACCESS_PREFIX, API_PREFIX, RENEWAL_PREFIX))
    if kind in (TOKEN, SESSION) and text.startswith(prefixes):
        raise UsageError(
            "a token must not be given on the command line",
            cause="every program on this machine could read it, and the shell stores it in its history",
            hint="put it into a file: ostiary-gateway sessions revoke token FILE, or - to read it from stdin",
        )
    if kind == TOKEN:
        return _digest(text), None
    if kind == BEFORE:
        return "", _moment(text)
    if not text:
        raise UsageError(f"the name of the {kind} is empty")
    return text, None


def _digest(text: str) -> str:
    from ostiary_gateway.sessions import digest_hex

    try:
        if len(text) == 64:
            return digest_hex(text)
    except ValueError:
        # Not a digest, so it is the name of a file.
        pass
    token = _from_stdin() if text == "-" else token_text(text)
    try:
        return digest_hex(token.strip())
    except ValueError as error:
        where = "stdin" if text == "-" else text
        raise ConfigurationError(
            "there is no token to revoke", cause=str(error), where=where, code="token-file-unreadable"
        ) from None


def _from_stdin() -> str:
    if sys.stdin.isatty():
        import getpass

        return getpass.getpass("token: ")
    return sys.stdin.read(1 << 16)


def _moment(text: str) -> datetime | None:
    """Return the time; None for now, which the gateway determines."""
    from ostiary.core.duration import DurationError, parse_duration
    from ostiary_gateway.sessions import LARGEST_SKEW

    now = datetime.now(UTC)
    if text == NOW:
        return None
    try:
        return now - parse_duration(text)
    except DurationError:
        pass
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        hint = "now, 8h for eight hours ago, or a time with its zone: 2026-01-31T12:00:00Z"
        raise UsageError("before needs a time", hint=hint)
    if moment - now > LARGEST_SKEW:
        raise UsageError("the time is in the future", cause="a revocation can only end sessions that have begun")
    return moment


def _with_store(arguments: argparse.Namespace, work: Callable[[Tokens], Awaitable[T]]) -> T:
    return with_store(arguments, lambda tokens, _: work(tokens))
