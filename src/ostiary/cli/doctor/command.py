"""``ostiary doctor``: examine a proxy from both of its sides."""

from __future__ import annotations

import argparse

from ostiary.cli.arguments import add_output, seconds
from ostiary.cli.signin.options import add_account

DESCRIPTION = """\
Send hostile requests through your proxy to an echo that stands in the place of your application, and say which of
them arrive: claimed identities, requests without a token, paths with two readings, requests inside of requests. For
each failure it says what arrived, and how to shut it.

Point the backend of the proxy at the echo (--echo), or stop the application so that the echo can take its port. Nothing
hostile is sent before the echo has seen a plain request of its own come through the proxy, so only a proxy that you
configure can be examined. A server that follows the HTTP specification is not harmed: requests are marked, a few
hundred at most, and each has a connection of its own. Do it in a test environment or a maintenance window: other
requests get the answer of the echo meanwhile.

Exit code 1 if a check failed; warnings and what could not be tested give 0.
"""
EPILOG = """\
examples:
  ostiary doctor --through https://shop.example --echo 127.0.0.1:9000 --token-file token --denied /admin
  ostiary doctor --through http://127.0.0.1:8080 --host shop.example --echo 127.0.0.1:9000 --output json
"""
# As `recognition` and `probe` have them; they are not imported here, because --help must not wait for them.
PROXIES = ("nginx", "traefik", "caddy", "envoy", "haproxy", "ostiary")
CLASSES = ("user", "identity", "leak", "sources", "paths", "smuggling", "http2", "door", "outage")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    parser.add_argument("--through", metavar="URL", required=True, help="the proxy, as clients reach it")
    parser.add_argument(
        "--echo", metavar="ADDRESS", required=True, help="where the echo listens, and the proxy finds its backend"
    )
    parser.add_argument("--host", metavar="NAME", help="the host to ask for, if not that of the URL")
    _add_user(parser)
    _add_paths(parser)
    _add_gateway(parser)
    parser.add_argument(
        "--proxy",
        choices=PROXIES,
        help="which proxy it is, if it does not say so itself",
    )
    parser.add_argument(
        "--only", action="append", choices=CLASSES, help="examine only this class; may be repeated (default: all)"
    )
    parser.add_argument("--ca", metavar="FILE", help="the CA certificate of the proxy, and of the gateway, in PEM")
    parser.add_argument(
        "--timeout",
        type=seconds,
        default=10.0,
        metavar="SECONDS",
        help="how long to wait for an answer (default: %(default)g)",
    )
    add_output(parser)
    parser.set_defaults(run=_run)


def _add_user(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--token-file", metavar="FILE", help="a token of the gateway (default: that of your session, see --server)"
    )
    add_account(parser)
    parser.add_argument("--expect-user", metavar="NAME", help="the user of the token (default: the gateway is asked)")
    parser.add_argument(
        "--user-header",
        metavar="NAME",
        default="X-Remote-User",
        help="the header that tells the application the user (default: %(default)s)",
    )


def _add_paths(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--path",
        action="append",
        default=[],
        metavar="PATH",
        help="a path that this user may use (default: /). Further ones are only tried without a token",
    )
    parser.add_argument(
        "--denied",
        action="append",
        default=[],
        metavar="REQUEST",
        help="what this user may not use: /admin, or 'POST /orders' where they may GET; may be repeated",
    )
    parser.add_argument(
        "--public",
        action="append",
        default=[],
        metavar="PATH",
        help="a path that is open to everybody; may be repeated",
    )


def _add_gateway(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--gateway", metavar="URL", help="the gateway, to be asked who the user is, and examined, too")
    parser.add_argument("--door", metavar="NAME/UPSTREAM", help="the door of this proxy, if it asks by HTTP")
    parser.add_argument(
        "--while-gateway-down",
        action="store_true",
        help="at the end, wait until you have stopped the gateway and pressed Enter, and see that nobody is let in",
    )


def _run(arguments: argparse.Namespace) -> int:
    # What is slow to import stands there: --help must not wait for it.
    from ostiary.cli.doctor.run import run

    return run(arguments)
