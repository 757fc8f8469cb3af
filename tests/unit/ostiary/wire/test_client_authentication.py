"""What a plugin is told, to the byte, and what it may answer."""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostiary.wire.client_authentication import (
    API_VERSIONS,
    V1,
    V1ALPHA1,
    V1BETA1,
    AnswerRefused,
    ClusterInfo,
    ExecCredentialSpec,
    decode_answer,
    encode_info,
)

CANARY = "c4n4ry-c4n4ry-c4n4ry"


# --- to the plugin ---


@pytest.mark.parametrize("version", [V1, V1BETA1])
@pytest.mark.parametrize("interactive", [True, False])
def test_the_info_is_compact_ordered_and_ends_with_a_newline(version: str, interactive: bool) -> None:
    """E28."""
    said = "true" if interactive else "false"
    expected = f'{{"kind":"ExecCredential","apiVersion":"{version}","spec":{{"interactive":{said}}}}}\n'
    assert encode_info(ExecCredentialSpec(version, interactive)) == expected


def test_the_cluster_stands_before_interactive_and_omits_what_is_empty_except_server_and_config() -> None:
    info = ExecCredentialSpec(V1, False, ClusterInfo(server="https://c"))
    assert encode_info(info) == (
        '{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1",'
        '"spec":{"cluster":{"server":"https://c","config":null},"interactive":false}}\n'
    )


def test_the_whole_cluster_is_told_in_client_gos_order_and_the_extension_with_sorted_keys() -> None:
    """E30, E34."""
    cluster = ClusterInfo(
        server="https://c/prefix",
        tls_server_name="name",
        insecure_skip_tls_verify=True,
        certificate_authority_data=b"pem",
        proxy_url="http://proxy:3128",
        disable_compression=True,
        config={"z": 1, "a": [True, None, {"y": 2, "x": 1}]},
    )
    assert encode_info(ExecCredentialSpec(V1BETA1, True, cluster)) == (
        '{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1beta1","spec":{"cluster":{'
        '"server":"https://c/prefix","tls-server-name":"name","insecure-skip-tls-verify":true,'
        '"certificate-authority-data":"cGVt","proxy-url":"http://proxy:3128","disable-compression":true,'
        '"config":{"a":[true,null,{"x":1,"y":2}],"z":1}},"interactive":true}}\n'
    )


def test_strings_are_escaped_as_go_escapes_them() -> None:
    text = encode_info(ExecCredentialSpec(V1, False, ClusterInfo(server="https://c", config="<a>&\u2028é")))
    assert r'"config":"\u003ca\u003e\u0026\u2028é"' in text


def test_v1alpha1_leaves_interactive_out_when_false_and_never_tells_the_cluster() -> None:
    """E35."""
    assert encode_info(ExecCredentialSpec(V1ALPHA1, False, ClusterInfo(server="https://c"))) == (
        '{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1alpha1","spec":{}}\n'
    )


def test_v1alpha1_is_told_the_response_that_rejected_it() -> None:
    """F7."""
    info = ExecCredentialSpec(V1ALPHA1, True, rejection=(401, {"Www-Authenticate": ["Bearer realm"]}))
    assert json.loads(encode_info(info))["spec"] == {
        "response": {"header": {"Www-Authenticate": ["Bearer realm"]}, "code": 401},
        "interactive": True,
    }


def test_the_proposals_dialect_is_flat() -> None:
    """F7, F8, F9."""
    info = ExecCredentialSpec(V1ALPHA1, True, rejection=(401, {}), as_proposed=True)
    assert json.loads(encode_info(info)) == {
        "kind": "ExecInfo",
        "apiVersion": V1ALPHA1,
        "response": {"header": {}, "code": 401},
        "interactive": True,
    }


# --- from the plugin ---


def answer(status: Any = None, **top: Any) -> bytes:
    fields = {"kind": "ExecCredential", "apiVersion": V1, "status": status, **top}
    return json.dumps({name: value for name, value in fields.items() if value is not None}).encode()


def refused(stdout: bytes, version: str = V1) -> AnswerRefused:
    with pytest.raises(AnswerRefused) as caught:
        decode_answer(stdout, api_version=version)
    assert CANARY not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.hint
    return caught.value


@pytest.mark.parametrize("version", API_VERSIONS)
def test_a_token_is_taken_in_every_version(version: str) -> None:
    """E67."""
    found = decode_answer(answer({"token": "t"}, apiVersion=version), api_version=version)
    assert found.token is not None
    assert found.token.reveal() == "t"
    assert found.expires_at is None


@pytest.mark.parametrize("wrap", [b"%s", b"\n\n  %s \n", b"\xef\xbb\xbf%s"])
def test_white_space_and_a_byte_order_mark_are_accepted(wrap: bytes) -> None:
    assert decode_answer(wrap.replace(b"%s", answer({"token": "t"})), api_version=V1).token


def test_yaml_is_accepted_and_its_timestamps_stay_text() -> None:
    text = f"apiVersion: {V1}\nkind: ExecCredential\nstatus:\n  token: t\n  expirationTimestamp: 2030-01-01T00:00:00Z\n"
    assert decode_answer(text.encode(), api_version=V1).expires_at == datetime(2030, 1, 1, tzinfo=UTC)


def test_a_missing_kind_is_accepted_as_kubectl_does() -> None:
    assert decode_answer(answer({"token": "t"}, kind=""), api_version=V1).token


def test_unknown_fields_are_ignored_and_of_a_duplicate_key_the_last_wins() -> None:
    text = f'{{"apiVersion":"{V1}","more":1,"status":{{"x":2,"token":"first","token":"last"}}}}'
    found = decode_answer(text.encode(), api_version=V1)
    assert found.token is not None
    assert found.token.reveal() == "last"


def test_a_null_field_counts_as_absent() -> None:
    found = decode_answer(answer({"token": "t", "clientKeyData": None, "expirationTimestamp": None}), api_version=V1)
    assert (found.key_pem, found.expires_at) == (None, None)


def test_each_wrong_answer_breaks_its_own_rule_and_is_not_quoted(subtests: pytest.Subtests) -> None:
    """E42, E48, E53, F17."""
    cases = [
        (b"", "prints-an-answer", "exec-plugin-answer-undecodable"),
        (b" \n", "prints-an-answer", "exec-plugin-answer-undecodable"),
        (
            b"Logging in...\n" + answer({"token": CANARY}),
            "one-object-on-stdout",
            "exec-plugin-answer-undecodable",
        ),
        (answer({"token": CANARY}) + b"\nbye", "one-object-on-stdout", "exec-plugin-answer-undecodable"),
        (answer({"token": CANARY}) * 2, "one-object-on-stdout", "exec-plugin-answer-undecodable"),
        (b"[" + answer({"token": CANARY}) + b"]", "one-object-on-stdout", "exec-plugin-answer-undecodable"),
        (CANARY.encode(), "one-object-on-stdout", "exec-plugin-answer-undecodable"),
        (b'{"token": "' + CANARY.encode(), "one-object-on-stdout", "exec-plugin-answer-undecodable"),
        (b"\xff\xfe" + CANARY.encode(), "one-object-on-stdout", "exec-plugin-answer-undecodable"),
        (b'{"a":' * 100_000, "one-object-on-stdout", "exec-plugin-answer-undecodable"),
        (b"[" * 100_000, "one-object-on-stdout", "exec-plugin-answer-undecodable"),
        (answer({"token": CANARY}, apiVersion=""), "api-version", "exec-plugin-answer-version"),
        (answer({"token": CANARY}, apiVersion=V1BETA1), "api-version", "exec-plugin-answer-version"),
        (answer({"token": CANARY}, apiVersion=CANARY), "api-version", "exec-plugin-answer-version"),
        (answer({"token": CANARY}, kind=CANARY), "kind", "exec-plugin-answer-version"),
        (answer({"token": CANARY}, kind="ExecCredentials"), "kind", "exec-plugin-answer-version"),
        (answer(), "status", "exec-plugin-answer-invalid"),
        (answer("x"), "status", "exec-plugin-answer-invalid"),
        (answer({}), "has-credential", "exec-plugin-answer-invalid"),
        (answer({"Token": CANARY}), "has-credential", "exec-plugin-answer-invalid"),
        (answer({"token": 5}), "field-types", "exec-plugin-answer-invalid"),
        (
            answer({"token": "t", "clientCertificateData": "x"}),
            "certificate-and-key",
            "exec-plugin-answer-invalid",
        ),
        (
            answer({"token": "t", "clientKeyData": CANARY}),
            "certificate-and-key",
            "exec-plugin-answer-invalid",
        ),
        (answer({"token": CANARY + "\n"}), "token-is-header-safe", "exec-plugin-answer-invalid"),
        (answer({"token": CANARY + " x"}), "token-is-header-safe", "exec-plugin-answer-invalid"),
        (answer({"token": CANARY + "é"}), "token-is-header-safe", "exec-plugin-answer-invalid"),
    ]
    for stdout, rule, code in cases:
        with subtests.test(stdout=stdout, rule=rule, code=code):
            error = refused(stdout)
            assert (error.rule, error.code) == (rule, code)


def test_times_with_a_zone_are_read(subtests: pytest.Subtests) -> None:
    """E43."""
    cases: list[tuple[str, datetime]] = [
        ("2030-01-31T12:00:00Z", datetime(2030, 1, 31, 12, tzinfo=UTC)),
        ("2030-01-31T12:00:00.5Z", datetime(2030, 1, 31, 12, 0, 0, 500_000, tzinfo=UTC)),
        ("2030-01-31T12:00:00.123456789Z", datetime(2030, 1, 31, 12, 0, 0, 123_456, tzinfo=UTC)),
        ("2030-01-31T12:00:00+02:00", datetime(2030, 1, 31, 12, tzinfo=timezone(timedelta(hours=2)))),
        ("2030-01-31T12:00:00-00:30", datetime(2030, 1, 31, 12, 30, tzinfo=UTC)),
        ("2006-01-02T15:04:05Z", datetime(2006, 1, 2, 15, 4, 5, tzinfo=UTC)),
    ]
    for text, moment in cases:
        with subtests.test(text=text, moment=moment):
            assert (
                decode_answer(answer({"token": "t", "expirationTimestamp": text}), api_version=V1).expires_at == moment
            )


OTHER_TIMES = [
    "",
    "soon",
    1893456000,
    "2030-01-31T12:00:00",
    "2030-01-31t12:00:00z",
    "2030-01-31 12:00:00Z",
    "2030-13-31T12:00:00Z",
    "2030-01-31T12:00:00+2500",
    "2030-01-31T12:00:00+25:00",
    "2030-01-31T12:00:00Z\n",
    "٢٠٣٠-01-31T12:00:00Z",
]


def test_other_times_are_refused(subtests: pytest.Subtests) -> None:
    """E43."""
    for text in OTHER_TIMES:
        with subtests.test(text=text):
            assert refused(answer({"token": "t", "expirationTimestamp": text})).rule == "expiration-timestamp"


def test_the_proposals_answer_is_flat_and_counts_seconds_since_1970() -> None:
    """F5, F6."""
    stdout = json.dumps(
        {"kind": "ExecCredentials", "apiVersion": V1ALPHA1, "token": "t", "expiry": 1893456000}
    ).encode()
    found = decode_answer(stdout, api_version=V1ALPHA1)
    assert found.token is not None
    assert found.expires_at == datetime(2030, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("expiry", ["1893456000", 1.5, True, 10**30])
def test_the_proposals_expiry_must_be_a_time(expiry: Any) -> None:
    """F6."""
    stdout = json.dumps({"kind": "ExecCredentials", "apiVersion": V1ALPHA1, "token": "t", "expiry": expiry}).encode()
    assert refused(stdout, V1ALPHA1).rule == "expiration-timestamp"


@given(st.binary(max_size=200))
def test_whatever_a_plugin_prints_is_read_or_refused(stdout: bytes) -> None:
    with suppress(AnswerRefused):
        decode_answer(stdout, api_version=V1)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.sampled_from(["token", "clientCertificateData", "clientKeyData", "expirationTimestamp", "x"])


@given(st.dictionaries(FIELDS, JSON) | JSON, st.sampled_from([V1, V1BETA1, "v1", None]))
def test_whatever_stands_in_the_fields_is_read_or_refused(status: Any, version: Any) -> None:
    try:
        found = decode_answer(answer(status, apiVersion=version), api_version=V1)
    except AnswerRefused:
        return
    assert version == V1
    assert found.token is not None or (found.certificate_pem and found.key_pem)


@pytest.mark.parametrize("zero", ["0001-01-01T00:00:00Z", "0001-01-01T01:00:00+01:00", "0000-12-31T23:00:00-01:00"])
def test_gos_zero_time_means_that_the_credential_never_expires(zero: str) -> None:
    stdout = answer({"token": "t", "expirationTimestamp": zero})
    assert decode_answer(stdout, api_version=V1).expires_at is None


def test_the_spec_in_an_answer_is_not_used_and_its_types_are_checked(subtests: pytest.Subtests) -> None:
    cases: list[tuple[object, bool]] = [
        (None, True),
        ({}, True),
        ({"interactive": None, "cluster": None, "unknown": 5}, True),
        ({"cluster": {"server": "s", "config": {"any": 1}, "certificate-authority-data": "Q0E=\n"}}, True),
        (5, False),
        ([], False),
        ({"interactive": "yes"}, False),
        ({"cluster": "c"}, False),
        ({"cluster": {"server": 5}}, False),
        ({"cluster": {"certificate-authority-data": "%"}}, False),
    ]
    for spec, taken in cases:
        with subtests.test(spec=spec, taken=taken):
            stdout = answer({"token": "t"}, spec=spec)
            if taken:
                assert decode_answer(stdout, api_version=V1).token is not None
            else:
                assert refused(stdout).rule == "field-types"


def test_an_answer_in_utf_16_is_read() -> None:
    """It is what a redirection in PowerShell writes."""
    text = answer({"token": "t"}).decode()
    assert decode_answer(text.encode("utf-16"), api_version=V1).token is not None
