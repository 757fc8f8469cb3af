"""Any bytes at all as the target of a request: refused, or one and the same to us and to the upstream.

`one_input` takes bytes and raises if something is wrong, so that a fuzzer can drive it as well:

    atheris.Setup(sys.argv, one_input); atheris.Fuzz()
"""

from __future__ import annotations

from urllib.parse import unquote

from hypothesis import example, given, settings
from hypothesis import strategies as st

from ostiary.model import RequestInfo
from ostiary_gateway.interfaces.attributes import RequestLine
from ostiary_gateway.proxy.target import AmbiguousRequest, split_target
from ostiary_gateway.wire.request_info import long_running, request_info

PIECES: tuple[bytes, ...] = (
    b"/",
    b"//",
    b"/.",
    b"/..",
    b"%2e",
    b"%2f",
    b"%5c",
    b"%00",
    b"%25",
    b"%",
    b"%c3%a9",
    b"%20",
    b";",
    b"#",
    b"\\",
)
PIECES += (
    b"api",
    b"apis",
    b"v1",
    b"watch",
    b"proxy",
    b"namespaces",
    b"pods",
    b"status",
    b"exec",
    b"?",
    b"&",
    b"=",
    b"+",
)
PIECES += (
    b"watch=",
    b"0",
    b"1",
    b"fieldSelector=",
    b"metadata.name%3D",
    b"labelSelector=",
    b"a,b",
    b"http://h",
    b"*",
    b":",
)


def one_input(data: bytes) -> None:
    """The first byte chooses the method, the rest is the target."""
    method = ("GET", "POST", "DELETE", "OPTIONS")[data[0] % 4] if data else "GET"
    target = data[1:]
    try:
        path, query = split_target(target, host=b"h", options=method == "OPTIONS")
    except AmbiguousRequest:
        return
    forwarded = path + ("?" + query if query else "")
    if path == "*":
        return
    assert target.removeprefix(b"http://h").removesuffix(b"?") == forwarded.encode("ascii").removesuffix(b"?")
    assert split_target(forwarded.encode("ascii")) == (path, query)
    check_path(path)
    try:
        info = request_info(RequestLine(method, path, query))
    except ValueError:
        return
    check_info(info, method, path)


def check_path(path: str) -> None:
    decoded = unquote(path, errors="strict")
    segments = decoded[1:].split("/")
    assert path.startswith("/")
    assert "" not in segments[:-1]
    assert not {".", ".."} & set(segments)
    assert [unquote(segment) for segment in path[1:].split("/")] == segments
    assert unquote(decoded) == decoded, "decoding it twice changes nothing"
    assert not set("\\;#?\0\r\n") & set(path)


def check_info(info: RequestInfo, method: str, path: str) -> None:
    assert info.path == unquote(path)
    assert info.method == method
    segments = info.path.strip("/").split("/")
    assert info == RequestInfo(**{name: getattr(info, name) for name in RequestInfo.__slots__})
    if not info.is_resource:
        assert info.verb == method.lower()
    else:
        assert {info.resource, info.namespace or info.resource, info.subresource or info.resource} <= set(segments)
        assert info.name in segments or info.field_selector or not info.name
    assert long_running(info) in (True, False)


@given(st.binary(max_size=60))
@settings(max_examples=150, deadline=None)
def test_random_bytes(data: bytes) -> None:
    """P1, P2."""
    one_input(data)


@given(st.integers(0, 3), st.lists(st.sampled_from(PIECES), max_size=14))
@settings(max_examples=250, deadline=None)
@example(0, [b"/", b"%25", b"2e"])
@example(3, [b"*"])
@example(0, [b"http://h", b"/", b"api", b"/", b"v1", b"/", b"pods", b"?", b"watch=", b"1"])
def test_what_looks_like_requests(method: int, pieces: list[bytes]) -> None:
    """P1, P2, P4."""
    one_input(bytes((method,)) + b"".join(pieces))


@given(st.integers(0, 3), st.lists(st.sampled_from(PIECES), max_size=14))
@settings(max_examples=200, deadline=None)
def test_paths_that_begin_well(method: int, pieces: list[bytes]) -> None:
    one_input(bytes((method,)) + b"/api/v1/namespaces/x/pods" + b"".join(pieces))
