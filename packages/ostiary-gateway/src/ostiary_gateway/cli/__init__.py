"""The command line of ``ostiary-gateway``: the server, and the commands for operators.

A command is a module and a line in `COMMANDS`. Only the module of the command that runs is imported.
"""

import sys

from ostiary.cli import COMMANDS as CLIENT_COMMANDS
from ostiary.cli.dispatch import Program, run

COMMANDS = {
    "serve": (
        "ostiary_gateway.cli.serve",
        "run the gateway: sign-in with your identity provider, access by your policy",
    ),
    "status": ("ostiary_gateway.cli.status", "show every replica of a gateway: version, configuration, lag, load"),
    "sessions": ("ostiary_gateway.cli.sessions", "list sessions; revoke tokens, sessions, users or groups"),
    "accounts": (
        "ostiary_gateway.cli.service_accounts",
        "service accounts for programs: create, list, disable, delete; issue their tokens",
    ),
    "tokens": ("ostiary_gateway.cli.api_tokens", "API tokens for programs: create, list and revoke them"),
    "policy": ("ostiary_gateway.cli.policy.command", "lint a policy, compare two policies, replay recorded requests"),
    "can-i": ("ostiary_gateway.cli.policy.can_i", "check whether the policy allows a user to do something, and why"),
    "who-can": ("ostiary_gateway.cli.policy.who_can", "list everyone whom the policy allows to do something"),
    "explain": ("ostiary_gateway.cli.policy.explain", "explain why a request was denied, by its request id (Audit-Id)"),
    "impersonation-role": (
        "ostiary_gateway.cli.policy.impersonation_role",
        "print the smallest role that the gateway needs in a cluster",
    ),
    "door": (
        "ostiary_gateway.cli.proxy_config.command",
        "print the configuration of nginx, Traefik, Caddy, Envoy, HAProxy or a Kubernetes Gateway that asks",
    ),
    "store": ("ostiary_gateway.cli.store", "move all sessions to another token store; check a store; after a restore"),
    "issuer": ("ostiary_gateway.cli.issuer", "let clusters trust the gateway's JWTs; list and rotate its signing keys"),
    "quota": ("ostiary_gateway.cli.quota", "show what each user has used of the limits of objects"),
    "api-plugins": (
        "ostiary_gateway.cli.api_plugins",
        "API plugins: list, register and remove processes that serve an API group",
    ),
    "plugins": ("ostiary_gateway.cli.plugins", "list the installed providers and their packages"),
    "completion": ("ostiary_gateway.cli.completion", "tab completion for bash, zsh, fish or PowerShell"),
}

HELP = """\
{program}: the authentication gateway of ostiary, for Kubernetes and any HTTP API

usage: {program} COMMAND [options]

{commands}

  {program} COMMAND --help    what a command does, with examples
  {program} --version

To try it, with one user and no configuration:

  {program} serve

Users sign in with the program ostiary (ostiary login).

Exit codes: 0 success, 1 denied or failed, 2 invalid command line.
"""


def main(argv: list[str] | None = None) -> int:
    """Run one command line and return its exit code. *argv* defaults to the arguments of the process."""
    elsewhere = {name: "ostiary" for name in CLIENT_COMMANDS if name not in COMMANDS}
    this = Program("ostiary-gateway", "ostiary-gateway", COMMANDS, HELP, elsewhere)
    return run(this, sys.argv[1:] if argv is None else list(argv))
