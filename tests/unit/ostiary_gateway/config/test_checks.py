"""What several sections must agree on follows from what providers declare, whoever wrote them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ostiary.errors import ConfigurationError
from ostiary_gateway.config import load, warnings
from ostiary_gateway.config.checks import is_open_to_all
from ostiary_gateway.config.gateway_config import GatewayConfig
from tests.support import noting_store
from tests.unit.ostiary_gateway import acme, foreign

CONFIG = """
apiVersion: ostiary.dev/v1
kind: Gateway
store: {type: %s}
identity: [{name: people, type: %s}]
authorization: {chain: [{name: all, type: %s}]}
listen: {address: "%s", workers: %d, insecure: true}
"""


@pytest.fixture(scope="module", autouse=True)
def foreign_package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        acme.install(tmp_path_factory.mktemp("site"), patch, foreign.ENTRY_POINTS, package="foreign")
        acme.install(tmp_path_factory.mktemp("site"), patch, noting_store.ENTRY_POINTS, package="noting")
        yield


def read(
    directory: Path,
    *,
    store: str = "memory",
    identity: str = "single_user",
    authorization: str = "allow_all",
    address: str = "127.0.0.1:8443",
    workers: int = 1,
    more: str = "",
) -> GatewayConfig:
    path = directory / "gateway.yaml"
    path.write_text(CONFIG % (store, identity, authorization, address, workers) + more)
    return load(path)


def places(error: ConfigurationError) -> list[str]:
    return [problem.place.path for problem in error.problems]


@pytest.mark.parametrize("store", ["memory", "dictionary"])
def test_several_workers_need_a_store_that_says_it_can_be_shared(tmp_path: Path, store: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        read(tmp_path, store=store, workers=2)
    (problem,) = raised.value.problems
    assert problem.message == f'several workers cannot share the store "{store}": it does not say that processes can'
    assert (problem.place.path, problem.hint) == ("store", "use the type sqlite, or one worker")


def test_several_workers_may_share_a_foreign_store_that_says_so(tmp_path: Path) -> None:
    assert read(tmp_path, store="shared", workers=2).listen.workers == 2


@pytest.mark.parametrize(
    ("store", "workers", "who"),
    [("shared", 2, "several workers"), ("noting", 1, "replicas that share the token store")],
)
def test_a_provider_with_resources_of_its_own_must_say_that_processes_share_its_state(
    tmp_path: Path, store: str, workers: int, who: str
) -> None:
    with pytest.raises(ConfigurationError) as raised:
        read(tmp_path, store=store, workers=workers, authorization="grants")
    (problem,) = raised.value.problems
    assert problem.message == (
        f'{who} would decide differently: the provider "all" serves resources of its own (grants.example.com)'
        " and does not say that processes share their state"
    )
    assert problem.place.path == "authorization"
    assert problem.hint is not None
    assert "shared_between_processes" in problem.hint


def test_a_provider_with_resources_runs_in_several_workers_if_its_state_is_shared(tmp_path: Path) -> None:
    assert read(tmp_path, store="shared", workers=2, authorization="shared_grants").listen.workers == 2
    assert read(tmp_path, store="noting", authorization="shared_grants").listen.workers == 1


def test_a_provider_with_resources_may_keep_its_state_in_a_single_process(tmp_path: Path) -> None:
    assert read(tmp_path, store="shared", workers=1, authorization="grants").listen.workers == 1


@pytest.mark.parametrize(("store", "lost"), [("memory", True), ("dictionary", True), ("shared", False)])
def test_a_store_that_does_not_say_it_survives_a_restart_is_warned_of(tmp_path: Path, store: str, lost: bool) -> None:
    found = warnings(read(tmp_path, store=store))
    assert ("sessions are kept in memory: a restart ends them all" in found) is lost


@pytest.mark.parametrize("identity", ["single_user", "anybody"])
@pytest.mark.parametrize("authorization", ["allow_all", "everything"])
def test_no_proof_and_no_refusal_open_the_gateway_to_all(tmp_path: Path, identity: str, authorization: str) -> None:
    assert is_open_to_all(read(tmp_path, identity=identity, authorization=authorization))
    with pytest.raises(ConfigurationError) as raised:
        read(tmp_path, identity=identity, authorization=authorization, address="0.0.0.0:8443")
    assert "listen" in places(raised.value)


def test_a_chain_that_allows_everything_is_warned_of_by_its_type(tmp_path: Path) -> None:
    (tmp_path / "people").write_text("")
    config = read(tmp_path, identity="htpasswd, path: people", authorization="everything")
    assert "everybody who can sign in may do everything: the authorization chain has everything" in warnings(config)


def test_a_foreign_provider_that_needs_certificates_gets_them_asked_for(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as raised:
        read(tmp_path, identity="by_certificate")
    assert places(raised.value) == ["identity[0].type"]


def test_a_foreign_mapper_may_read_kubernetes_paths(tmp_path: Path) -> None:
    upstreams = "upstreams: [{name: a, server: 'https://a.test', attributes: %s, identity: none, tokenFile: token}]\n"
    (tmp_path / "token").write_text("secret")
    assert read(tmp_path, more=upstreams % "cluster").upstreams[0].is_kubernetes
    assert not read(tmp_path, more=upstreams % "http").upstreams[0].is_kubernetes


def test_a_store_that_can_have_an_owner_wants_an_external_url(tmp_path: Path) -> None:
    owned = "noting, path: tokens.db"
    config = read(tmp_path, store=owned)
    assert any("externalURL is not set" in warning for warning in warnings(config))
    assert config.owner == ""
    named = read(tmp_path, store=owned, more='externalURL: "https://gateway.example"\n')
    assert not any("externalURL" in warning for warning in warnings(named))
    assert not any("externalURL" in warning for warning in warnings(read(tmp_path)))


def test_the_owner_of_a_store_is_the_same_however_its_address_is_written(
    tmp_path_factory: pytest.TempPathFactory, subtests: pytest.Subtests
) -> None:
    cases = [
        ("https://gateway.example", "https://gateway.example"),
        ("https://Gateway.Example/", "https://gateway.example"),
        ("https://gateway.example:443", "https://gateway.example"),
        ("https://gateway.example:8443", "https://gateway.example:8443"),
        ("http://localhost:80", "http://localhost"),
        ("https://[::1]:8443", "https://[::1]:8443"),
    ]
    for url, owner in cases:
        with subtests.test(url=url, owner=owner):
            tmp_path = tmp_path_factory.mktemp("case")
            assert read(tmp_path, more=f'externalURL: "{url}"\n').owner == owner


WORKLOAD = """
apiVersion: ostiary.dev/v1
kind: Gateway
externalURL: https://gateway.example.com
store: {type: memory}
identity:
%s
authorization: {chain: [{name: all, type: allow_all, upstreams: all}]}
upstreams:
%s
%s
"""
BOUND = "- {name: %s, type: workload, platform: kubernetes, cluster: %s}\n"
UPSTREAM = "- {name: %s, server: 'https://%s.example.com'}\n"


def test_service_accounts_keep_their_names_only_where_they_cannot_be_others(
    tmp_path_factory: pytest.TempPathFactory, subtests: pytest.Subtests
) -> None:
    cases = [
        (BOUND % ("pods", "main"), UPSTREAM % ("main", "a"), "", None),
        (BOUND % ("pods", "mian"), UPSTREAM % ("main", "a"), "", 'of an unknown upstream "mian"'),
        (BOUND % ("pods", "main"), "  []", "", 'of an unknown upstream "main"'),
        (
            BOUND % ("pods", "main"),
            UPSTREAM % ("main", "a") + "- {name: other, server: 'https://b.example.com', prefix: /b}",
            "",
            "would be others' of the same name at the other upstreams",
        ),
        (
            BOUND % ("pods", "main"),
            UPSTREAM % ("main", "a"),
            "webhooks: {tokenReview: true, callers: {tokenFile: gateway.yaml}}",
            "would be others' in a cluster that asks by webhook",
        ),
        (
            BOUND % ("pods", "main") + BOUND % ("more", "main"),
            UPSTREAM % ("main", "a"),
            "",
            "could have the names of another provider's",
        ),
    ]
    for identity, upstreams, more, expected in cases:
        with subtests.test(identity=identity, upstreams=upstreams, more=more, expected=expected):
            tmp_path = tmp_path_factory.mktemp("case")
            path = tmp_path / "gateway.yaml"
            path.write_text(WORKLOAD % (identity, upstreams, more))
            try:
                load(path)
                messages: list[str] = []
            except ConfigurationError as error:
                messages = [problem.message for problem in error.problems]
            if expected is None:
                assert messages == []
            else:
                assert any(expected in message for message in messages), messages


APPLICATION = """
apiVersion: ostiary.dev/v1
kind: Gateway
store: {type: memory}
listen: {address: "127.0.0.1:8443"}
%s
identity: [{name: people, type: single_user}]
authorization: {chain: [{name: all, type: allow_all}]}
upstreams:
- {name: wiki, server: "http://127.0.0.1:9000", attributes: http, %s}
"""
EXTERNAL = "externalURL: http://localhost:8443"
ISSUER = f"{EXTERNAL}\nissuer: {{audiences: [wiki, prod], keys: {{secretFile: secret}}}}"


def test_a_web_application_that_would_not_be_safe_is_refused(
    tmp_path_factory: pytest.TempPathFactory, subtests: pytest.Subtests
) -> None:
    cases = [
        ("", "auth: browser", "browsers of web applications"),
        (EXTERNAL, "auth: browser, attributes: kubernetes", "browsers do not speak to the Kubernetes API"),
        (EXTERNAL, "public: [/]", "everything would be public"),
        (EXTERNAL, "public: [static]", "not a plain path"),
        (EXTERNAL, "public: ['/a/../b']", "not a plain path"),
        (EXTERNAL, "prefix: /wiki, public: [/static/]", "not below the prefix"),
        (EXTERNAL, "identity: impersonation, tokenFile: t, public: [/x]", "the gateway's own rights"),
        (EXTERNAL, "passAuthorization: true", "for auth: browser only"),
        (EXTERNAL, "auth: browser, passAuthorization: true, tokenFile: t", "in the same header"),
        (EXTERNAL, "identity: assertion", "none are signed"),
        (ISSUER, "identity: assertion", "audience that clusters accept"),
    ]
    for settings, upstream, problem in cases:
        with subtests.test(settings=settings, upstream=upstream, problem=problem):
            tmp_path = tmp_path_factory.mktemp("case")
            (tmp_path / "secret").write_text("s" * 64)
            (tmp_path / "secret").chmod(0o600)
            (tmp_path / "t").write_text("token")
            text = APPLICATION % (settings, upstream)
            if "kubernetes" in upstream:
                text = text.replace("attributes: http, ", "")
            (tmp_path / "gateway.yaml").write_text(text)
            with pytest.raises(ConfigurationError) as caught:
                load(tmp_path / "gateway.yaml")
            assert problem in str(caught.value)


FILES = "https://files.example"
FOR_FILES = ISSUER.replace("prod", f"'{FILES}'")


def test_a_redirect_that_would_not_be_safe_is_refused(
    tmp_path_factory: pytest.TempPathFactory, subtests: pytest.Subtests
) -> None:
    """S69."""
    cases = [
        (EXTERNAL, f"redirect: {{to: '{FILES}', paths: [/x/]}}", "nothing is signed"),
        (ISSUER, "redirect: {to: 'http://files.example', paths: [/x/]}", "in plain text"),
        (ISSUER, "redirect: {to: 'https://files.example/x', paths: [/x/]}", "must not contain a path"),
        (ISSUER, "redirect: {to: 'https://u@files.example', paths: [/x/]}", "user name"),
        (ISSUER, "redirect: {to: '//files.example', paths: [/x/]}", "does not begin with http"),
        (ISSUER, "redirect: {paths: [/x/]}", "redirect.to"),
        (ISSUER, f"redirect: {{to: '{FILES}'}}", "redirect.paths"),
        (ISSUER, f"redirect: {{to: '{FILES}', paths: ['/x/../y']}}", "not a plain path"),
        (ISSUER, f"redirect: {{to: '{FILES}', paths: [/x/], lifetime: 6m}}", "5 seconds to 5 minutes"),
        (ISSUER, f"prefix: /wiki, redirect: {{to: '{FILES}', paths: [/x/]}}", "not below the prefix"),
        (ISSUER, f"auth: browser, redirect: {{to: '{FILES}', paths: [/x/]}}", "the history of browsers"),
        (ISSUER, "redirect: {to: 'http://LOCALHOST:8443/', paths: [/x/]}", "lead back to the gateway"),
        (
            ISSUER.replace("prod", f"'{FILES}'"),
            f"redirect: {{to: '{FILES}:443', paths: [/x/]}}",
            "which clusters accept",
        ),
    ]
    for settings, upstream, problem in cases:
        with subtests.test(settings=settings, upstream=upstream, problem=problem):
            tmp_path = tmp_path_factory.mktemp("case")
            (tmp_path / "secret").write_text("s" * 64)
            (tmp_path / "secret").chmod(0o600)
            (tmp_path / "gateway.yaml").write_text(APPLICATION % (settings, upstream))
            with pytest.raises(ConfigurationError) as caught:
                load(tmp_path / "gateway.yaml")
            assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("upstream", "problem"),
    [
        ('server: "https://10.0.0.1", attributes: kubernetes', "does not know the proof"),
        ("attributes: http", "the upstream has no server"),
    ],
)
def test_a_redirect_needs_a_backend_that_knows_it(tmp_path: Path, upstream: str, problem: str) -> None:
    """S69."""
    (tmp_path / "secret").write_text("s" * 64)
    (tmp_path / "secret").chmod(0o600)
    text = APPLICATION % (ISSUER, f"redirect: {{to: '{FILES}', paths: [/x/]}}")
    text = text.replace('server: "http://127.0.0.1:9000", attributes: http', upstream)
    (tmp_path / "gateway.yaml").write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        load(tmp_path / "gateway.yaml")
    assert problem in str(caught.value)


def test_where_redirects_go_is_written_as_browsers_write_it(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s" * 64)
    (tmp_path / "secret").chmod(0o600)
    upstream = "redirect: {to: 'HTTPS://Files.Example:443/', paths: [/]}"
    (tmp_path / "gateway.yaml").write_text(APPLICATION % (ISSUER, upstream))
    (configured,) = load(tmp_path / "gateway.yaml").upstreams
    assert configured.redirect is not None
    assert configured.redirect.to == FILES


@pytest.mark.parametrize(
    ("upstream", "told"),
    [
        ("auth: browser", True),
        ("auth: browser, hosts: [localhost]", True),
        ("auth: browser, hosts: [wiki.localhost]", False),
        ("hosts: [localhost]", False),
    ],
)
def test_an_application_on_the_gateways_own_host_is_warned_of(tmp_path: Path, upstream: str, told: bool) -> None:
    (tmp_path / "gateway.yaml").write_text(APPLICATION % (EXTERNAL, upstream))
    config = load(tmp_path / "gateway.yaml")
    assert any("same host as the sign-in pages" in message for message in warnings(config)) is told


# --- step-up ---

OIDC = "oidc, issuer: 'https://sso.test', clientID: gateway"
RULE = "stepUp: {rules: [{name: r, resources: ['*'], amr: [mfa]%s}]}\n"


def test_a_step_up_rule_that_nobody_can_ever_meet_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as raised:
        read(tmp_path, more=RULE % "")
    (problem,) = raised.value.problems
    assert problem.place.path == "stepUp"
    assert problem.message.startswith("nobody could ever meet these rules")
    assert read(tmp_path, identity=OIDC, more=RULE % "").step_up.rules[0].amr == ("mfa",)


def test_a_step_up_rule_that_says_nothing_is_refused(
    tmp_path_factory: pytest.TempPathFactory, subtests: pytest.Subtests
) -> None:
    cases = [
        ("{name: r, amr: [mfa]}", "no request falls under this rule"),
        ("{name: r, resources: ['*']}", "it requires nothing"),
        ("{name: r, paths: [/x], namespaces: [a], amr: [mfa]}", "only resources have namespaces and names"),
        ("{name: r, resources: ['*'], amr: ['a b']}", "it is one word of ASCII, without quotes"),
        (
            "{name: r, resources: ['*'], amr: [mfa], upstreams: [gone]}",
            'the rule "r" names the unknown upstream "gone"',
        ),
        ("{name: r, paths: [/x], amr: [mfa]}, {name: r, paths: [/y], amr: [mfa]}", "two rules have the same name"),
    ]
    for rule, message in cases:
        with subtests.test(rule=rule, message=message):
            tmp_path = tmp_path_factory.mktemp("case")
            with pytest.raises(ConfigurationError) as raised:
                read(tmp_path, identity=OIDC, more=f"stepUp: {{rules: [{rule}]}}\n")
            assert [problem.message for problem in raised.value.problems] == [message]


CLUSTER = "apiVersion: ostiary.dev/v1\nkind: Gateway\nupstreams:\n- {name: k, server: %s, attributes: %s, %s}\n"


def test_a_comparison_that_cannot_be_made_is_refused(
    tmp_path_factory: pytest.TempPathFactory, subtests: pytest.Subtests
) -> None:
    cases = [
        ("https://k.example", "http", "shadow: {share: 0.1}", "only a Kubernetes API can be asked"),
        ("https://k.example", "kubernetes", "shadow: {share: 0.1}", "no credential to ask"),
        ("http://127.0.0.1:1", "kubernetes", "shadow: {share: 0}", "no request would be compared"),
        ("http://127.0.0.1:1", "kubernetes", "shadow: {share: 1.0e-320}", "no request would be compared"),
        ("http://127.0.0.1:1", "kubernetes", "shadow: {share: 1.5}", "from 0 to 1"),
        ("http://127.0.0.1:1", "kubernetes", "shadow: {perSecond: 3}", "shadow.share"),
        ("http://127.0.0.1:1", "kubernetes", "shadow: {share: 1, perSecond: 0}", "at least 1"),
    ]
    for server, attributes, upstream, problem in cases:
        with subtests.test(server=server, attributes=attributes, upstream=upstream, problem=problem):
            tmp_path = tmp_path_factory.mktemp("case")
            (tmp_path / "gateway.yaml").write_text(CLUSTER % (server, attributes, upstream))
            with pytest.raises(ConfigurationError) as caught:
                load(tmp_path / "gateway.yaml")
            assert problem in str(caught.value)


@pytest.mark.parametrize(
    "provider",
    [
        "type: cedar, paths: [p.cedar]",
        "type: subject_access_review, server: 'https://10.0.0.1'",
    ],
)
def test_a_policy_that_hides_what_is_denied_needs_the_gateway_to_do_so(tmp_path: Path, provider: str) -> None:
    """Otherwise the setting has no effect, and the answer is 403."""
    (tmp_path / "p.cedar").write_text("permit(principal, action, resource);\n")
    text = (
        "apiVersion: ostiary.dev/v1\nkind: Gateway\nstore: {type: memory}\n"
        "identity: [{name: me, type: single_user}]\n"
        "authorization: {%s chain: [{name: policy, " + provider + ", %s}]}\n"
    )
    path = tmp_path / "gateway.yaml"
    for decisions, hide in (("hideDenied: true,", "hide: true"), ("hideDenied: false,", "hide: false")):
        path.write_text(text % (decisions, hide))
        assert load(path)
    for decisions in ("", "hideDenied: false,"):
        path.write_text(text % (decisions, "hide: true"))
        with pytest.raises(ConfigurationError) as caught:
            load(path)
        (problem,) = caught.value.problems
        assert problem.place.path == "authorization.chain[0].hide"
        assert "no effect without authorization.hideDenied" in problem.message
        assert problem.hint == "set hideDenied: true below authorization, or leave out hide"
