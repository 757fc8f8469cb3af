"""The program ``ostiary``: finds the command's module and hands it the rest of the line.

Importing this costs nothing, and a command pays only for its own module: `get-token` is run before every
kubectl command, and its start is what people wait for. So nothing but `sys` is imported here, not even for
types, and a new command is one line in `COMMANDS`.
"""

import sys

# name: (module, what it does). The module has `configure(parser)`, whose parser sets `run` as a default;
# or, where even argparse would be too slow, `main(argv)`.
COMMANDS = {
    "serve": ("ostiary.cli.serve", "run the gateway: people and programs let in by your identity system and policy"),
    "can-i": ("ostiary.cli.can_i", "ask the gateway's policy whether somebody may do something, and why"),
    "who-can": ("ostiary.cli.who_can", "everyone whom the gateway's policy lets do something"),
    "explain": ("ostiary.cli.explain", "why a request was refused, by the id that its sender was told"),
    "policy": ("ostiary.cli.policy", "lint a policy, compare two of them, replay what people did against a new one"),
    "sessions": ("ostiary.cli.sessions", "who is signed in; revoke tokens, sessions, users, groups"),
    "impersonation-role": ("ostiary.cli.impersonation_role", "the least that a cluster must allow the gateway itself"),
    "plugins": ("ostiary.cli.plugins", "the installed providers, and the packages they come from"),
    "login": ("ostiary.cli.login", "sign in at a gateway, so that kubectl and other clients are"),
    "logout": ("ostiary.cli.logout", "end the session, here and at the gateway"),
    "whoami": ("ostiary.cli.whoami", "who the gateway says you are, and how it knows your groups"),
    "kubeconfig": ("ostiary.cli.kubeconfig", "a context for kubectl whose user signs in at a gateway"),
    "get-token": ("ostiary.cli.get_token", "the exec plugin that kubectl runs for those who signed in"),
    "exec": ("ostiary.cli.exec", "run, explain or judge the exec credential plugin of a kubeconfig"),
    "registry": ("ostiary.cli.registry", "credentials for an image: find, explain, lint, check, probe, migrate"),
    "completion": ("ostiary.cli.completion", "tab completion for bash, zsh or fish"),
}

OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130

HELP = """\
{program}: authentication for those who run or program Kubernetes

usage: {program} COMMAND [options]

{commands}

  {program} COMMAND --help    what a command does, with examples
  {program} --version

Begin with what your kubeconfig would run, and why:

  {program} exec explain

Exit codes: 0 it worked, 1 it was refused or failed, 2 the command line was wrong.
"""


def main(argv: list[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    try:
        code = _run(sys.argv[1:] if argv is None else list(argv))
        if sys.stdout is not None:
            # Here, where a reader that went away can still be dealt with.
            sys.stdout.flush()
        return code
    except BrokenPipeError:
        _forget_stdout()
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED


def program() -> str:
    """What the person typed: kubectl finds ``kubectl-ostiary`` and calls it ``kubectl ostiary``."""
    return "kubectl ostiary" if sys.argv[0].endswith("kubectl-ostiary") else "ostiary"


def _run(argv: list[str]) -> int:
    name, rest = (argv[0], argv[1:]) if argv else ("", [])
    if not name:
        print(help_text(), file=sys.stderr, end="")
        return USAGE
    if name in ("-h", "--help", "help"):
        print(help_text(), end="")
        return OK
    if name == "--version":
        from ostiary import __version__

        print(f"ostiary {__version__}")
        return OK
    if name not in COMMANDS:
        from ostiary.cli.arguments import refuse_command

        return refuse_command(name, rest)
    module = command_module(name)
    if hasattr(module, "main"):
        return int(module.main(rest))
    from ostiary.cli.arguments import run_command

    return run_command(name, rest)


def command_module(name: str):  # type: ignore[no-untyped-def]  # naming the type would import `types`
    module = COMMANDS[name][0]
    __import__(module)
    return sys.modules[module]


def help_text() -> str:
    width = max(map(len, COMMANDS))
    rows = [f"  {name:<{width}}  {does}" for name, (_, does) in COMMANDS.items()]
    return HELP.format(program=program(), commands="\n".join(rows))


def _forget_stdout() -> None:
    """Nobody reads it any more; without this the interpreter would complain when it flushes it at the end."""
    import os

    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
