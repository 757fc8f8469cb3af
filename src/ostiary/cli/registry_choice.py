"""The sources of credentials that a command line chooses: providers, pull secrets, docker configuration."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, field

from ostiary.cli.arguments import UsageError
from ostiary.core.config import KUBERNETES, Fields, Reading, read
from ostiary.core.process import Limits
from ostiary.registry.cache import CachedProvider
from ostiary.registry.config import ProvidersConfig, load
from ostiary.registry.docker_config import NodeDockerConfig, PullSecret
from ostiary.registry.docker_store import DockerStore
from ostiary.registry.keyring import Keyring

NO_DIRECTORY = "/nonexistent"


@dataclass(frozen=True, slots=True)
class Choice:
    keyring: Keyring
    docker_config: NodeDockerConfig | None
    pull_secrets: tuple[PullSecret, ...] = field(default=(), repr=False)


def choice(arguments: argparse.Namespace) -> Choice:
    """What ``--config``, ``--bin-dir``, ``--docker-config`` and ``--pull-secret`` choose.

    A provider whose executable is missing fails when it is asked, and leaves the others alone.
    """
    docker_config = None if arguments.no_docker_config else NodeDockerConfig(arguments.docker_config)
    secrets = tuple(pull_secret(file) for file in arguments.pull_secret)
    return Choice(_keyring(arguments, docker_config), docker_config, secrets)


def configured(arguments: argparse.Namespace) -> CachedProvider:
    """The provider of ``--config`` that the command line names."""
    providers = {one.config.name: one for one in _keyring(arguments, None).providers}
    if arguments.command not in providers:
        raise UsageError(
            f"the configuration has no provider {arguments.command!r}", hint=f"it has {', '.join(providers)}"
        )
    return providers[arguments.command]


def _keyring(arguments: argparse.Namespace, docker_config: NodeDockerConfig | None) -> Keyring:
    limits = Limits(seconds=arguments.timeout)
    store = DockerStore(limits=limits) if getattr(arguments, "docker_logins", False) else None
    if arguments.config is None:
        return Keyring(
            ProvidersConfig(()), bin_dir=NO_DIRECTORY, docker_config=docker_config, docker_store=store, limits=limits
        )
    if arguments.bin_dir is None:
        raise UsageError("--config needs --bin-dir", hint="give the directory that holds the providers' executables")
    return Keyring(
        load(arguments.config),
        bin_dir=arguments.bin_dir,
        docker_config=docker_config,
        docker_store=store,
        limits=limits,
    )


def pull_secret(file: str) -> PullSecret:
    """The Secret that *file* holds, as YAML or JSON."""
    reading = Reading(read(file, dialect=KUBERNETES))
    root = reading.root
    root.ignore("apiVersion", "immutable")
    if root.string("kind") != "Secret":
        root.problem("it is not a Secret", "kind", "kubectl get secret NAME -o yaml prints one")
    metadata = root.section("metadata")
    data = dict(_data(root))
    secret = PullSecret(
        metadata.string("namespace") or "default", metadata.string("name"), root.string("type"), data, ""
    )
    reading.finish("the pull secret cannot be read")
    return secret


def _data(root: Fields) -> Iterator[tuple[str, bytes]]:
    data = root.section("data")
    for key in data:
        value = data.base64(key)
        if value is not None:
            yield key, value
    plain = root.section("stringData")
    for key in plain:
        yield key, plain.string(key).encode()
