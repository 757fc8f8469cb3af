"""Which tokens of platforms are believed, and as whom: every bad one is refused, and an issuer that is down is no "no".

S72.
"""

from __future__ import annotations

import hashlib
import json
import traceback
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ostiary.errors import LoginRefused, OstiaryError, ProviderError
from ostiary.model import Secret, UserInfo
from ostiary_gateway.capabilities import ability
from ostiary_gateway.interfaces.identity import Challenge, LoginRequest, VerifiedToken, VerifiesTokens
from ostiary_gateway.providers.common.jwt_issuer import KEYS_SECONDS, REFETCH_SECONDS
from ostiary_gateway.providers.workload.identity import WorkloadIdentity
from ostiary_gateway.testing import FakeClock
from tests.support.http_server import Response
from tests.support.issuer import ABSENT, Issuer, ec_key, public, rsa_key
from tests.support.workloads import GATEWAY, GITHUB, GITLAB, JWT_SVID, platform_token, workload
from tests.unit.ostiary_gateway.providers.workload.conftest import Make

MAIN = (
    "rules: [{match: {repository: acme/shop, ref: refs/heads/main}, username: 'ci:{repository}', groups: [deployers]}]"
)


def github(issuer: Issuer, more: str = MAIN) -> str:
    return f"platform: github\nissuer: {issuer.url}\nca: ca.pem\n{more}\n"


def job_token(issuer: Issuer, **changed: Any) -> str:
    return platform_token(issuer.clock, issuer.key, GITHUB, **{"issuer": issuer.url, **changed})


async def verify(provider: WorkloadIdentity, token: str) -> VerifiedToken:
    return await provider.verify_token(Secret(token))


async def refusal_of(provider: WorkloadIdentity, token: str) -> LoginRefused:
    with pytest.raises(LoginRefused) as caught:
        await verify(provider, token)
    return caught.value


# --- whom the platforms name ---


async def test_a_github_job_is_who_the_first_matching_rule_says(make: Make, issuer: Issuer, clock: FakeClock) -> None:
    verified = await verify(make(github(issuer)), job_token(issuer))
    credential = (("authentication.kubernetes.io/credential-id", ("JTI=6bb0-github",)),)
    assert verified.user == UserInfo("ci:acme/shop", groups=("deployers",), extra=credential)
    assert verified.expires_at == clock.now() + timedelta(minutes=5)
    assert (verified.token_id, verified.once_until) == ("6bb0-github", None)


async def test_rules_are_tried_in_order_and_no_match_is_a_refusal(make: Make, issuer: Issuer) -> None:
    provider = make(
        github(
            issuer,
            """
rules:
- {match: {repository: acme/shop, environment: production}, username: production}
- match: {repository: 'acme/*', ref: [refs/heads/main, 'refs/tags/v**']}
  username: 'ci:{repository}'
  uid: '{repository_id}'
- {match: {repository_owner: acme}, username: 'branch:{repository}', groups: ['owner:{repository_owner}']}
""",
        )
    )

    async def name(**claims: str) -> str:
        return (await verify(provider, job_token(issuer, **claims))).user.username

    assert await name() == "ci:acme/shop"
    assert await name(environment="production") == "production"
    assert await name(ref="refs/tags/v1/rc") == "ci:acme/shop"
    assert await name(ref="refs/heads/feature") == "branch:acme/shop"
    assert (await verify(provider, job_token(issuer))).user.uid == "74"
    refusal = await refusal_of(provider, job_token(issuer, repository="evil/shop", repository_owner="evil"))
    assert refusal.cause == "no rule matches the claims of its token"


async def test_a_gitlab_job_of_a_self_hosted_instance_has_its_groups(make: Make, issuer: Issuer) -> None:
    provider = make(f"""
platform: gitlab
issuer: {issuer.url}
ca: ca.pem
rules:
- match: {{project_path: acme/**, ref_protected: 'true', runner_id: '1'}}
  username: "gitlab:{{project_path}}"
  groups: ["gitlab:{{groups_direct}}", deployers]
extra: {{example.com/pipeline: pipeline_id}}
credentialID: false
""")
    user = (await verify(provider, platform_token(issuer.clock, issuer.key, GITLAB, issuer=issuer.url))).user
    assert user == UserInfo(
        "gitlab:acme/platform/shop",
        groups=("gitlab:acme/platform", "gitlab:acme/oncall", "deployers"),
        extra=(("example.com/pipeline", ("574",)),),
    )


async def test_any_issuer_is_believed_by_its_claims_also_for_access_tokens(make: Make, issuer: Issuer) -> None:
    rule = "rules: [{match: {sub: 'robot-*', admin: 'true'}, username: '{sub}', groups: ['{roles}']}]"
    provider = make(f"platform: oidc\nissuer: {issuer.url}\nca: ca.pem\naudiences: [gateway]\n{rule}")
    claims = {"sub": "robot-7", "admin": True, "roles": ["a", "b"], "at_hash": "of an access token that we do not have"}
    token = platform_token(
        issuer.clock, issuer.key, claims, issuer=issuer.url, audience=["gateway"], header={"typ": "at+jwt"}
    )
    verified = await verify(provider, token)
    assert verified.user.username == "robot-7"
    assert verified.user.groups == ("a", "b")
    assert len(verified.token_id) == 64, "the digest, where there is no jti"


# --- bad tokens ---


FORGED = ec_key("ec-1")
BAD: dict[str, dict[str, Any]] = {
    "another audience": {"audience": "https://another.example.com"},
    "our audience and another": {"audience": [GATEWAY, "https://another.example.com"]},
    "no audience": {"audience": ABSENT},
    "an empty audience": {"audience": []},
    "the audience with a slash": {"audience": f"{GATEWAY}/"},
    "expired": {"exp": 1},
    "no expiry": {"exp": ABSENT},
    "an expiry that is a text": {"exp": "2999"},
    "an expiry that is true": {"exp": True},
    "not yet valid": {"nbf": 10**11},
    "issued in the future": {"iat": 10**11},
    "another issuer": {"issuer": "https://evil.example"},
    "no issuer": {"issuer": ABSENT},
    "no signature": {"header": {"alg": "none"}},
    "alg confusion": {"header": {"alg": "HS256"}},
    "another algorithm than the key's": {"header": {"alg": "RS256"}},
    "another kind of token": {"header": {"typ": "logout+jwt"}},
    "a critical header": {"header": {"crit": ["exp"]}},
    "unencoded content": {"header": {"b64": False, "crit": ["b64"]}},
    "an unknown key": {"header": {"kid": "gone"}},
    "another branch": {"ref": "refs/heads/feature"},
    "a claim that is missing": {"ref": ABSENT},
    "a claim of another type": {"repository": {"acme/shop": True}},
    "a claim that makes no name": {"repository": ["acme/shop", "acme/shop"]},
}


@pytest.mark.parametrize("changed", BAD.values(), ids=BAD.keys())
async def test_a_bad_token_is_refused_and_nothing_of_it_is_told(
    make: Make, issuer: Issuer, changed: dict[str, Any]
) -> None:
    provider = make(github(issuer))
    now = issuer.clock.now().timestamp()
    header = changed.get("header", {})
    key = rsa_key() if header.get("alg") == "RS256" else issuer.key
    given_values = {name: value for name, value in changed.items() if name != "header"}
    if given_values.get("exp") == 1:
        given_values["exp"] = now - 31
    token = platform_token(
        issuer.clock, key, GITHUB, **{"issuer": issuer.url, **given_values}, header={"kid": issuer.key.kid, **header}
    )
    refusal = await refusal_of(provider, token)
    text = f"{refusal}{refusal!r}{''.join(traceback.format_exception(refusal))}"
    assert not any(part in text for part in token.split(".") if part)


@pytest.mark.parametrize(
    "token",
    ["", "x", "a.b", "a.b.c", "....", "a" * 70_000, "é.é.é", "eyJhbGciOiJFUzI1NiJ9..", "\x00.\x00.\x00"],
)
async def test_what_is_no_token_is_refused(make: Make, issuer: Issuer, token: str) -> None:
    provider = make(github(issuer))
    assert not provider.recognizes_token(token)
    await refusal_of(provider, token)


async def test_a_forged_signature_is_refused(make: Make, issuer: Issuer) -> None:
    await refusal_of(make(github(issuer)), platform_token(issuer.clock, FORGED, GITHUB, issuer=issuer.url))


async def test_clocks_may_differ_a_little(make: Make, issuer: Issuer, clock: FakeClock) -> None:
    provider, now = make(github(issuer)), clock.now().timestamp()
    assert await verify(provider, job_token(issuer, exp=now - 29, nbf=now + 29, iat=now + 29))
    await refusal_of(provider, job_token(issuer, exp=now - 30))


@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(data=st.data())
async def test_a_token_with_any_bit_changed_lets_nobody_in_or_says_the_same(
    data: st.DataObject, clock: FakeClock, tmp_path: Path
) -> None:
    (tmp_path / "keys").write_text(json.dumps({"keys": [public(FORGED)]}))
    provider = workload(f"platform: github\nkeysFile: keys\n{MAIN}", clock, tmp_path)
    token = platform_token(clock, FORGED, GITHUB, issuer="https://token.actions.githubusercontent.com")
    true = await verify(provider, token)
    place = data.draw(st.integers(0, len(token) - 1))
    changed = token[:place] + data.draw(st.characters(max_codepoint=0x100)) + token[place + 1 :]
    provider.recognizes_token(changed)
    try:
        verified = await verify(provider, changed)
    except LoginRefused:
        return
    # The last character of a part has bits that mean nothing; what is signed is the same then.
    assert verified == true


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    claims=st.dictionaries(
        st.sampled_from(["sub", "repository", "ref", "aud", "exp", "iat", "nbf", "jti", "iss", "environment"]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
            max_leaves=5,
        ),
    )
)
async def test_whatever_an_issuer_signs_is_a_user_or_a_refusal(
    claims: dict[str, Any], clock: FakeClock, tmp_path: Path
) -> None:
    (tmp_path / "keys").write_text(json.dumps({"keys": [public(FORGED)]}))
    provider = workload(f"platform: github\nkeysFile: keys\n{MAIN}", clock, tmp_path)
    token = (
        platform_token(clock, FORGED, GITHUB, **{"issuer": "https://token.actions.githubusercontent.com", **claims})
        if "issuer" not in claims
        else ""
    )
    try:
        verified = await verify(provider, token)
    except LoginRefused:
        return
    assert verified.user.username == "ci:acme/shop"


# --- keys that change, an issuer that is down ---


async def test_a_rotated_key_is_found_and_one_that_was_rotated_away_is_refused(
    make: Make, issuer: Issuer, clock: FakeClock
) -> None:
    provider, old = make(github(issuer)), issuer.key
    before = job_token(issuer)
    assert await verify(provider, before)
    issuer.rotate(ec_key("ec-2"))
    assert await verify(provider, job_token(issuer)), "the new key is asked for when the first token needs it"
    refusal = await refusal_of(provider, platform_token(clock, old, GITHUB, issuer=issuer.url))
    assert refusal.cause == "the token: no key of the issuer has signed it"


async def test_tokens_with_unknown_keys_do_not_become_questions_to_the_issuer(
    make: Make, issuer: Issuer, clock: FakeClock
) -> None:
    provider = make(github(issuer))
    await verify(provider, job_token(issuer))
    asked = len(issuer.requests)
    for number in range(20):
        await refusal_of(provider, job_token(issuer, header={"kid": f"guessed-{number}"}))
    assert len(issuer.requests) == asked + 1
    clock.advance(seconds=REFETCH_SECONDS)
    await refusal_of(provider, job_token(issuer, header={"kid": "guessed"}))
    assert len(issuer.requests) == asked + 2


async def test_an_issuer_that_is_down_is_no_refusal(make: Make, issuer: Issuer, clock: FakeClock) -> None:
    provider = make(github(issuer))
    issuer.failures["/"] = Response(503)
    with pytest.raises(ProviderError):
        await verify(provider, job_token(issuer))
    issuer.failures.clear()
    assert await verify(provider, job_token(issuer))
    issuer.failures["/"] = Response(503)
    assert await verify(provider, job_token(issuer)), "the keys are known"
    clock.advance(seconds=KEYS_SECONDS + 1)
    with pytest.raises(ProviderError):
        await verify(provider, job_token(issuer))


async def test_a_token_of_another_issuer_or_for_somebody_else_is_refused_without_asking_anybody(
    make: Make, issuer: Issuer
) -> None:
    provider = make(github(issuer))
    bad: list[dict[str, Any]] = [{"iss": "https://evil.example"}, {"aud": "another"}, {"exp": 7}]
    for changed in bad:
        await refusal_of(provider, job_token(issuer, **changed))
    assert issuer.requests == []


@pytest.mark.parametrize(
    "metadata",
    [{"issuer": "https://evil.example"}, {"jwks_uri": "http://elsewhere.example/keys"}, {"jwks_uri": ABSENT}],
)
async def test_a_description_that_cannot_be_trusted_is_an_outage(
    make: Make, issuer: Issuer, metadata: dict[str, Any]
) -> None:
    issuer.metadata = {"authorization_endpoint": ABSENT, "token_endpoint": ABSENT, **metadata}
    with pytest.raises(ProviderError):
        await verify(make(github(issuer)), job_token(issuer))


async def test_an_issuer_for_machines_has_neither_a_sign_in_page_nor_a_token_endpoint(
    make: Make, issuer: Issuer
) -> None:
    issuer.metadata = {"authorization_endpoint": ABSENT, "token_endpoint": ABSENT, "userinfo_endpoint": ABSENT}
    provider = make(github(issuer))
    assert await verify(provider, job_token(issuer))
    assert await provider.probe() == f"the keys of {issuer.url}"


# --- replay ---


async def test_a_token_is_accepted_for_max_age_after_its_issue(make: Make, issuer: Issuer, clock: FakeClock) -> None:
    provider = make(github(issuer, f"{MAIN}\nmaxAge: 1m"))
    token = job_token(issuer)
    clock.advance(seconds=90)
    assert await verify(provider, token), "with the skew of the clocks"
    clock.advance(seconds=1)
    assert "maxAge" in str((await refusal_of(provider, token)).cause)
    await refusal_of(provider, job_token(issuer, iat=ABSENT))


async def test_a_token_that_is_good_once_says_how_long_to_remember_it(
    make: Make, issuer: Issuer, clock: FakeClock
) -> None:
    provider = make(github(issuer, f"{MAIN}\nonce: true\nlifetime: 10s"))
    verified = await verify(provider, job_token(issuer))
    assert verified.expires_at == clock.now() + timedelta(seconds=10)
    assert verified.once_until == clock.now() + timedelta(minutes=5, seconds=30), "as long as it would be accepted"


async def test_two_spellings_of_one_signature_are_one_token(make: Make, issuer: Issuer) -> None:
    token = job_token(issuer, jti=ABSENT)
    provider = make(github(issuer))
    name = (await verify(provider, token)).token_id
    assert name == hashlib.sha256(token.rpartition(".")[0].encode()).hexdigest()
    # The last of 86 characters has four bits that mean nothing.
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    other = token[:-1] + alphabet[alphabet.index(token[-1]) ^ 1]
    assert (await verify(provider, other)).token_id == name


# --- how the gateway sees it ---


async def test_a_provider_knows_its_own_tokens_before_it_verifies_them(
    make: Make, issuer: Issuer, clock: FakeClock, tmp_path: Path
) -> None:
    provider = make(github(issuer))
    assert ability(provider, VerifiesTokens) is provider
    assert provider.recognizes_token(job_token(issuer))
    assert not provider.recognizes_token(job_token(issuer, iss="https://another.example"))
    (tmp_path / "bundle").write_text(json.dumps({"keys": []}))
    spiffe = make("platform: spiffe\ntrustDomain: example.org\nkeysFile: bundle")
    assert spiffe.recognizes_token(platform_token(clock, FORGED, JWT_SVID))
    assert not spiffe.recognizes_token(platform_token(clock, FORGED, {"sub": "spiffe://example.com/x"}))
    assert not spiffe.recognizes_token(job_token(issuer))


async def test_without_a_token_the_answer_says_which_one_is_wanted(make: Make, issuer: Issuer) -> None:
    provider = make(github(issuer))
    for header in ((), (("authorization", "Basic YTpi"),), (("authorization", "Bearer"),)):
        assert isinstance(await provider.handle_client(LoginRequest("GET", "/auth/ci", headers=header)), Challenge)


@pytest.mark.parametrize(
    "claims",
    [{"repository": "system:masters"}, {"repository": "system:serviceaccount:kube-system:admin"}, {"repository": " x"}],
)
async def test_no_claim_makes_a_name_of_the_system(make: Make, issuer: Issuer, claims: dict[str, str]) -> None:
    for rule in (
        "username: '{repository}'",
        "username: x, groups: ['{repository}']",
        "username: x, uid: '{repository}'",
    ):
        provider = make(github(issuer, f"rules: [{{match: {{actor: octocat}}, {rule}}}]"))
        assert isinstance(await refusal_of(provider, job_token(issuer, **claims)), OstiaryError)


def test_users_that_can_be_listed_are_told(make: Make, issuer: Issuer) -> None:
    listed = make(github(issuer, "rules: [{match: {ref: refs/heads/main}, username: ci}]")).produces()
    assert listed.usernames == frozenset({"ci"})
    assert listed.extra == ("authentication.kubernetes.io/credential-id",)
    assert make(github(issuer)).produces().usernames is None
    assert make("platform: kubernetes").produces().usernames is None
    bound = "platform: kubernetes\ncluster: main\n"
    assert make(bound).produces().usernames == frozenset(), "service accounts alone, which the gateway knows by itself"
    named = "rules: [{match: {namespace: shop}, username: shop}, {match: {namespace: a}}]"
    assert make(bound + named).produces().usernames == frozenset({"shop"})
