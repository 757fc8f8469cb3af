"""A second issuer: people of a real Dex at the gateway. The upstream is the API server of `tests/support/cluster`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme

from tests.interop.support.dex import CLIENT, PASSWORD, SECRET, Dex, running_dex
from tests.interop.support.person import Person
from tests.support.cluster import Cluster
from tests.support.gateway import ServedGateway, Site, role
from tests.support.ports import free_port

pytestmark = [pytest.mark.timeout(300)]
PODS = "/api/v1/namespaces/team/pods"


@dataclass
class Office:
    gateway: ServedGateway
    dex: Dex
    person: Person

    def sign_in(self, connector: str, **typed: str) -> dict[str, Any]:
        """Choose *connector* on Dex's page, sign in there, and come back with tokens."""
        page = self.person.http.get(f"{self.gateway.url()}/auth")
        page = self.person.http.get(self.person.link(page, connector))
        answer = self.person.submit(page, **typed) if typed else page
        assert answer.status_code == 200, answer.text
        pair: dict[str, Any] = answer.json()
        return pair

    def renew(self, pair: dict[str, Any]) -> httpx.Response:
        with self.gateway.http() as http:
            return http.post("/auth/renew", data={"renewal_token": pair["renewal_token"]})


@pytest.fixture
def office(tmp_path: Path, ca: trustme.CA) -> Iterator[Office]:
    site, port = Site(tmp_path / "gateway", ca), free_port()
    url = f"https://localhost:{port}"
    (tmp_path / "dex").mkdir()
    (site.folder / "client-secret").write_text(SECRET)
    site.policy(role("team", "pods", Group="authors"))
    with Cluster(ca) as cluster, running_dex(tmp_path / "dex", ca, f"{url}/auth/dex/provider") as dex:
        cluster.add_namespace("team")
        cluster.add_pod("team", "web")
        identity = {
            "name": "dex",
            "type": "oidc",
            "issuer": dex.issuer,
            "clientID": CLIENT,
            "clientSecretFile": "client-secret",
            "ca": "ca.pem",
            "scopes": ["profile", "email", "groups", "offline_access"],
            "claims": {"username": "email", "groups": "groups"},
        }
        with site.serving(
            upstreams=[site.impersonating(cluster)],
            listen={"address": f"127.0.0.1:{port}"},
            externalURL=url,
            identity=[identity],
            groups=[{"name": "teams", "provider": "dex"}],
        ) as gateway:
            person = Person(dex.trust)
            yield Office(gateway, dex, person)
            person.close()


def test_a_person_types_a_password_at_dex(office: Office) -> None:
    pair = office.sign_in("Password", login="ann@example.com", password=PASSWORD)
    assert (pair["user"], pair["groups"]) == ("ann@example.com", [])
    assert office.gateway.get(PODS, pair["token"]).status_code == 403, "no group that the policy knows"


def test_groups_of_a_connector_give_rights_and_a_refresh_token_is_asked_with_at_each_renewal(office: Office) -> None:
    pair = office.sign_in("Mock")
    assert (pair["user"], pair["groups"]) == ("kilgore@kilgore.trout", ["authors"])
    for _ in range(2):
        assert office.gateway.get(PODS, pair["token"]).status_code == 200
        answer = office.renew(pair)
        assert answer.status_code == 200, answer.text
        pair = answer.json()
    # Dex has forgotten the refresh token, and has other keys: its no ends the session.
    office.dex.restart()
    assert office.renew(pair).status_code == 401
    assert office.gateway.get(PODS, pair["token"]).status_code == 401


def test_while_dex_is_away_nobody_is_signed_out(office: Office) -> None:
    """Could not ask is not a no: the renewal can be tried again."""
    pair = office.sign_in("Mock")
    office.dex.server.stop()
    answer = office.renew(pair)
    assert answer.status_code in (500, 502, 503), answer.text
    assert office.gateway.get(PODS, pair["token"]).status_code == 200
