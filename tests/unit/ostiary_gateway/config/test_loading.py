"""The gateway's configuration: what it gives, and that every mistake is told with its place before anything listens."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import trustme
from hypothesis import given, settings
from hypothesis import strategies as st

from ostiary.errors import ConfigurationError
from ostiary_gateway.config import default_config, load, loads, warnings
from ostiary_gateway.config.gateway_config import GatewayConfig
from ostiary_gateway.config.provider import OnError
from ostiary_gateway.config.upstream import IdentityMode
from ostiary_gateway.config.values import Address, parse_address
from ostiary_gateway.providers.allow_all import AllowAllAuthorization
from ostiary_gateway.providers.file import FileGroups
from ostiary_gateway.providers.single_user import SingleUserIdentity
from ostiary_gateway.settings.outgoing import parse_origin
from ostiary_gateway.stores.memory import MemoryTokenStore
from ostiary_gateway.stores.sqlite.token_store import SqliteTokenStore
from tests.unit.ostiary_gateway import acme

HEAD = "apiVersion: ostiary.dev/v1\nkind: Gateway\n"
IDENTITY = "identity: [{name: me, type: single_user, username: alice}]\n"
CHAIN = "authorization: {chain: [{name: all, type: allow_all}]}\n"
MEMORY = "store: {type: memory}\n"
PLAIN = HEAD + IDENTITY + CHAIN + MEMORY
UPSTREAM = "upstreams: [{name: api, server: 'https://10.0.0.1:6443', attributes: acme, %s}]\n"

Read = Callable[[str], GatewayConfig]


@pytest.fixture(scope="module", autouse=True)
def acme_package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Installed once: looking through all packages costs more than the rest of these tests."""
    with pytest.MonkeyPatch.context() as patch:
        acme.install(tmp_path_factory.mktemp("site"), patch)
        yield


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory, ca: trustme.CA) -> Path:
    directory = tmp_path_factory.mktemp("templates")
    leaf = ca.issue_cert("gateway.test")
    (directory / "cert.pem").write_bytes(b"".join(pem.bytes() for pem in leaf.cert_chain_pems))
    (directory / "key.pem").write_bytes(leaf.private_key_pem.bytes())
    (directory / "other-key.pem").write_bytes(ca.issue_cert("other.test").private_key_pem.bytes())
    (directory / "ca.pem").write_bytes(ca.cert_pem.bytes())
    (directory / "token").write_text("secret")
    (directory / "groups.yaml").write_text("developers: [alice]\n")
    (directory / "policy.yaml").write_text("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]\n")
    return directory


@pytest.fixture
def files(tmp_path: Path, templates: Path) -> Path:
    """A directory with the files that configurations name."""
    return Path(shutil.copytree(templates, tmp_path / "etc"))


@pytest.fixture
def read(files: Path) -> Read:
    def from_text(text: str) -> GatewayConfig:
        path = files / "gateway.yaml"
        path.write_text(textwrap.dedent(text))
        return load(path)

    return from_text


def mistakes(read: Read, text: str) -> list[tuple[str, str]]:
    """The place and the message of every mistake."""
    with pytest.raises(ConfigurationError) as raised:
        read(text)
    assert raised.value.code == "config-invalid"
    for problem in raised.value.problems:
        assert problem.place.file is not None
        assert problem.place.file.endswith("gateway.yaml")
        assert problem.place.line is not None
    return [(problem.place.path, problem.message) for problem in raised.value.problems]


def places(read: Read, text: str) -> list[str]:
    return [place for place, _ in mistakes(read, text)]


# --- what a configuration gives ---


def test_without_a_file_there_is_one_user_who_may_do_everything_on_this_machine() -> None:
    """S15."""
    config = default_config()
    assert isinstance(config.identity[0].instance, SingleUserIdentity)
    assert isinstance(config.authorization.chain[0].instance, AllowAllAuthorization)
    assert isinstance(config.store.instance, MemoryTokenStore)
    assert config.listen.address.is_loopback
    assert config.health.is_loopback
    assert "everybody who can connect may do everything" in warnings(config)[0]


def test_the_least_that_can_be_written(read: Read, files: Path) -> None:
    config = read(HEAD + IDENTITY + CHAIN)
    assert config.listen.address == Address("127.0.0.1", 8443)
    assert config.external_url == "http://127.0.0.1:8443"
    assert isinstance(config.store.instance, SqliteTokenStore)
    assert not (files / "ostiary.db").exists(), "reading a configuration opens nothing"
    assert config.tokens.lifetime == timedelta(minutes=15)
    assert config.tokens.session == timedelta(hours=24)
    assert config.authorization.cache_ttl == timedelta(seconds=10)
    assert not config.authorization.hide_denied, "a refusal is a 403 unless the operator says otherwise"
    assert config.audit.stdout
    assert config.directory == files


def test_every_step_has_the_provider_that_the_operator_chose(read: Read) -> None:
    """S1, S5, S6."""
    config = read(
        PLAIN.replace(CHAIN, "")
        + """
        authorization:
          cacheTTL: 3s
          hideDenied: true
          chain:
          - {name: theirs, type: acme, database: acme.db, onError: NoOpinion}
          - {name: ours, type: allow_all}
        groups: [{name: teams, type: file, path: groups.yaml, prefix: "teams:", identities: [me]}]
        """.replace("\n        ", "\n")
    )
    assert [(link.name, type(link.instance), link.on_error) for link in config.authorization.chain] == [
        ("theirs", acme.Acme, OnError.NO_OPINION),
        ("ours", AllowAllAuthorization, OnError.DENY),
    ]
    assert isinstance(config.groups[0].instance, FileGroups)
    assert config.groups[0].identities == ("me",)


def test_one_object_may_be_identity_groups_and_authorization(read: Read) -> None:
    """S6."""
    config = read(
        HEAD
        + MEMORY
        + "identity: [{name: acme, type: acme, database: acme.db}]\n"
        + "groups: [{name: teams, provider: acme}]\n"
        + "authorization: {chain: [{name: rules, provider: acme}]}\n"
    )
    objects: list[object] = [config.identity[0].instance, config.groups[0].instance]
    objects.append(config.authorization.chain[0].instance)
    assert len({id(one) for one in objects}) == 1
    assert config.groups[0].own


def test_somebody_elses_package_is_used_by_its_name(read: Read, files: Path) -> None:
    """S1, S7."""
    config = read(HEAD + MEMORY + CHAIN + "identity: [{name: theirs, type: acme, database: acme.db}]\n")
    provider: Any = config.identity[0].instance
    assert provider.path == files / "acme.db"
    assert provider.opened == 0, "a provider opens nothing while it is built"


def test_upstreams_are_read_whole(read: Read, files: Path) -> None:
    config = read(
        PLAIN
        + """
upstreams:
- name: east
  server: https://10.0.0.1:6443/
  hosts: [East.Example.com]
  prefix: /clusters/east/
  stripPrefix: true
  identity: requestHeader
  headers: {user: X-User}
  attributes: {type: acme, root: /east}
  tls: {ca: ca.pem, certificate: cert.pem, key: key.pem, serverName: kubernetes, pins: [%s]}
  health: /readyz
  connections: 7
  queue: 0
  timeouts: {connect: 1s, response: 2s, idle: 3s}
- {name: local, server: "unix:/run/api.sock", attributes: acme, identity: impersonation, tokenFile: token}
"""
        % ("AB:" * 31 + "AB")
    )
    east, local = config.upstreams
    assert (east.server, east.hosts, east.prefix) == ("https://10.0.0.1:6443", ("east.example.com",), "/clusters/east")
    assert east.identity is IdentityMode.REQUEST_HEADER
    assert (east.headers.user, east.headers.group) == ("X-User", "X-Remote-Group")
    assert east.tls.pins == frozenset({"ab" * 32})
    assert east.tls.ca == files / "ca.pem"
    assert isinstance(east.attributes.instance, acme.AcmeMapper)
    assert east.attributes.instance.root == "/east"
    assert (east.connections, east.queue, east.health) == (7, 0, "/readyz")
    assert [east.timeouts.connect, east.timeouts.response, east.timeouts.idle] == [
        timedelta(seconds=s) for s in (1, 2, 3)
    ]
    assert local.socket == Path("/run/api.sock")
    assert local.token_file == files / "token"


def test_a_long_session_under_short_tokens_is_possible(read: Read) -> None:
    """S64."""
    config = read(PLAIN + "tokens: {lifetime: 5m, session: 168h, revocationFile: revoked}\n")
    assert config.tokens.session > timedelta(days=1)
    assert config.tokens.lifetime < timedelta(hours=1)
    assert config.tokens.revocation_file is not None


def test_the_users_of_several_identity_providers_never_have_the_same_name(read: Read) -> None:
    """S31, T8."""
    text = (
        HEAD
        + CHAIN
        + MEMORY
        + "identity: [{name: one, type: single_user, prefix: %s}, {name: two, type: single_user, prefix: %s}]\n"
    )
    for prefixes in (("one:", "corp/"), ("", "corp/"), ("corp/", "")):
        config = read(text % tuple(map(repr, prefixes)))
        assert tuple(identity.prefix for identity in config.identity) == prefixes
    for prefixes in (("", ""), ("one:", "one:"), ("one:", "one:x"), ("one:", "o")):
        assert "same name" in mistakes(read, text % tuple(map(repr, prefixes)))[0][1]


def test_a_provider_is_added_only_with_a_choice_of_usernames(read: Read) -> None:
    """No default could be right: it would rename the users of the first provider, or let two of them have one name."""
    one, two = "name: one, type: single_user", "name: two, type: single_user"
    text = HEAD + CHAIN + MEMORY + "identity: [{%s}, {%s}]\n"
    assert [identity.prefix for identity in read(HEAD + CHAIN + MEMORY + f"identity: [{{{one}}}]\n").identity] == [""]
    for added, missing in (
        ((one, two), ["identity[0].prefix", "identity[1].prefix"]),
        ((one, f"{two}, prefix: 'two:'"), ["identity[0].prefix"]),
        ((f"{one}, prefix: ''", two), ["identity[1].prefix"]),
    ):
        with pytest.raises(ConfigurationError) as raised:
            read(text % added)
        assert [problem.place.path for problem in raised.value.problems] == missing
        for problem in raised.value.problems:
            assert "several identity providers" in str(problem)
            assert 'prefix: ""' in (problem.hint or "")


# --- mistakes ---


def test_every_mistake_is_told_at_once_with_its_line(read: Read) -> None:
    text = """
    apiVersion: ostiary.dev/v2
    kind: Gateway
    listen: {adress: "127.0.0.1:1", workers: 0}
    tokens: {lifetime: 15}
    store: {type: memory}
    identity: [{name: me, type: single_user}]
    authorization: {chain: [{name: all, type: allow_all, onError: Allow}]}
    """
    with pytest.raises(ConfigurationError) as raised:
        read(text)
    found = {problem.place.path: problem for problem in raised.value.problems}
    assert set(found) == {
        "apiVersion",
        "listen.adress",
        "listen.workers",
        "tokens.lifetime",
        "authorization.chain[0].onError",
    }
    assert found["listen.adress"].hint == "did you mean address?"
    assert found["listen.workers"].place.line == 4


def test_a_field_that_no_provider_reads_is_unknown(read: Read) -> None:
    """T7."""
    text = PLAIN.replace("username: alice", "username: alice, allowedUsers: [bob]")
    assert places(read, text) == ["identity[0].allowedUsers"]


@pytest.mark.parametrize(
    ("section", "place"),
    [
        ("identity: [{name: a, type: single_user}, {name: a, type: single_user, prefix: x}]", "identity[1].name"),
        ("identity: [{name: Staff, type: single_user}]", "identity[0].name"),
        ("identity: [{type: single_user}]", "identity[0].name"),
        ("identity: [{name: renew, type: single_user}]", "identity[0].name"),
        ("identity: [{name: a}]", "identity[0].type"),
        ("identity: [{name: a, type: nothing-like-it, setting: 1}]", "identity[0].type"),
        ("identity: [{name: a, type: acme-broken, setting: 1}]", "identity[0].type"),
        ("identity: [{name: a, type: acme-incomplete}]", "identity[0].type"),
        ("identity: [{name: a, type: acme}]", "identity[0].database"),
        ("identity: [{name: a, type: htpasswd, path: absent}]", "identity[0].path"),
        ("identity: [{name: a, type: single_user, prefix: 'system:'}]", "identity"),
        ("identity: {}", "identity"),
    ],
)
def test_identity_mistakes(read: Read, section: str, place: str) -> None:
    """S31, T7."""
    found = mistakes(read, HEAD + CHAIN + MEMORY + section)
    assert found[0][0] == place
    assert "marked-secret" not in str(found)


NO_TYPE = "identity: [{name: acme, type: %s, database: acme.db}]\n"
SHARED = "groups: [{name: teams, provider: acme}, {name: more, type: file, path: groups.yaml, identities: [acme]}]\n"
OPEN = "externalURL: https://gw.test\nlisten: {address: '10.0.0.1:80', tls: %s}\n"


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (HEAD + CHAIN + MEMORY + NO_TYPE % "htpaswd" + UPSTREAM % "identity: none", "identity[0].type"),
        (HEAD + CHAIN + MEMORY + NO_TYPE % "acne" + SHARED, "identity[0].type"),
        (
            HEAD + MEMORY + NO_TYPE % "acne" + "authorization: {chain: [{name: rules, provider: acme}]}",
            "identity[0].type",
        ),
        (HEAD + CHAIN + MEMORY + "identity: acme\n" + UPSTREAM % "identity: none", "identity"),
        (HEAD + CHAIN + MEMORY + "identity: [{name: a, type: single_user}, {name: a, type: single_user}]",
         "identity[1].name"),
        (HEAD + CHAIN + MEMORY + "identity: [{name: a, type: 5}]", "identity[0].type"),
        (HEAD + CHAIN + MEMORY + "identity: [{name: 5, type: single_user}]", "identity[0].name"),
        (HEAD + IDENTITY + MEMORY + "authorization: {chain: all}", "authorization.chain"),
        (HEAD + IDENTITY + MEMORY + "authorization: all", "authorization"),
        (HEAD + IDENTITY + MEMORY + "authorization: {chain: [{name: a, type: alow_all}]}",
         "authorization.chain[0].type"),
        ("kind: Gateway\napiVersion: 1\n" + IDENTITY + CHAIN + MEMORY, "apiVersion"),
        ("[a, b]", ""),
        (PLAIN + "tokens: {lifetime: 15, session: 5m}", "tokens.lifetime"),
        (PLAIN + "tokens: {lifetime: 48h, session: 72}", "tokens.session"),
        (PLAIN.replace("single_user, username: alice", "acme, database: a.db") + OPEN % "{certificate: cert.pem}",
         "listen.tls.key"),
        (PLAIN.replace("single_user, username: alice", "acme, database: a.db") + OPEN % "cert.pem", "listen.tls"),
        (PLAIN + UPSTREAM % "identity: requestheader, headers: {user: X-User}", "upstreams[0].identity"),
        (PLAIN + "upstreams: [{name: a, server: '', attributes: acme}]", "upstreams[0].server"),
        (PLAIN + "upstreams: [{name: a, server: 5, attributes: acme}]", "upstreams[0].server"),
        (PLAIN + "audit: {log: {path: 5}}", "audit.log.path"),
        (PLAIN + "audit: {webhook: {url: 5}}", "audit.webhook.url"),
        (PLAIN + "externalURL: 5", "externalURL"),
        (PLAIN + "webhooks: {tokenReview: true, callers: {tokenFile: 5}}", "webhooks.callers.tokenFile"),
        (PLAIN + "webhooks: {tokenReview: true, callers: me}", "webhooks.callers"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_once_and_not_what_follows_from_it(read: Read, text: str, place: str) -> None:
    """T7."""
    assert places(read, text) == [place]


def test_a_mistake_hides_no_other_that_does_not_follow_from_it(read: Read) -> None:
    """T7."""
    text = HEAD + CHAIN + MEMORY + NO_TYPE % "acne" + "groups: [{name: teams, provider: acm}]"
    assert places(read, text) == ["identity[0].type", "groups[0].provider"]


@pytest.mark.parametrize(
    ("section", "place"),
    [
        ("groups: [{name: a, type: file, path: groups.yaml, identities: [nobody]}]", "groups[0].identities"),
        ("groups: [{name: a, type: file, path: groups.yaml, identities: []}]", "groups[0].identities"),
        ("groups: [{name: a, type: file, path: groups.yaml, identities: ['']}]", "groups[0].identities"),
        ("groups: [{name: a, type: file, path: absent}]", "groups[0].path"),
        ("groups: [{name: a, provider: nobody}]", "groups[0].provider"),
        ("groups: [{name: a, provider: me}]", "groups[0].provider"),
        ("groups: [{name: a, provider: me, type: file}]", "groups[0].provider"),
        ("authorization: {chain: []}", "authorization.chain"),
        ("authorization: {cacheTTL: -1s, chain: [{name: a, type: allow_all}]}", "authorization.cacheTTL"),
        ("authorization: {chain: [{name: a, provider: me}]}", "authorization.chain[0].provider"),
        ("authorization: {chain: [{name: a, type: allow_all, upstreams: []}]}", "authorization.chain[0].upstreams"),
        ("authorization: {chain: [{name: a, type: allow_all, upstreams: some}]}", "authorization.chain[0].upstreams"),
        ("authorization: {chain: [{name: a, type: allow_all, upstreams: 5}]}", "authorization.chain[0].upstreams"),
        ("authorization: {chain: [{name: a, type: allow_all, upstreams: [dev]}]}", "authorization"),
        ("store: {type: sqlite}", "store.path"),
        ("store: {}", "store.type"),
        ("tokens: {lifetime: 2h, session: 1h}", "tokens.lifetime"),
        ("tokens: {lifetime: 0s}", "tokens.lifetime"),
        ("tokens: {revocationFile: absent/revoked}", "tokens.revocationFile"),
        ("audit: {policy: absent.yaml}", "audit.policy"),
        ("audit: {policy: groups.yaml}", "audit.policy"),
        ("audit: {log: {}}", "audit.log.path"),
        ("audit: {webhook: {url: 'http://audit.example.com/events'}}", "audit.webhook.url"),
        ("audit: {webhook: {}}", "audit.webhook.url"),
        (f"audit: {{webhook: {{url: 'https://a.test/x', tls: {{pins: ['{'0' * 64}']}}}}}}", "audit.webhook.tls.pins"),
        ("audit: {webhook: {url: 'https://a.test/x?y', requestsPerSecond: 0}}", "audit.webhook.requestsPerSecond"),
        ("webhooks: {tokenReview: true}", "webhooks.callers"),
        ("webhooks: {tokenReview: true, callers: {names: [kube-apiserver]}}", "webhooks.callers.names"),
        ("webhooks: {audiences: ['']}", "webhooks.audiences"),
        ("limits: {requestsPerSecond: -1}", "limits.requestsPerSecond"),
        ("limits: {exemptUsers: ['']}", "limits.exemptUsers"),
        ("log: {level: loud}", "log.level"),
        ("health: {address: '127.0.0.1:8443'}", "health"),
    ],
)
def test_mistakes_of_the_other_sections(read: Read, section: str, place: str) -> None:
    """H4, T7."""
    key = section.partition(":")[0]
    plain = "".join(line + "\n" for line in PLAIN.splitlines() if not line.startswith(f"{key}:"))
    assert place in places(read, plain + section)


def test_several_workers_do_not_share_memory(read: Read) -> None:
    assert places(read, PLAIN + "listen: {workers: 2}") == ["store"]


def test_somebody_must_be_able_to_sign_in(read: Read) -> None:
    text = HEAD + CHAIN + MEMORY
    assert read(text).identity == ()
    assert places(read, text + UPSTREAM % "identity: none") == ["identity"]


def test_a_second_document_is_not_silently_ignored(read: Read) -> None:
    assert "second YAML document" in mistakes(read, PLAIN + "---\n" + PLAIN)[0][1]


@pytest.mark.parametrize(
    "address", ["8443", ":8443", "127.0.0.1", "127.0.0.1:99999", "gateway.test:1", "::1:8443", "[127.0.0.1]:1", "a:b"]
)
def test_addresses_are_an_ip_or_localhost_and_a_port(read: Read, address: str) -> None:
    assert places(read, PLAIN + f"listen: {{address: '{address}'}}") == ["listen.address"]


@pytest.mark.parametrize("port", ["65536", "99999", "123456", "9" * 5000])
def test_a_port_that_is_too_high_is_told_as_such(read: Read, port: str) -> None:
    upstream = f"upstreams: [{{name: a, server: 'https://a.test:{port}', attributes: acme}}]\n"
    text = PLAIN + f"externalURL: 'https://a.test:{port}'\n{upstream}listen: {{address: '127.0.0.1:{port}'}}"
    assert {message for _, message in mistakes(read, text)} == {"a port is a number, at most 65535"}
    assert places(read, text) == ["listen.address", "externalURL", "upstreams[0].server"]


@given(st.ip_addresses(), st.integers(0, 65535))
@settings(max_examples=50)
def test_an_address_is_read_as_it_is_written(ip: Any, port: int) -> None:
    address = Address(str(ip), port)
    assert parse_address(str(address)) == address


@given(st.text(max_size=30))
@settings(max_examples=100)
def test_no_text_makes_reading_an_address_or_a_url_fail_otherwise_than_with_a_reason(text: str) -> None:
    for parse in (parse_address, parse_origin, lambda t: parse_origin(f"https://{t}")):
        try:
            parse(text)
        except ValueError as mistake:
            assert str(mistake)  # noqa: PT017  # a text may be good, too


# --- what must not be reachable from outside ---


def test_all_for_everybody_is_for_this_machine_only(read: Read) -> None:
    """S15."""
    listen = (
        "externalURL: https://gw.test\nlisten: {address: '0.0.0.0:8443', tls: {certificate: cert.pem, key: key.pem}}\n"
    )
    assert "everybody" in mistakes(read, PLAIN + listen)[0][1]
    assert "everybody" in mistakes(read, PLAIN + "listen: {trustedProxies: [127.0.0.1]}")[0][1]
    config = read(PLAIN + listen + "insecureAllowAll: true\n")
    assert any("everybody who can connect" in warning for warning in warnings(config))


def test_tokens_do_not_cross_the_network_in_plain_text(read: Read) -> None:
    text = PLAIN.replace("single_user, username: alice", "acme, database: a.db") + "externalURL: https://gw.test\n"
    assert places(read, text + "listen: {address: '10.0.0.1:80'}") == ["listen.address"]
    config = read(text + "listen: {address: '10.0.0.1:80', insecure: true}")
    assert any("plain text" in warning for warning in warnings(config))


def test_where_the_address_does_not_tell_it_the_external_url_must_be_written(read: Read) -> None:
    text = PLAIN.replace("single_user, username: alice", "acme, database: a.db")
    assert places(read, text + "listen: {address: '[::]:80', insecure: true}") == ["externalURL"]


@pytest.mark.parametrize(
    "url",
    [
        "http://gw.example.com",
        "gw.example.com",
        "https://gw.example.com/auth",
        "https://user:pass@gw.example.com",
        "https://gw.example.com?x",
        "https://gw.example.com#x",
        "https://gw example.com",
        "https://",
        "ftp://gw.example.com",
    ],
)
def test_an_external_url_is_https_a_host_and_nothing_else(read: Read, url: str) -> None:
    assert places(read, PLAIN + f"externalURL: '{url}'") == ["externalURL"]


@pytest.mark.parametrize(
    "networks", ["0.0.0.0/0", "'::/0'", "0.0.0.0/1, 128.0.0.0/1", "10.0.0.1/8", "proxy.test", "''"]
)
def test_a_configuration_that_trusts_everybody_as_a_proxy_is_refused(read: Read, networks: str) -> None:
    """H3."""
    text = PLAIN + f"insecureAllowAll: true\nlisten: {{trustedProxies: [{networks}]}}"
    assert set(places(read, text)) == {"listen.trustedProxies"}


def test_nobody_is_a_trusted_proxy_unless_named(read: Read) -> None:
    """H3."""
    assert read(PLAIN).listen.trusted_proxies == ()
    text = PLAIN + "insecureAllowAll: true\nlisten: {trustedProxies: [10.1.0.0/16, 10.2.0.7, '::1']}"
    found = read(text).listen.trusted_proxies
    assert [str(network) for network in found] == ["10.1.0.0/16", "10.2.0.7/32", "::1/128"]


def test_probes_have_an_address_of_their_own(read: Read) -> None:
    """H4."""
    assert read(PLAIN).health != read(PLAIN).listen.address
    assert places(read, PLAIN + "listen: {address: '127.0.0.1:1'}\nhealth: {address: '127.0.0.1:1'}") == ["health"]


# --- upstreams ---


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ("prefix: clusters", "prefix"),
        ("prefix: /a//b", "prefix"),
        ("prefix: /a/../b", "prefix"),
        ("prefix: /a%2fb", "prefix"),
        ("prefix: /auth", "prefix"),
        ("prefix: /auth/x", "prefix"),
        ("prefix: /apis/ostiary.dev/v1", "prefix"),
        ("hosts: ['https://a.test']", "hosts"),
        ("hosts: ['a.test:80']", "hosts"),
        ("hosts: ['']", "hosts"),
        ("hosts: [a.test, a.test]", "hosts"),
        ("health: readyz", "health"),
        ("identity: basic", "identity"),
        ("identity: impersonation", "identity"),
        ("identity: requestHeader, tls: {ca: ca.pem}", "identity"),
        ("identity: requestHeader, tls: {certificate: cert.pem, key: key.pem}", "identity"),
        ("headers: {user: X-User}", "headers"),
        ("identity: requestHeader, headers: {user: 'X User'}, tls: {ca: ca.pem, certificate: cert.pem, key: key.pem}",
         "headers.user"),
        ("tokenFile: absent", "tokenFile"),
        ("tls: {ca: absent}", "tls.ca"),
        ("tls: {ca: token}", "tls.ca"),
        ("tls: {certificate: cert.pem}", "tls.certificate"),
        ("tls: {certificate: cert.pem, key: other-key.pem}", "tls.certificate"),
        ("tls: {serverName: 'a b'}", "tls.serverName"),
        ("tls: {pins: [abc]}", "tls.pins"),
        ("tls: {insecure: true}", "tls.insecure"),
        ("forwardAuthorization: true", "forwardAuthorization"),
        ("connections: 0", "connections"),
        ("timeouts: {connect: 0s}", "timeouts.connect"),
    ],
)  # fmt: skip
def test_upstream_mistakes(read: Read, fields: str, place: str) -> None:
    assert places(read, PLAIN + UPSTREAM % fields) == [f"upstreams[0].{place}"]


@pytest.mark.parametrize("attributes", ["nothing-like-it", "{type: nothing-like-it}", "{root: /}", "[acme]"])
def test_an_unknown_mapper_is_a_mistake(read: Read, attributes: str) -> None:
    text = PLAIN + f"upstreams: [{{name: api, server: 'https://a.test', attributes: {attributes}}}]"
    assert mistakes(read, text)[0][0].startswith("upstreams[0].attributes")


@pytest.mark.parametrize("server", ["10.0.0.1:6443", "https://a.test/path", "https://", "https://a:b@c.test", ""])
def test_a_server_is_a_scheme_and_a_host(read: Read, server: str) -> None:
    text = PLAIN + f"upstreams: [{{name: api, server: '{server}', attributes: acme}}]"
    assert "upstreams[0].server" in places(read, text)


def test_plain_http_beyond_this_machine_must_be_meant(read: Read) -> None:
    upstream = "upstreams: [{name: api, server: '%s', attributes: acme%s}]"
    assert places(read, PLAIN + upstream % ("http://api.test", "")) == ["upstreams[0].server"]
    for local in ("http://127.0.0.1:80", "http://localhost", "http://[::1]:8080"):
        assert not any("plain text" in text for text in warnings(read(PLAIN + upstream % (local, ""))))
    config = read(PLAIN + upstream % ("http://api.test", ", insecure: true"))
    assert any('"api"' in text for text in warnings(config))
    text = PLAIN + upstream % ("http://127.0.0.1", ", identity: requestHeader")
    assert places(read, text) == ["upstreams[0].identity"]


@pytest.mark.parametrize(
    ("one", "other", "overlap"),
    [
        ("prefix: /", "prefix: /", True),
        ("prefix: /a", "prefix: /a/", True),
        ("prefix: /a", "prefix: /ab", False),
        ("prefix: /a", "prefix: /a/b", False),
        ("hosts: [a.test]", "hosts: [A.test, b.test]", True),
        ("hosts: [a.test]", "hosts: [b.test]", False),
        ("hosts: [a.test]", "prefix: /", False),
    ],
)
def test_two_upstreams_never_serve_the_same_requests(read: Read, one: str, other: str, overlap: bool) -> None:
    entry = "{name: %s, server: 'https://a.test', attributes: acme, %s}"
    text = PLAIN + f"upstreams: [{entry % ('one', one)}, {entry % ('other', other)}]"
    if overlap:
        assert places(read, text) == ["upstreams"]
    else:
        assert len(read(text).upstreams) == 2


def test_a_client_certificate_may_call_the_webhooks(read: Read) -> None:
    config = read(
        PLAIN
        + "listen: {tls: {certificate: cert.pem, key: key.pem, clientCA: ca.pem}}\n"
        + "webhooks: {tokenReview: true, callers: {names: [kube-apiserver], tokenFile: token}}\n"
    )
    assert config.webhooks.enabled
    assert config.webhooks.callers.names == ("kube-apiserver",)
    assert config.external_url == "https://127.0.0.1:8443"


@pytest.mark.parametrize("provider", ["type: client_certificate", "type: trusted_header, names: [front-proxy]"])
def test_who_is_known_by_a_certificate_needs_one_that_is_checked(read: Read, provider: str) -> None:
    text = HEAD + CHAIN + MEMORY + f"identity: [{{name: a, {provider}}}]\n"
    tls = "certificate: cert.pem, key: key.pem"
    assert [identity.name for identity in read(f"{text}listen: {{tls: {{{tls}, clientCA: ca.pem}}}}").identity] == ["a"]
    for without in (text, f"{text}listen: {{tls: {{{tls}}}}}"):
        assert places(read, without) == ["identity[0].type"]


@pytest.mark.parametrize(
    ("tls", "place"),
    [
        ("{certificate: cert.pem}", "listen.tls.key"),
        ("{key: key.pem}", "listen.tls.certificate"),
        ("{certificate: absent, key: key.pem}", "listen.tls.certificate"),
        ("{certificate: cert.pem, key: other-key.pem}", "listen.tls.certificate"),
        ("{certificate: cert.pem, key: key.pem, clientCA: key.pem}", "listen.tls.clientCA"),
    ],
)
def test_certificates_are_tried_before_anything_listens(read: Read, tls: str, place: str) -> None:
    assert places(read, PLAIN + f"listen: {{tls: {tls}}}") == [place]


def test_a_missing_file_is_told_as_such(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as raised:
        load(tmp_path / "absent.yaml")
    assert raised.value.code == "config-unreadable"


def test_two_packages_with_the_same_provider_stop_the_start(
    read: Read, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S1."""
    points = "[ostiary.identity]\nsingle_user = tests.unit.ostiary_gateway.acme:Acme\n"
    acme.install(tmp_path_factory.mktemp("second"), monkeypatch, points, package="evil")
    assert "evil" in str(mistakes(read, PLAIN))


def test_a_configuration_may_come_from_memory(files: Path) -> None:
    config = loads(PLAIN + "groups: [{name: teams, type: file, path: groups.yaml}]", name="test", directory=files)
    assert config.groups[0].name == "teams"


TWO = "".join(f"- {{name: {name}, server: 'https://{name}.test', hosts: [{name}.test]}}\n" for name in ("dev", "prod"))


@pytest.mark.parametrize(("written", "is_told"), [("", True), ("upstreams: all", False), ("upstreams: [dev]", False)])
def test_a_policy_that_several_upstreams_share_without_saying_so_is_told(
    read: Read, written: str, is_told: bool
) -> None:
    chain = f"authorization: {{chain: [{{name: house-rules, type: allow_all, {written}}}]}}\n"
    config = read(HEAD + IDENTITY + MEMORY + chain + "upstreams:\n" + TWO)
    told = [text for text in warnings(config) if "house-rules" in text]
    assert bool(told) == is_told
    assert all('"dev", "prod"' in text and "upstreams: all" in text for text in told)
    assert config.authorization.chain[0].upstreams == (frozenset({"dev"}) if "[dev]" in written else None)
    # With one upstream there is nothing to share.
    one = read(HEAD + IDENTITY + MEMORY + chain + "upstreams:\n" + TWO.splitlines()[0])
    assert not any("house-rules" in text for text in warnings(one))


def test_a_mistake_in_one_ldap_field_leaves_the_others_known(tmp_path: Path) -> None:
    pytest.importorskip("ldap", reason="missing: python-ldap")
    (tmp_path / "pw").write_text("x")
    text = """
apiVersion: ostiary.dev/v1
kind: Gateway
store: {type: memory}
identity:
- name: corp
  type: ldap
  url: ldaps://ldap.example.com
  bindDN: cn=g
  bindPasswordFile: pw
  userSearch: {baseDN: "dc=x", filter: "(uid=alice)", usernameAttribute: uid}
  groupSearch: {baseDN: "dc=x", filter: "(", nested: recursive}
authorization: {chain: [{name: all, type: allow_all}]}
"""
    with pytest.raises(ConfigurationError) as error:
        loads(text, directory=tmp_path)
    places = [problem.place.path for problem in error.value.problems]
    assert places == ["identity[0].userSearch.filter", "identity[0].groupSearch.filter"]


@pytest.mark.parametrize("section", ["tokens: {lifetime: 15}", "tokens: {session: 15}", "listen: {drain: 15}"])
def test_the_hint_for_a_time_without_a_unit_is_one_that_works(section: str) -> None:
    text = f"apiVersion: ostiary.dev/v1\nkind: Gateway\nstore: {{type: memory}}\n{section}\n"
    with pytest.raises(ConfigurationError) as error:
        loads(text)
    assert "15s, 15m or 15h" in str(error.value.problems[0].hint)


def test_a_provider_type_that_is_misspelt_is_told_with_the_one_that_was_meant() -> None:
    text = "apiVersion: ostiary.dev/v1\nkind: Gateway\nstore: {type: memry}\nidentity: [{name: a, type: htpaswd}]\n"
    with pytest.raises(ConfigurationError) as error:
        loads(text)
    hints = " ".join(str(problem.hint) for problem in error.value.problems)
    assert "did you mean htpasswd?" in hints
    assert "did you mean memory?" in hints


def test_files_are_meant_from_the_folder_in_which_the_configuration_is_named(tmp_path: Path) -> None:
    """A mounted ConfigMap: gateway.yaml is a link into a folder that is gone after the next change."""
    for folder in ("config/..2026", "policy"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "config/..2026/gateway.yaml").write_text(
        HEAD + IDENTITY + MEMORY + "tokens: {revocationFile: revoked}\n"
        "authorization: {chain: [{name: policy, type: rbac, paths: [../policy]}]}\n"
    )
    (tmp_path / "config/..data").symlink_to("..2026")
    (tmp_path / "config/gateway.yaml").symlink_to("..data/gateway.yaml")
    config = load(tmp_path / "config/gateway.yaml")
    assert config.tokens.revocation_file == tmp_path / "config/revoked"
