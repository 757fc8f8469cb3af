"""What is decided on and what is forwarded are the same text, or the request is refused."""

from __future__ import annotations

import posixpath
from urllib.parse import quote, unquote, unquote_to_bytes, urlsplit

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ostiary_gateway.interfaces.attributes import RequestLine
from ostiary_gateway.proxy.target import AmbiguousRequest, encoded_path, is_usually_encoded, split_target
from ostiary_gateway.wire.request_info import request_info

ORDINARY = [
    (b"/", "/", ""),
    (b"/healthz", "/healthz", ""),
    (b"/healthz?verbose", "/healthz", "verbose"),
    (b"/apis/", "/apis/", ""),
    (b"/api/v1/pods?", "/api/v1/pods", ""),
    (b"/api/v1/pods?limit=500&labelSelector=app%3Dweb", "/api/v1/pods", "limit=500&labelSelector=app%3Dweb"),
    (b"/api/v1/pods?labelSelector=a%2Fb%2525&x=//..%5c", "/api/v1/pods", "labelSelector=a%2Fb%2525&x=//..%5c"),
    (b'/search?q={"a":[1|2]}\\', "/search", 'q={"a":[1|2]}\\'),
    (
        b"/apis/rbac.authorization.k8s.io/v1/clusterroles/system:node",
        "/apis/rbac.authorization.k8s.io/v1/clusterroles/system:node",
        "",
    ),
    (
        b"/api/v1/namespaces/x/services/https:svc:443/proxy/",
        "/api/v1/namespaces/x/services/https:svc:443/proxy/",
        "",
    ),
    (b"/users/ann@example.com", "/users/ann@example.com", ""),
    (b"/a.b/..c/d../...", "/a.b/..c/d../...", ""),
    (b"/with%20space", "/with%20space", ""),
    (b"/%C3%A9", "/%C3%A9", ""),
    (b"/%c3%a9", "/%c3%a9", ""),
    (b"/system%3Anode", "/system%3Anode", ""),
    (b"/a%3Bb", "/a%3Bb", ""),
    (b"/100%25", "/100%25", ""),
    (b"/~ann/%7Eann", "/~ann/%7Eann", ""),
    (b"/who%3F%23", "/who%3F%23", ""),
]
REFUSED = [
    (b"", "not a path"),
    (b"api/v1", "not a path"),
    (b"*", "not a path"),
    (b"host:443", "not a path"),
    (b"//", "empty segment"),
    (b"//evil.example/x", "empty segment"),
    (b"/api/v1//pods", "empty segment"),
    (b"/api/v1/pods//", "empty segment"),
    (b"/api/v1/namespaces/x/services/s/proxy//a", "empty segment"),
    (b"/.", "dot segment"),
    (b"/..", "dot segment"),
    (b"/a/../b", "dot segment"),
    (b"/a/./b", "dot segment"),
    (b"/a/..?x", "dot segment"),
    (b"/a/../", "dot segment"),
    (b"/a/%2e%2e/b", "dot"),
    (b"/a/.%2E/b", "dot"),
    (b"/a/%2e/b", "dot"),
    (b"/a/..%2fb", "encoded slash"),
    (b"/a%2Fb", "encoded slash"),
    (b"/a%5cb", "backslash"),
    (b"/a\\b", "backslash"),
    (b"/a/..\\b", "backslash"),
    (b"/a%00", "control character"),
    (b"/a%0d%0aX:y", "control character"),
    (b"/a%7f", "control character"),
    (b"/a;b", "semicolon"),
    (b"/a/..;/b", "semicolon"),
    (b"/a#b", "fragment"),
    (b"/a?b#c", "query"),
    (b"/a b", "must be percent-encoded"),
    (b"/a\tb", "must be percent-encoded"),
    (b"/a\x00b", "must be percent-encoded"),
    (b"/\xc3\xa9", "must be percent-encoded"),
    (b'/a"b', "must be percent-encoded"),
    (b"/a[0]", "must be percent-encoded"),
    (b"/a{b}", "must be percent-encoded"),
    (b"/a%", "broken"),
    (b"/a%2", "broken"),
    (b"/a%zz", "broken"),
    (b"/a%u002f", "broken"),
    (b"/a%252fb", "twice"),
    (b"/%252e%252e/b", "twice"),
    (b"/a%2541", "twice"),
    (b"/%73ecrets", "in percent-encoding"),
    (b"/a%2Db", "in percent-encoding"),
    (b"/%ff", "not UTF-8"),
    (b"/%c0%af", "not UTF-8"),
    (b"/%ed%a0%80", "not UTF-8"),
    (b"/a?%", "query"),
    (b"/a?b=%zz", "query"),
    (b"/a?b=%00", "query"),
    (b"/a?b;watch=1", "query"),
    (b"/a?b c", "query"),
    (b"/a?\xff", "query"),
    (b"/a?\x00", "query"),
    (b"/a\n", "must be percent-encoded"),
    (b"/a?b\n", "query"),
]


def test_an_ordinary_target_is_taken_as_it_stands(subtests: pytest.Subtests) -> None:
    for target, path, query in ORDINARY:
        with subtests.test(target=target, path=path, query=query):
            assert split_target(target) == (path, query)


def test_what_two_programs_could_read_differently_is_refused(subtests: pytest.Subtests) -> None:
    """P1, P2."""
    for target, cause in REFUSED:
        with subtests.test(target=target, cause=cause), pytest.raises(AmbiguousRequest, match=cause):
            split_target(target)


def test_a_whole_url_is_taken_only_for_the_host_of_the_request() -> None:
    """P3: the names of hosts have no case."""
    assert split_target(b"https://Gate.Example:8443/api?x=1", host=b"gate.example:8443") == ("/api", "x=1")
    for target in (
        b"https://other.example/api",
        b"https://gate.example/api",
        b"https://a@gate.example:8443/api",
        b"https://gate.example:8443",
        b"https://gate.example:8443//api",
        b"https://gate.example:8443/https://gate.example:8443/..",
        b"ftp://gate.example:8443/api",
    ):
        with pytest.raises(AmbiguousRequest):
            split_target(target, host=b"gate.example:8443")
    with pytest.raises(AmbiguousRequest):
        split_target(b"https://gate.example/api")


def test_the_asterisk_is_for_options_only() -> None:
    assert split_target(b"*", options=True) == ("*", "")
    with pytest.raises(AmbiguousRequest):
        split_target(b"**", options=True)


def test_a_refusal_does_not_repeat_what_it_refuses() -> None:
    with pytest.raises(AmbiguousRequest) as raised:
        split_target(b"/canary-7f3a/%ff")
    assert "canary" not in str(raised.value)
    assert raised.value.__cause__ is None


SEGMENTS = st.text(st.sampled_from("ab.~-_:@!$&'()*+,=%/\\;?#\x00\xe9\u20ac 019"), min_size=0, max_size=12).map(
    lambda text: quote(text, safe=":@!$&'()*+,=")
)


@given(st.lists(SEGMENTS, max_size=6), st.booleans())
@settings(max_examples=200, deadline=None)
@example(["a", "..", "b"], False)
@example([".", "%2e"], True)
def test_nothing_that_is_accepted_changes_when_a_server_normalises_it(segments: list[str], slash: bool) -> None:
    """P1: nginx, Go and Python servers decode once and fold dots and slashes; none of it may matter."""
    target = "/" + "/".join(segments) + ("/" if slash else "")
    try:
        path, query = split_target(target.encode())
    except AmbiguousRequest:
        return
    assert (path, query) == (target, "")
    assert urlsplit(target).path == path
    decoded = unquote(path, errors="strict")
    for seen in (posixpath.normpath(decoded), unquote(posixpath.normpath(path)), posixpath.normpath(unquote(decoded))):
        assert seen.split("/") == (decoded.rstrip("/") or "/").split("/")
    assert len(decoded.split("/")) == len(path.split("/"))


# --- names of Kubernetes objects ---

# Roles and bindings may have any name that is one segment of a path (path.ValidatePathSegmentName).
NAMES = (
    st.text(
        st.one_of(
            st.characters(exclude_characters="/%", exclude_categories=("Cs", "Cc")),
            st.sampled_from(list(";\\.~?# \"'{}[]|^<>`+&=,:@")),
        ),
        min_size=1,
        max_size=12,
    )
    .filter(lambda name: name not in (".", ".."))
    .filter(str.strip)
)
# What net/url, and so every Go client, leaves as it is in a path.
GO_PLAIN = "$&+,:;=@-_.~"
ROLES = "/apis/rbac.authorization.k8s.io/v1/clusterroles"


@settings(max_examples=300, deadline=None)
@given(NAMES, st.sampled_from(["", GO_PLAIN, "!'()*"]))
@example("semi;colon", GO_PLAIN)
@example("back\\slash", GO_PLAIN)
@example("..;", GO_PLAIN)
@example("\\..\\up", "")
@example(";", GO_PLAIN)
def test_every_name_that_an_object_can_be_created_with_can_be_asked_for(name: str, plain: str) -> None:
    """A name in a body is not ours to read, so each one must have a path that says it, in one way."""
    path, query = split_target(f"{ROLES}/{quote(name, safe=plain)}?dryRun=All".encode(), any_name=True)
    for method in ("GET", "DELETE", "PATCH"):
        info = request_info(RequestLine(method, path, query))
        assert (info.resource, info.name, info.subresource) == ("clusterroles", name, "")


def test_any_name_opens_nothing_else(subtests: pytest.Subtests) -> None:
    for target, cause in [one for one in REFUSED if one[0] not in (b"/a;b", b"/a%5cb", b"/a/..;/b")]:
        with subtests.test(target=target, cause=cause), pytest.raises(AmbiguousRequest, match=cause):
            split_target(target, any_name=True)


@pytest.mark.parametrize("target", [b"http://gateway.test/x?y", b"HTTPS://Gateway.TEST/x?y"])
def test_a_whole_url_is_read_in_any_case(target: bytes) -> None:
    assert split_target(target, host=b"gateway.test") == ("/x", "y")


@given(st.binary(max_size=12))
def test_a_path_that_is_usually_encoded_comes_back_the_same(decoded: bytes) -> None:
    """S69: what a WSGI server has decoded is encoded again for the proof."""
    path = encoded_path(b"/" + decoded)
    assert is_usually_encoded(path.decode())
    assert unquote_to_bytes(path) == b"/" + decoded


@pytest.mark.parametrize("path", ["/%c3%a9", "/%2C", "/%7E", "/%41"])
def test_other_spellings_are_not_usual(path: str) -> None:
    assert not is_usually_encoded(path)
