"""Counts the connections of each user. Called by the engine when a connection carries another user's request."""

from __future__ import annotations

from ostiary.gateway.admit.share import UserShare
from ostiary.gateway.http1.exchange import ClientConnection


def charge_connection(connection: ClientConnection, share: UserShare) -> bool:
    """Count *connection* for the user of *share*, and no longer for its last one; False if that user has too many."""
    account = connection.account
    if account is None:
        connection.charge(share)
    else:
        # Written out here: on a connection that many users share, every request does it.
        account.connections -= 1
        share.connections += 1
        connection.account = share
    return share.connections <= share.most_connections
