"""``ostiary registry disable`` and ``enable``: disable a credential provider at runtime, without a restart."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager

from ostiary.cli.arguments import UsageError
from ostiary.cli.output import print_note
from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.provider_switches import ALL, MACHINE_FILE, PROVIDERS_VARIABLE, SwitchedOff, own_file, read_file
from ostiary.core.text import printable
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
    # Lazy import: it needs POSIX locks, and the other verbs also run on other systems.

    path, provider = own_file(), _provider(arguments)
    entry = disable_in_file(path, provider, reason=arguments.reason)
    which = "all providers are" if provider == ALL else f"{provider} is"
    print(f"{which} disabled in {path} since {entry.since}")
    if provider != ALL and (known := _known_providers()) and provider not in known:
        print_note(f"the configuration of this user has no provider {provider}; it has {', '.join(known)}")
    return 0


def enable(arguments: argparse.Namespace) -> int:

    path, provider = own_file(), _provider(arguments)
    changed = enable_in_file(path, provider)
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
    """Return the providers of the user's configuration, or an empty list if it is unreadable."""
    path = user_config.existing_config_path()
    try:
        return [] if path is None else [each.name for each in load(path, allow_empty=True).providers]
    except ConfigurationError:
        return []


# The switch file. It is replaced atomically under a lock, so that two operators do not overwrite each other's change.
# It is removed when nothing is disabled.

HEADER = "# Written by ostiary registry disable. A line: provider (* is all), since when, and why.\n"
LONGEST_REASON = 200


def disable_in_file(path: str, provider: str, *, reason: str = "", clock: Clock = SYSTEM_CLOCK) -> SwitchedOff:
    """Disable *provider*, or `ALL`. Returns its entry in the file. An existing entry keeps its time."""
    since = clock.now().strftime("%Y-%m-%dT%H:%M:%SZ")
    entry = SwitchedOff(provider, path, since, " ".join(printable(reason).split())[:LONGEST_REASON])
    with _editing(path):
        entries = {each.provider: each for each in read_file(path)}
        before = entries.get(provider)
        if before is not None and not reason:
            return before
        entries[provider] = entry
        _write(path, entries)
    return entry


def enable_in_file(path: str, provider: str) -> bool:
    """Enable *provider*, or with `ALL` everything that the file disables. Returns whether anything changed."""
    with _editing(path):
        entries = {each.provider: each for each in read_file(path)}
        rest = {} if provider == ALL else {name: each for name, each in entries.items() if name != provider}
        if rest != entries:
            _write(path, rest)
        return rest != entries


@contextmanager
def _editing(path: str) -> Iterator[None]:
    # Lazy import: it needs POSIX locks, and the other verbs also run on other systems.
    import fcntl

    folder = os.path.dirname(path)
    try:
        os.makedirs(folder, exist_ok=True)
        # Lock the folder, because the file is replaced.
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if path == MACHINE_FILE:
                # Regardless of the umask: a user who cannot read the folder cannot use any provider.
                os.fchmod(descriptor, 0o755)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)
    except OSError as error:
        raise ConfigurationError(
            "the switch file cannot be written",
            cause=error.strerror or str(error),
            where=printable(path),
            hint="root switches for the whole machine; as another user, for yourself",
            code="registry-switch-unusable",
        ) from None


def _write(path: str, entries: dict[str, SwitchedOff]) -> None:
    if not entries:
        os.unlink(path)
        return
    lines = [f"{each.provider} {each.since} {each.reason}".rstrip() + "\n" for each in entries.values()]
    new = f"{path}.new"
    # Readable by all, because the machine's file applies to all users.
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        os.fchmod(descriptor, 0o644)
        file.write(HEADER + "".join(lines))
        file.flush()
        os.fsync(descriptor)
    os.replace(new, path)
