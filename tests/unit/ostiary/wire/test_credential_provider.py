"""What a credential provider is asked, to the byte, and what it may answer."""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostiary.errors import ConfigurationError
from ostiary.model import Secret
from ostiary.wire.credential_provider import (
    API_VERSIONS,
    V1,
    V1ALPHA1,
    V1BETA1,
    BasicAuth,
    CacheKeyType,
    ProviderDialect,
    Request,
    Response,
    ResponseRefused,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    refusals,
)

CANARY = "c4n4ry-c4n4ry-c4n4ry"
IMAGE = "test.registry.io/foobar"
NOW = datetime(2026, 1, 1, tzinfo=UTC)
TOKEN = Secret("service-account-token")
PROPOSED = Request(IMAGE, dialect=ProviderDialect.PROPOSAL)
ENTRY = {"username": "user", "password": CANARY}


# --- to the provider ---


@pytest.mark.parametrize("version", API_VERSIONS)
def test_the_request_is_one_line_of_json(version: str) -> None:
    """Test_encodeRequest. I20."""
    assert encode_request(Request(IMAGE, version)) == (
        b'{"kind":"CredentialProviderRequest","apiVersion":"%s","image":"test.registry.io/foobar"}\n' % version.encode()
    )


def test_v1_tells_of_the_service_account() -> None:
    """Test_encodeRequest. I33."""
    request = Request(
        IMAGE,
        service_account_token=TOKEN,
        service_account_annotations={"domain.io/annotation1": "value1"},
    )
    assert encode_request(request) == (
        b'{"kind":"CredentialProviderRequest","apiVersion":"credentialprovider.kubelet.k8s.io/v1",'
        b'"image":"test.registry.io/foobar","serviceAccountToken":"service-account-token",'
        b'"serviceAccountAnnotations":{"domain.io/annotation1":"value1"}}\n'
    )


def test_annotations_are_sorted_as_go_sorts_a_map() -> None:
    request = Request(IMAGE, service_account_annotations={"b": "2", "a": "1", "B": "3"})
    assert encode_request(request).endswith(b'"serviceAccountAnnotations":{"B":"3","a":"1","b":"2"}}\n')


@pytest.mark.parametrize("version", [V1ALPHA1, V1BETA1])
def test_before_v1_nothing_is_told_of_the_service_account(version: str) -> None:
    request = Request(IMAGE, version, service_account_token=TOKEN, service_account_annotations={"a": "1"})
    assert encode_request(request) == encode_request(Request(IMAGE, version))


def test_an_empty_token_and_no_annotations_are_left_out() -> None:
    assert encode_request(Request(IMAGE, service_account_token=Secret(""))) == encode_request(Request(IMAGE))


def test_the_proposals_request_has_the_image_and_nothing_else() -> None:
    """I20."""
    assert encode_request(PROPOSED) == b'{"image":"test.registry.io/foobar"}\n'


def test_a_request_does_not_show_its_token() -> None:
    assert TOKEN.reveal() not in repr(Request(IMAGE, service_account_token=TOKEN))


# --- the same, as the provider reads it ---


@pytest.mark.parametrize("version", API_VERSIONS)
def test_a_provider_reads_what_the_kubelet_wrote(version: str) -> None:
    request = Request(IMAGE, version)
    assert decode_request(encode_request(request)) == request


def test_a_provider_reads_the_service_account() -> None:
    request = Request(IMAGE, service_account_token=TOKEN, service_account_annotations={"a": "1"})
    assert decode_request(encode_request(request)) == request


def test_a_provider_passes_over_fields_of_later_versions() -> None:
    stdin = b'{"kind":"CredentialProviderRequest","apiVersion":"%s","image":"a","later":{}}' % V1.encode()
    assert decode_request(stdin) == Request("a")


def test_a_provider_refuses_a_request_that_it_cannot_understand(subtests: pytest.Subtests) -> None:
    cases: list[dict[str, Any]] = [
        {"kind": "Other"},
        {"kind": None},
        {"apiVersion": "credentialprovider.kubelet.k8s.io/v9"},
        {"apiVersion": []},
        {"image": ""},
        {"image": 5},
        {"serviceAccountToken": [CANARY]},
        {"serviceAccountAnnotations": {"a": 1}},
        {"serviceAccountAnnotations": [CANARY]},
    ]
    for change in cases:
        with subtests.test(change=change):
            fields = {"kind": "CredentialProviderRequest", "apiVersion": V1, "image": IMAGE, **change}
            with pytest.raises(ConfigurationError) as caught:
                decode_request(json.dumps(fields).encode())
            assert caught.value.code == "credential-provider-request-invalid"
            assert CANARY not in str(caught.value)


def test_a_provider_refuses_what_is_no_json_object(subtests: pytest.Subtests) -> None:
    for stdin in [b"", b"image: a", b"[]", b"\xff", b"{} {}", b"[" * 100_000]:
        with subtests.test(stdin=stdin):
            with pytest.raises(ConfigurationError) as caught:
                decode_request(stdin)
            assert caught.value.hint


# --- from the provider ---


def answer(**changes: Any) -> bytes:
    """A good answer with some *changes*; None takes a field out."""
    fields = {
        "kind": "CredentialProviderResponse",
        "apiVersion": V1,
        "cacheKeyType": "Registry",
        "cacheDuration": "1m",
        "auth": {"*.registry.io": ENTRY},
        **changes,
    }
    return json.dumps({name: value for name, value in fields.items() if value is not None}).encode()


def decode(stdout: bytes, request: Request | None = None) -> Response:
    return decode_response(stdout, request or Request(IMAGE), now=NOW)


def refused(stdout: bytes, request: Request | None = None) -> ResponseRefused:
    with pytest.raises(ResponseRefused) as caught:
        decode(stdout, request)
    error = caught.value
    assert CANARY not in str(error) + error.hint
    assert error.hint
    assert error.__cause__ is None
    assert error.__context__ is None
    first = next(refusals(stdout, request or Request(IMAGE)))
    assert (first.cause, first.rule, first.code) == (error.cause, error.rule, error.code)
    return error


@pytest.mark.parametrize("version", API_VERSIONS)
def test_an_answer_is_read_in_every_version(version: str) -> None:
    """Test_decodeResponse."""
    response = decode(answer(apiVersion=version), Request(IMAGE, version))
    assert response == Response(
        CacheKeyType.REGISTRY,
        timedelta(minutes=1),
        {"*.registry.io": BasicAuth("user", Secret(CANARY))},
    )
    assert CANARY not in repr(response)


def test_an_answer_of_another_kind_is_refused() -> None:
    """Test_decodeResponse."""
    for kind in ("WrongKind", None, 5):
        error = refused(answer(kind=kind))
        assert (error.rule, error.code) == ("kind", "credential-provider-answer-version")


@pytest.mark.parametrize(
    ("version", "shown"),
    [
        ("foobar.kubelet.k8s.io/v1beta1", "another one"),
        (V1BETA1, V1BETA1),
        (CANARY, "another one"),
        (None, "none"),
    ],
)
def test_an_answer_in_another_version_is_refused(version: str | None, shown: str) -> None:
    """Test_decodeResponse. I38."""
    error = refused(answer(apiVersion=version))
    expected = f"did not match expected apiVersion {V1}, actual apiVersion {shown}"
    assert error.cause.endswith(expected)
    assert error.code == "credential-provider-answer-version"


def test_stdout_must_hold_one_json_object_and_nothing_else(subtests: pytest.Subtests) -> None:
    """YAML is refused too."""
    cases = [
        b"",
        b" \n",
        f"kind: CredentialProviderResponse\npassword: {CANARY}".encode(),
        f'debug: {CANARY}\n{{"kind": 1}}'.encode(),
        answer() + answer(),
        answer() + CANARY.encode(),
        b"[" + answer() + b"]",
        f'"{CANARY}"'.encode(),
        b"null",
        b"\xef\xbb\xbf" + answer(),
        b"\xff" + CANARY.encode(),
        answer()[:-1],
        b'{"a": NaN}',
        b'{"a":' * 100_000,
        b'{"a": ' + b"9" * 10_000 + b"}",
    ]
    for stdout in cases:
        with subtests.test(stdout=stdout):
            error = refused(stdout)
            assert (error.rule, error.code) == ("one-object-on-stdout", "credential-provider-answer-undecodable")


def test_decoding_is_strict(subtests: pytest.Subtests) -> None:
    """Unknown, repeated and otherwise spelled fields are refused, and not quoted."""
    cases = [
        (answer(**{CANARY: 1}), "known-fields"),
        (answer(CacheKeyType="Image"), "known-fields"),
        (answer(auth={"a": {**ENTRY, CANARY: 1}}), "known-fields"),
        (answer(auth={"a": {"Username": "user"}}), "known-fields"),
        (answer().replace(b'"cacheKeyType"', b'"cacheKeyType": "Image", "cacheKeyType"'), "fields-once"),
        (answer().replace(b'"username"', b'"username": "a", "username"'), "fields-once"),
        (answer().replace(b'"*.registry.io"', b'"*.registry.io": null, "*.registry.io"'), "fields-once"),
    ]
    for stdout, rule in cases:
        with subtests.test(stdout=stdout, rule=rule):
            assert refused(stdout).rule == rule


@pytest.mark.parametrize("key_type", ["Image", "Registry", "Global"])
def test_there_are_three_types_of_cache_keys(key_type: str) -> None:
    assert decode(answer(cacheKeyType=key_type)).cache_key_type is CacheKeyType(key_type)


def test_any_other_type_of_cache_key_leaves_the_whole_answer_unused(subtests: pytest.Subtests) -> None:
    cases: list[Any] = ["", None, "image", "ServiceAccount", CANARY, 1, ["Image"]]
    for key_type in cases:
        with subtests.test(key_type=key_type):
            error = refused(answer(cacheKeyType=key_type))
            assert error.rule == "cache-key-type"
            assert "Image, Registry, Global" in error.hint


def test_a_duration_is_optional_and_may_be_nothing_or_negative(subtests: pytest.Subtests) -> None:
    """Without one the configured default counts."""
    cases: list[tuple[str | None, timedelta | None]] = [
        (None, None),
        ("0", timedelta(0)),
        ("0s", timedelta(0)),
        ("12h", timedelta(hours=12)),
        ("-1s", timedelta(seconds=-1)),
        ("21.6µs", timedelta(microseconds=22)),
    ]
    for duration, expected in cases:
        with subtests.test(duration=duration, expected=expected):
            assert decode(answer(cacheDuration=duration)).cache_duration == expected


def test_what_is_no_duration_is_refused(subtests: pytest.Subtests) -> None:
    cases: list[Any] = ["", "5", "1d", CANARY, 60, True, {"a": CANARY}]
    for duration in cases:
        with subtests.test(duration=duration):
            assert refused(answer(cacheDuration=duration)).rule == "cache-duration"


@pytest.mark.parametrize("auth", [None, {}])
def test_no_credentials_are_an_answer_too(auth: Any) -> None:
    assert decode(answer(auth=auth)).auth == {}


def test_null_counts_as_absent() -> None:
    """As for Go's decoder."""
    stdout = b'{"kind":"CredentialProviderResponse","apiVersion":"%s","cacheKeyType":"Image"' % V1.encode()
    assert decode(stdout + b',"auth":null,"cacheDuration":null}') == Response(CacheKeyType.IMAGE)


@pytest.mark.parametrize("entry", [{"username": "", "password": ""}, {}, None, {"username": None}])
def test_username_and_password_may_be_empty(entry: Any) -> None:
    assert decode(answer(auth={"*.azurecr.io": entry})).auth == {"*.azurecr.io": BasicAuth("", Secret(""))}


def test_auth_maps_patterns_to_a_username_and_a_password(subtests: pytest.Subtests) -> None:
    """There is nothing but username and password."""
    cases: list[tuple[Any, str]] = [
        ([ENTRY], "auth-shape"),
        (CANARY, "auth-shape"),
        ({"a": CANARY}, "auth-shape"),
        ({"a": [CANARY]}, "auth-shape"),
        ({"a": {"username": 5}}, "field-types"),
        ({"a": {"password": [CANARY]}}, "field-types"),
        ({"a": {**ENTRY, "identitytoken": CANARY}}, "known-fields"),
    ]
    for auth, rule in cases:
        with subtests.test(auth=auth, rule=rule):
            assert refused(answer(auth=auth)).rule == rule


def test_text_that_is_no_text_is_read_as_by_go() -> None:
    """Halves of surrogate pairs and bytes that are not UTF-8 become replacement characters, one each."""
    auth = decode(answer(auth={"\udfff": {"username": "\ud800u", "password": "p"}})).auth
    assert auth == {"\ufffd": BasicAuth("\ufffdu", Secret("p"))}
    raw = answer(auth={"a": {"username": "RAW"}}).replace(b"RAW", b"\xe2\x82")
    assert decode(raw).auth["a"].username == "\ufffd\ufffd"


def test_keys_are_kept_as_they_were_printed_and_in_their_order() -> None:
    """A key may be any text, also one that no pattern of the provider would match."""
    keys = ["https://quay.io/v1/", "%invalid%", "other.registry.io", "*"]
    assert list(decode(answer(auth=dict.fromkeys(keys, ENTRY))).auth) == keys


def test_an_answer_knows_whether_it_gives_the_token_back() -> None:
    response = decode(answer(auth={"a": ENTRY, "b": {"username": "", "password": TOKEN.reveal()}}))
    assert response.gives_back(TOKEN)
    assert not response.gives_back(Secret("other"))


def test_all_broken_rules_are_told_and_not_only_the_first() -> None:
    stdout = answer(apiVersion="x", kind="y", more=1, cacheKeyType="z", cacheDuration=5, auth=[])
    found = [refusal.rule for refusal in refusals(stdout, Request(IMAGE))]
    assert found == ["api-version", "kind", "known-fields", "cache-key-type", "cache-duration", "auth-shape"]


def test_a_good_answer_breaks_no_rule() -> None:
    assert list(refusals(answer(), Request(IMAGE))) == []


@settings(deadline=None)
@given(
    st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), st.sampled_from(["", "p", "<&>"]), max_size=3),
    st.none() | st.timedeltas(min_value=timedelta(days=-900), max_value=timedelta(days=900)),
    st.sampled_from(CacheKeyType),
    st.sampled_from(API_VERSIONS),
)
def test_what_a_provider_writes_is_read_back(
    passwords: dict[str, str], duration: timedelta | None, key_type: CacheKeyType, version: str
) -> None:
    response = Response(key_type, duration, {key: BasicAuth(key, Secret(text)) for key, text in passwords.items()})
    stdout = encode_response(response, api_version=version)
    assert stdout.endswith(b"\n")
    assert decode(stdout, Request(IMAGE, version)) == response


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.just("1m") | st.just("Image"),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(), children, max_size=3),
    max_leaves=8,
)


@settings(deadline=None)
@given(
    st.binary()
    | st.dictionaries(st.sampled_from(["kind", "auth", "cacheDuration", "x"]), JSON).map(
        lambda changes: answer(**changes)
    ),
    st.sampled_from([Request(IMAGE), PROPOSED]),
)
def test_any_output_is_an_answer_or_refused(stdout: bytes, request: Request) -> None:
    broken = list(refusals(stdout, request))
    with suppress(ResponseRefused):
        decode(stdout, request)
        assert not broken
        return
    assert broken


# --- the proposal's dialect ---


def proposed(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def test_the_proposals_answer_is_for_the_image_and_until_its_expiry() -> None:
    """I21, I22."""
    stdout = proposed(username="user", password="pw", expirationTimestamp="2026-01-01T12:00:00Z")
    expected = Response(CacheKeyType.IMAGE, timedelta(hours=12), {IMAGE: BasicAuth("user", Secret("pw"))})
    assert decode(stdout, PROPOSED) == expected


def test_the_proposals_expiry_becomes_a_duration_that_is_never_negative(subtests: pytest.Subtests) -> None:
    """Without one nothing is cached. I22."""
    cases: list[tuple[str | None, timedelta]] = [
        (None, timedelta(0)),
        ("2026-01-01T00:00:00Z", timedelta(0)),
        ("2025-12-31T23:59:59Z", timedelta(0)),
        ("2026-01-01T01:00:00+01:00", timedelta(0)),
        ("2026-01-01T00:00:00-01:00", timedelta(hours=1)),
        ("2026-01-01T00:00:01.5Z", timedelta(seconds=1.5)),
        ("2026-01-01T00:00:01.123456789Z", timedelta(seconds=1, microseconds=123456)),
        ("9999-12-31T23:59:59-23:59", datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC) - NOW + timedelta(minutes=1439)),
    ]
    for expiry, duration in cases:
        with subtests.test(expiry=expiry, duration=duration):
            stdout = proposed(username="user", password="pw", expirationTimestamp=expiry)
            assert decode(stdout, PROPOSED).cache_duration == duration


def test_the_proposals_answer_may_name_any_kind_and_hold_other_fields() -> None:
    stdout = proposed(kind="RegistryCredentialPluginResponse", apiVersion="v1alpha1", username="u", password="p", x=1)
    assert IMAGE in decode(stdout, PROPOSED).auth


@pytest.mark.parametrize("fields", [{}, {"username": "", "password": ""}, {"username": None}])
def test_the_proposals_answer_without_a_credential_is_empty(fields: dict[str, Any]) -> None:
    assert decode(proposed(**fields), PROPOSED).auth == {}


@pytest.mark.parametrize(("image", "key"), [("quay.io/v1/app", "quay.io"), ("quay.io/v1", "quay.io/v1"), ("a", "a")])
def test_the_proposals_credential_is_never_lost_to_the_version_of_the_registrys_api(image: str, key: str) -> None:
    """The kubelet strips v1/ and v2/ off a key, and with them the beginning of such an image's path."""
    response = decode(proposed(username="u", password="p"), Request(image, dialect=ProviderDialect.PROPOSAL))
    assert list(response.auth) == [key]


def test_the_proposals_answer_is_checked(subtests: pytest.Subtests) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"username": 5}, "field-types"),
        ({"password": [CANARY]}, "field-types"),
        ({"expirationTimestamp": CANARY}, "expiration-timestamp"),
        ({"expirationTimestamp": 1767225600}, "expiration-timestamp"),
        ({"expirationTimestamp": "2026-01-01T00:00:00"}, "expiration-timestamp"),
        ({"expirationTimestamp": "2026-01-01 00:00:00Z"}, "expiration-timestamp"),
        ({"expirationTimestamp": "2026-13-01T00:00:00Z"}, "expiration-timestamp"),
        ({"auth": {"a": ENTRY}}, "api-version"),
    ]
    for fields, rule in cases:
        with subtests.test(fields=fields, rule=rule):
            assert refused(proposed(**fields), PROPOSED).rule == rule


def test_a_repeated_field_in_the_proposals_answer_is_refused() -> None:
    assert refused(b'{"password":"a","password":"b"}', PROPOSED).rule == "fields-once"
