"""An issuer's logout at one replica ends the sign-in at all of them, and cuts what is open there."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import trustme

from tests.support.gateway import SECONDS, Gateway
from tests.support.oidc_replicas import PODS, OidcReplicas


def test_a_logout_at_one_replica_cuts_streams_at_all(
    replica_store: dict[str, Any], tmp_path: Path, ca: trustme.CA
) -> None:
    with OidcReplicas(tmp_path / "replicas", ca, store=replica_store, count=2) as site:
        ended, other = site.sign_in("sid-1"), site.sign_in("sid-2")
        assert asyncio.run(site.cut_by_logout(ended, "sid-1")) < SECONDS
        for replica in site.replicas:
            assert _status(replica, ended) == 401
            assert _status(replica, other) == 200, "another sign-in of the same person"
        again = site.sign_in("sid-1")
        message = site.logout_token("sid-1")
        assert [_logout(replica, message) for replica in site.replicas] == [200, 400], "good once, at any replica"
        assert _status(site.replicas[-1], again) == 401


def _status(gateway: Gateway, token: str) -> int:
    return gateway.get(f"{PODS}/web", token).status_code


def _logout(gateway: Gateway, message: str) -> int:
    with gateway.http() as http:
        return http.post("/auth/acme/logout", data={"logout_token": message}).status_code
