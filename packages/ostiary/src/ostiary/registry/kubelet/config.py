"""Loads the kubelet's ``CredentialProviderConfig`` from a file or a directory.

    load     path -> its files, in order -> ProvidersConfig      (loads: the same from memory)

Every rule is the kubelet's, including the hash it publishes. Unlike the kubelet, it reports every error with its line.
The proposal's ``RegistryCredentialConfig`` is supported too; `migrate` converts it. Nothing is executed.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from ostiary.core.text import printable
from ostiary.core.yaml import KUBELET, MAX_BYTES, Document, parse, parse_all
from ostiary.errors import ConfigurationError
from ostiary.model import Place, Problem
from ostiary.registry.kubelet.document import (
    CONFIG_API_VERSIONS,
    CONFIG_V1,
    KIND,
    PROPOSAL_API_VERSIONS,
    PROPOSAL_KINDS,
    read_providers,
)
from ostiary.registry.kubelet.model import ProviderConfig, ProvidersConfig, TokenAttributes

__all__ = [
    "CONFIG_API_VERSIONS",
    "CONFIG_V1",
    "EXTENSIONS",
    "KIND",
    "PROPOSAL_API_VERSIONS",
    "PROPOSAL_KINDS",
    "ProviderConfig",
    "ProvidersConfig",
    "TokenAttributes",
    "config_files",
    "hash_of",
    "load",
    "loads",
]

EXTENSIONS = (".json", ".yaml", ".yml")


def load(
    path: str | os.PathLike[str],
    *,
    bin_dir: str | os.PathLike[str] | None = None,
    service_account_tokens: bool = True,
    allow_empty: bool = False,
) -> ProvidersConfig:
    """Load the configuration at *path*, a file or a directory of files; raises `ConfigurationError`.

    With a *bin_dir* every provider must be an executable there. *service_account_tokens* is the kubelet's feature gate;
    without it ``tokenAttributes`` is rejected. The kubelet does not start without a provider; *allow_empty* accepts an
    explicit ``providers: []`` for "none".
    """
    sources: list[tuple[str, bytes]] = []
    unreadable: list[Problem] = []
    for file in config_files(os.fspath(path)):
        try:
            sources.append((file, _bytes(file)))
        except OSError as error:
            unreadable.append(Problem(f'unable to read file "{printable(file)}": {error.strerror}', Place(file)))
    if unreadable:
        raise _unusable(unreadable, "config-unreadable")
    return _config(sources, bin_dir=bin_dir, service_account_tokens=service_account_tokens, allow_empty=allow_empty)


def loads(
    source: str | bytes,
    *,
    name: str | None = None,
    bin_dir: str | os.PathLike[str] | None = None,
    service_account_tokens: bool = True,
) -> ProvidersConfig:
    """Load a configuration from memory. Errors contain *name*."""
    data = source.encode("utf-8", "surrogatepass") if isinstance(source, str) else source
    return _config([(name, data)], bin_dir=bin_dir, service_account_tokens=service_account_tokens)


def hash_of(sources: Iterable[bytes]) -> str:
    """Return the kubelet's hash of the files: each one with a length prefix, so that different splits differ."""
    digest = hashlib.sha256()
    for source in sources:
        digest.update(len(source).to_bytes(8, "big") + source)
    return f"sha256:{digest.hexdigest()}"


# --- files ---


def config_files(path: str) -> list[str]:
    if not path:
        raise _unusable([Problem("credential provider config path is empty")], "config-not-found")
    try:
        # As in the kubelet, a link to a file counts as a file: mounted ConfigMaps consist of such links.
        entries = [entry for entry in os.scandir(path) if not entry.is_dir(follow_symlinks=False)]
    except NotADirectoryError:
        return [path]
    except (OSError, ValueError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or "it is not a usable file name"
        problem = Problem(f'unable to access path "{printable(path)}": {why}', Place(path))
        raise _unusable([problem], "config-unreadable") from error
    files = [os.path.join(path, entry.name) for entry in entries if entry.name.endswith(EXTENSIONS)]
    if not files:
        hint = f"it takes files whose names end in {', '.join(EXTENSIONS)}, directly in the directory"
        problem = Problem(f'no configuration files found in directory "{printable(path)}"', Place(path), hint)
        raise _unusable([problem], "config-not-found")
    return sorted(files, key=os.fsencode)


def _bytes(file: str) -> bytes:
    # Read once: the hash must be of the parsed bytes.
    with open(file, "rb") as opened:
        return opened.read(MAX_BYTES + 1)


def _unusable(problems: Sequence[Problem], code: str = "config-invalid") -> ConfigurationError:
    return ConfigurationError("the credential provider config cannot be used", problems=problems, code=code)


# --- all files together ---


@dataclass(slots=True)
class _Contents:
    """The contents of the files so far. A file that is no YAML adds the code of its error."""

    providers: list[ProviderConfig] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)
    codes: list[str] = field(default_factory=list)
    all_written_out: bool = True

    def add(self, name: str | None, data: bytes, *, service_account_tokens: bool) -> None:
        try:
            document = parse(data, file=name, dialect=KUBELET)
        except ConfigurationError as error:
            self.problems += error.problems
            self.codes.append(error.code)
            return
        providers, problems = read_providers(document, service_account_tokens=service_account_tokens)
        self.providers += providers
        self.problems += problems
        self.all_written_out &= isinstance(document.value, dict) and document.value.get("providers") is not None
        self.warnings += _ignored_documents(document, data)


def _config(
    sources: Sequence[tuple[str | None, bytes]],
    *,
    bin_dir: str | os.PathLike[str] | None,
    service_account_tokens: bool,
    allow_empty: bool = False,
) -> ProvidersConfig:
    contents = _Contents()
    for name, data in sources:
        contents.add(name, data, service_account_tokens=service_account_tokens)
    problems = [*contents.problems, *_duplicate_names(contents.providers)]
    if not contents.providers and not problems and not (allow_empty and contents.all_written_out):
        where = Place(sources[0][0] if len(sources) == 1 else None, "providers")
        problems.append(Problem("at least 1 item in plugins is required", where, "list a provider under providers"))
    if bin_dir is not None:
        problems += _binary_problems(contents.providers, os.fspath(bin_dir))
    if problems:
        raise _unusable(problems, *contents.codes[:1])
    files = tuple(name for name, _ in sources if name is not None)
    return ProvidersConfig(
        tuple(contents.providers), hash_of(data for _, data in sources), files, tuple(contents.warnings)
    )


def _ignored_documents(document: Document, data: bytes) -> Iterator[Problem]:
    if not document.more:
        return
    documents = parse_all(data, file=document.file, dialect=KUBELET)
    next(documents)
    try:
        line = next(documents).root.line
    except ConfigurationError:
        # The field is not used, so an error in it does not matter.
        line = None
    hint = "put it into a file of its own, in a directory that is given as the configuration"
    yield Problem("only the first YAML document is read; this one is ignored", Place(document.file, line=line), hint)


def _duplicate_names(providers: Iterable[ProviderConfig]) -> Iterator[Problem]:
    first: dict[str, ProviderConfig] = {}
    for provider in providers:
        earlier = first.setdefault(provider.name, provider)
        if earlier is not provider:
            message = f'duplicate provider name "{printable(provider.name)}" found in configuration file(s)'
            hint = f"the other one stands at {earlier.place}; keep one, or link the executable under a second name"
            yield Problem(message, _within(provider.place, "name"), hint)


def _binary_problems(providers: Iterable[ProviderConfig], bin_dir: str) -> Iterator[Problem]:
    if not os.path.isdir(bin_dir):
        hint = "create it, or give the directory that holds the providers"
        yield Problem(f"plugin binary directory {bin_dir} did not exist", Place(bin_dir), hint)
        return
    for provider in providers:
        path = os.path.join(bin_dir, provider.name)
        where = _within(provider.place, "name")
        if not provider.name:
            yield Problem("the provider has no name", where, "name the executable that is to be run")
        elif not os.path.exists(path):
            hint = f"put the executable there, or correct the name; {bin_dir} is where it must be"
            yield Problem(f"plugin binary executable {path} did not exist", where, hint)
        elif os.path.isdir(path):
            yield Problem(f"error inspecting binary executable {path}: it is a directory", where)
        elif not os.access(path, os.X_OK):
            yield Problem(f"error inspecting binary executable {path}: it is not executable", where, f"chmod +x {path}")


def _within(place: Place, step: str) -> Place:
    return Place(place.file, f"{place.path}.{step}" if place.path else step, place.line)
