"""People of a real Keycloak at the gateway: signing in, being asked about again, and being signed out from there.

Keycloak is an ordinary process that ``scripts/interop-keycloak`` has made ready. The upstream is the API server of
`tests/support/cluster`, so no Kubernetes is needed here.
"""

from __future__ import annotations

import time
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme

from tests.interop.support.keycloak import PASSWORD, Keycloak, Realm, running_keycloak
from tests.interop.support.person import Person
from tests.interop.support.process import wait_until
from tests.support.cluster import Cluster
from tests.support.gateway import SECONDS, ServedGateway, Site, role
from tests.support.ports import free_port
from tests.support.slapd import ACCOUNT, ACCOUNT_PASSWORD, GROUPS_BASE, PEOPLE_BASE, Slapd, slapd
from tests.support.slapd import PASSWORD as LDAP_PASSWORD

pytestmark = [pytest.mark.timeout(300)]
PODS = "/api/v1/namespaces/team/pods"


@pytest.fixture(scope="module")
def keycloak(tmp_path_factory: pytest.TempPathFactory, ca: trustme.CA) -> Iterator[Keycloak]:
    with running_keycloak(tmp_path_factory.mktemp("keycloak"), ca) as keycloak:
        yield keycloak


@pytest.fixture(scope="module")
def realm(keycloak: Keycloak) -> Realm:
    """The people of Acme."""
    realm = keycloak.realm("acme")
    for name in ("alice", "bob", "carol", "dave"):
        realm.add_user(name, "developers", "drinkers")
    return realm


@pytest.fixture(scope="module")
def cluster(ca: trustme.CA) -> Iterator[Cluster]:
    with Cluster(ca) as cluster:
        cluster.add_namespace("team")
        cluster.add_pod("team", "web")
        yield cluster


@dataclass
class Office:
    """Gateways before the cluster, whose people are in Keycloak."""

    realm: Realm
    cluster: Cluster
    site: Site
    port: int = field(default_factory=free_port)

    @property
    def url(self) -> str:
        return f"https://localhost:{self.port}"

    def oidc(self, client: str, attributes: dict[str, str] | None = None, **settings: Any) -> dict[str, Any]:
        """An identity provider for a new client of the realm, which tells us of logouts."""
        secret = self.realm.add_client(
            client,
            f"{self.url}/auth/acme/provider",
            attributes={
                "backchannel.logout.url": f"{self.url}/auth/acme/logout",
                "backchannel.logout.session.required": "true",
                "post.logout.redirect.uris": f"{self.url}/auth/acme/logout",
                **(attributes or {}),
            },
        )
        (self.site.folder / "client-secret").write_text(secret)
        return {
            "name": "acme",
            "type": "oidc",
            "issuer": self.realm.issuer,
            "clientID": client,
            "clientSecretFile": "client-secret",
            "ca": "ca.pem",
            "claims": {"username": "preferred_username", "groups": "groups"},
            **settings,
        }

    def serving(self, identity: dict[str, Any], **sections: Any) -> ServedGateway:
        self.site.policy(role("team", "pods", Group="developers"))
        return self.site.serving(
            upstreams=[self.site.impersonating(self.cluster)],
            listen={"address": f"127.0.0.1:{self.port}"},
            externalURL=self.url,
            identity=[identity],
            groups=[{"name": "teams", "provider": "acme"}],
            **sections,
        )


@pytest.fixture
def office(realm: Realm, cluster: Cluster, tmp_path: Path, ca: trustme.CA) -> Office:
    return Office(realm, cluster, Site(tmp_path / "gateway", ca))


@pytest.fixture
def person(keycloak: Keycloak) -> Iterator[Person]:
    person = Person(keycloak.trust)
    yield person
    person.close()


def sign_in(gateway: ServedGateway, person: Person, name: str, password: str = PASSWORD) -> dict[str, Any]:
    """As a program does whose person has a browser: it gets tokens."""
    answer = person.sign_in(f"{gateway.url()}/auth", name, password)
    assert answer.status_code == 200, answer.text
    pair: dict[str, Any] = answer.json()
    return pair


def renew(gateway: ServedGateway, pair: dict[str, Any]) -> httpx.Response:
    with gateway.http() as http:
        return http.post("/auth/renew", data={"renewal_token": pair["renewal_token"]})


# --- OpenID Connect ---


def test_a_person_signs_in_and_is_asked_about_again_at_each_renewal(office: Office, person: Person) -> None:
    with office.serving(office.oidc("gateway")) as gateway:
        pair = sign_in(gateway, person, "alice")
        # Of the groups those that the policy mentions.
        assert (pair["user"], pair["groups"]) == ("alice", ["developers"])
        assert gateway.get(PODS, pair["token"]).status_code == 200
        again = renew(gateway, pair)
        assert again.status_code == 200, again.text
        assert gateway.get(PODS, again.json()["token"]).status_code == 200


def test_a_wrong_password_leads_nowhere(office: Office, person: Person) -> None:
    with office.serving(office.oidc("gateway-of-guessers")) as gateway:
        answer = person.sign_in(f"{gateway.url()}/auth", "alice", "guessed")
        assert str(answer.url).startswith(office.realm.issuer)
        assert "Invalid username or password" in answer.text


def test_whoever_loses_a_group_loses_its_rights_at_the_next_renewal(office: Office, person: Person) -> None:
    realm = office.realm
    with office.serving(office.oidc("gateway-of-groups")) as gateway:
        pair = sign_in(gateway, person, "bob")
        realm.leave(realm.user("bob"), "developers")
        pair = renew(gateway, pair).json()
        assert pair["groups"] == []
        assert gateway.get(PODS, pair["token"]).status_code == 403


def test_a_disabled_account_is_out_at_the_next_renewal(office: Office, person: Person, record_property: Any) -> None:
    realm, carol = office.realm, office.realm.user("carol")
    with office.serving(office.oidc("gateway-of-accounts")) as gateway:
        pair = sign_in(gateway, person, "carol")
        realm.enable(carol, enabled=False)
        began = time.monotonic()
        answer = renew(gateway, pair)
        record_property("seconds until a disabled account is refused", round(time.monotonic() - began, 2))
        assert answer.status_code == 401, answer.text
        # The session has ended with it: its token is good for nobody.
        assert gateway.get(PODS, pair["token"]).status_code == 401
        assert person.sign_in(f"{gateway.url()}/auth", "carol", PASSWORD).url.host == "localhost"
        realm.enable(carol, enabled=True)


def test_a_logout_in_keycloak_cuts_the_watch_that_is_open(office: Office, person: Person, record_property: Any) -> None:
    """Back-channel: nobody's browser is there, an administrator ends the session."""
    realm = office.realm
    with office.serving(office.oidc("gateway-of-watchers")) as gateway:
        pair = sign_in(gateway, person, "dave")
        with gateway.http(pair["token"]) as http, http.stream("GET", PODS, params={"watch": "true"}) as watch:
            lines = watch.iter_lines()
            assert '"ADDED"' in next(lines)
            began = time.monotonic()
            realm.sign_out(realm.user("dave"))
            with pytest.raises(httpx.RemoteProtocolError, match="peer closed connection"):
                list(lines)
        record_property("seconds until a logout cuts a watch", round(time.monotonic() - began, 2))
        assert gateway.get(PODS, pair["token"]).status_code == 401
        assert renew(gateway, pair).status_code == 401


def test_whoever_signs_out_here_is_signed_out_at_keycloak(office: Office, person: Person) -> None:
    """RP-initiated: the browser goes to Keycloak and comes back, and the next sign-in asks for the password."""
    with office.serving(office.oidc("gateway-of-browsers", endSession=True)) as gateway:
        person.http.headers["Accept"] = "text/html"
        home = person.sign_in(f"{gateway.url()}/auth", "alice", PASSWORD)
        assert "You are signed in" in home.text
        assert str(person.http.get(f"{gateway.url()}/auth/acme").url) == f"{gateway.url()}/auth/token"
        person.http.headers["Origin"] = gateway.url()
        signed_out = person.submit(person.http.get(f"{gateway.url()}/auth/logout"))
        del person.http.headers["Origin"]
        returned = person.follow_refresh(signed_out)
        assert str(returned.url).startswith(gateway.url()), "Keycloak has asked nothing, and sent the browser back"
        asked = person.http.get(f"{gateway.url()}/auth")
        assert str(asked.url).startswith(office.realm.issuer), "Keycloak asks again"


def test_the_type_keycloak_needs_few_settings_and_knows_groups_by_their_path(office: Office, person: Person) -> None:
    office.oidc("gateway-of-few-settings")
    identity = {
        "name": "acme",
        "type": "keycloak",
        "url": office.realm.keycloak.url,
        "realm": office.realm.name,
        "clientID": "gateway-of-few-settings",
        "clientSecretFile": "client-secret",
        "ca": "ca.pem",
        "leadingSlash": False,
    }
    with office.serving(identity) as gateway:
        pair = sign_in(gateway, person, "alice")
        assert (pair["user"], pair["groups"]) == ("alice", ["developers"])
        assert renew(gateway, pair).status_code == 200


def test_keycloak_asks_for_more_where_a_rule_requires_it(
    keycloak: Keycloak, cluster: Cluster, person: Person, tmp_path: Path, ca: trustme.CA
) -> None:
    """Levels of authentication: the session and its token stay, and what was refused before is allowed."""
    realm = keycloak.realm("levels")
    realm.ask_by_level()
    realm.add_user("alice", "developers")
    office = Office(realm, cluster, Site(tmp_path / "gateway", ca))
    identity = office.oidc("gateway", {"acr.loa.map": '{"silver": "1", "gold": "2"}'})
    cluster.add_pod("team", "old")
    rule = {"name": "deletes", "verbs": ["delete"], "resources": ["pods"], "acr": ["gold"]}
    with office.serving(identity, stepUp={"rules": [rule]}) as gateway:
        pair = sign_in(gateway, person, "alice")
        assert pair["step_up"] is True
        with gateway.http(pair["token"]) as http:
            refused = http.delete(f"{PODS}/old")
            assert refused.status_code == 401
            assert 'error="insufficient_user_authentication"' in refused.headers["WWW-Authenticate"]
            needed = http.post("/auth/step-up", data={"rule": "deletes"}).json()
            assert needed["needed"] is True
            prove_more(gateway, person, needed["ticket"])
            assert http.post("/auth/step-up", data={"rule": "deletes"}).json() == {"needed": False}
            assert http.delete(f"{PODS}/old").status_code == 200


def prove_more(gateway: ServedGateway, person: Person, ticket: str) -> None:
    """As the program does that opens a browser, and the person in front of it, who is signed in at Keycloak already."""
    verifier, port = "a-secret-of-the-program-that-waits-for-the-code", free_port()
    challenge = urlsafe_b64encode(sha256(verifier.encode()).digest()).decode().rstrip("=")
    query = {"challenge": challenge, "port": str(port), "state": "s", "client": "test", "step_up": ticket}
    person.http.headers["Accept"] = "text/html"
    page = person.http.get(f"{gateway.url()}/auth/cli", params=query)
    asked = person.http.get(person.link(page, "Continue"))
    assert "password" in asked.text
    # Nobody listens where the browser is sent in the end; what the program would hear is in the URL.
    with pytest.raises(httpx.ConnectError) as sent:
        person.submit(asked, password=PASSWORD)
    back = sent.value.request.url
    assert (back.host, back.port) == ("127.0.0.1", port)
    with gateway.http() as http:
        answer = http.post("/auth/cli/token", data={"code": back.params["code"], "verifier": verifier})
    assert answer.json()["stepped_up"] is True, answer.text


# --- SAML ---


def saml(office: Office) -> dict[str, Any]:
    """An identity provider with a key of its own: requests are signed, and assertions must be encrypted."""
    leaf = office.site.ca.issue_cert("gateway", key_type=trustme.KeyType.RSA)
    leaf.private_key_pem.write_to_path(str(office.site.folder / "saml.key"))
    leaf.cert_chain_pems[0].write_to_path(str(office.site.folder / "saml.pem"))
    return {
        "name": "acme",
        "type": "saml",
        "metadataURL": f"{office.realm.issuer}/protocol/saml/descriptor",
        "ca": "ca.pem",
        "keyFile": "saml.key",
        "certificateFile": "saml.pem",
        "attributes": {"username": "username", "groups": "groups"},
        "encryption": {"required": True},
    }


def import_metadata(gateway: ServedGateway, realm: Realm, *, front_channel: bool) -> None:
    """Make a client of the gateway's own metadata, as Keycloak's console does; nothing is typed in but the mappers."""
    metadata = gateway.get("/auth/acme/metadata")
    assert metadata.status_code == 200, metadata.text
    answer = realm.admin("POST", "/client-description-converter", content=metadata.content, kind="application/xml")
    client = answer.json()
    for switch in ("saml.assertion.signature", "saml.server.signature", "saml.encrypt"):
        client["attributes"][switch] = "true"
    client["frontchannelLogout"] = front_channel
    client["protocolMappers"] = [
        _saml_mapper("username", "saml-user-property-mapper", {"user.attribute": "username"}),
        _saml_mapper("groups", "saml-group-membership-mapper", {"single": "true", "full.path": "false"}),
    ]
    realm.admin("POST", "/clients", json=client)


def _saml_mapper(name: str, kind: str, settings: dict[str, str]) -> dict[str, Any]:
    config = {"attribute.name": name, "attribute.nameformat": "Basic", **settings}
    return {"name": name, "protocol": "saml", "protocolMapper": kind, "config": config}


def sign_in_by_saml(gateway: ServedGateway, person: Person, name: str) -> httpx.Response:
    """Keycloak's answer is a form that a browser sends by itself."""
    answer = person.submit(person.sign_in(f"{gateway.url()}/auth", name, PASSWORD))
    assert answer.status_code == 200, answer.text
    return answer


def test_a_person_signs_in_by_saml_with_a_signed_and_encrypted_assertion(
    office: Office, person: Person, record_property: Any
) -> None:
    """And a logout in Keycloak, which tells the gateway by a signed request, cuts the watch that is open."""
    realm = office.realm
    realm.add_user("erin", "developers", "drinkers")
    with office.serving(saml(office)) as gateway:
        import_metadata(gateway, realm, front_channel=False)
        pair = sign_in_by_saml(gateway, person, "erin").json()
        assert (pair["user"], pair["groups"]) == ("erin", ["developers"])
        with gateway.http(pair["token"]) as http, http.stream("GET", PODS, params={"watch": "true"}) as watch:
            lines = watch.iter_lines()
            assert '"ADDED"' in next(lines)
            began = time.monotonic()
            realm.sign_out(realm.user("erin"))
            with pytest.raises(httpx.RemoteProtocolError, match="peer closed connection"):
                list(lines)
        record_property("seconds until a SAML logout cuts a watch", round(time.monotonic() - began, 2))
        assert renew(gateway, pair).status_code == 401


def test_whoever_signs_out_here_is_signed_out_at_keycloak_by_saml(office: Office, person: Person) -> None:
    """Single logout that begins here: Keycloak ends its session, and sends the browser back with its answer."""
    office.realm.add_user("frank", "developers")
    with office.serving(saml(office)) as gateway:
        import_metadata(gateway, office.realm, front_channel=True)
        person.http.headers["Accept"] = "text/html"
        assert "You are signed in" in sign_in_by_saml(gateway, person, "frank").text
        person.http.headers["Origin"] = gateway.url()
        signed_out = person.submit(person.http.get(f"{gateway.url()}/auth/logout"))
        del person.http.headers["Origin"]
        answer = person.follow_refresh(signed_out)
        if not str(answer.url).startswith(gateway.url()):
            answer = person.submit(answer)
        assert str(answer.url).startswith(gateway.url()), answer.text
        assert answer.status_code == 200, answer.text
        asked = person.http.get(f"{gateway.url()}/auth")
        assert str(asked.url).startswith(office.realm.issuer), "Keycloak asks again"


# --- a directory behind it ---


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory, ca: trustme.CA) -> Iterator[Slapd]:
    with slapd(tmp_path_factory.mktemp("slapd"), ca) as directory:
        yield directory


def federate(realm: Realm, directory: Slapd) -> str:
    """People and groups of the directory, as an administrator sets it up in Keycloak; gives the provider's id."""
    settings = {
        "enabled": "true",
        "vendor": "other",
        "connectionUrl": directory.ldaps,
        "useTruststoreSpi": "always",
        "bindDn": ACCOUNT,
        "bindCredential": ACCOUNT_PASSWORD,
        "authType": "simple",
        "usersDn": PEOPLE_BASE,
        "userObjectClasses": "inetOrgPerson",
        "usernameLDAPAttribute": "uid",
        "rdnLDAPAttribute": "uid",
        "uuidLDAPAttribute": "entryUUID",
        "editMode": "UNSYNCED",
        "importEnabled": "true",
        "searchScope": "1",
        "trustEmail": "true",
    }
    (realm_id,) = {realm.admin("GET", "").json()["id"]}
    realm.admin("POST", "/components", json=_component("directory", "ldap", _PROVIDER, realm_id, settings))
    (provider,) = realm.admin("GET", "/components", params={"name": "directory"}).json()
    groups = {
        "groups.dn": GROUPS_BASE,
        "group.name.ldap.attribute": "cn",
        "group.object.classes": "groupOfNames",
        "membership.ldap.attribute": "member",
        "membership.attribute.type": "DN",
        "membership.user.ldap.attribute": "uid",
        "mode": "READ_ONLY",
        "user.roles.retrieve.strategy": "LOAD_GROUPS_BY_MEMBER_ATTRIBUTE",
        "preserve.group.inheritance": "false",
        "drop.non.existing.groups.during.sync": "false",
        "groups.path": "/",
    }
    realm.admin("POST", "/components", json=_component("groups", "group-ldap-mapper", _MAPPER, provider["id"], groups))
    return str(provider["id"])


_PROVIDER = "org.keycloak.storage.UserStorageProvider"
_MAPPER = "org.keycloak.storage.ldap.mappers.LDAPStorageMapper"


def _component(name: str, kind: str, contract: str, parent: str, settings: dict[str, str]) -> dict[str, Any]:
    config = {key: [value] for key, value in settings.items()}
    return {"name": name, "providerId": kind, "providerType": contract, "parentId": parent, "config": config}


@pytest.mark.needs("slapd")
def test_people_of_a_directory_behind_keycloak(
    keycloak: Keycloak, cluster: Cluster, directory: Slapd, person: Person, tmp_path: Path, ca: trustme.CA
) -> None:
    realm = keycloak.realm("federated", verifyEmail=False)
    federate(realm, directory)
    office = Office(realm, cluster, Site(tmp_path / "gateway", ca))
    with office.serving(office.oidc("gateway")) as gateway:
        pair = sign_in(gateway, person, "alice", password=LDAP_PASSWORD)
        assert (pair["user"], pair["groups"]) == ("alice", ["developers"])
        assert gateway.get(PODS, pair["token"]).status_code == 200
        assert "uid=alice" in directory.asked()
        pair = renew(gateway, pair).json()
        realm.enable(realm.user("alice"), enabled=False)
        assert renew(gateway, pair).status_code == 401


def test_the_gateway_says_when_keycloak_does_not_answer(office: Office) -> None:
    """Could not ask is not a no."""
    identity = {**office.oidc("gateway-of-nobody"), "issuer": f"https://localhost:{free_port()}/realms/acme"}
    with office.serving(identity) as gateway:
        answer = gateway.get("/auth")
        assert answer.status_code in (500, 502, 503), answer.text
        wait_until(lambda: "identity" in gateway.stderr, what="the log", seconds=SECONDS)
