"""Run one command line: find the module of the command and pass it the rest.

Shared by ``ostiary`` and ``ostiary-gateway``. The module of a command has `configure(parser)`, which sets `run` as a
default of the parser. A command that parses its own command line also has `main(argv)`. Like `ostiary.cli`, this module
imports only `sys`, so that the help is printed without further imports.
"""

import sys


class Program:
    """A program and its commands: name -> (module, description). *elsewhere* maps commands to other programs."""

    __slots__ = ("commands", "elsewhere", "help", "name", "typed")

    def __init__(
        self, typed: str, name: str, commands: dict[str, tuple[str, str]], help: str, elsewhere: dict[str, str]
    ) -> None:
        self.typed = typed
        self.name = name
        self.commands = commands
        self.help = help
        self.elsewhere = elsewhere


def run(program: Program, words: list[str]) -> int:
    """Run the command line *words* and return its exit code."""
    try:
        code = _run(program, words)
        if sys.stdout is not None:
            # Flush here, where a closed pipe can still be handled.
            sys.stdout.flush()
        return code
    except BrokenPipeError:
        from ostiary.cli.exit_codes import FAILED

        forget_stdout()
        return FAILED
    except KeyboardInterrupt:
        from ostiary.cli.exit_codes import INTERRUPTED

        return INTERRUPTED


def _run(program: Program, argv: list[str]) -> int:
    name, rest = (argv[0], argv[1:]) if argv else ("", [])
    if name not in program.commands:
        return _run_without_command(program, name, rest)
    module_name, does = program.commands[name]
    if not module_name:
        from ostiary.cli.arguments import run_plugged

        return run_plugged(program.typed, name, does, rest)
    module = command_module(module_name)
    if hasattr(module, "main"):
        return int(module.main(rest))
    from ostiary.cli.arguments import run_command

    return run_command(f"{program.typed} {name}", does, module.configure, rest)


def _run_without_command(program: Program, name: str, rest: list[str]) -> int:
    if not name:
        from ostiary.cli.exit_codes import USAGE

        print(help_text(program), file=sys.stderr, end="")
        return USAGE
    if name in ("-h", "--help", "help"):
        print(help_text(program), end="")
        return 0
    if name == "--version":
        from ostiary import __version__

        print(f"{program.name} {__version__}")
        return 0
    from ostiary.cli.arguments import refuse_command

    return refuse_command(
        name, rest, program=program.typed, commands=list(program.commands), elsewhere=program.elsewhere
    )


def command_module(name: str):  # type: ignore[no-untyped-def]  # naming the type would import `types`
    __import__(name)
    return sys.modules[name]


def help_text(program: Program) -> str:
    width = max(map(len, program.commands))
    rows = [f"  {name:<{width}}  {does}" for name, (_, does) in program.commands.items()]
    return program.help.format(program=program.typed, commands="\n".join(rows))


def forget_stdout() -> None:
    """Redirect stdout to /dev/null.

    Otherwise the interpreter reports an error when it flushes the closed pipe at exit.
    """
    import os

    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
