"""The credential sources that a command line selects: providers, pull secrets, docker configuration."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from dataclasses import dataclass, field

from ostiary.cli.arguments import UsageError
from ostiary.cli.registry.mirrors import chosen_mirrors
from ostiary.core.process import RunLimits
from ostiary.core.provider_switches import Switches
from ostiary.core.yaml import KUBERNETES, ConfigReader, ConfigSection, read
from ostiary.registry import user_config
from ostiary.registry.cache import CachedProvider
from ostiary.registry.docker_config import NodeDockerConfig, PullSecret
from ostiary.registry.docker_store import DockerStore
from ostiary.registry.keyring import Keyring
from ostiary.registry.kubelet.config import load
from ostiary.registry.kubelet.model import ProvidersConfig
from ostiary.registry.kubelet.service_account import PodCoordinates, TokenSource
from ostiary.registry.mirrors.plan import Mirrors

# The service account that an image is pulled for, and the source of its tokens.


def add_service_account(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--service-account",
        metavar="NAMESPACE/NAME",
        help="look up as for a pod of this service account: providers with tokenAttributes are given its token, "
        "which is requested from the API server",
    )
    parser.add_argument("--pod", metavar="NAME", help="the pod that the token is bound to, as the kubelet does it")
    parser.add_argument(
        "--kubeconfig",
        metavar="FILE",
        help="with --service-account: how the API server is reached (default: as kubectl)",
    )
    parser.add_argument("--context", metavar="NAME", help="with --service-account: a context of the kubeconfig")


def chosen_pod(arguments: argparse.Namespace) -> PodCoordinates | None:
    """Return the pod for which the image is looked up, or None without ``--service-account``."""
    if arguments.service_account is None:
        for option in ("pod", "kubeconfig", "context"):
            if getattr(arguments, option) is not None:
                raise UsageError(f"--{option} needs --service-account", hint="--service-account NAMESPACE/NAME")
        return None
    namespace, slash, name = arguments.service_account.partition("/")
    if not (namespace and slash and name) or "/" in name:
        raise UsageError("--service-account must be NAMESPACE/NAME", hint="as in: --service-account shop/default")
    if arguments.pod == "":
        raise UsageError("--pod is empty")
    # The API server fills in the pod's uid, and rejects a pod of another account.
    return PodCoordinates(namespace, arguments.pod or "", "", service_account=name)


def token_source(arguments: argparse.Namespace) -> TokenSource | None:
    """Return the source of the tokens: the API server of the kubeconfig or of the pod."""
    if arguments.service_account is None:
        return None
    # Lazy import: a lookup without a service account sends no request to an API server.
    from ostiary.client.api_requests import ApiRequests
    from ostiary.client.connection import connect
    from ostiary.registry.kubelet.token_request import ApiServerTokens

    return ApiServerTokens(ApiRequests(connect(arguments.kubeconfig, context=arguments.context)))


@dataclass(frozen=True, slots=True)
class RegistryChoice:
    keyring: Keyring
    docker_config: NodeDockerConfig | None
    pull_secrets: tuple[PullSecret, ...] = field(default=(), repr=False)
    pod: PodCoordinates | None = None
    tokens: TokenSource | None = None
    mirrors: Mirrors | None = None


def choice(arguments: argparse.Namespace) -> RegistryChoice:
    """Return the selection of ``--config``, ``--bin-dir``, ``--docker-config``, ``--pull-secret`` and
    ``--service-account``.

    Without ``--config`` the user's own providers are used, as in ``docker-credential-ostiary``; there may be none. A
    provider without an executable fails when it is called, and does not affect the others.
    """
    docker_config = None if arguments.no_docker_config else NodeDockerConfig(arguments.docker_config)
    secrets = tuple(pull_secret(file) for file in arguments.pull_secret)
    pod, tokens = chosen_pod(arguments), token_source(arguments)
    mirrors = chosen_mirrors(arguments) if hasattr(arguments, "hosts_dir") else None
    return RegistryChoice(_keyring(arguments, docker_config, tokens), docker_config, secrets, pod, tokens, mirrors)


def configured_provider(arguments: argparse.Namespace) -> CachedProvider:
    """Return the provider of ``--config`` that the command line names."""
    providers = {provider.config.name: provider for provider in _keyring(arguments, None).providers}
    if arguments.command not in providers:
        raise UsageError(f"unknown provider {arguments.command!r}", hint=f"it has {', '.join(providers)}")
    return providers[arguments.command]


def _keyring(
    arguments: argparse.Namespace, docker_config: NodeDockerConfig | None, tokens: TokenSource | None = None
) -> Keyring:
    limits = RunLimits(seconds=arguments.timeout)
    store = DockerStore(limits=limits) if getattr(arguments, "docker_logins", False) else None
    search_path = arguments.search_path or user_config.search_path()
    path, bin_dir = config_and_bin_dir(arguments, search_path=search_path)
    config = ProvidersConfig(()) if path is None else load(path)
    return Keyring(
        config,
        bin_dir=bin_dir,
        search_path=search_path,
        docker_config=docker_config,
        docker_store=store,
        tokens=tokens,
        switches=Switches(),
        limits=limits,
    )


def config_and_bin_dir(arguments: argparse.Namespace, *, search_path: bool) -> tuple[str | None, str]:
    """Return the configuration, if there is one, and the folder of its executables."""
    if arguments.config is None:
        path = user_config.existing_config_path()
        return path, arguments.bin_dir or user_config.bin_dir(path)
    bin_dir = arguments.bin_dir or os.environ.get(user_config.BIN_DIR_VARIABLE)
    if not bin_dir and search_path:
        bin_dir = user_config.bin_dir(arguments.config)
    if not bin_dir:
        hint = "name the directory that holds the providers' executables, or --search-path"
        raise UsageError("--config needs --bin-dir", hint=hint)
    return arguments.config, bin_dir


def config_file(arguments: argparse.Namespace) -> str:
    """Return the configuration to use: ``--config``, else the user's own."""
    path: str | None = arguments.config or user_config.existing_config_path()
    if path is None:
        missing = f"there is no provider configuration at {user_config.config_path()}"
        raise UsageError(missing, hint="name one: --config FILE")
    return path


def has_config(arguments: argparse.Namespace) -> bool:
    """Whether there is a configuration: ``--config``, or the user's own."""
    return bool(arguments.config or user_config.existing_config_path())


def config_bin_dir(arguments: argparse.Namespace) -> str | None:
    """Return the folder of the configuration's executables. None if unknown; then they are not checked."""
    if arguments.bin_dir or arguments.config is not None:
        folder: str | None = arguments.bin_dir
        return folder
    return user_config.bin_dir()


def pull_secret(file: str) -> PullSecret:
    """Return the Secret in *file*, as YAML or JSON."""
    reading = ConfigReader(read(file, dialect=KUBERNETES))
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


def _data(root: ConfigSection) -> Iterator[tuple[str, bytes]]:
    data = root.section("data")
    for key in data:
        value = data.base64(key)
        if value is not None:
            yield key, value
    plain = root.section("stringData")
    for key in plain:
        yield key, plain.string(key).encode()
