"""Who is disabled in the directory is out at the next renewal."""

from __future__ import annotations

from pathlib import Path

import pytest
import trustme

from ostiary_gateway.testing import FakeClock
from tests.support.gateway import Site, role
from tests.support.slapd import ACCOUNT_PASSWORD, PASSWORD, slapd

pytestmark = pytest.mark.needs("python-ldap", "slapd", "slapadd", "ldapmodify")

LIFETIME = 15 * 60


def test_who_is_disabled_in_the_directory_is_out_at_the_next_renewal(tmp_path: Path, ca: trustme.CA) -> None:
    """S64: fifteen minutes at most, which is how long an access token lives."""
    (tmp_path / "slapd").mkdir()
    site, clock = Site(tmp_path / "gateway", ca), FakeClock()
    site.policy(role("team", "pods", Group="developers"))
    (site.folder / "ldap-password").write_text(ACCOUNT_PASSWORD)
    with slapd(tmp_path / "slapd", ca) as directory:
        staff = directory.identity("ldap-password")
        with site.in_process(clock=clock, identity=[staff]) as gateway, gateway.http() as http:
            pair = http.get("/auth", auth=("alice", PASSWORD)).json()
            clock.advance(LIFETIME / 2)
            pair = http.post("/auth/renew", data={"renewal_token": pair["renewal_token"]}).json()
            directory.disable("alice")
            clock.advance(LIFETIME - 1)
            assert gateway.get("/auth/whoami", pair["token"]).status_code == 200
            clock.advance(1)
            assert gateway.get("/auth/whoami", pair["token"]).status_code == 401
            refused = http.post("/auth/renew", data={"renewal_token": pair["renewal_token"]})
            assert refused.status_code == 401
            assert http.get("/auth", auth=("alice", PASSWORD)).status_code == 403
