"""The service account that an image is pulled for, as a command line chooses it, and where its tokens come from."""

from __future__ import annotations

import argparse

from ostiary.cli.arguments import UsageError
from ostiary.registry.kubelet.service_account import PodCoordinates, TokenSource


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
    """The pod for which the image is looked up; None without ``--service-account``."""
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
    # The API server fills in the pod's uid, and refuses a pod of another account.
    return PodCoordinates(namespace, arguments.pod or "", "", service_account=name)


def token_source(arguments: argparse.Namespace) -> TokenSource | None:
    """Where the tokens come from: the API server of the kubeconfig, or that of the pod this runs in."""
    if arguments.service_account is None:
        return None
    # Imported here: a lookup without a service account asks no API server.
    from ostiary.client.api_requests import ApiRequests
    from ostiary.client.connection import connect
    from ostiary.registry.kubelet.token_request import ApiServerTokens

    return ApiServerTokens(ApiRequests(connect(arguments.kubeconfig, context=arguments.context)))
