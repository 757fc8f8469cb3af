"""The program ``ostiary``: finds the module of the command and passes it the rest of the command line.

A command is a module and a line in `COMMANDS`; only the module of the command that runs is imported. ``get-token`` and
``connect token`` run before every kubectl command, so this module imports nothing but `sys`, not even for types.
"""

import sys

# name: (module, what it does). The module has `configure(parser)`, whose parser sets `run` as a default. One that must
# parse its command line itself has `main(argv)` as well.
COMMANDS = {
    "serve": ("ostiary.cli.gateway.serve", "run the gateway: sign-in with your identity system, access by your policy"),
    "can-i": ("ostiary.cli.policy.can_i", "ask the gateway's policy whether a user may do something, and why"),
    "who-can": ("ostiary.cli.policy.who_can", "list everyone whom the gateway's policy allows to do something"),
    "explain": ("ostiary.cli.policy.explain", "explain why a request was denied, by its request id (Audit-Id)"),
    "policy": ("ostiary.cli.policy.command", "lint a policy, compare two policies, replay recorded requests"),
    "status": ("ostiary.cli.gateway.status", "show every replica of a gateway: version, configuration, lag, load"),
    "quota": ("ostiary.cli.gateway.quota", "what everybody uses of the limits of objects"),
    "sessions": ("ostiary.cli.gateway.sessions", "list sessions; revoke tokens, sessions, users or groups"),
    "accounts": (
        "ostiary.cli.accounts.service_accounts",
        "service accounts for programs: create, list, disable, delete; issue their tokens",
    ),
    "tokens": ("ostiary.cli.accounts.api_tokens", "API tokens for programs: create, list and revoke them"),
    "api-plugins": (
        "ostiary.cli.gateway.api_plugins",
        "API plugins: list, register and remove processes that serve an API group",
    ),
    "store": ("ostiary.cli.store.command", "move all sessions to another token store; check a store; after a restore"),
    "issuer": ("ostiary.cli.issuer.command", "let clusters trust the gateway's JWTs; list and rotate its signing keys"),
    "door": (
        "ostiary.cli.door.command",
        "print the configuration of nginx, Traefik, Caddy, Envoy, HAProxy or a Kubernetes Gateway that asks",
    ),
    "impersonation-role": (
        "ostiary.cli.policy.impersonation_role",
        "print the smallest role that the gateway needs in a cluster",
    ),
    "plugins": ("ostiary.cli.plugins", "list the installed providers and their packages"),
    "login": ("ostiary.cli.signin.login", "sign in at a gateway, for kubectl and other clients"),
    "logout": ("ostiary.cli.signin.logout", "end the session, here and at the gateway"),
    "whoami": ("ostiary.cli.signin.whoami", "show your user name and groups at the gateway, and their source"),
    "token": ("ostiary.cli.token.command", "make a token that may do less than you, for a script or an agent"),
    "kubeconfig": ("ostiary.cli.kubeconfig.command", "make a kubectl context whose user signs in at a gateway"),
    "get-token": ("ostiary.cli.signin.get_token", "the exec plugin that kubectl runs to get a token"),
    "connect": (
        "ostiary.cli.connect.command",
        "let kubectl use a hardware key, or any credential, through a proxy on this machine",
    ),
    "exec": ("ostiary.cli.exec.command", "run, explain or check the exec credential plugin of a kubeconfig"),
    "registry": (
        "ostiary.cli.registry.command",
        "credentials for an image: get, explain, lint, check, probe; a daemon that keeps them: serve; disable, enable",
    ),
    "completion": ("ostiary.cli.completion.command", "tab completion for bash, zsh, fish or PowerShell"),
}

HELP = """\
{program}: authentication for Kubernetes clients, image registries and APIs

usage: {program} COMMAND [options]

{commands}

  {program} COMMAND --help    what a command does, with examples
  {program} --version

To see what your kubeconfig would run, and why:

  {program} exec explain

Exit codes: 0 success, 1 denied or failed, 2 invalid command line.
"""


def main(argv: list[str] | None = None) -> int:
    """Run one command line and return its exit code. Without *argv* it is the program's own."""
    words = sys.argv[1:] if argv is None else list(argv)
    try:
        if _print_quickly(words):
            if argv is None:
                # All is written. Taking the interpreter apart would take longer than all that was done.
                _leave_at_once()
            return 0
        code = _run(words)
        if sys.stdout is not None:
            # Here, where a reader that went away can still be dealt with.
            sys.stdout.flush()
        return code
    except BrokenPipeError:
        from ostiary.cli.exit_codes import FAILED

        _forget_stdout()
        return FAILED
    except KeyboardInterrupt:
        from ostiary.cli.exit_codes import INTERRUPTED

        return INTERRUPTED


def program() -> str:
    """What the person typed: kubectl finds ``kubectl-ostiary`` and calls it ``kubectl ostiary``."""
    return "kubectl ostiary" if sys.argv[0].removesuffix(".exe").endswith("kubectl-ostiary") else "ostiary"


def _run(argv: list[str]) -> int:
    name, rest = (argv[0], argv[1:]) if argv else ("", [])
    if name not in COMMANDS:
        return _run_without_command(name, rest)
    module = command_module(name)
    if hasattr(module, "main"):
        return int(module.main(rest))
    from ostiary.cli.arguments import run_command

    return run_command(f"{program()} {name}", COMMANDS[name][1], module.configure, rest)


def _print_quickly(words: list[str]) -> bool:
    """Print the credential that an exec plugin of ours has ready; False if there is none, or it is another command."""
    if words[:1] == ["get-token"]:
        return _print_cached(words[1:])
    if words[:2] == ["connect", "token"]:
        from ostiary.cli.connect import quick_token

        return quick_token.print_token(words[2:])
    return False


def _print_cached(argv: list[str]) -> bool:
    """Print the credential that ``get-token`` has ready; False if there is none that is usable."""
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


def _run_without_command(name: str, rest: list[str]) -> int:
    if not name:
        from ostiary.cli.exit_codes import USAGE

        print(help_text(), file=sys.stderr, end="")
        return USAGE
    if name in ("-h", "--help", "help"):
        print(help_text(), end="")
        return 0
    if name == "--version":
        from ostiary import __version__

        print(f"ostiary {__version__}")
        return 0
    from ostiary.cli.arguments import refuse_command

    return refuse_command(name, rest, program=program(), commands=list(COMMANDS))


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
