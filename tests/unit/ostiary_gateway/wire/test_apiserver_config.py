"""What a kube-apiserver is told. That it understands it, and what it makes of it, is tried in tests/interop."""

from __future__ import annotations

import json

import pytest

from ostiary.core.yaml import Json
from ostiary.core.yaml.edit import dump
from ostiary_gateway.wire.apiserver_config import (
    LONGEST_EXPRESSION,
    authentication_configuration,
    authorization_configuration,
    cel_text,
    deny_expressions,
)
from ostiary_gateway.wire.revoked_credentials import RevokedCredentials, RevokedSubject

ISSUER = "https://gateway.example"
NOTHING = RevokedCredentials(ISSUER, ("prod",))


def test_the_issuer_its_claims_and_what_it_must_not_name() -> None:
    file = authentication_configuration(NOTHING, authorities_pem="PEM", discovery_url="https://inside.example/doc")
    assert file == {
        "apiVersion": "apiserver.config.k8s.io/v1",
        "kind": "AuthenticationConfiguration",
        "jwt": [
            {
                "issuer": {
                    "url": ISSUER,
                    "discoveryURL": "https://inside.example/doc",
                    "audiences": ["prod"],
                    "certificateAuthority": "PEM",
                },
                "claimMappings": {
                    "username": {"claim": "username", "prefix": ""},
                    "groups": {"claim": "groups", "prefix": ""},
                    "uid": {"claim": "uid"},
                    "extra": [
                        {"key": "ostiary.dev/issuer", "valueExpression": "claims.iss"},
                        {"key": "ostiary.dev/session", "valueExpression": "claims.sid"},
                    ],
                },
                "userValidationRules": [
                    {
                        "expression": "!user.username.startsWith('system:')",
                        "message": "the issuer must not name users of the system",
                    },
                    {
                        "expression": "user.groups.all(group, !group.startsWith('system:'))",
                        "message": "the issuer must not name groups of the system",
                    },
                ],
            }
        ],
    }


def test_several_audiences_need_a_match_policy() -> None:
    jwt = authentication_configuration(RevokedCredentials(ISSUER, ("a", "b")))["jwt"]
    assert isinstance(jwt, list)
    assert isinstance(jwt[0], dict)
    assert jwt[0]["issuer"] == {"url": ISSUER, "audiences": ["a", "b"], "audienceMatchPolicy": "MatchAny"}


def test_other_issuers_and_settings_of_the_base_stay_and_an_earlier_entry_of_ours_is_replaced() -> None:
    other: dict[str, Json] = {"issuer": {"url": "https://other.example", "audiences": ["x"]}}
    ours_before: dict[str, Json] = {"issuer": {"url": ISSUER, "audiences": ["old"]}}
    base: dict[str, Json] = {
        "apiVersion": "apiserver.config.k8s.io/v1",
        "kind": "AuthenticationConfiguration",
        "anonymous": {"enabled": False},
        "jwt": [ours_before, other],
    }
    before = json.dumps(base)
    file = authentication_configuration(NOTHING, base=base)
    assert file["anonymous"] == {"enabled": False}
    jwt = file["jwt"]
    assert isinstance(jwt, list)
    assert jwt[0] == other
    assert isinstance(jwt[1], dict)
    assert jwt[1]["issuer"] == {"url": ISSUER, "audiences": ["prod"]}
    assert len(jwt) == 2
    assert json.dumps(base) == before


def test_what_is_revoked_becomes_conditions_on_the_claims() -> None:
    revoked = RevokedCredentials(
        ISSUER,
        ("prod",),
        credential_ids=("aa", "bb"),
        sessions=("cc",),
        subjects=(
            RevokedSubject(username='an"n', sequence=7),
            RevokedSubject(group="dev", sequence=8),
            RevokedSubject(sequence=9, began_until=1000),
            RevokedSubject(username="bob", began_until=1000),
            RevokedSubject(username="eve", issued_until=2000),
        ),
    )
    assert deny_expressions(revoked) == [
        '!(claims.jti in ["aa", "bb"])',
        '!(claims.sid in ["cc"])',
        '!((claims.username == "an\\"n" && int(claims.sequence) < 7)'
        ' || ("dev" in claims.groups && int(claims.sequence) < 8)'
        " || (int(claims.sequence) < 9 && int(claims.auth_time) <= 1000)"
        ' || (claims.username == "bob" && int(claims.auth_time) <= 1000)'
        ' || (claims.username == "eve" && int(claims.iat) <= 2000))',
    ]
    assert deny_expressions(NOTHING) == []


def test_a_revocation_of_everything_denies_everything() -> None:
    assert deny_expressions(RevokedCredentials(ISSUER, ("prod",), subjects=(RevokedSubject(),))) == ["!(true)"]


def test_too_many_revocations_are_one_condition_on_the_time() -> None:
    assert deny_expressions(RevokedCredentials(ISSUER, ("prod",), issued_until=123)) == ["int(claims.iat) > 123"]


def test_a_long_list_is_divided_so_that_each_expression_can_be_parsed() -> None:
    ids = tuple(f"{number:064x}" for number in range(5000))
    expressions = deny_expressions(RevokedCredentials(ISSUER, ("prod",), credential_ids=ids))
    assert len(expressions) == 6
    assert all(len(expression) <= LONGEST_EXPRESSION + 100 for expression in expressions)
    assert all(any(f'"{each}"' in expression for expression in expressions) for each in ids)


@pytest.mark.parametrize(
    ("text", "literal"),
    [
        ("plain", '"plain"'),
        ('"] || true || ["', '"\\"] || true || [\\""'),
        ("back\\slash", '"back\\\\slash"'),
        ("line\nbreak\x00", '"line\\u000abreak\\u0000"'),
        ("ä\U0001f600", '"\\u00e4\\U0001f600"'),
    ],
)
def test_no_name_can_end_its_literal(text: str, literal: str) -> None:
    assert cel_text(text) == literal


def test_the_webhook_is_asked_about_our_users_alone_and_nothing_of_it_is_kept() -> None:
    file = authorization_configuration(ISSUER, kubeconfig="/etc/hook", failure_policy="NoOpinion")
    authorizers = file["authorizers"]
    assert isinstance(authorizers, list)
    first = authorizers[0]
    assert isinstance(first, dict)
    hook = first["webhook"]
    assert isinstance(hook, dict)
    assert (first["type"], hook["failurePolicy"]) == ("Webhook", "NoOpinion")
    assert hook["cacheAuthorizedRequests"] is hook["cacheUnauthorizedRequests"] is False
    assert hook["connectionInfo"] == {"type": "KubeConfigFile", "kubeConfigFile": "/etc/hook"}
    assert hook["matchConditions"] == [
        {"expression": 'has(request.extra) && "ostiary.dev/issuer" in request.extra'},
        {"expression": '"https://gateway.example" in request.extra["ostiary.dev/issuer"]'},
    ]
    assert [each["type"] for each in authorizers if isinstance(each, dict)] == ["Webhook", "Node", "RBAC"]


def test_it_is_yaml_that_go_reads_alike() -> None:
    assert "cacheAuthorizedRequests: false" in dump(
        authorization_configuration(ISSUER, kubeconfig="x", failure_policy="Deny")
    )
