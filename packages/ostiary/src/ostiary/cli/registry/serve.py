"""``ostiary registry serve``: a daemon that caches registry credentials in memory for this machine."""

from __future__ import annotations

import argparse

from ostiary.cli.arguments import seconds
from ostiary.registry.user_config import NO_SOCKET, SOCKET_VARIABLE

SERVE_HELP = """\
Keep registry credentials in memory for all who pull on this machine: docker-credential-ostiary and
ostiary-credential-provider ask this daemon and run no provider while it has an answer that is still valid. When it is
not running, they run the providers themselves. Nothing is written to disk.

It listens on a Unix socket that only this user and root can use; systemd may pass one (deploy/systemd). With --listen
it also gives credentials to a cluster, over TLS with client certificates: put a gateway before it, whose policy says
who may have which.
"""
SERVE_EXAMPLES = """\
examples:
  ostiary registry serve
  ostiary registry serve --idle 600
  ostiary registry serve --socket none --config providers.yaml --bin-dir /opt/providers --listen 0.0.0.0:8446 \\
      --tls-cert tls.crt --tls-key tls.key --client-ca gateway-ca.crt --client-name gateway.example.com

Signals: TERM or INT end it; HUP reads the configurations again.
"""


def configure_serve(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--socket",
        metavar="PATH",
        help=f"where to listen (default: ${SOCKET_VARIABLE}, else $XDG_RUNTIME_DIR/ostiary/registry.sock, for root "
        f"/run/ostiary/registry.sock); {NO_SOCKET}: not at all",
    )
    parser.add_argument(
        "--idle",
        type=seconds,
        metavar="SECONDS",
        help="end after so long without a question, once no answer is left in memory (default: never)",
    )
    parser.add_argument("--listen", metavar="ADDRESS:PORT", help="give credentials to a cluster here, over TLS")
    parser.add_argument("--tls-cert", metavar="FILE", help="with --listen: the certificate of this server, in PEM")
    parser.add_argument("--tls-key", metavar="FILE", help="with --listen: its key")
    parser.add_argument("--client-ca", metavar="FILE", help="with --listen: the CA of the client certificates")
    parser.add_argument(
        "--client-name",
        action="append",
        default=[],
        metavar="NAME",
        help="with --listen: a name in the client certificate that may ask; may be repeated",
    )
    parser.set_defaults(run=serve)


def serve(arguments: argparse.Namespace) -> int:
    # Lazy import: the other verbs need neither an event loop nor TLS.
    from ostiary.cli.registry.daemon_process import run_daemon

    return run_daemon(arguments)
