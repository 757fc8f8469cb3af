"""``ostiary agent``: keeps a token fresh for the programs beside it."""

from __future__ import annotations

import argparse
import os
import signal
from contextlib import ExitStack
from dataclasses import dataclass

from ostiary.cli.accounts.new_token import expiration_seconds
from ostiary.cli.agent.files import TokenFolder
from ostiary.cli.agent.keeper import Output, Source, TokenKeeper
from ostiary.cli.agent.signalled_wait import SignalledWait
from ostiary.cli.arguments import UsageError
from ostiary.cli.exit_codes import FAILED, OK
from ostiary.cli.output import print_note
from ostiary.core.clock import SYSTEM_CLOCK

DESCRIPTION = """\
Keep a token of the gateway fresh for the programs beside it: in a container of the same pod, or on the same
machine. The token is written to DIR/token, with ca.crt and namespace beside it, so that Kubernetes clients find it as
they find that of a service account; or it is asked for on a Unix socket. It is replaced well before it expires.
While the gateway is away, the old token stays, and the agent says so on stderr.

How the agent proves who it is: --from, by the token that the platform gives to this pod or job; --gateway-token-file,
with a token of the gateway in a file; or with the session of ostiary login, which is refreshed silently.
With --service-account the token is that of a service account of the gateway, which the policy must let the agent
have: create serviceaccounts/token.
"""
EXAMPLES = """\
examples:
  ostiary agent --server https://gateway.example.com --from kubernetes --dir /run/ostiary
  ostiary agent --server https://gateway.example.com --from kubernetes --service-account shop/deployer \\
      --dir /run/ostiary --mode 0640
  ostiary agent --server https://gateway.example.com --socket /run/user/1000/ostiary.sock
  ostiary agent --probe --socket /run/user/1000/ostiary.sock

Signals: TERM or INT end it; HUP gets a new token at once.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    from ostiary.cli.signin.options import add_account, add_ca
    from ostiary.cli.signin.platforms.options import add_platform

    parser.description, parser.epilog = DESCRIPTION, EXAMPLES
    add_account(parser)
    add_ca(parser)
    add_platform(parser)
    parser.add_argument(
        "--gateway-token-file",
        metavar="FILE",
        help="a file that holds a token of the gateway, to ask for the account's token with",
    )
    parser.add_argument(
        "--service-account", metavar="NAMESPACE/NAME", help="get the token of this service account of the gateway"
    )
    parser.add_argument(
        "--for", dest="lifetime", metavar="TIME", help="with --service-account: how long each token lives (default: 1h)"
    )
    parser.add_argument("--dir", metavar="DIR", help="write the files token, ca.crt and namespace there")
    parser.add_argument(
        "--mode", type=_mode, default=0o600, metavar="MODE", help="permissions of the file token (default: 0600)"
    )
    parser.add_argument(
        "--namespace",
        metavar="NAME",
        default="",
        help="the content of the file namespace (default: the service account's)",
    )
    parser.add_argument("--socket", metavar="PATH", help="answer GET /token and GET /healthz on this Unix socket")
    parser.add_argument(
        "--socket-mode", type=_mode, default=0o600, metavar="MODE", help="permissions of the socket (default: 0600)"
    )
    parser.add_argument(
        "--allow-user",
        type=int,
        action="append",
        default=[],
        metavar="UID",
        help="the number of a user who may connect to the socket, besides the agent's own and root; may be repeated",
    )
    parser.add_argument("--once", action="store_true", help="get one token, write it, and exit")
    parser.add_argument("--probe", action="store_true", help="ask the agent at --socket whether its token is valid")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    if arguments.probe:
        return _probe(arguments)
    if arguments.dir is None and (arguments.socket is None or arguments.once):
        raise UsageError("--dir or --socket is missing", hint="--dir DIR, or --socket PATH without --once")
    source, folder = _source_and_folder(arguments)
    outputs: list[Output] = []
    if folder is not None:
        folder.prepare()
        outputs.append(folder.write)
    keeper = TokenKeeper(source, outputs, clock=SYSTEM_CLOCK, say=print_note)
    if arguments.once:
        keeper.refresh_once()
        return OK
    with ExitStack() as stack:
        if arguments.socket is not None:
            # Imported here: Windows has no such sockets, and completion and help must work there.
            from ostiary.cli.agent.token_socket import TokenSocket

            users = frozenset({0, os.getuid(), *arguments.allow_user})
            stack.enter_context(
                TokenSocket(arguments.socket, keeper, mode=arguments.socket_mode, users=users, say=print_note)
            )
        waiting = stack.enter_context(SignalledWait())
        # SIGHUP wants a new token at once. Windows does not have it.
        waking = [signal.SIGHUP] if hasattr(signal, "SIGHUP") else []
        stack.enter_context(waiting.until_signals(waking=waking, ending=(signal.SIGTERM, signal.SIGINT)))
        keeper.run(waiting)
    return OK


def _source_and_folder(arguments: argparse.Namespace) -> tuple[Source, TokenFolder | None]:
    from ostiary.cli.accounts.service_accounts import account_name
    from ostiary.cli.agent.sources import account_source

    name = None if arguments.service_account is None else account_name(arguments.service_account)
    seconds = expiration_seconds(arguments)
    if name is None and seconds is not None:
        raise UsageError("--for needs --service-account", hint="the gateway says how long other tokens live")
    scope = "; ".join(arguments.can or ())
    if name is not None:
        # What the agent proves itself with must be able to ask for the account's token; that one is narrowed.
        arguments.can = None
    origin = _origin(arguments, has_account=name is not None)
    source = origin.source
    if name is not None:
        source = account_source(
            origin.server,
            lambda: origin.source().token,
            name,
            seconds=seconds,
            scope=scope,
            authorities_pem=origin.authorities_pem,
            clock=SYSTEM_CLOCK,
        )
    folder = None
    if arguments.dir is not None:
        namespace = arguments.namespace or ("" if name is None else name.namespace)
        folder = TokenFolder(arguments.dir, arguments.mode, origin.authorities_pem, namespace)
    return source, folder


@dataclass(frozen=True, slots=True)
class _Origin:
    """The gateway, and what the agent proves itself with there."""

    server: str
    source: Source
    authorities_pem: str | None


def _origin(arguments: argparse.Namespace, *, has_account: bool) -> _Origin:
    from ostiary.cli.agent.sources import file_source, platform_source, session_source
    from ostiary.cli.authorities import authorities
    from ostiary.cli.signin.options import chosen_account, chosen_authorities
    from ostiary.cli.signin.platforms.options import chosen_platform

    choice, file = chosen_platform(arguments), arguments.gateway_token_file
    if file is not None and not has_account:
        raise UsageError(
            "--gateway-token-file needs --service-account",
            hint="name the service account whose token the agent keeps fresh: --service-account shop/deployer",
        )
    if choice is not None:
        if file is not None:
            raise UsageError("--from and --gateway-token-file cannot be combined", hint="leave one of them out")
        authorities_pem = authorities(arguments.ca) if arguments.ca else None
        return _Origin(choice.server, platform_source(choice, authorities_pem, SYSTEM_CLOCK), authorities_pem)
    account = chosen_account(arguments)
    authorities_pem = chosen_authorities(arguments, account)
    source = file_source(file) if file is not None else session_source(account, authorities_pem, SYSTEM_CLOCK)
    return _Origin(account.server, source, authorities_pem)


def _probe(arguments: argparse.Namespace) -> int:
    if arguments.socket is None:
        raise UsageError("--probe needs --socket")
    try:
        from ostiary.cli.agent.token_socket import ask_health

        status, word = ask_health(arguments.socket)
    except OSError as error:
        print_note(f"no agent answers at {arguments.socket}: {error.strerror or error}")
        return FAILED
    print(word or f"status {status}")
    return OK if status == 200 else FAILED


def _mode(text: str) -> int:
    mode = int(text, 8)
    if not 0o400 <= mode <= 0o777:
        raise ValueError
    return mode


_mode.__name__ = "mode such as 0640"  # What argparse calls it in an error.
