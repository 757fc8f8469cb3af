"""What a plugin is told, read back; and what it answers, written: nothing is lost on the way."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import fields
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ostiary.errors import ConfigurationError
from ostiary.kubeconfig import Cluster
from ostiary.model import Secret
from ostiary.wire.client_authentication import (
    API_VERSIONS,
    V1,
    V1ALPHA1,
    V1BETA1,
    AnswerRefused,
    ClusterInfo,
    ExecAnswer,
    ExecCredentialSpec,
    decode_answer,
    decode_info,
    encode_answer,
    encode_info,
    refusals,
)

CANARY = "c4n4ry-c4n4ry-c4n4ry"

# Go writes a whole number below 1e21 without an exponent. We read that as an integer, which above 2**53 is another
# number than the float that it came from.
FLOATS = st.floats(allow_nan=False, allow_infinity=False).filter(lambda number: not 2**53 < abs(number) < 1e21)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | FLOATS | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=6,
)
CLUSTERS = st.builds(
    ClusterInfo,
    server=st.text(),
    tls_server_name=st.text(),
    insecure_skip_tls_verify=st.booleans(),
    certificate_authority_data=st.binary(),
    proxy_url=st.text(),
    disable_compression=st.booleans(),
    config=JSON,
)
REJECTIONS = st.tuples(st.integers(100, 599), st.dictionaries(st.text(), st.lists(st.text()).map(tuple), max_size=3))
INFOS = st.one_of(
    st.builds(ExecCredentialSpec, st.sampled_from([V1, V1BETA1]), st.booleans(), st.none() | CLUSTERS),
    st.builds(
        ExecCredentialSpec,
        st.just(V1ALPHA1),
        st.booleans(),
        rejection=st.none() | REJECTIONS,
        as_proposed=st.booleans(),
    ),
)


# --- the info ---


@given(INFOS)
def test_an_info_that_is_written_and_read_is_the_same(info: ExecCredentialSpec) -> None:
    """TestConfigToExecClusterRoundtrip, TestExecClusterToConfigRoundtrip. E41."""
    assert decode_info(encode_info(info)) == info


@given(INFOS)
@example(ExecCredentialSpec(V1, False, ClusterInfo("https://c", config=-0.0)))
def test_an_info_that_is_read_and_written_is_the_same_to_the_byte(info: ExecCredentialSpec) -> None:
    text = encode_info(info)
    assert encode_info(decode_info(text)) == text


def test_every_field_of_the_cluster_is_told_and_read() -> None:
    full = ClusterInfo("https://c", "name", True, b"pem", "http://proxy", True, {"a": 1})
    assert all(getattr(full, field.name) for field in fields(ClusterInfo))
    info = decode_info(encode_info(ExecCredentialSpec(V1, True, full)))
    assert info.cluster == full


def test_the_told_cluster_has_the_fields_of_a_kubeconfigs_cluster() -> None:
    """TestClientAuthenticationClusterTypesAreSynced. E32."""
    told = {field.name for field in fields(ClusterInfo)}
    configured = {field.name for field in fields(Cluster)}
    ours = {"name", "place"}
    # The authority's file is told as data, and of all extensions one is told, as `config`.
    assert told == (configured - ours - {"certificate_authority", "exec_extension"}) | {"config"}


@pytest.mark.parametrize("version", API_VERSIONS)
def test_fields_that_other_clients_leave_out_mean_what_client_go_means(version: str) -> None:
    assert decode_info(json.dumps({"kind": "ExecCredential", "apiVersion": version})) == ExecCredentialSpec(
        version, False
    )


def test_the_example_of_the_proposal_is_read() -> None:
    """F7, F8, F9."""
    text = """{
        "kind":"ExecInfo",
        "apiVersion":"client.authentication.k8s.io/v1alpha1",
        "response": {"code": 401, "header": {"WWW-Authenticate": ["Bearer realm=\\"staging\\""]}},
        "interactive": true
    }"""
    info = decode_info(text)
    assert info == ExecCredentialSpec(
        V1ALPHA1, True, rejection=(401, {"WWW-Authenticate": ('Bearer realm="staging"',)}), as_proposed=True
    )


def test_the_address_of_a_proxy_and_the_extension_are_not_in_the_repr() -> None:
    info = ExecCredentialSpec(V1, False, ClusterInfo("https://c", proxy_url=f"http://u:{CANARY}@p", config=CANARY))
    assert CANARY not in repr(info)


def test_what_is_no_info_is_refused_with_its_reason(subtests: pytest.Subtests) -> None:
    """E37."""
    cases = [
        ("", "not JSON"),
        ("not json", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "not a JSON object"),
        ('{"kind": "ExecCredential"}', "apiVersion is not known"),
        ('{"kind": "ExecCredential", "apiVersion": "v1"}', "apiVersion is not known"),
        (f'{{"kind": "Pod", "apiVersion": "{V1}"}}', "not of kind ExecCredential"),
        (f'{{"kind": "ExecInfo", "apiVersion": "{V1}"}}', "not of kind ExecCredential"),
        (f'{{"kind": "ExecCredential", "apiVersion": "{V1}", "spec": []}}', "spec is not an object"),
    ]
    for text, cause in cases:
        with subtests.test(text=text, cause=cause):
            with pytest.raises(ConfigurationError) as caught:
                decode_info(text)
            assert cause in str(caught.value.cause)
            assert caught.value.code == "exec-info-missing"
            assert caught.value.hint


def test_fields_of_another_type_are_refused_and_not_quoted(subtests: pytest.Subtests) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"interactive": "true"}, "interactive is not true or false"),
        ({"cluster": "c"}, "cluster is not an object"),
        ({"cluster": {"server": 1}}, "server is not a string"),
        ({"cluster": {"certificate-authority-data": CANARY + "!"}}, "certificate-authority-data is not base64"),
        ({"response": {"code": True}}, "code is not a whole number"),
        ({"response": {"header": {"a": "b"}}}, "a is not a list"),
    ]
    for spec, cause in cases:
        with subtests.test(spec=spec, cause=cause):
            with pytest.raises(ConfigurationError) as caught:
                decode_info(json.dumps({"kind": "ExecCredential", "apiVersion": V1ALPHA1, "spec": spec}))
            assert caught.value.cause == cause
            assert CANARY not in str(caught.value)


@given(JSON | st.fixed_dictionaries({"kind": st.just("ExecCredential"), "apiVersion": st.just(V1), "spec": JSON}))
def test_whatever_a_client_sets_is_read_or_refused(value: Any) -> None:
    with suppress(ConfigurationError):
        decode_info(json.dumps(value))


# --- the answer ---

TOKENS = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1).map(Secret)
SECONDS = st.datetimes(datetime(1971, 1, 1), datetime(9998, 12, 31), timezones=st.just(UTC)).map(
    lambda moment: moment.replace(microsecond=0)
)
ANSWERS = st.builds(
    ExecAnswer, TOKENS, certificate_pem=st.just("c"), key_pem=st.just(Secret("k")), expires_at=st.none() | SECONDS
) | st.builds(ExecAnswer, TOKENS, certificate_pem=st.none(), key_pem=st.none(), expires_at=st.none() | SECONDS)


@given(ANSWERS, st.sampled_from(API_VERSIONS))
def test_an_answer_that_is_written_and_read_is_the_same(answer: ExecAnswer, version: str) -> None:
    assert decode_answer(encode_answer(answer, api_version=version).encode(), api_version=version) == answer


@given(ANSWERS)
def test_an_answer_in_the_words_of_the_proposal_is_the_same(answer: ExecAnswer) -> None:
    """F5, F22."""
    text = encode_answer(answer, api_version=V1ALPHA1, as_proposed=True)
    assert json.loads(text)["kind"] == "ExecCredentials"
    assert decode_answer(text.encode(), api_version=V1ALPHA1) == answer


@pytest.mark.parametrize(
    ("moment", "written"),
    [
        (datetime(2030, 1, 31, 12, 0, 0, 999_999, tzinfo=UTC), "2030-01-31T12:00:00Z"),
        (datetime(2030, 1, 31, 12, tzinfo=timezone(timedelta(hours=2))), "2030-01-31T10:00:00Z"),
        (datetime(9999, 12, 31, 23, 59, 59, tzinfo=timezone(timedelta(hours=-5))), "9999-12-31T23:59:59-05:00"),
    ],
)
def test_the_expiry_is_written_in_whole_seconds_of_utc(moment: datetime, written: str) -> None:
    text = encode_answer(ExecAnswer(Secret("t"), None, None, moment), api_version=V1)
    assert json.loads(text)["status"] == {"expirationTimestamp": written, "token": "t"}


# --- every rule that an answer breaks ---

FIELD_VALUES: st.SearchStrategy[Any] = st.sampled_from([None, "", "x", "x y", 5, [], "2030-01-01T00:00:00Z"]) | JSON
STATUSES = JSON | st.dictionaries(
    st.sampled_from(["token", "clientCertificateData", "clientKeyData", "expirationTimestamp"]), FIELD_VALUES
)
OBJECTS = st.fixed_dictionaries(
    {},
    optional={
        "kind": st.sampled_from(["ExecCredential", "ExecCredentials", "Pod", None, 5]),
        "apiVersion": st.sampled_from([V1, V1BETA1, V1ALPHA1, "v1", None, 5]),
        "status": STATUSES,
        "token": FIELD_VALUES,
        "expiry": FIELD_VALUES,
    },
)


@given(OBJECTS.map(lambda found: json.dumps(found).encode()) | st.binary(max_size=50), st.sampled_from(API_VERSIONS))
@example(b"", V1)
def test_the_first_broken_rule_is_the_one_that_the_decoder_refuses(stdout: bytes, version: str) -> None:
    broken = [refused.rule for refused in refusals(stdout, api_version=version)]
    assert broken[:1] == first_refusal(stdout, version)


def first_refusal(stdout: bytes, version: str) -> list[str]:
    try:
        decode_answer(stdout, api_version=version)
    except AnswerRefused as refused:
        return [refused.rule]
    return []


def test_all_broken_rules_are_told_and_not_only_the_first() -> None:
    stdout = json.dumps({"kind": "Pod", "apiVersion": "v1", "status": {"token": "a b", "clientKeyData": "k"}}).encode()
    assert [refused.rule for refused in refusals(stdout, api_version=V1)] == [
        "kind",
        "api-version",
        "certificate-and-key",
        "token-is-header-safe",
    ]
