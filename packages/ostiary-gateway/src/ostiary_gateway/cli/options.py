"""Which gateway a command is about: the one of a ``gateway.yaml`` here, or one that runs somewhere.

Shared by the commands of the gateway. Nothing of the gateway is imported before it is needed: it is large, and
``--help`` needs none of it.
"""

from __future__ import annotations

import argparse
from collections.abc import Coroutine
from typing import TYPE_CHECKING, TypeVar

from ostiary.cli.arguments import UsageError

if TYPE_CHECKING:
    from ostiary_gateway.cli.remote import RemoteGateway
    from ostiary_gateway.config.gateway_config import GatewayConfig

DEFAULT = "gateway.yaml"
T = TypeVar("T")


def add_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-c", "--config", metavar="FILE", help=f"the gateway's configuration (default: {DEFAULT} in this directory)"
    )


def add_server(parser: argparse.ArgumentParser, *, beside_config: bool = False) -> None:
    """*beside_config*: the command can also read a configuration itself."""
    instead = ", instead of --config" if beside_config else ""
    parser.add_argument("--server", metavar="URL", help=f"ask the gateway that runs at this URL{instead}")
    parser.add_argument(
        "--token-file",
        metavar="FILE",
        help="with --server: a file that holds only your token (default: the session of ostiary login there)",
    )
    parser.add_argument(
        "--account", metavar="NAME", help="with --server: the session of one of several accounts at this gateway"
    )
    parser.add_argument(
        "--ca",
        metavar="FILE",
        help="with --server: the CA certificates to trust, in PEM (default: the kubeconfig's, session's or system's)",
    )


def load(arguments: argparse.Namespace) -> GatewayConfig:
    from ostiary_gateway import config

    return config.load(config_path(arguments))


def config_path(arguments: argparse.Namespace) -> str:
    return arguments.config or DEFAULT


def remote(arguments: argparse.Namespace) -> RemoteGateway | None:
    """The gateway at ``--server``; None if there is no such option."""
    if arguments.server is None:
        if arguments.token_file or arguments.account or arguments.ca:
            raise UsageError("--token-file, --account and --ca need --server")
        return None
    if arguments.config is not None:
        raise UsageError("--config and --server cannot be combined", hint="leave one of them out")
    if arguments.token_file is not None and arguments.account is not None:
        raise UsageError("--token-file and --account cannot be combined", hint="leave one of them out")
    from ostiary_gateway.cli.remote import chosen_gateway

    return chosen_gateway(arguments)


def run_async(work: Coroutine[object, object, T]) -> T:
    # Imported late like all the rest: it takes longer than the help of a command.
    import asyncio

    return asyncio.run(work)


# The name of the user who runs a command, as this machine knows it. Used by ``can-i`` and ``sessions revoke``.


def login_name() -> str:
    """Who runs this command."""
    import getpass
    import os

    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # In a container the user often has a number and no name.
        return f"uid {os.getuid()}"
