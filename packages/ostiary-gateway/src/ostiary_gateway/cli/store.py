"""``ostiary-gateway store``: migrate, check and after-restore."""

from __future__ import annotations

import argparse

from ostiary.cli.arguments import add_output
from ostiary_gateway.cli.options import add_config

HELP = """\
The token store is where a gateway keeps sessions, the digests of their tokens, revocations, service accounts and
signing keys. Move it to another kind of store, check it, or make it safe to use after it was restored from a backup.
"""
EXAMPLES = """\
examples:
  ostiary-gateway store check --config gateway.yaml
  ostiary-gateway store migrate gateway.yaml new-gateway.yaml --dry-run
  ostiary-gateway store after-restore --config gateway.yaml
"""
MIGRATE_HELP = """\
Copy all sessions, with their tokens and the log of revocations, from one token store to another: nobody has to sign in
again, and what was revoked stays revoked. FROM and TO are configurations of a gateway; only their store sections are
used. They name the file with the password of a database (passwordFile): no secret is on the command line.

  1. Write a copy of your gateway.yaml with the new store.
  2. Stop the gateways. (To keep that short, run this command once before with --running.)
  3. Run this command. It compares both stores, copies what differs, and compares again.
  4. Start the gateways with the new configuration.

If it is interrupted, run it again: it continues where it stopped. The source is not changed. Logins in progress, rate
limit counters and the list of replicas are not moved: a user who is signing in at that moment starts again.
"""
MIGRATE_EXAMPLES = """\
examples:
  ostiary-gateway store migrate gateway.yaml new-gateway.yaml --dry-run
  ostiary-gateway store migrate gateway.yaml new-gateway.yaml --running
  ostiary-gateway store migrate gateway.yaml new-gateway.yaml
  ostiary-gateway store migrate gateway.yaml backup.yaml -o json

Exit codes: 0 both stores have the same content (with --dry-run: the move is possible; with --running: copied),
1 otherwise.
"""
CHECK_HELP = """\
Open the token store of a configuration and check all of it: can it be read and written, its version and clock, how
many sessions, tokens and revocations it has, is anything damaged, and which gateway owns it. It changes nothing, with
one exception: a store without an owner is then owned by the gateway of this configuration.
"""
CHECK_EXAMPLES = """\
examples:
  ostiary-gateway store check --config gateway.yaml
  ostiary-gateway store check --take-over
  ostiary-gateway store check -o json

Exit codes: 0 no problems found, 1 a problem.
"""
AFTER_RESTORE_HELP = """\
Run this after you have restored a token store from a backup, before the gateways start. A backup lacks what
happened after it was made: sessions that were revoked since would be valid again, and refresh tokens that were used
since could be used a second time. This command ends every session in the store and refuses logins that are in progress.
Everybody signs in again.

It is not needed after a failover that lost nothing: a synchronous standby, or recovery to the last transaction.
"""
AFTER_RESTORE_EXAMPLES = """\
examples:
  ostiary-gateway store after-restore --config gateway.yaml
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description, parser.epilog = HELP, EXAMPLES
    verbs = parser.add_subparsers(required=True, metavar="migrate|check|after-restore")
    _configure_migrate(
        verbs.add_parser(
            "migrate",
            help="copy all sessions to another store",
            description=MIGRATE_HELP,
            epilog=MIGRATE_EXAMPLES,
        )
    )
    _configure_check(
        verbs.add_parser(
            "check",
            help="check a store: readable, writable, undamaged, owned by this gateway",
            description=CHECK_HELP,
            epilog=CHECK_EXAMPLES,
        )
    )
    _configure_after_restore(
        verbs.add_parser(
            "after-restore",
            help="after a restore from a backup: end all sessions in the store",
            description=AFTER_RESTORE_HELP,
            epilog=AFTER_RESTORE_EXAMPLES,
        )
    )


def _configure_migrate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="FROM", help="the configuration whose store is read")
    parser.add_argument("target", metavar="TO", help="the configuration whose store is filled")
    parser.add_argument("--dry-run", action="store_true", help="only compare: say what would be copied")
    parser.add_argument(
        "--running",
        action="store_true",
        help="copy although gateways use the source; run it again once they have stopped",
    )
    parser.add_argument(
        "--replace", action="store_true", help="end the sessions of the target that the source does not have"
    )
    add_output(parser)
    parser.set_defaults(run=_migrate)


def _configure_check(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--take-over",
        action="store_true",
        help="make this configuration's gateway the owner of the store, in place of another one",
    )
    add_config(parser)
    add_output(parser)
    parser.set_defaults(run=_check)


def _configure_after_restore(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    add_output(parser)
    parser.set_defaults(run=_after_restore)


# The implementations are imported lazily: ``--help`` must not wait for slow imports.


def _migrate(arguments: argparse.Namespace) -> int:
    from ostiary_gateway.cli.store_migrate import migrate

    return migrate(arguments)


def _check(arguments: argparse.Namespace) -> int:
    from ostiary_gateway.cli.store_check import check

    return check(arguments)


def _after_restore(arguments: argparse.Namespace) -> int:
    from ostiary_gateway.cli.store_migrate import after_restore

    return after_restore(arguments)
