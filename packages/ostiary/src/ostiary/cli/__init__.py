"""The command ``ostiary``: finds the module of a subcommand and passes it the rest of the command line.

A subcommand is a module and a line in `COMMANDS`; only the module of the one that runs is imported. ``get-token`` and
``connect token`` run before every kubectl command, so this module imports only `sys`, not even types.
"""

import sys

# name: (module, description). See `ostiary.cli.dispatch`. A command without a module belongs to another distribution,
# which declares it as an entry point of the group ``ostiary.command``.
COMMANDS = {
    "login": ("ostiary.cli.login.login", "sign in at a gateway, for kubectl and other clients"),
    "logout": ("ostiary.cli.login.logout", "end the session, here and at the gateway"),
    "whoami": ("ostiary.cli.login.whoami", "show your user name and groups at the gateway, and their source"),
    "token": ("ostiary.cli.token", "create a token with fewer rights than you, for a script or an agent"),
    "kubeconfig": ("ostiary.cli.kubeconfig", "make a kubectl context whose user signs in at a gateway"),
    "get-token": ("ostiary.cli.login.get_token", "the exec plugin that kubectl runs to get a token"),
    "connect": ("", "let kubectl use a hardware key, or any credential, through a proxy on this machine"),
    "exec": ("ostiary.cli.exec", "run, explain or check the exec credential plugin of a kubeconfig"),
    "registry": (
        "ostiary.cli.registry.command",
        "credentials for an image: get, explain, lint, check, probe; a daemon that keeps them: serve; disable, enable",
    ),
    "completion": ("ostiary.cli.completion", "tab completion for bash, zsh, fish or PowerShell"),
}
# The commands of ``ostiary-gateway``, for a hint to users who type one of them here.
GATEWAY_COMMANDS = (
    "serve",
    "status",
    "sessions",
    "accounts",
    "tokens",
    "policy",
    "can-i",
    "who-can",
    "explain",
    "impersonation-role",
    "door",
    "store",
    "issuer",
    "quota",
    "api-plugins",
    "plugins",
)

HELP = """\
{program}: authentication for Kubernetes clients, image registries and APIs

usage: {program} COMMAND [options]

{commands}

  {program} COMMAND --help    what a command does, with examples
  {program} --version

To see what your kubeconfig would run, and why:

  {program} exec explain

The gateway is a program of its own: ostiary-gateway.

Exit codes: 0 success, 1 denied or failed, 2 invalid command line.
"""


def main(argv: list[str] | None = None) -> int:
    """Run one command line, by default that of the process, and return the exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    try:
        if _print_quickly(words):
            if argv is None:
                # All output is written. Finalizing the interpreter would take longer than the command.
                _leave_at_once()
            return 0
    except KeyboardInterrupt:
        from ostiary.cli.exit_codes import INTERRUPTED

        return INTERRUPTED
    except BrokenPipeError:
        from ostiary.cli.dispatch import forget_stdout
        from ostiary.cli.exit_codes import FAILED

        forget_stdout()
        return FAILED
    from ostiary.cli.dispatch import Program, run

    this = Program(program(), "ostiary", COMMANDS, HELP, dict.fromkeys(GATEWAY_COMMANDS, "ostiary-gateway"))
    return run(this, words)


def program() -> str:
    """Return the name that the user typed: kubectl runs ``kubectl-ostiary`` as ``kubectl ostiary``."""
    return "kubectl ostiary" if sys.argv[0].removesuffix(".exe").endswith("kubectl-ostiary") else "ostiary"


def _print_quickly(words: list[str]) -> bool:
    """Print the cached credential of a built-in exec plugin. False if there is none, or for any other command."""
    if words[:1] == ["get-token"]:
        return _print_cached(words[1:])
    if words[:2] == ["connect", "token"]:
        from ostiary.cli import quick_token

        return quick_token.print_token(words[2:])
    return False


def _print_cached(argv: list[str]) -> bool:
    """Print the cached credential of ``get-token``. False if there is no usable one."""
    from ostiary.cli import cached_token

    if cached_token.print_cached(argv):
        return True
    if not any(word.partition("=")[0] == "--from" for word in argv):
        return False
    from ostiary.cli import cached_workload_token

    return cached_workload_token.print_cached(argv)


def _leave_at_once() -> None:
    from ostiary.cli.cached_token import system

    system._exit(0)
