"""SPIFFE: which JWT-SVIDs are believed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ostiary.errors import LoginRefused
from ostiary.model import Secret
from ostiary_gateway.providers.workload.identity import WorkloadIdentity, parse_bundle
from ostiary_gateway.testing import FakeClock
from tests.support.issuer import ABSENT, Issuer, ec_key, public, rsa_key
from tests.support.workloads import JWT_SVID, platform_token
from tests.unit.ostiary_gateway.providers.workload.conftest import Make

KEY = ec_key("svid-1")
SPIFFE = "platform: spiffe\ntrustDomain: example.org\n"


@pytest.fixture
def provider(make: Make, tmp_path: Path) -> WorkloadIdentity:
    write_bundle(tmp_path)
    return make(f"{SPIFFE}keysFile: bundle.json")


def write_bundle(folder: Path, *keys: dict[str, Any]) -> None:
    bundle = {"keys": list(keys) or [svid_key()], "spiffe_sequence": 1, "spiffe_refresh_hint": 300}
    (folder / "bundle.json").write_text(json.dumps(bundle))


def svid_key(key: Any = KEY, use: str = "jwt-svid") -> dict[str, Any]:
    return public(key, use=use)


async def test_a_workload_of_the_trust_domain_is_its_spiffe_id(provider: WorkloadIdentity, clock: FakeClock) -> None:
    """S72."""
    token = platform_token(clock, KEY, JWT_SVID, iat=ABSENT, nbf=ABSENT, header={"typ": "JOSE"})
    assert (await provider.verify_token(Secret(token))).user.username == JWT_SVID["sub"]
    rsa = rsa_key()
    assert parse_bundle({"keys": [svid_key(rsa)]}).fitting("PS256", rsa.kid)


@pytest.mark.parametrize(
    ("claims", "header"),
    [
        ({"sub": "spiffe://example.com/ns/shop/sa/deployer"}, {}),
        ({"sub": "spiffe://example.org"}, {}),
        ({"sub": "deployer"}, {}),
        ({"sub": ABSENT}, {}),
        ({"aud": "another"}, {}),
        ({"exp": ABSENT}, {}),
        ({}, {"typ": "at+jwt"}),
        ({}, {"alg": "none"}),
        ({}, {"kid": "another"}),
    ],
)
async def test_a_bad_svid_is_refused(
    provider: WorkloadIdentity, clock: FakeClock, claims: dict[str, Any], header: dict[str, Any]
) -> None:
    with pytest.raises(LoginRefused):
        await provider.verify_token(Secret(platform_token(clock, KEY, {**JWT_SVID, **claims}, header=header)))


async def test_keys_for_certificates_and_edwards_keys_verify_no_tokens(
    make: Make, tmp_path: Path, clock: FakeClock
) -> None:
    for use in ("x509-svid", "sig"):
        write_bundle(tmp_path, svid_key(use=use))
        with pytest.raises(LoginRefused):
            await make(f"{SPIFFE}keysFile: bundle.json").verify_token(Secret(platform_token(clock, KEY, JWT_SVID)))


async def test_a_bundle_that_is_replaced_takes_effect_at_once(
    provider: WorkloadIdentity, clock: FakeClock, tmp_path: Path
) -> None:
    newer = ec_key("svid-2")
    write_bundle(tmp_path, svid_key(newer))
    with pytest.raises(LoginRefused):
        await provider.verify_token(Secret(platform_token(clock, KEY, JWT_SVID)))
    assert await provider.verify_token(Secret(platform_token(clock, newer, JWT_SVID)))


async def test_a_bundle_endpoint_is_asked_over_tls(make: Make, issuer: Issuer, clock: FakeClock) -> None:
    issuer.published = [svid_key()]
    provider = make(f"{SPIFFE}keysURL: {issuer.url}/keys\nca: ca.pem")
    assert await provider.verify_token(Secret(platform_token(clock, KEY, JWT_SVID)))
    assert [request.path for request in issuer.requests] == ["/keys"]


async def test_rules_match_the_path_and_give_names(make: Make, tmp_path: Path, clock: FakeClock) -> None:
    write_bundle(tmp_path)
    rule = "rules: [{match: {path: '/ns/shop/sa/*'}, groups: [shop]}]"
    provider = make(f"{SPIFFE}keysFile: bundle.json\n{rule}")
    assert (await provider.verify_token(Secret(platform_token(clock, KEY, JWT_SVID)))).user.groups == ("shop",)
    with pytest.raises(LoginRefused):
        await provider.verify_token(Secret(platform_token(clock, KEY, {"sub": "spiffe://example.org/ns/a/sa/b"})))
