"""Which gateway a command is about: the one of a ``gateway.yaml`` here, or one that runs somewhere.

Shared by the commands of the gateway. Nothing of the gateway is imported before it is needed: it is large, and
``--help`` needs none of it.
"""

from __future__ import annotations

import argparse
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from ostiary.cli.arguments import UsageError
from ostiary.errors import ConfigurationError

if TYPE_CHECKING:
    from ostiary.cli.remote import RemoteGateway
    from ostiary.gateway.settings import GatewayConfig

DEFAULT = "gateway.yaml"
T = TypeVar("T")


def add_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-c", "--config", metavar="FILE", help=f"the gateway's configuration (default: {DEFAULT} in this directory)"
    )


def add_server(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--server", metavar="URL", help="ask the gateway that runs there, in place of --config")
    parser.add_argument("--token-file", metavar="FILE", help="with --server: a file that holds your token alone")
    parser.add_argument(
        "--ca", metavar="FILE", help="with --server: the authorities to trust, PEM (default: the system's)"
    )


def load(arguments: argparse.Namespace) -> GatewayConfig:
    from ostiary.gateway import config

    return config.load(config_path(arguments))


def config_path(arguments: argparse.Namespace) -> str:
    return arguments.config or DEFAULT


def remote(arguments: argparse.Namespace) -> RemoteGateway | None:
    """The gateway at ``--server``; None if there is no such option."""
    if arguments.server is None:
        if arguments.token_file or arguments.ca:
            raise UsageError("--token-file and --ca go with --server")
        return None
    if arguments.config is not None:
        raise UsageError("--config and --server name two gateways", hint="leave one of them out")
    if arguments.token_file is None:
        raise UsageError("--server needs --token-file", hint="a file with the token that /auth gave you: who asks?")
    from ostiary.cli.remote import RemoteGateway

    return RemoteGateway(arguments.server, token_file=arguments.token_file, ca_file=arguments.ca)


def run_async(work: Coroutine[Any, Any, T]) -> T:
    # Imported late like all the rest: it takes longer than the help of a command.
    import asyncio

    return asyncio.run(work)


def text_of(path: str, what: str) -> str:
    """The text of a small file; raises `ConfigurationError`, which does not quote it."""
    try:
        with open(path, encoding="utf-8") as opened:
            return opened.read(1 << 20)
    except (OSError, ValueError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or "it is not text"
        code = "token-file-unreadable" if what == "token" else "config-unreadable"
        raise ConfigurationError(f"the {what} cannot be read", cause=why, where=path, code=code) from None
