"""``ostiary registry disable`` and ``enable``: roll a credential provider back while everything runs."""

from __future__ import annotations

import argparse

from ostiary.cli.arguments import UsageError
from ostiary.cli.output import print_note
from ostiary.core.provider_switches import ALL, MACHINE_FILE, PROVIDERS_VARIABLE, own_file, read_file
from ostiary.errors import ConfigurationError
from ostiary.registry import user_config
from ostiary.registry.kubelet.config import load

DISABLE_HELP = f"""\
Switch a credential provider off, or all of them, within a second and without a restart: for the daemon,
docker-credential-ostiary, ostiary-credential-provider, the providers for ECR, Google and Azure, and ostiary registry
get, explain and probe. What they have in memory of it is not used either.
As root for all users of this machine ({MACHINE_FILE}), else for yourself.

PROVIDER is its name in the CredentialProviderConfig. Images then get the credentials of the other providers, or none.
"""
ENABLE_HELP = f"""\
Switch a credential provider on again; with --all, everything that disable has switched off. What root has switched off
for the machine, only root can switch on; and ${PROVIDERS_VARIABLE}=off counts for whatever is started with it.
"""


def configure_disable(parser: argparse.ArgumentParser) -> None:
    _add_provider(parser)
    parser.add_argument("--reason", default="", metavar="TEXT", help="why, for those who find it disabled")
    parser.set_defaults(run=disable)


def configure_enable(parser: argparse.ArgumentParser) -> None:
    _add_provider(parser)
    parser.set_defaults(run=enable)


def _add_provider(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("provider", metavar="PROVIDER", nargs="?", help="its name in the configuration")
    parser.add_argument("--all", action="store_true", help="all providers")


def disable(arguments: argparse.Namespace) -> int:
    # Imported here: its locks are POSIX's, and the other verbs are used elsewhere too.
    from ostiary.cli.registry import switch_file

    path, provider = own_file(), _provider(arguments)
    entry = switch_file.disable(path, provider, reason=arguments.reason)
    which = "all providers are" if provider == ALL else f"{provider} is"
    print(f"{which} disabled in {path} since {entry.since}")
    if provider != ALL and (known := _known_providers()) and provider not in known:
        print_note(f"the configuration of this user has no provider {provider}; it has {', '.join(known)}")
    return 0


def enable(arguments: argparse.Namespace) -> int:
    from ostiary.cli.registry import switch_file

    path, provider = own_file(), _provider(arguments)
    changed = switch_file.enable(path, provider)
    which = "all providers" if provider == ALL else provider
    print(f"{which}: enabled" if changed else f"{which}: not disabled in {path}")
    still_off = [each for file in dict.fromkeys((MACHINE_FILE, path)) for each in read_file(file)]
    for entry in still_off:
        if ALL in (provider, entry.provider) or entry.provider == provider:
            print_note(f"still disabled: {entry}")
    return 0


def _provider(arguments: argparse.Namespace) -> str:
    if arguments.all == (arguments.provider is not None):
        raise UsageError("name one provider, or all of them", hint="PROVIDER, or --all")
    provider: str = ALL if arguments.all else arguments.provider
    if not arguments.all and (not provider or provider == ALL or provider[0] == "#" or len(provider.split()) != 1):
        raise UsageError(f"no provider can have the name {provider!r}")
    return provider


def _known_providers() -> list[str]:
    """Of the configuration of this user; none if there is none that can be read."""
    path = user_config.existing_config_path()
    try:
        return [] if path is None else [each.name for each in load(path, allow_empty=True).providers]
    except ConfigurationError:
        return []
