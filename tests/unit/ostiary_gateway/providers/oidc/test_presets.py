"""Microsoft Entra ID: tenants are told apart, and groups that are left out are not taken for none."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from ostiary.errors import ProviderError
from ostiary.model import UserInfo
from ostiary_gateway.providers.oidc.presets import MicrosoftIdentity
from ostiary_gateway.testing import FakeClock
from tests.support.http_server import Request, Response
from tests.support.issuer import ABSENT, Issuer, Key, ec_key, public
from tests.support.relying_party import RelyingParty

ACME, OTHER, STRANGER = (f"{digit * 8}-0000-4000-8000-00000000000{digit}" for digit in "abc")
ALICE = "99999999-1111-4222-8333-444444444444"


class Entra(Issuer):
    """Each tenant has an issuer and keys of its own; those for many tenants have one document with a blank in it."""

    def __init__(self, ca: trustme.CA, clock: FakeClock) -> None:
        super().__init__(ca, clock)
        self.tenants: dict[str, Key] = {tenant: ec_key(tenant) for tenant in (ACME, OTHER, STRANGER)}
        self.act_as(ACME)

    def act_as(self, tenant: str, *, key_of: str | None = None) -> None:
        """From now on *tenant* issues the tokens; with *key_of*, it has somebody else's key."""
        self.person = {"sub": "pairwise", "oid": ALICE, "tid": tenant, "preferred_username": "alice@acme.example"}
        self.claims["iss"] = f"{self.url}/{tenant}/v2.0"
        self.key = self.tenants[key_of or tenant]

    def answer(self, request: Request) -> Response:
        tenant, version, rest = request.path.removeprefix("/").partition("/v2.0/")
        if not version:
            return super().answer(request)
        if rest == "keys":
            keys = self.tenants.values() if tenant not in self.tenants else [self.tenants[tenant]]
            return Response(body={"keys": [public(key) for key in keys]})
        base = f"{self.url}/{tenant}/v2.0"
        document = {
            "issuer": base if tenant in self.tenants else f"{self.url}/{{tenantid}}/v2.0",
            "authorization_endpoint": f"{self.url}/authorize?tenant=a+b",
            "token_endpoint": f"{self.url}/token",
            "jwks_uri": f"{base}/keys",
            "userinfo_endpoint": f"{self.url}/userinfo",
        }
        return Response(body=document)


@pytest.fixture
async def party(ca: trustme.CA, clock: FakeClock, tmp_path: Path) -> AsyncIterator[RelyingParty]:
    ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    with Entra(ca, clock).running() as entra:
        party = RelyingParty(entra, tmp_path, clock)
        yield party
        await party.close()


@pytest.fixture
def entra(party: RelyingParty) -> Entra:
    assert isinstance(party.issuer, Entra)
    return party.issuer


def make(party: RelyingParty, **settings: Any) -> MicrosoftIdentity:
    return party.make(MicrosoftIdentity, **{"authority": party.issuer.url, "tenant": ACME, **settings})


def make_for_many(party: RelyingParty, **settings: Any) -> MicrosoftIdentity:
    given = {"tenant": "organizations", "allowedTenants": [ACME, OTHER.upper()]}
    return make(party, **{**given, **settings})


async def test_the_name_is_the_one_that_never_changes(party: RelyingParty) -> None:
    """S1: IAM as a service. `sub` differs for each application, and addresses are given to others."""
    assert await party.sign_in(make(party)) == UserInfo(ALICE, uid=ALICE)


async def test_an_address_as_the_name_is_the_operators_choice(party: RelyingParty) -> None:
    user = await party.sign_in(make(party, username="preferred_username"))
    assert (user.username, user.uid) == ("alice@acme.example", ALICE)


async def test_scopes_bring_the_claims_and_a_refresh_token(party: RelyingParty) -> None:
    assert (await party.asked(make(party)))["scope"] == "openid profile offline_access"
    assert (await party.asked(make(party, refreshTokens=False)))["scope"] == "openid profile"


async def test_a_token_of_another_tenant_is_refused(party: RelyingParty, entra: Entra) -> None:
    provider = make(party)
    entra.act_as(OTHER)
    assert "ID token" in str((await party.refusal(provider)).cause)


# --- several tenants ---


@pytest.mark.parametrize("tenant", ["organizations", "common"])
async def test_people_of_each_allowed_tenant_have_names_of_their_own(
    party: RelyingParty, entra: Entra, tenant: str
) -> None:
    provider = make_for_many(party, tenant=tenant)
    assert (await party.sign_in(provider)).username == f"{ALICE}@{ACME}"
    entra.act_as(OTHER)
    assert (await party.sign_in(provider)).username == f"{ALICE}@{OTHER}"


async def test_a_tenant_that_nobody_allowed_is_refused(party: RelyingParty, entra: Entra) -> None:
    provider = make_for_many(party)
    entra.act_as(STRANGER)
    assert "not one of allowedTenants" in str((await party.refusal(provider)).cause)


@pytest.mark.parametrize("tid", [ABSENT, "", 7, ACME.upper(), f"{ACME}/../{STRANGER}"], ids=str)
async def test_a_token_without_a_tenant_is_refused(party: RelyingParty, entra: Entra, tid: Any) -> None:
    provider = make_for_many(party)
    entra.claims["tid"] = tid
    assert "allowedTenants" in str((await party.refusal(provider)).cause)


@pytest.mark.parametrize(
    "lies",
    [
        pytest.param({"tid": ACME}, id="it says that it is the allowed tenant"),
        pytest.param({"tid": ACME, "iss": "{url}/" + ACME + "/v2.0"}, id="and that this one issued it"),
        pytest.param({"tid": STRANGER, "iss": "{url}/" + ACME + "/v2.0"}, id="the issuer alone"),
        pytest.param({"tid": ACME, "iss": "{url}/{tenantid}/v2.0"}, id="the blank"),
    ],
)
async def test_another_tenant_cannot_speak_for_an_allowed_one(
    party: RelyingParty, entra: Entra, lies: dict[str, str]
) -> None:
    """Its keys are good keys of Microsoft's, but only the tenant's own verify its tokens, under its own name."""
    provider = make_for_many(party)
    entra.act_as(STRANGER)
    entra.claims |= {name: value.replace("{url}", entra.url) for name, value in lies.items()}
    await party.refusal(provider)


async def test_one_allowed_tenant_cannot_speak_for_another(party: RelyingParty, entra: Entra) -> None:
    provider = make_for_many(party)
    entra.act_as(ACME, key_of=OTHER)
    assert "no key of the issuer has signed it" in str((await party.refusal(provider)).cause)


async def test_where_tenants_share_a_key_issuer_and_tenant_must_still_agree(party: RelyingParty, entra: Entra) -> None:
    """As in Microsoft's own cloud, where the same keys sign for many tenants."""
    entra.tenants = dict.fromkeys(entra.tenants, entra.tenants[ACME])
    provider = make_for_many(party)
    assert await party.sign_in(provider)
    for issuer in (STRANGER, OTHER, "{tenantid}"):
        entra.claims["iss"] = f"{entra.url}/{issuer}/v2.0"
        assert "another issuer" in str((await party.refusal(provider)).cause)


async def test_a_renewal_asks_the_tenant_again(party: RelyingParty, entra: Entra) -> None:
    provider = make_for_many(party)
    identified = await party.keep(provider)
    assert identified.kept is not None
    again = await provider.ask_again(identified.user, identified.kept)
    assert again.user == identified.user


# --- groups ---


async def test_groups_are_ids_or_roles(party: RelyingParty, entra: Entra) -> None:
    entra.person |= {"groups": ["9f0c"], "roles": ["Viewer"]}
    assert (await party.sign_in(make(party))).groups == ("9f0c",)
    assert (await party.sign_in(make(party, groups="roles"))).groups == ("Viewer",)


@pytest.mark.parametrize(
    "overage",
    [
        {"_claim_names": {"groups": "src1"}, "_claim_sources": {"src1": {"endpoint": "https://graph.example"}}},
        {"hasgroups": True},
        {"hasgroups": "true"},
    ],
    ids=str,
)
async def test_too_many_groups_are_an_error_and_not_none(
    party: RelyingParty, entra: Entra, overage: dict[str, Any]
) -> None:
    entra.person |= overage
    with pytest.raises(ProviderError, match="groups of this user are unknown"):
        await party.sign_in(make(party))
    # Roles of the application have no such limit.
    assert await party.sign_in(make(party, groups="roles"))


@pytest.mark.parametrize("missing", ["oid", "tid"])
async def test_a_token_without_the_scope_profile_names_nobody(party: RelyingParty, entra: Entra, missing: str) -> None:
    entra.claims[missing] = ABSENT
    assert "oid" in str((await party.refusal(make(party))).cause)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"tenant": None}, "tenant: it is missing"),
        ({"tenant": "acme.example"}, "tenant: it is not the ID of a tenant"),
        ({"tenant": "common"}, "allowedTenants: it is missing: with tenant: common everybody's tenant could sign in"),
        ({"tenant": "organizations"}, "allowedTenants: it is missing"),
        ({"tenant": "organizations", "allowedTenants": []}, "allowedTenants: an empty list lets nobody in"),
        ({"tenant": "organizations", "allowedTenants": ["common"]}, "allowedTenants: it is not the ID of a tenant"),
        ({"tenant": ACME, "allowedTenants": [OTHER]}, "allowedTenants: it is used with"),
        (
            {"tenant": "common", "allowedTenants": [ACME], "username": "preferred_username"},
            "username: an address does not tell the tenants apart",
        ),
        ({"tenant": ACME, "username": "email"}, "username: it must be oid or preferred_username"),
        ({"tenant": ACME, "authority": "http://login.example.com"}, "authority: it is not a https URL"),
    ],
    ids=str,
)
def test_a_setting_that_lets_in_strangers_is_told(party: RelyingParty, settings: dict[str, Any], problem: str) -> None:
    _, problems = party.configure(MicrosoftIdentity, settings)
    assert len(problems) == 1
    assert problems[0].startswith(problem)
