"""The published schema, the loader and the reference agree on every field."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bcrypt
import jsonschema  # type: ignore[import-untyped]
import pytest
import trustme
import yaml

from ostiary.core.clock import SYSTEM_CLOCK
from ostiary.core.yaml import ConfigReader, parse
from ostiary_gateway.config import load, loading, warnings
from ostiary_gateway.config.loading import read_sections
from ostiary_gateway.config.schema import gateway_schema
from ostiary_gateway.providers.kerberos.principals import Principal
from tests.support.keytab import FORMAT, entry

ROOT = Path(__file__).parents[4]
SCHEMA: dict[str, Any] = gateway_schema()
PAGE = (ROOT / "docs/reference/gateway-configuration.md").read_text()
EXAMPLE = re.findall(r"```yaml\n(apiVersion.*?)```", PAGE, re.DOTALL)[0]

# The bundled types that the example in the reference does not use.
OTHERS = """
apiVersion: ostiary.dev/v1
kind: Gateway
store: {type: memory}
identity: [{name: me, type: single_user, username: alice}]
groups: []
serviceAccounts: {declared: [{namespace: shop, name: deployer}]}
authorization:
  hideDenied: true
  chain:
  - {name: b, type: cedar, paths: [cedar/], hide: true}
  - name: c
    type: subject_access_review
    server: https://10.0.0.1:6443
    version: v1
    groups: [developers]
    hide: true
    timeout: 5s
    ca: cluster-ca.pem
    certificate: tls.pem
    key: tls-key.pem
    serverName: kubernetes
    tokenFile: cluster-token
  - {name: d, type: rbac, from: {upstream: api, maxStale: 5m, maxEntries: 1000, relist: 1h}}
  - {name: e, type: allow_all}
upstreams:
- name: api
  server: "https://10.0.0.1:6443"
  tokenFile: cluster-token
  shadow: {share: 0.01, perSecond: 5}
  attributes:
    type: kubernetes
    capabilities:
      preset: podSecurity
      entries: [{name: kata, resources: [pods], fields: [spec.runtimeClassName], values: [kata]}]
- name: files
  server: "https://10.0.0.2"
  prefix: /files
  attributes: http
  redirect: {to: "https://files.example", paths: [/files/], lifetime: 30s}
apiPlugins:
  certificate: tls.pem
  key: tls-key.pem
  declared:
  - group: builds.example.com
    versions: [v1]
    upstream: api
    server: "https://10.0.0.3"
    health: /healthz
    tls: {ca: cluster-ca.pem, certificate: tls.pem, key: tls-key.pem, serverName: builds, pins: []}
issuer: {audiences: [prod], keys: {secretFile: issuer-secret}}
admission:
- name: objects
  type: object_quota
  limits: [{name: pods, resources: [pods], count: 5, sums: [{name: cpu, path: spec.cpu, limit: "8"}]}]
audit:
  sinks:
  - {name: file, type: file, path: audit.log, fsync: true}
  - {name: output, type: stdout}
  - {name: elsewhere, type: webhook, url: "https://audit.example.com/events", tls: {ca: cluster-ca.pem}}
"""

# Every way to know people and their groups, with all sections that it has.
SIGN_IN = """
apiVersion: ostiary.dev/v1
kind: Gateway
listen: {tls: {certificate: tls.pem, key: tls-key.pem, clientCA: clients.pem}, grpc: {address: "127.0.0.1:8445"}}
store: {type: memory}
pages: {name: Acme, accent: "#8a1c4a", accentDark: "#f2a3c4", help: "https://help.example.com", languages: [de, en]}
identity:
- name: corp
  prefix: "corp:"
  displayName: The company
  icon: building
  type: oidc
  issuer: https://login.example.com
  clientID: gateway
  clientSecretFile: secret
  clientAuthentication: client_secret_post
  scopes: [openid, groups]
  audiences: [other]
  userInfo: true
  prompt: consent
  responseMode: form_post
  pushedAuthorization: never
  claims: {username: email, uid: sub, groups: groups, extra: {example.com/team: team}}
  algorithms: [ES256]
  clockSkew: 10s
  ca: clients.pem
  renewal: signIn
- name: google
  prefix: "google:"
  type: google
  clientID: gateway
  clientSecretFile: secret
  responseMode: form_post
  pushedAuthorization: always
  endSession: true
  frontChannelLogout: true
  prompt: consent
  clockSkew: 10s
  ca: clients.pem
  renewal: session
  hostedDomains: [example.com]
  anyAccount: false
  refreshTokens: false
- name: microsoft
  prefix: "microsoft:"
  type: microsoft
  clientID: gateway
  clientSecretFile: secret
  responseMode: form_post
  pushedAuthorization: always
  endSession: true
  frontChannelLogout: true
  prompt: login
  clockSkew: 10s
  ca: clients.pem
  renewal: session
  tenant: organizations
  allowedTenants: [11111111-2222-3333-4444-555555555555]
  username: oid
  groups: roles
  authority: https://login.microsoftonline.us
  refreshTokens: false
- name: gitlab
  prefix: "gitlab:"
  type: gitlab
  clientID: gateway
  clientSecretFile: secret
  responseMode: form_post
  pushedAuthorization: always
  endSession: true
  frontChannelLogout: true
  prompt: login
  clockSkew: 10s
  ca: clients.pem
  renewal: session
  url: https://gitlab.example.com
  username: sub
  groups: direct
  allowedGroups: [acme]
- name: okta
  prefix: "okta:"
  type: okta
  clientID: gateway
  clientSecretFile: secret
  responseMode: form_post
  pushedAuthorization: always
  endSession: true
  frontChannelLogout: true
  prompt: login
  clockSkew: 10s
  ca: clients.pem
  renewal: session
  domain: acme.okta.com
  authorizationServer: default
  username: email
  groups: teams
  scopes: [teams]
  refreshTokens: false
- name: auth0
  prefix: "auth0:"
  type: auth0
  clientID: gateway
  clientSecretFile: secret
  responseMode: form_post
  pushedAuthorization: always
  endSession: true
  frontChannelLogout: true
  prompt: login
  clockSkew: 10s
  ca: clients.pem
  renewal: session
  domain: acme.eu.auth0.com
  username: email
  groups: https://example.com/groups
  organization: org_1
  refreshTokens: false
- name: keycloak
  prefix: "keycloak:"
  type: keycloak
  clientID: gateway
  clientSecretFile: secret
  responseMode: form_post
  pushedAuthorization: always
  endSession: true
  frontChannelLogout: true
  prompt: login
  clockSkew: 10s
  ca: clients.pem
  renewal: session
  url: https://sso.example.com
  realm: acme
  username: email
  groups: teams
  leadingSlash: false
  realmRoles: true
  clientRoles: [gateway]
  offlineAccess: true
- name: domain
  prefix: "domain:"
  type: kerberos
  keytab: gateway.keytab
  servicePrincipals: [HTTP/gateway.example.com@EXAMPLE.COM]
  realms: [{name: EXAMPLE.COM, lowercase: true}, {name: PARTNER.COM, prefix: "partner:", suffix: "@PARTNER.COM"}]
  instances: [admin]
  channelBinding: required
  renewal: kdc
- name: partner
  prefix: "partner:"
  type: saml
  metadataURL: https://idp.example.com/metadata
  attributes: {username: mail, groups: groups}
  encryption: {cbc: true}
- name: public
  prefix: "public:"
  type: github
  clientID: gateway
  clientSecretFile: secret
  hostname: github.example.com
  allowedOrganizations: [acme]
  groupsFrom: [acme]
  tokenFile: secret
  ca: clients.pem
- name: cookie
  prefix: "cookie:"
  type: sso_cookie
  cookie: sso
  issuer: https://login.example.com
  audiences: [gateway]
  keysURL: https://login.example.com/keys
  claims: {}
- {name: proxy, prefix: "proxy:", type: trusted_header, names: [front-proxy],
   headers: {user: X-User, group: X-Group, uid: X-Uid}}
- {name: machines, prefix: "machines:", type: client_certificate, credentialID: false, spiffeTrustDomain: example.org,
   renewal: session}
- name: pods
  prefix: "pods:"
  type: workload
  platform: kubernetes
  server: https://cluster.example.com
  rules: [{match: {namespace: [shop, "team-*"]}, username: "{sub}", groups: [pods], uid: "{pod}"}]
- name: directory
  prefix: "directory:"
  type: ldap
  url: ldaps://ldap.example.com
  ca: clients.pem
  connectTimeout: 2s
  timeout: 2s
  connections: 4
  bindDN: cn=search,dc=example,dc=com
  bindPasswordFile: secret
  userSearch: {baseDN: "dc=example,dc=com", filter: "(uid={username})", usernameAttribute: uid, uidAttribute: entryUUID}
  groupSearch: {baseDN: "dc=example,dc=com", filter: "(objectClass=group)", nested: activeDirectory}
  realm: people
  lockout: {attempts: 3, window: 1m, duration: 1m}
groups:
- {name: said, type: claims, identities: [corp, proxy]}
- {name: teams, type: github, groupsFrom: [acme], tokenFile: secret, userPrefix: "public:", hostname: github.test}
- {name: lists, type: google, consent: true, clientID: gateway, clientSecretFile: secret, domains: [example.com]}
- name: units
  type: ldap
  url: ldap://ldap.example.com
  startTLS: true
  serverName: ldap.example.com
  bindDN: cn=search,dc=example,dc=com
  bindPasswordFile: secret
  userSearch: {userDN: "uid={username},dc=example,dc=com"}
  groupSearch: {baseDN: "dc=example,dc=com", nameAttribute: cn, memberAttribute: memberUid, userAttribute: uid}
  userPrefix: "directory:"
authorization: {chain: [{name: a, type: allow_all}]}
stepUp:
  hold: 1m
  heldPerUser: 2
  heldInAll: 20
  rules:
  - {name: everything, verbs: [delete], apiGroups: [""], resources: ["*"], resourceNames: [a], namespaces: [b],
     paths: [/x/*], upstreams: [], acr: [gold], amr: [mfa], maxAge: 15m}
"""

_STORES = (
    """{type: postgresql, hosts: [a.test], database: tokens, user: gateway, passwordFile: secret, pooler: transaction,
  tls: {ca: ca.pem, serverName: db.test}, listen: {hosts: [b.test]}}""",
    """{type: redis, passwordFile: secret, tls: {ca: ca.pem},
  sentinel: {name: tokens, addresses: [a.test], username: gateway, passwordFile: secret}}""",
    "{type: redis, cluster: {addresses: [a.test, b.test]}, insecure: true, waitReplicas: 1}",
)
STORES = [
    f"""
apiVersion: ostiary.dev/v1
kind: Gateway
store: {store}
authorization: {{chain: [{{name: a, type: allow_all}}]}}
"""
    for store in _STORES
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything that the examples name."""
    directory = tmp_path_factory.mktemp("etc")
    ca = trustme.CA()
    leaf = ca.issue_cert("gateway.example.com")
    for name in ("ca.pem", "clients.pem", "cluster-ca.pem"):
        (directory / name).write_bytes(ca.cert_pem.bytes())
    (directory / "tls.pem").write_bytes(b"".join(pem.bytes() for pem in leaf.cert_chain_pems))
    (directory / "tls-key.pem").write_bytes(leaf.private_key_pem.bytes())
    for name in ("cluster-token", "caller-token", "secret"):
        (directory / name).write_text("token")
    service = Principal(("HTTP", "gateway.example.com"), "EXAMPLE.COM")
    (directory / "gateway.keytab").write_bytes(FORMAT + entry(service, 1))
    (directory / "logo.svg").write_text("<svg/>")
    (directory / "issuer-secret").write_text("0123456789abcdef0123456789abcdef")
    (directory / "collector-headers").write_text("X-Api-Key: 123\n")
    (directory / "users.htpasswd").write_text("alice:" + bcrypt.hashpw(b"pw", bcrypt.gensalt(4)).decode())
    (directory / "groups.yaml").write_text("developers: [alice]\n")
    (directory / "policy").mkdir()
    (directory / "cedar").mkdir()
    (directory / "cedar" / "all.cedar").write_text("permit(principal, action, resource);\n")
    policy = "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]\n"
    (directory / "audit-policy.yaml").write_text(policy)
    role = "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: a}\nrules: []\n"
    (directory / "policy" / "role.yaml").write_text(role)
    return directory


def validate(document: Any) -> None:
    jsonschema.Draft202012Validator(SCHEMA).validate(document)


def test_the_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_the_example_of_the_reference_loads_and_fits_the_schema(directory: Path) -> None:
    path = directory / "gateway.yaml"
    path.write_text(EXAMPLE)
    config = load(path)
    assert [upstream.name for upstream in config.upstreams] == ["cluster", "shop", "orders"]
    assert warnings(config) == []
    validate(yaml.safe_load(EXAMPLE))


def test_the_built_in_configuration_fits_the_schema() -> None:
    validate(yaml.safe_load(loading._DEFAULT))


def test_what_the_loader_refuses_the_schema_marks(subtests: pytest.Subtests, directory: Path) -> None:
    cases: list[dict[str, Any]] = [
        {"lisen": {}},
        {"listen": {"adress": "127.0.0.1:1"}},
        {"listen": {"address": "8443"}},
        {"tokens": {"lifetime": 15}},
        {"tokens": {"lifetime": "15"}},
        {"identity": [{"name": "a"}]},
        {"identity": [{"name": "A B", "type": "htpasswd", "path": "x"}]},
        {"identity": [{"name": "a", "type": "htpasswd"}]},
        {"identity": [{"name": "a", "type": "htpasswd", "path": "x", "pasword": "y"}]},
        {"identity": [{"name": "a", "type": "oidc", "issuer": "https://a.test"}]},
        {"identity": [{"name": "a", "type": "oidc", "issuer": "https://a.test", "clientID": "b", "clientId": "b"}]},
        {
            "identity": [
                {"name": "a", "type": "oidc", "issuer": "https://a.test", "clientID": "b", "claims": {"user": "c"}}
            ]
        },
        {"identity": [{"name": "a", "type": "trusted_header", "names": []}]},
        {"identity": [{"name": "a", "type": "trusted_header", "names": ["b"], "headers": {"groups": "c"}}]},
        {"identity": [{"name": "a", "type": "client_certificate", "names": ["b"]}]},
        {"identity": [{"name": "a", "type": "ldap", "url": "ldaps://a.test", "userSearch": {"base": "dc=b"}}]},
        {"groups": [{"name": "a", "type": "claims", "claim": "b"}]},
        {"groups": [{"name": "a", "type": "file", "provider": "b", "path": "x"}]},
        {"authorization": {"chain": []}},
        {"upstreams": [{"name": "a", "server": "https://a", "identity": "basic"}]},
        {"upstreams": [{"name": "a", "server": "https://a", "tls": {"certificate": "x"}}]},
        {"webhooks": {"audiences": [""]}},
        {"kind": "Gatway"},
    ]
    for change in cases:
        with subtests.test(change=change):
            document = {**yaml.safe_load(EXAMPLE), **change}
            with pytest.raises(jsonschema.ValidationError):
                validate(document)
            reading = ConfigReader(parse(json.dumps(document)))
            read_sections(reading, directory)
            assert reading.problems or reading.unknown_fields()


def test_types_of_others_may_have_settings_of_their_own() -> None:
    document = yaml.safe_load(EXAMPLE)
    document["identity"] = [{"name": "a", "type": "acme", "anything": {"goes": True}}]
    validate(document)


# --- every field ---


def test_schema_and_loader_know_the_same_fields_everywhere(directory: Path) -> None:
    """The loader says what it asked for; what it asks for is what the schema has, and no section is left out."""
    pytest.importorskip("ldap", reason="missing: python-ldap")
    pytest.importorskip("gssapi", reason="missing: gssapi")
    seen: set[int] = set()
    for text in (EXAMPLE, OTHERS, SIGN_IN, *STORES):
        validate(yaml.safe_load(text))
        reading = ConfigReader(parse(text))
        assert read_sections(reading, directory, SYSTEM_CLOCK) is not None
        assert [str(problem) for problem in reading.problems] == []
        document = yaml.safe_load(text)
        for fields in reading._opened:
            for section in sections_at(fields._path, document):
                assert set(section["properties"]) == set(fields._asked), fields._path
                seen.add(id(section))
    missing = [section["description"] for section in closed_sections(SCHEMA) if id(section) not in seen]
    assert missing == []


def sections_at(path: str, document: Any) -> list[dict[str, Any]]:
    """The part of the schema that speaks about the mapping at *path*."""
    schema, value = SCHEMA, document
    for key, index in re.findall(r"(\w+)|\[(\d+)\]", path):
        schema = resolved(schema, value)
        schema = schema["items"] if index else schema["properties"][key]
        if isinstance(value, list):
            value = value[int(index)]
        else:
            value = (value or {}).get(key)
    found = resolved(schema, value)
    return [found] if "properties" in found else []


def resolved(schema: dict[str, Any], value: Any) -> dict[str, Any]:
    while True:
        if "$ref" in schema:
            schema = SCHEMA["$defs"][schema["$ref"].removeprefix("#/$defs/")]
        elif "anyOf" in schema:
            schema = schema["anyOf"][1]
        elif "allOf" in schema:
            kind = (value or {}).get("type")
            schema = next(one["then"] for one in schema["allOf"] if one["if"]["properties"]["type"]["const"] == kind)
        else:
            return schema


def closed_sections(schema: Any) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):
        if schema.get("additionalProperties") is False and "description" in schema:
            yield schema
        for part in schema.values():
            yield from closed_sections(part)
    elif isinstance(schema, list):
        for part in schema:
            yield from closed_sections(part)


def test_every_field_is_in_the_reference() -> None:
    for section in closed_sections(SCHEMA):
        for name in section["properties"]:
            assert re.search(rf"\b{name}\b", PAGE), name


def test_every_bundled_type_is_in_the_schema_and_in_the_reference() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "packages/ostiary-gateway/pyproject.toml").read_text())["project"]
    for kind in ("identity", "group", "authorization", "admission", "token_store", "attributes", "audit"):
        for name in project["entry-points"][f"ostiary.{kind}"]:
            assert f"{kind}.{name}" in SCHEMA["$defs"]
            assert f"`{name}`" in PAGE
