"""``ostiary get-token`` without a usable cached credential: refresh it, sign in, or report why neither is possible.

`ostiary.cli.cached_token` handles the cached case first. Only the credential is written to stdout; messages for the
user go to stderr, and only if that is a terminal.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from contextlib import suppress

from ostiary.cli import program
from ostiary.cli.arguments import Parser, UsageError
from ostiary.cli.authorities import authorities
from ostiary.cli.cached_token import asks_again, believe, file_content, file_name, jwt_file_name, usable_answer
from ostiary.cli.companion import begin
from ostiary.cli.exit_codes import FAILED, USAGE
from ostiary.cli.login import sessions as files
from ostiary.cli.login.gateway import ExchangedToken, GatewayClient
from ostiary.cli.login.login_lock import Turn
from ostiary.cli.login.options import add_account, add_ways, chosen_account, is_behind, wishes
from ostiary.cli.login.platforms.credential import WorkloadTurn, describe
from ostiary.cli.login.platforms.options import add_platform, chosen_platform
from ostiary.cli.login.platforms.proof import PlatformChoice
from ostiary.cli.login.sessions import GatewayAccount, Sessions, check_store, renewal_margin
from ostiary.cli.login.step_up import after_refusal
from ostiary.cli.login.terminal import AtTerminal
from ostiary.cli.output import print_error, print_note
from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.errors import OstiaryError
from ostiary.model import Secret
from ostiary.sdk.program import ReservedStdout
from ostiary.wire.client_authentication import (
    INFO_VARIABLE,
    V1,
    V1BETA1,
    ClusterInfo,
    ExecAnswer,
    ExecCredentialSpec,
    decode_answer,
    decode_info,
    encode_answer,
)
from ostiary.wire.kubeconfig import GATEWAY

# ``--jwt-for``: a JWT for a cluster that trusts the gateway's JWTs, exchanged for the gateway's token and cached.
#
#     <name>+<audience>.jwt      the credential, in the format of get-token
#     <name>+<audience>.asked    the processes that received it


class JwtCredential:
    """The cached JWT of one account for one audience. Nothing is cached if the names are too long for a file name."""

    def __init__(self, account: GatewayAccount, audience: str, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._audience = audience
        self._clock = clock
        name = file_name(account.server, account.name)
        file = None if name is None else jwt_file_name(name, audience)
        self._path = None if file is None else f"{files.sessions_folder()}/{file}"

    @property
    def askers_file(self) -> str | None:
        return None if self._path is None else f"{self._path}.asked"

    def ready(self) -> ExecAnswer | None:
        """Return the cached JWT if it is still valid."""
        data = None if self._path is None else files.read(f"{self._path}.jwt")
        answer = None if data is None else usable_answer(data, b"v1", self._clock.now().timestamp())
        return None if answer is None else decode_answer(answer, api_version=V1)

    def obtain(self, gateway: GatewayClient, token: Secret) -> ExecAnswer:
        """Exchange the gateway's *token* for a new one."""
        granted = gateway.exchange_for_jwt(token, self._audience)
        answer = ExecAnswer(granted.token, None, None, granted.expires_at)
        # Without a writable home the credential is still usable.
        with suppress(OstiaryError):
            self._keep(answer, granted)
        return answer

    def _keep(self, answer: ExecAnswer, granted: ExchangedToken) -> None:
        if self._path is None:
            return
        now = self._clock.now()
        content = file_content(
            obtained=int(now.timestamp()),
            renew_at=int((granted.expires_at - renewal_margin(granted.expires_at - now)).timestamp()),
            v1=encode_answer(answer, api_version=V1).encode(),
            v1beta1=encode_answer(answer, api_version=V1BETA1).encode(),
        )
        files.write(f"{self._path}.jwt", content)
        files.remove(f"{self._path}.asked")


DESCRIPTION = """\
The exec credential plugin for users who sign in at a gateway. kubectl and every other client that reads kubeconfigs
run it. It prints a credential and refreshes it by itself. When the session has expired, it starts a sign-in if the
client is interactive; otherwise it fails and says that you must sign in.

With --from it signs in as the CI job or pod that it runs in, by the token that the platform gives it: no secret is
stored, nobody is asked, and what it caches is of use to this job alone.

With --output-dir it writes the token to DIR/token, with ca.crt and namespace beside it, so that Kubernetes clients find
it as they find that of a service account; with --watch it keeps running and refreshes the token well before it expires.
While the gateway is unreachable the current token stays until it expires, and is then removed. SIGTERM and SIGINT end
it, SIGHUP refreshes the token at once. With --service-account the token is that of a service account of the gateway;
the policy must allow the user to create serviceaccounts/token.

THE CREDENTIAL IS A SECRET, and this prints it. `ostiary kubeconfig` writes the kubeconfig that runs it.
"""
EPILOG = """\
examples:
  ostiary get-token --server https://gateway.example
  ostiary get-token --server https://gateway.example --account admin
  ostiary get-token --server https://gateway.example --from github
  ostiary get-token --server https://gateway.example --jwt-for https://prod.example
  ostiary get-token --server https://gateway.example --from kubernetes --watch --output-dir /run/ostiary
  ostiary get-token --server https://gateway.example --from kubernetes --watch --output-dir /run/ostiary \\
      --service-account shop/deployer --mode 0640 --ready-file /run/ostiary/ready
  ostiary get-token --probe --ready-file /run/ostiary/ready
"""
_NEED_OUTPUT_DIR = {
    "watch": "--watch",
    "service_account": "--service-account",
    "gateway_token_file": "--gateway-token-file",
    "lifetime": "--for",
    "mode": "--mode",
    "namespace": "--namespace",
    "ready_file": "--ready-file",
}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    add_account(parser)
    add_ways(parser)
    add_platform(parser)
    parser.add_argument(
        "--jwt-for",
        metavar="AUDIENCE",
        help="print a JWT for the clusters of this audience, which trust the gateway's JWTs themselves",
    )
    parser.add_argument("--verbose", action="store_true", help="with --from: say on stderr what was found and asked")
    _add_files(parser)
    parser.set_defaults(run=run)


def _add_files(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--output-dir", metavar="DIR", help="write the files token, ca.crt and namespace there instead of printing"
    )
    parser.add_argument(
        "--watch", action="store_true", help="with --output-dir: keep running, and refresh the token before it expires"
    )
    parser.add_argument(
        "--service-account",
        metavar="NAMESPACE/NAME",
        help="with --output-dir: get the token of this service account of the gateway, limited to --can or --scope",
    )
    parser.add_argument(
        "--for", dest="lifetime", metavar="TIME", help="with --service-account: how long each token lives (default: 1h)"
    )
    parser.add_argument(
        "--gateway-token-file",
        metavar="FILE",
        help="with --service-account: a file that holds a token of the gateway, to request the account's token with",
    )
    parser.add_argument(
        "--mode", type=_mode, metavar="MODE", help="with --output-dir: permissions of the file token (default: 0600)"
    )
    parser.add_argument(
        "--namespace",
        metavar="NAME",
        help="with --output-dir: the content of the file namespace (default: the service account's)",
    )
    parser.add_argument(
        "--ready-file", metavar="FILE", help="with --output-dir: a file that holds the time at which the token expires"
    )
    parser.add_argument(
        "--probe", action="store_true", help="exit with 0 if --ready-file says that the token is valid, otherwise 1"
    )


def _mode(text: str) -> int:
    mode = int(text, 8)
    if not 0o400 <= mode <= 0o777:
        raise ValueError
    return mode


_mode.__name__ = "mode such as 0640"  # The name that argparse uses in errors.


def main(argv: list[str]) -> int:
    """Like `run_command`, but argparse must not print its help where a client expects a credential."""
    parser = Parser(prog=f"{program()} get-token")
    configure(parser)
    try:
        return run(parser.parse_args(argv))
    except UsageError as error:
        print_error(error)
        return USAGE
    except SystemExit as left:
        return int(left.code or 0)
    except OstiaryError as error:
        print_error(error)
        return FAILED


def run(arguments: argparse.Namespace) -> int:
    if arguments.output_dir is not None or arguments.probe:
        # Lazy import: kubectl must not wait for what only these options need.
        from ostiary.cli.login import watch

        return watch.run(arguments)
    for name, option in _NEED_OUTPUT_DIR.items():
        if getattr(arguments, name):
            raise UsageError(f"{option} needs --output-dir", hint="name the directory to write the token to")
    info = _info()
    choice = chosen_platform(arguments)
    if choice is not None:
        return _run_as_workload(arguments, choice, info)
    if arguments.verbose:
        raise UsageError("--verbose needs --from")
    account = chosen_account(arguments)
    if arguments.store is not None:
        check_store(arguments.store)
    stdout = ReservedStdout()
    turn = Turn(
        account,
        wishes(arguments),
        AtTerminal(quiet=True) if info.interactive else None,
        arguments.store,
        authorities(arguments.ca) or _authorities_told(info, account),
    )
    answer = _credential(turn) if arguments.jwt_for is None else _jwt(turn, arguments.jwt_for)
    stdout.send(encode_answer(answer, api_version=info.api_version, as_proposed=info.as_proposed))
    if arguments.jwt_for is None and Sessions(account).has_step_up():
        begin(account.server, account.name)
    return 0


def _credential(turn: Turn) -> ExecAnswer:
    askers_file = turn.account.path("asked")
    doubted = asks_again(askers_file, time.time())
    answer = turn.credential(doubted=doubted)
    if doubted:
        after_refusal(turn)
        believe(askers_file, time.time())
    return answer


def _jwt(turn: Turn, audience: str) -> ExecAnswer:
    """Return a JWT. After a possible rejection by the cluster, get a new one if the session is still valid."""
    if not audience:
        raise UsageError("--jwt-for is empty")
    cached = JwtCredential(turn.account, audience)
    doubted = cached.askers_file is not None and asks_again(cached.askers_file, time.time())
    answer = None if doubted else cached.ready()
    if answer is not None:
        return answer
    token = turn.credential(doubted=doubted).token
    assert token is not None
    answer = cached.obtain(turn.gateway(), token)
    if doubted and cached.askers_file is not None:
        believe(cached.askers_file, time.time())
    return answer


def _run_as_workload(arguments: argparse.Namespace, choice: PlatformChoice, info: ExecCredentialSpec) -> int:
    stdout = ReservedStdout()
    authorities_pem = authorities(arguments.ca) or _authorities_told(info, GatewayAccount(choice.server))
    turn = WorkloadTurn(choice, authorities_pem)
    cache = turn.cache()
    doubted = cache is not None and asks_again(cache.askers_file, time.time())
    answer, granted = turn.credential(doubted=doubted)
    if doubted and cache is not None:
        believe(cache.askers_file, time.time())
    if arguments.verbose:
        print_note(describe(granted))
    if arguments.jwt_for is not None:
        # Not cached: the file would be readable by other jobs on this machine.
        assert answer.token is not None
        jwt = GatewayClient(choice.server, authorities_pem=authorities_pem).exchange_for_jwt(
            answer.token, arguments.jwt_for
        )
        answer = ExecAnswer(jwt.token, None, None, jwt.expires_at)
    stdout.send(encode_answer(answer, api_version=info.api_version, as_proposed=info.as_proposed))
    return 0


def _info() -> ExecCredentialSpec:
    text = os.environ.get(INFO_VARIABLE)
    if text:
        return decode_info(text)
    # Run by hand, or by a client that passes no information to plugins.
    return ExecCredentialSpec(V1, interactive=sys.stdin is not None and sys.stdin.isatty())


def _authorities_told(info: ExecCredentialSpec, account: GatewayAccount) -> str | None:
    """Return the kubeconfig's authority if its cluster is behind this gateway: it then applies to ``/auth`` as well."""
    cluster = info.cluster
    if cluster is None or not cluster.certificate_authority_data:
        return None
    if not is_behind(cluster.server, account) and not _is_said_to_be_behind(cluster, account):
        return None
    return cluster.certificate_authority_data.decode("utf-8", "replace")


def _is_said_to_be_behind(cluster: ClusterInfo, account: GatewayAccount) -> bool:
    """Whether the kubeconfig declares that a cluster at another host is behind this gateway.

    It also names the command.
    """
    config = cluster.config
    server = config.get(GATEWAY) if isinstance(config, dict) else None
    return isinstance(server, str) and is_behind(server, account)
