"""POST /auth/token: a platform's token, or one of ours, for a token that is no more than it (RFC 8693). S72."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ostiary.core.scopes import decode
from ostiary.errors import LoginRefused, ProviderError
from ostiary.model import Secret, UserInfo
from ostiary_gateway.audit.sign_ins import LoginEventKind
from ostiary_gateway.capabilities import ability
from ostiary_gateway.config.provider import Groups
from ostiary_gateway.interfaces.identity import Redirect, VerifiedToken
from ostiary_gateway.interfaces.store_capabilities import ObjectStore
from ostiary_gateway.interfaces.token_store import MOST_RECORDS, Found, RecordStore, RevocationKind, TokenKind
from ostiary_gateway.login import replay_cache as used_tokens
from ostiary_gateway.login.replay_cache import SWEPT_AT_ONCE, USED
from ostiary_gateway.login.responses import LoginAnswer
from ostiary_gateway.login.token_endpoint import ACCESS_TOKEN, GRANT, MINTS_PER_MINUTE, REFUSALS_PER_MINUTE
from ostiary_gateway.providers.workload.identity import WorkloadIdentity
from ostiary_gateway.sessions import digest
from ostiary_gateway.testing import FakeClock
from tests.support.issuer import ec_key, public
from tests.support.workloads import GITHUB, SERVICE_ACCOUNT, platform_token, workload
from tests.unit.ostiary_gateway.signing_in import (
    SECRET,
    URL,
    Browser,
    Gateway,
    Make,
    Revalidating,
    Says,
    SaysGroups,
    body,
)

KEY = ec_key()
ISSUER = "https://token.actions.githubusercontent.com"
CLUSTER = "https://kubernetes.default.svc.cluster.local"
MAIN = """
platform: github
keysFile: keys
rules: [{match: {repository: acme/shop}, username: 'ci:{repository}', groups: [developers, unheard-of]}]
"""


class Verifies(Says):
    """A provider that answers about tokens as it is told; those of its name are its own."""

    def __init__(self, answer: Any, name: str = "mine") -> None:
        super().__init__()
        self.answer, self.name = answer, name
        self.tokens: list[str] = []

    def recognizes_token(self, token: str) -> bool:
        return token.startswith(self.name)

    async def verify_token(self, token: Secret) -> Any:
        self.tokens.append(token.reveal())
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture
def provider(clock: FakeClock, tmp_path: Path) -> WorkloadIdentity:
    return read(MAIN, clock, tmp_path)


def read(text: str, clock: FakeClock, folder: Path) -> WorkloadIdentity:
    (folder / "keys").write_text(json.dumps({"keys": [public(KEY)]}))
    return workload(text, clock, folder, URL)


def job_token(clock: FakeClock, **changed: Any) -> str:
    return platform_token(clock, KEY, GITHUB, **{"issuer": ISSUER, "audience": URL, **changed})


def verified(clock: FakeClock, username: str = "ci", *, seconds: float = 300, **more: Any) -> VerifiedToken:
    return VerifiedToken(UserInfo(username), clock.now() + timedelta(seconds=seconds), "id-1", **more)


async def exchange(gateway: Gateway, token: str, **fields: str) -> LoginAnswer:
    form = {"grant_type": GRANT, "subject_token": token, "subject_token_type": "urn:ietf:params:oauth:token-type:jwt"}
    return await gateway.post("/auth/token", **{**form, **fields})


async def exchanged(gateway: Gateway, token: str, **fields: str) -> dict[str, Any]:
    answer = await exchange(gateway, token, **fields)
    assert answer.status == 200, answer.body
    return body(answer)


async def error_of(gateway: Gateway, token: str, **fields: str) -> str:
    answer = await exchange(gateway, token, **fields)
    assert answer.status == 400
    assert answer.header("Cache-Control") == "no-store"
    return str(body(answer)["error"])


async def entry_of(gateway: Gateway, token: str) -> Found:
    entry = await gateway.tokens.find(token)
    assert entry is not None
    return entry


# --- the token of a platform ---


async def test_a_job_gets_a_token_that_ends_with_its_own(
    make: Make, provider: WorkloadIdentity, clock: FakeClock
) -> None:
    gateway = make(provider, groups=[Groups("claimed", "claims", provider, own=True)])
    told = await exchanged(gateway, job_token(clock))
    assert (told["issued_token_type"], told["token_type"], told["expires_in"]) == (ACCESS_TOKEN, "Bearer", 300)
    entry = await entry_of(gateway, told["access_token"])
    assert (entry.token.kind, entry.token.delegation) == (TokenKind.ACCESS, "")
    session = entry.session
    assert session.user.username == told["user"] == "ci:acme/shop"
    assert session.user.groups == ("developers",), "of its groups, those that the policy mentions"
    assert session.expires_at == entry.token.expires_at == clock.now() + timedelta(minutes=5)
    assert [(event.kind, event.username, event.status) for event in gateway.events] == [
        (LoginEventKind.ISSUED, "ci:acme/shop", 200)
    ]
    assert await gateway.tokens_kept() == 1, "there is no renewal token"
    clock.advance(minutes=5)
    assert await gateway.tokens.find(told["access_token"]) is None


async def test_no_token_lives_longer_than_the_gateways_own(
    make: Make, provider: WorkloadIdentity, clock: FakeClock
) -> None:
    gateway, far = make(provider), int(clock.now().timestamp()) + 10**9
    assert (await exchanged(gateway, job_token(clock, exp=far)))["expires_in"] == 900
    assert (await exchanged(gateway, job_token(clock), expires_in="60"))["expires_in"] == 60
    assert (await exchanged(gateway, job_token(clock), expires_in="86400"))["expires_in"] == 300


async def test_an_operator_may_let_the_gateways_token_outlast_the_platforms(
    make: Make, clock: FakeClock, tmp_path: Path
) -> None:
    gateway = make(read(f"{MAIN}\nlifetime: 10m", clock, tmp_path))
    assert (await exchanged(gateway, job_token(clock)))["expires_in"] == 600


async def test_a_bearer_token_at_the_providers_path_is_the_same_proof(
    make: Make, provider: WorkloadIdentity, clock: FakeClock
) -> None:
    gateway = make(provider)
    for path in ("/auth", "/auth/idp1"):
        answer = await gateway.get(path, headers=(("authorization", f"Bearer {job_token(clock)}"),))
        told = body(answer)
        assert answer.status == 200
        assert "renewal_token" not in told
        assert (await entry_of(gateway, told["token"])).session.user.username == "ci:acme/shop"
    refused = await gateway.get("/auth/idp1", headers=(("authorization", f"Bearer {job_token(clock, aud='x')}"),))
    assert refused.status == 403
    challenge = await gateway.get("/auth/idp1")
    assert (challenge.status, challenge.header("WWW-Authenticate")) == (401, 'Bearer realm="workload"')


async def test_the_issuer_says_which_provider_judges_a_token(make: Make, clock: FakeClock) -> None:
    first, second = Verifies(verified(clock, "a"), "first"), Verifies(verified(clock, "b"), "second")
    gateway = make(Says(), first, second)
    assert (await exchanged(gateway, "second-token"))["user"] == "idp3:b"
    assert (first.tokens, second.tokens) == ([], ["second-token"])
    assert await error_of(gateway, "third-token") == "invalid_request"


async def test_a_refusal_says_no_more_than_the_program_may_know(
    make: Make, provider: WorkloadIdentity, clock: FakeClock
) -> None:
    gateway, token = make(provider), job_token(clock, repository="acme/other")
    answer = await exchange(gateway, token)
    assert (answer.status, body(answer)["error"]) == (400, "invalid_request")
    assert body(answer)["error_description"] == "this workload may not sign in here"
    (event,) = gateway.events
    assert (event.kind, event.provider) == (LoginEventKind.REFUSED, "idp1")
    assert "no rule matches" in event.reason
    for text in (event.reason, answer.body.decode(), repr(event)):
        assert not any(part in text for part in token.split("."))


@pytest.mark.parametrize(
    ("error", "status"),
    [(ProviderError("down"), 503), (OSError(), 503), (ValueError(SECRET), 500), (TimeoutError(), 503)],
)
async def test_could_not_ask_is_no_refusal(make: Make, error: Exception, status: int) -> None:
    gateway = make(Verifies(error))
    answer = await exchange(gateway, "mine")
    assert (answer.status, body(answer)["error"]) == (status, "temporarily_unavailable")
    assert gateway.events[0].kind is LoginEventKind.OUTAGE
    assert SECRET not in answer.body.decode()


async def test_a_provider_that_breaks_its_contract_issues_nothing(make: Make, clock: FakeClock) -> None:
    for answer in (None, UserInfo("x"), verified(clock, ""), VerifiedToken("x", clock.now(), "1")):  # type: ignore[arg-type]
        gateway = make(Verifies(answer))
        assert (await exchange(gateway, "mine")).status == 500
        assert await gateway.tokens_kept() == 0


async def test_groups_that_cannot_be_looked_up_end_the_exchange(make: Make, clock: FakeClock) -> None:
    for groups, status in ((ProviderError("down"), 503), (Redirect("https://elsewhere.example"), 400)):
        asked = SaysGroups(groups)
        gateway = make(Verifies(verified(clock)), groups=[asked])
        assert (await exchange(gateway, "mine-and-secret")).status == status
        assert await gateway.tokens_kept() == 0
        _, _, shown = asked.asked[0]
        assert "mine-and-secret" not in repr((shown.form, shown.headers)), "group providers do not see the token"


async def test_group_providers_see_neither_the_bearer_token_nor_our_cookies(make: Make, clock: FakeClock) -> None:
    asked = SaysGroups()
    headers = (("authorization", "Bearer mine-and-secret"), ("cookie", "ostiary-session=secret"), ("accept", "*/*"))
    assert (await make(Verifies(verified(clock)), groups=[asked]).get("/auth/idp1", headers=headers)).status == 200
    assert asked.asked[0][2].headers == (("accept", "*/*"),)


async def test_a_token_that_ends_now_is_refused(make: Make, clock: FakeClock) -> None:
    assert await error_of(make(Verifies(verified(clock, seconds=0.5))), "mine") == "invalid_request"


async def test_whoever_is_revoked_meanwhile_gets_nothing(make: Make, clock: FakeClock) -> None:
    gateway = make(Verifies(verified(clock)))

    class Revoking(SaysGroups):
        async def groups_of(self, *args: Any) -> Any:
            await gateway.tokens.revoke(RevocationKind.USER, "ci")
            return ()

    gateway.groups.append(Groups("g", "test", Revoking()))
    gateway.__post_init__()
    assert await error_of(gateway, "mine") == "invalid_request"
    assert await gateway.tokens_kept() == 0


# --- names of the system ---


@pytest.mark.parametrize("name", ["system:serviceaccount:shop:deployer", "system:masters", "system:x"])
async def test_no_provider_but_a_bound_one_names_the_systems_own(make: Make, clock: FakeClock, name: str) -> None:
    gateway = make(Verifies(verified(clock, name)))
    assert await error_of(gateway, "mine") == "invalid_request"
    assert gateway.events[0].reason.endswith('"idp1" returned a reserved system name')
    assert (await make(Says(UserInfo(name))).get()).status == 403


async def test_a_bound_provider_names_service_accounts_and_nothing_else_of_the_system(
    make: Make, clock: FakeClock
) -> None:
    class Bound(Verifies):
        bound_cluster = "main"

    for name in ("system:masters", "system:serviceaccount:shop", "system:serviceaccount:shop:a:b"):
        assert await error_of(make(Bound(verified(clock, name))), "mine") == "invalid_request"
    gateway = make(Says(), Bound(verified(clock, "system:serviceaccount:shop:deployer")))
    entry = await entry_of(gateway, (await exchanged(gateway, "mine"))["access_token"])
    assert entry.session.user.username == "system:serviceaccount:shop:deployer"
    assert entry.session.user.groups == ("system:serviceaccounts", "system:serviceaccounts:shop")


async def test_a_service_account_of_an_unbound_cluster_has_another_name(
    make: Make, clock: FakeClock, tmp_path: Path
) -> None:
    token = platform_token(clock, KEY, SERVICE_ACCOUNT, issuer=CLUSTER, audience=URL)
    unbound = make(read("platform: kubernetes\nkeysFile: keys", clock, tmp_path))
    assert (await exchanged(unbound, token))["user"] == "serviceaccount:shop:deployer"
    bound = make(read("platform: kubernetes\nkeysFile: keys\ncluster: main", clock, tmp_path))
    assert (await exchanged(bound, token))["user"] == "system:serviceaccount:shop:deployer"


# --- replay ---


async def test_a_token_that_is_good_once_is_accepted_once(make: Make, clock: FakeClock, tmp_path: Path) -> None:
    provider = read(f"{MAIN}\nonce: true", clock, tmp_path)
    gateway, token = make(provider), job_token(clock)
    answers = await asyncio.gather(*(exchange(gateway, token) for _ in range(8)))
    assert sorted(answer.status for answer in answers) == [200] + [400] * 7
    replica = make(provider, store=gateway.store)
    assert await error_of(replica, token) == "invalid_request", "another replica with the same store knows of it"
    assert (await replica.get("/auth/idp1", headers=(("authorization", f"Bearer {token}"),))).status == 403
    assert await exchanged(replica, job_token(clock, jti="another"))
    clock.advance(seconds=329)
    assert await error_of(replica, token) == "invalid_request", "it is remembered for as long as clocks may differ"


async def test_logins_that_are_begun_do_not_make_a_used_token_good_again(
    make: Make, clock: FakeClock, tmp_path: Path
) -> None:
    """Of what logins under way remember, the store keeps the latest so many; anybody can begin logins."""
    gateway, token = make(read(f"{MAIN}\nonce: true", clock, tmp_path)), job_token(clock)
    records = ability(gateway.store, RecordStore)
    assert records is not None
    assert await exchanged(gateway, token)
    for number in range(MOST_RECORDS):
        assert await records.put_record(digest(str(number)), b"", clock.now() + timedelta(minutes=10))
    assert await error_of(gateway, token) == "invalid_request"


async def test_used_tokens_are_forgotten_when_they_have_expired(make: Make, clock: FakeClock, tmp_path: Path) -> None:
    gateway = make(read(f"{MAIN}\nonce: true", clock, tmp_path))
    for number in range(SWEPT_AT_ONCE + 5):
        assert await exchanged(gateway, job_token(clock, jti=f"early {number}"))
    clock.advance(minutes=6)
    for number in range(3):
        assert await exchanged(gateway, job_token(clock, jti=f"late {number}"))
    objects = ability(gateway.store, ObjectStore)
    assert objects is not None
    assert len(await objects.list_objects(USED)) == 3


async def test_a_token_that_could_not_be_used_is_not_used_up(make: Make, clock: FakeClock) -> None:
    groups = SaysGroups(ProviderError("down"))
    gateway = make(Verifies(verified(clock, once_until=clock.now() + timedelta(hours=1))), groups=[groups])
    assert (await exchange(gateway, "mine")).status == 503
    groups.of = ()
    assert await exchanged(gateway, "mine")
    assert await error_of(gateway, "mine") == "invalid_request"


async def test_one_user_cannot_fill_the_store_with_used_tokens(
    make: Make, clock: FakeClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(used_tokens, "USED_PER_USER", 5)
    gateway = make(read(f"{MAIN}\nonce: true", clock, tmp_path))
    token = job_token(clock, jti="0")
    assert await exchanged(gateway, token)
    clock.advance(seconds=60)
    for number in range(1, 5):
        assert await exchanged(gateway, job_token(clock, jti=str(number)))
    for number in range(5, 8):
        answer = await exchange(gateway, job_token(clock, jti=str(number)))
        assert answer.status == 429
        # The first one is remembered for as long as clocks may differ.
        assert answer.header("Retry-After") == "270"
    objects = ability(gateway.store, ObjectStore)
    assert objects is not None
    assert len(await objects.list_objects(USED)) == 5
    assert await error_of(gateway, token) == "invalid_request", "a used token is refused as before"
    other = verified(clock, "other", once_until=clock.now() + timedelta(minutes=5))
    assert await exchanged(make(Verifies(other), store=gateway.store), "of another user")
    clock.advance(seconds=270)
    assert await exchanged(gateway, job_token(clock, jti="late"))


async def test_a_token_used_before_the_upgrade_stays_used(make: Make, clock: FakeClock, tmp_path: Path) -> None:
    gateway, token = make(read(f"{MAIN}\nonce: true", clock, tmp_path)), job_token(clock)
    assert await exchanged(gateway, token)
    objects = ability(gateway.store, ObjectStore)
    assert objects is not None
    (mark,) = await objects.list_objects(USED)
    assert await objects.delete_object(USED, mark.name)
    assert await objects.put_object(USED, mark.name.partition(".")[2], mark.data, version=0)
    assert await error_of(gateway, token) == "invalid_request"


async def test_a_token_is_not_used_up_by_a_user_who_has_too_many_tokens(
    make: Make, clock: FakeClock, tmp_path: Path
) -> None:
    gateway = make(read(f"{MAIN}\nonce: true", clock, tmp_path), tokens_per_user=1)
    first = await exchanged(gateway, job_token(clock, jti="first"))
    second = job_token(clock, jti="second")
    assert await error_of(gateway, second) == "invalid_request"
    objects = ability(gateway.store, ObjectStore)
    assert objects is not None
    assert len(await objects.list_objects(USED)) == 1
    await gateway.tokens.revoke(RevocationKind.SESSION, first["session"])
    assert await exchanged(gateway, second)


async def test_a_token_without_once_may_come_again_until_it_expires(
    make: Make, provider: WorkloadIdentity, clock: FakeClock
) -> None:
    gateway, token = make(provider), job_token(clock)
    first, second = await exchanged(gateway, token), await exchanged(gateway, token)
    assert first["session"] != second["session"]


# --- requests that are not right ---


WRONG: dict[str, tuple[Mapping[str, str], str]] = {
    "no grant type": ({"grant_type": ""}, "invalid_request"),
    "another grant type": ({"grant_type": "client_credentials"}, "unsupported_grant_type"),
    "no subject token": ({"subject_token": ""}, "invalid_request"),
    "no type of the subject token": ({"subject_token_type": ""}, "invalid_request"),
    "another type": ({"subject_token_type": "urn:ietf:params:oauth:token-type:saml2"}, "invalid_request"),
    "an actor token": ({"actor_token": "x", "actor_token_type": ACCESS_TOKEN}, "invalid_request"),
    "a renewal token wanted": (
        {"requested_token_type": "urn:ietf:params:oauth:token-type:refresh_token"},
        "invalid_request",
    ),
    "another audience": ({"audience": "https://another.example"}, "invalid_target"),
    "another resource": ({"resource": "https://another.example"}, "invalid_target"),
    "no seconds": ({"expires_in": "-1"}, "invalid_request"),
    "zero seconds": ({"expires_in": "0"}, "invalid_request"),
    "seconds in words": ({"expires_in": "ten"}, "invalid_request"),
    "a scope that cannot be read": ({"scope": "everything"}, "invalid_scope"),
    "an actor without a scope": ({"actor": "agent"}, "invalid_scope"),
}


@pytest.mark.parametrize(("fields", "error"), WRONG.values(), ids=WRONG.keys())
async def test_a_request_that_is_not_right_is_told_so_as_the_standard_has_it(
    make: Make, provider: WorkloadIdentity, clock: FakeClock, fields: Mapping[str, str], error: str
) -> None:
    gateway = make(provider)
    assert await error_of(gateway, job_token(clock), **fields) == error
    assert await gateway.tokens_kept() == 0


async def test_our_own_audience_may_be_named(make: Make, provider: WorkloadIdentity, clock: FakeClock) -> None:
    gateway = make(provider)
    assert await exchanged(
        gateway, job_token(clock), audience=URL, resource=f"{URL}/", requested_token_type=ACCESS_TOKEN
    )


async def test_a_field_that_is_given_twice_is_refused(make: Make, provider: WorkloadIdentity, clock: FakeClock) -> None:
    form = {"grant_type": GRANT, "subject_token_type": ACCESS_TOKEN}
    fields = (*form.items(), ("subject_token", job_token(clock)), ("subject_token", job_token(clock)))
    answer = await make(provider).get("/auth/token", method="POST", form=fields)
    assert (answer.status, body(answer)["error"]) == (400, "invalid_request")


@pytest.mark.parametrize("where", ["twice, once empty", "in the address"])
async def test_a_scope_that_does_not_count_is_refused_and_not_left_out(
    make: Make, provider: WorkloadIdentity, clock: FakeClock, where: str
) -> None:
    gateway, scope = make(provider), "get pods -n shop"
    form = {"grant_type": GRANT, "subject_token_type": ACCESS_TOKEN, "subject_token": job_token(clock)}
    is_twice = where == "twice, once empty"
    fields = (*form.items(), *((("scope", ""), ("scope", scope)) if is_twice else ()))
    answer = await gateway.get("/auth/token" + ("" if is_twice else f"?scope={scope}"), method="POST", form=fields)
    assert (answer.status, body(answer)["error"]) == (400, "invalid_request"), "else the token could do everything"
    bearer = (("authorization", f"Bearer {form['subject_token']}"),)
    assert (await gateway.get(f"/auth/idp1?scope={scope}", headers=bearer)).status == 403
    assert await gateway.tokens_kept() == 0


async def test_a_token_in_the_address_is_refused(make: Make, provider: WorkloadIdentity, clock: FakeClock) -> None:
    gateway, token = make(provider), job_token(clock)
    form = {"grant_type": GRANT, "subject_token": token, "subject_token_type": ACCESS_TOKEN}
    answer = await gateway.get(f"/auth/token?subject_token={token}", method="POST", form=tuple(form.items()))
    assert answer.status == 400


async def test_a_description_has_only_the_characters_that_the_standard_allows(
    make: Make, provider: WorkloadIdentity, clock: FakeClock
) -> None:
    answer = await exchange(make(provider), job_token(clock), scope='get "péds\\" -n x')
    text = body(answer)["error_description"]
    assert all(" " <= char <= "~" and char not in '"\\' for char in text)


async def test_an_address_with_too_many_refusals_waits_and_others_do_not(
    make: Make, provider: WorkloadIdentity, clock: FakeClock
) -> None:
    gateway = make(provider)
    for _ in range(3 * int(REFUSALS_PER_MINUTE)):
        await exchanged(gateway, job_token(clock))
    for _ in range(int(REFUSALS_PER_MINUTE)):
        assert (await exchange(gateway, "x.y.z")).status == 400
    waiting = await exchange(gateway, job_token(clock))
    assert (waiting.status, waiting.header("Retry-After")) == (429, "1")
    assert (await gateway.get("/auth/idp1", headers=(("authorization", "Bearer x"),))).status == 429
    gateway.address = "192.0.2.2"
    assert await exchanged(gateway, job_token(clock))


async def test_a_form_of_another_site_is_refused(make: Make, provider: WorkloadIdentity, clock: FakeClock) -> None:
    form = {"grant_type": GRANT, "subject_token": job_token(clock), "subject_token_type": ACCESS_TOKEN}
    headers = (("origin", "https://evil.example"),)
    answer = await make(provider).get("/auth/token", method="POST", form=tuple(form.items()), headers=headers)
    assert answer.status == 403


# --- one of ours for less ---


async def own_token(gateway: Gateway) -> str:
    token: str = body(await gateway.get("/auth"))["token"]
    return token


async def test_a_person_gives_an_agent_a_token_that_is_less(make: Make, clock: FakeClock) -> None:
    gateway = make(Revalidating(UserInfo("alice")))
    told = await exchanged(
        gateway,
        await own_token(gateway),
        subject_token_type=ACCESS_TOKEN,
        scope="get,list pods -n shop",
        actor="agent",
        expires_in="600",
    )
    assert (told["scope"], told["expires_in"]) == ("get,list pods -n shop", 600)
    entry = await entry_of(gateway, told["access_token"])
    assert entry.session.user.username == "alice"
    delegation = decode(entry.token.delegation)
    assert (str(delegation), delegation.actor) == ("get,list pods -n shop", "agent")
    assert "narrowed to" in gateway.events[-1].reason


async def test_a_narrowed_token_becomes_narrower_only(make: Make) -> None:
    gateway = make(Revalidating(UserInfo("alice")))
    first = (await exchanged(gateway, await own_token(gateway), scope="get,list pods -n shop"))["access_token"]
    for wider in ("get,list,delete pods -n shop", "get pods -A", "get secrets -n shop", "* * -A"):
        assert await error_of(gateway, first, scope=wider) == "invalid_scope"
    second = (await exchanged(gateway, first, scope="get pods -n shop"))["access_token"]
    assert await error_of(gateway, second, scope="list pods -n shop") == "invalid_scope"
    assert len(decode((await entry_of(gateway, second)).token.delegation).scopes) == 2


async def test_a_token_of_ours_is_not_exchanged_for_one_of_the_same_power(make: Make) -> None:
    gateway = make(Revalidating(UserInfo("alice")))
    token = await own_token(gateway)
    assert await error_of(gateway, token) == "invalid_scope"
    for unreadable in ("not JSON", '{"v":2}'):
        session = (await entry_of(gateway, token)).session
        broken = await gateway.tokens.mint(session, lifetime=timedelta(minutes=1), delegation=unreadable)
        assert await error_of(gateway, broken.token.reveal(), scope="get pods -n shop") == "invalid_scope"


async def test_a_narrowed_token_does_not_outlive_itself_by_being_exchanged_at_the_last_moment(
    make: Make, clock: FakeClock
) -> None:
    gateway = make(Says())
    issued = await gateway.tokens.issue(UserInfo("ann"), provider="idp1")
    scope = "get pods -n shop"
    narrowed = await exchanged(gateway, issued.token.reveal(), scope=scope, expires_in="2")
    clock.advance(seconds=1.9)
    assert await error_of(gateway, narrowed["access_token"], scope=scope) == "invalid_request"
    clock.advance(seconds=0.1)
    assert await gateway.tokens.find(narrowed["access_token"]) is None


async def test_a_narrowed_token_ends_with_the_one_that_it_was_made_with(make: Make, clock: FakeClock) -> None:
    gateway = make(Revalidating(UserInfo("alice")))
    token = await own_token(gateway)
    clock.advance(minutes=14)
    narrowed = await exchanged(gateway, token, scope="get pods -n shop", expires_in="3600")
    assert narrowed["expires_in"] == 60
    await gateway.tokens.revoke(RevocationKind.SESSION, narrowed["session"])
    assert await gateway.tokens.find(narrowed["access_token"]) is None
    assert await error_of(gateway, token, scope="get pods -n shop") == "invalid_request"


async def test_renewal_tokens_and_cookies_are_not_exchanged(make: Make) -> None:
    gateway = make(Revalidating(UserInfo("alice")))
    renewal = body(await gateway.get("/auth"))["renewal_token"]
    assert await error_of(gateway, renewal, scope="get pods -n shop") == "invalid_request"


async def test_one_user_makes_only_so_many_narrower_tokens_a_minute_from_all_sessions(
    make: Make, clock: FakeClock
) -> None:
    gateway = make(Revalidating(UserInfo("alice")))
    sessions = [await own_token(gateway) for _ in range(3)]
    for number in range(int(MINTS_PER_MINUTE)):
        await exchanged(gateway, sessions[number % 3], scope="get pods -n shop")
    for token in (*sessions, await own_token(gateway)):
        assert (await exchange(gateway, token, scope="get pods -n shop")).status == 429
    clock.advance(seconds=1)
    assert await exchanged(gateway, sessions[0], scope="get pods -n shop")


async def test_a_workload_may_ask_for_less_at_once(make: Make, provider: WorkloadIdentity, clock: FakeClock) -> None:
    gateway = make(provider)
    told = await exchanged(gateway, job_token(clock), scope="get pods -n shop")
    assert decode((await entry_of(gateway, told["access_token"])).token.delegation).scopes
    assert await error_of(gateway, told["access_token"], scope="get pods -A") == "invalid_scope"


# --- people ---


async def test_people_are_not_offered_the_providers_of_programs(
    make: Make, provider: WorkloadIdentity, clock: FakeClock
) -> None:
    person = Revalidating(UserInfo("alice"))
    gateway = make(person, provider)
    assert body(await gateway.get("/auth/methods")) == {
        "providers": [{"name": "idp1", "kind": "redirect"}],
        "programs": ["idp2"],
        "gateway": URL,
    }
    assert body(await gateway.get("/auth"))["user"] == "idp1:alice"
    browser = Browser(gateway)
    await browser.sign_in()
    assert (await browser.get("/auth/token")).status == 200, "the page is where it was"
    assert (await exchanged(gateway, job_token(clock)))["user"] == "idp2:ci:acme/shop"


async def test_a_program_cannot_have_the_name_of_another_providers_user(
    make: Make, provider: WorkloadIdentity, clock: FakeClock
) -> None:
    gateway = make(provider, Says(UserInfo("acme/shop")), prefixes=("", "ci:"))
    answer = await exchange(gateway, job_token(clock))
    assert answer.status == 400
    assert await gateway.tokens_kept() == 0
    assert "begins with the prefix of another identity provider" in gateway.events[-1].reason


async def test_the_way_back_from_an_identity_system_stays_what_it_was(make: Make, provider: WorkloadIdentity) -> None:
    person = Says(Redirect("https://sso.example/login"))
    gateway = make(person, provider)
    await gateway.get("/auth")
    assert person.asked[0][1].callback_url == f"{URL}/auth/idp1/provider"


async def test_a_refused_sign_in_for_programs_does_not_show_a_page_to_a_person(
    make: Make, provider: WorkloadIdentity
) -> None:
    gateway = make(provider)
    answer = await gateway.get("/auth/cli?challenge=" + "a" * 43 + "&port=2000&state=s")
    assert answer.status == 401


async def test_the_token_of_a_job_begins_no_session_of_a_person(make: Make, clock: FakeClock, tmp_path: Path) -> None:
    provider = read(f"{MAIN}\nonce: true", clock, tmp_path)
    gateway, headers = make(provider), (("authorization", f"Bearer {job_token(clock)}"),)
    command_line = "/auth/cli?challenge=" + "a" * 43 + "&port=2000&state=s"
    browser = Browser(gateway)
    page = "/auth/device?code=BCDF-GHJK"
    answers = [await gateway.get(f"{command_line}{named}", headers=headers) for named in ("", "&provider=idp1")]
    answers += [await browser.get(target, headers=headers) for target in (command_line, page)]
    for answer in answers:
        assert answer.status == 403, "with a code there would be a session that is renewed, and outlives the token"
    assert not browser.cookies
    assert await gateway.tokens_kept() == 0
    assert await exchanged(gateway, job_token(clock)), "nothing was used up"


@pytest.mark.parametrize("error", [LoginRefused("wait", retry_after=3.0)])
async def test_a_provider_that_wants_to_be_left_alone_is_obeyed(make: Make, error: LoginRefused) -> None:
    answer = await exchange(make(Verifies(error)), "mine")
    assert (answer.status, answer.header("Retry-After")) == (429, "3")
