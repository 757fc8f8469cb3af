"""Asks a gateway which clusters the person may use, or the job: for ``ostiary kubeconfig --all``."""

from __future__ import annotations

import re

from ostiary.cli.arguments import UsageError
from ostiary.cli.gateway_http import checked_address
from ostiary.cli.signin.gateway import GatewayClient
from ostiary.cli.signin.platforms.credential import WorkloadTurn
from ostiary.cli.signin.platforms.proof import PlatformChoice
from ostiary.cli.signin.sessions import GatewayAccount
from ostiary.cli.signin.turn import session_token
from ostiary.errors import ProviderError
from ostiary.wire.kubeconfig import OfferedCluster

MOST_CLUSTERS = 1000
# As the gateway's configuration has them. They become names in a kubeconfig, and are printed.
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,252}")


def offered_clusters(
    account: GatewayAccount, choice: PlatformChoice | None, authorities_pem: str | None
) -> tuple[list[OfferedCluster], bool]:
    """The clusters, and whether these are all. Nobody is asked to sign in.

    Raises an `OstiaryError` that says why there is no answer: without a session, how to get one.
    """
    if choice is None:
        token, authorities_pem = session_token(account, authorities_pem)
    else:
        token = WorkloadTurn(choice, authorities_pem).token()
    clusters, incomplete = GatewayClient(account.server, authorities_pem=authorities_pem).clusters(token)
    if len(clusters) > MOST_CLUSTERS:
        raise _unusable(account, f"it lists more than {MOST_CLUSTERS} clusters")
    return [_checked(account, cluster) for cluster in clusters], not incomplete


def _checked(account: GatewayAccount, cluster: OfferedCluster) -> OfferedCluster:
    """A token is going to be sent there, so it must be a URL that we would send one to."""
    if not _NAME.fullmatch(cluster.name):
        raise _unusable(account, "the name of a cluster has characters that no name has")
    try:
        return OfferedCluster(cluster.name, checked_address(cluster.server))
    except UsageError as error:
        cause = f"the URL of {cluster.name} cannot be used: {error.cause}"
    raise _unusable(account, cause)


def _unusable(account: GatewayAccount, cause: str) -> ProviderError:
    return ProviderError(
        "the gateway sent an invalid response", cause=cause, where=account.server, code="gateway-answer-invalid"
    )
