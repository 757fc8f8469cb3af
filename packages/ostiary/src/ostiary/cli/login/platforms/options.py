"""``--from`` and related options, for the commands that sign in as a job or pod."""

from __future__ import annotations

import argparse
import os

from ostiary.cli.arguments import UsageError
from ostiary.cli.cached_workload_token import AUTO, FILE_VARIABLE, GITHUB, GITLAB, GITLAB_VARIABLE, PLATFORMS
from ostiary.cli.gateway_http import checked_address
from ostiary.cli.login.options import SERVER_VARIABLE
from ostiary.cli.login.platforms.proof import PlatformChoice

# Options for users, which do not apply to a job.
_OF_PEOPLE = ("account", "provider", "device", "no_browser", "store")
_OF_PLATFORMS = ("audience", "token_file", "token_variable", "can", "scope")


def add_platform(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--from",
        dest="platform",
        choices=(AUTO, *PLATFORMS),
        help="sign in as this CI job or pod, by the token that its platform gives it; nobody is asked",
    )
    parser.add_argument(
        "--audience", metavar="NAME", help="with --from: the audience that the gateway expects (default: its URL)"
    )
    parser.add_argument(
        "--token-file",
        metavar="FILE",
        help=f"with --from kubernetes, spiffe or file: the file that holds the platform's token "
        f"(default: ${FILE_VARIABLE.decode()})",
    )
    parser.add_argument(
        "--token-variable",
        metavar="NAME",
        help=f"with --from gitlab: the variable that holds the ID token (default: {GITLAB_VARIABLE})",
    )
    parser.add_argument(
        "--can",
        action="append",
        metavar="RULE",
        help='with --from: ask for a token that can do only this, as "get,list pods -n shop"; may be repeated',
    )
    parser.add_argument(
        "--scope", metavar="SCOPE", help="as --can, with several rules in one, and without the discovery kubectl needs"
    )


def chosen_platform(arguments: argparse.Namespace) -> PlatformChoice | None:
    """Return the choice of ``--from``, or None without it. Raises `UsageError` for conflicting options."""
    if arguments.platform is None:
        for name in _OF_PLATFORMS:
            if getattr(arguments, name):
                raise UsageError(f"{_option(name)} needs --from", hint=f"--from {', '.join((AUTO, *PLATFORMS))}")
        return None
    for name in _OF_PEOPLE:
        if getattr(arguments, name, None):
            raise UsageError(f"--from and {_option(name)} cannot be combined", hint="leave one of them out")
    _check_sources(arguments)
    server = arguments.server or os.environ.get(SERVER_VARIABLE)
    if not server:
        hint = f"--server https://gateway.example, or set {SERVER_VARIABLE}"
        raise UsageError("--from needs the URL of the gateway", hint=hint)
    choice = PlatformChoice(
        checked_address(server),
        arguments.platform,
        arguments.audience or "",
        arguments.token_file,
        arguments.token_variable,
        tuple(arguments.can or ()),
        arguments.scope or "",
        arguments.ca,
    )
    # Validate locally first: the error has a position and no request is sent.
    _ = choice.wanted_scope
    return choice


def platform_words(choice: PlatformChoice) -> list[str]:
    """Return *choice* as options of ``get-token``, for a kubeconfig."""
    words = ["--from", choice.platform]
    for option, value in (
        ("--audience", choice.audience),
        ("--token-file", choice.token_file),
        ("--token-variable", choice.token_variable),
        ("--scope", choice.scope),
    ):
        words += [option, value] if value else []
    return words + [word for rule in choice.can for word in ("--can", rule)]


def _check_sources(arguments: argparse.Namespace) -> None:
    for name in _OF_PLATFORMS:
        value = getattr(arguments, name)
        if value == "" or (isinstance(value, list) and not all(each.strip() for each in value)):
            raise UsageError(f"{_option(name)} is empty")
    if arguments.can and arguments.scope:
        raise UsageError("--can and --scope cannot be combined", hint="leave one of them out")
    if arguments.token_file is not None and arguments.platform in (GITHUB, GITLAB):
        raise UsageError(f"--from {arguments.platform} reads no token file", hint="leave out --token-file")
    if arguments.token_variable is not None and arguments.platform not in (AUTO, GITLAB):
        raise UsageError("--token-variable needs --from gitlab", hint="leave out --token-variable")


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
