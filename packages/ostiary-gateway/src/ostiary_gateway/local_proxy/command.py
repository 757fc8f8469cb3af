"""``ostiary connect``: create contexts that go through a local proxy, which holds the credential."""

from __future__ import annotations

import argparse
import sys

from ostiary.cli import COMMANDS, program
from ostiary.cli.arguments import JSON, UsageError, add_output, run_command
from ostiary.cli.exit_codes import FAILED, USAGE
from ostiary.cli.output import print_error, print_json, print_note, print_table
from ostiary.errors import ConfigurationError, OstiaryError

PLUGIN = "token"
LEAST_IDLE, MOST_IDLE = 5, 24 * 60
DESCRIPTION = """\
Make contexts by which kubectl and every other client use the credential of another context through a proxy on this
machine. The proxy holds the credential: a key in hardware that kubectl cannot use, an exec plugin, or any other user of
a kubeconfig. Clients get a token that lasts for minutes and is of use at this proxy alone.

One process serves all contexts of a user. It is started by the first client that needs it, listens on 127.0.0.1, and
ends when nobody has used it for a while. `ostiary connect token NAME` is the exec plugin of these contexts, which
clients run.
"""
EPILOG = """\
examples:
  ostiary connect prod
  kubectl --context prod@ostiary get pods
  ostiary connect prod staging --idle 60
  ostiary connect prod --foreground
  ostiary connect --status
  ostiary connect --stop
"""


_FORGOTTEN = "forgotten: {}; kubectl config delete-context takes them out of the kubeconfig"


def main(argv: list[str]) -> int:
    """Handle the exec plugin before argparse, which must not print help where a client expects a credential."""
    if argv[:1] == [PLUGIN]:
        return _run_plugin(argv[1:])
    return run_command(f"{program()} connect", COMMANDS["connect"][1], configure, argv)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    parser.add_argument("contexts", nargs="*", metavar="CONTEXT", help="a context that has the credential itself")
    parser.add_argument(
        "--kubeconfig", metavar="FILE", help="where it is, and where the new context goes (default: as kubectl)"
    )
    parser.add_argument("--name", metavar="NAME", help="the name of the new context (default: CONTEXT@ostiary)")
    parser.add_argument(
        "--port",
        metavar="PORT",
        type=_port,
        help="the port on 127.0.0.1 (default: a free one, kept from then on)",
    )
    parser.add_argument(
        "--idle",
        metavar="MINUTES",
        type=_minutes,
        help="end the proxy after so long without a request; an open watch counts as one (default: 15; from 5 to 1440)",
    )
    parser.add_argument("--print", action="store_true", help="print the new context, and leave the kubeconfig alone")
    parser.add_argument("--force", action="store_true", help="also replace entries of this name that belong elsewhere")
    parser.add_argument(
        "--foreground", action="store_true", help="serve in this terminal, where plugins can ask, until Ctrl-C"
    )
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--status", action="store_true", help="show the proxy and its contexts")
    instead.add_argument("--stop", action="store_true", help="end the proxy; the next client starts it again")
    instead.add_argument("--remove", action="store_true", help="forget these contexts (named as CONTEXT@ostiary)")
    add_output(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    _check_options(arguments)
    # Imported lazily, so that --help is fast.
    from ostiary_gateway.local_proxy import management

    as_json = arguments.output == JSON
    if arguments.status:
        _print_status(management.status(), as_json=as_json)
    elif arguments.stop:
        stopped = management.stop()
        _tell({"stopped": stopped}, "the proxy has ended" if stopped else "the proxy does not run", as_json=as_json)
    elif arguments.remove:
        management.remove(arguments.contexts)
        _tell({"removed": arguments.contexts}, _FORGOTTEN.format(", ".join(arguments.contexts)), as_json=as_json)
    else:
        made = [management.make(context, _context_options(arguments)) for context in arguments.contexts]
        if as_json:
            print_json({"contexts": [each.described for each in made]})
        elif arguments.print:
            sys.stdout.write("---\n".join(each.text for each in made))
        if arguments.foreground and not management.serve_in_foreground():
            raise ConfigurationError(
                "the proxy runs in the background already",
                cause="there is one for each user",
                hint="end it first: ostiary connect --stop",
                code="connect-unavailable",
            )
    return 0


def _check_options(arguments: argparse.Namespace) -> None:
    contexts = arguments.contexts
    makes = not (arguments.status or arguments.stop or arguments.remove)
    if not contexts and (makes or arguments.remove):
        raise UsageError("name a context", hint="kubectl config get-contexts lists them: ostiary connect CONTEXT")
    if contexts and (arguments.status or arguments.stop):
        raise UsageError("--status and --stop take no context", hint="one process serves all contexts")
    if len(contexts) > 1 and (arguments.name is not None or arguments.port is not None):
        raise UsageError("--name and --port are for one context", hint="run the command once for each")
    if arguments.print and arguments.output == JSON:
        raise UsageError("--print and --output json cannot be combined", hint="leave one of them out")
    if not makes:
        for option in ("kubeconfig", "name", "port", "idle", "print", "force", "foreground"):
            if getattr(arguments, option):
                raise UsageError(f"--{option} needs a context to connect", hint=f"{program()} connect --help")


def _context_options(arguments: argparse.Namespace):  # type: ignore[no-untyped-def]  # its type is imported late
    from ostiary_gateway.local_proxy.management import ContextOptions

    return ContextOptions(
        kubeconfig=arguments.kubeconfig,
        name=arguments.name,
        port=arguments.port,
        idle_seconds=None if arguments.idle is None else arguments.idle * 60.0,
        merges=not arguments.print,
        force=arguments.force,
        starts=not arguments.foreground,
    )


def _print_status(status: dict[str, object], *, as_json: bool) -> None:
    if as_json:
        print_json(status)
        return
    if status["running"]:
        print_note(
            f"the proxy runs as process {status['pid']} since {status['startedAt']}; without use it ends in"
            f" {status['idleSecondsLeft']} seconds; log: {status['log']}"
        )
    else:
        print_note("the proxy does not run; the next client starts it")
    contexts = status["contexts"]
    assert isinstance(contexts, list)
    columns = ("name", "context", "server", "cluster", "connections", "requests", "expires")
    print_table([column.upper() for column in columns], [[str(each.get(c, "")) for c in columns] for each in contexts])


def _tell(value: object, text: str, *, as_json: bool) -> None:
    if as_json:
        print_json(value)
    else:
        print_note(text)


def _run_plugin(argv: list[str]) -> int:
    try:
        if len(argv) != 1 or argv[0].startswith("-"):
            hint = "clients run it. For a context that is called token: ostiary connect -- token"
            raise UsageError("connect token takes the name of one context", hint=hint)
        from ostiary_gateway.local_proxy.start import print_token

        return print_token(argv[0])
    except UsageError as error:
        print_error(error)
        return USAGE
    except OstiaryError as error:
        print_error(error)
        return FAILED


def _port(text: str) -> int:
    number = int(text)
    if not 1024 <= number <= 65535:
        raise ValueError
    return number


def _minutes(text: str) -> float:
    number = float(text)
    if not LEAST_IDLE <= number <= MOST_IDLE:
        raise ValueError
    return number


# Names of the types in argparse's error messages.
_port.__name__ = "port from 1024 on"
_minutes.__name__ = f"number of minutes from {LEAST_IDLE} to {MOST_IDLE}"
