"""Options that select the gateway: the one of a local ``gateway.yaml``, or one that runs elsewhere.

The gateway's modules are imported lazily: they are large, and ``--help`` needs none of them.
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
    """Add the options. *beside_config*: the command can also read a configuration itself."""
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
    """Return the gateway at ``--server``; None without that option."""
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
    # Imported lazily: it takes longer than printing the help of a command.
    import asyncio

    return asyncio.run(work)


def login_name() -> str:
    """Return the name of the user who runs this command, as this machine knows it."""
    import getpass
    import os

    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # In a container the user often has a number but no name.
        return f"uid {os.getuid()}"
