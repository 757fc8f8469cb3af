"""The same bytes to a gateway with every shortcut and to one with none: both must do the same, byte for byte.

`one_input` takes bytes and raises if something is wrong. They choose what is sent: requests that are nearly alike,
valid and hostile, cut in odd places, again and again, while time passes, tokens are revoked and the policy changes.
They also choose what the upstream answers, and whether something else happens before it does.
What reaches the upstream, what the client reads and what is recorded must be equal, but for ids and times.
"""

from __future__ import annotations

import asyncio
import atexit
import re
import tempfile
from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.fuzz.twin_gateways import ANSWERS, POLICIES, Side, Twins, twin_gateways
from tests.support.http1 import turn

MOST_STEPS = 20
# Each table has what is usual and what is odd. Most of what is sent must be usual, or nothing would be remembered.
Table = tuple[tuple[bytes, ...], tuple[bytes, ...]]
METHODS: Table = (
    (b"GET", b"GET", b"GET", b"HEAD", b"PATCH", b"DELETE"),
    (b"POST", b"OPTIONS", b"get", b"BREW", b"TRACE"),
)
NAMES: Table = (
    (b"web-1", b"web-2", b"web-3", b"settings", b"a.b"),
    (
        *(
            b"Web",
            b"a..b",
            b"..",
            b"%2e",
            b"a%2Fb",
            b"%C3%A9",
            b"x;y",
            b"",
            b"status",
            b"proxy",
            b"x" * 300,
            b'q"q',
            b"-a",
        ),
        *(b"system:node", b"ost_" + b"A" * 40, b"eyJhbGciOiJub25lIn0.eyJhIjoxfQ.x", b"web-1/", b"web-1/log/x"),
    ),
)
PATHS: Table = (
    (
        *(b"/api/v1/namespaces/shop/pods/%s", b"/api/v1/namespaces/shop/pods/%s", b"/api/v1/namespaces/other/pods/%s"),
        *(b"/api/v1/namespaces/shop/pods/%s/log", b"/api/v1/namespaces/shop/configmaps/%s", b"/api/v1/nodes/%s"),
        *(b"/apis/apps/v1/namespaces/shop/deployments/%s", b"/app/%s", b"/api/v1/namespaces/shop/pods%.0s"),
    ),
    (
        *(b"/api/v1/namespaces/shop/pods/%s/proxy/x", b"/api/v1/namespaces/%s", b"/api/v1/namespaces/%s/pods/web-1"),
        *(b"/api/v1/watch/pods/%s", b"/apis/authorization.k8s.io/v1/selfsubjectaccessreviews%.0s", b"/app//%s"),
        *(b"/apis/ostiary.dev/v1/whoami%.0s", b"/auth/%s", b"http://gateway.test/api/v1/namespaces/shop/pods/%s"),
        *(b"*%.0s", b"/api/v1/namespaces/shop/./pods/%s", b"/api/v1/namespaces/sho%%70/pods/%s", b"/%s"),
    ),
)
QUERIES: Table = (
    (b"", b"", b"?resourceVersion=1", b"?resourceVersion=22", b"?limit=500&resourceVersion=7", b"?limit=5&watch=false"),
    (
        *(b"?", b"?watch=true&resourceVersion=5", b"?limit=5&limit=x", b"?a=%zz", b"?access_token=secret&limit=1"),
        *(
            b"?fieldSelector=metadata.name%3Dweb-1&limit=5",
            b"?fieldSelector=metadata.name%3Dweb-1&limit=x",
            b"?fieldSelector=metadata.name%3Dweb-1&limit=&resourceVersion=1",
            b"?fieldSelector=metadata.name%3Dweb-1&limit=2&resourceVersion=1",
            b"?q=%22;b",
            b"?labelSelector=5&limit=1",
            b"?labelSelector=6&limit=1",
        ),
        *(b"?resourceVersion=5#f", b'?x="y"&limit=3', b"?timeoutSeconds=%35", b"?limit=99999999999999999999"),
    ),
)
LINES: Table = (
    (
        *(b"User-Agent: kubectl/v1", b"User-Agent: other", b"Accept: application/json", b"Accept-Encoding: gzip"),
        *(b"Traceparent: 00-aa", b"traceparent: 00-cc", b"X-Request-Id: 1", b"X-Request-ID: 2", b"Tracestate: a=b"),
        *(
            b"Kubectl-Session: 0-1",
            b"X-B3-TraceId: 9",
            b"b3: 0",
            b"Connection: keep-alive",
            b"X-Own: a",
            b"X-Own: b",
            b"Cookie: a=b",
        ),
        *(b"X-Remote-User: root", b"X-Dropped: 1", b"X-Forwarded-For: 1.2.3.4", b"Audit-Id: mine"),
    ),
    (
        *(b"TRACEPARENT: 00-dd", b"X-REQUEST-ID: 4", b"Traceparent:00-ee", b"Traceparent:  00-ff", b"Traceparent: "),
        *(
            b"Traceparent: a  b",
            b"Traceparent: \xe9",
            b" Traceparent: x",
            b"Connection: close",
            b"Connection: x-request-id",
        ),
        *(
            b"Connection: keep-alive, traceparent",
            b"Proxy-Connection: close",
            b"Keep-Alive: timeout=5",
            b"Upgrade: h2c",
        ),
        *(
            b"Connection: upgrade\r\nUpgrade: websocket",
            b"Host: other.test",
            b"HOST: gateway.test",
            b"Host:gateway.test",
        ),
        *(b"Host: ", b"Content-Length: 2", b"Content-Length: 02", b"Content-Length: 3", b"Content-Length: 0"),
        *(b"content-length: 2", b"Transfer-Encoding: chunked", b"Expect: 100-continue", b"X_Remote_User: root"),
        *(b"Impersonate-User: jane", b"Impersonate-Group: x", b"Cookie: __Host-ostiary=x; c=d", b"X-L: " + b"l" * 3000),
        *(b"Authorization: Bearer nonsense", b"Authorization: Basic eA==", b"X-Own: a  b", b"X-Own:\tc", b"X-Own: d "),
        *(b"X Own: e", b"X-Own", b": f", b"X-Own: g\x00", b"X-Own: h\rX: i", b"X-Own: j\nX: k", b" folded"),
        *(b"GET / HTTP/1.1", b"Sec-WebSocket-Protocol: a", b"\r\nTraceparent: 00-aa"),
    ),
)
BODIES: Table = (
    (b"",),
    (b"ab", b"abc", b"2\r\nab\r\n0\r\n\r\n", b"GET /api/v1/namespaces/shop/pods/web-9 HTTP/1.1\r\nHost: x\r\n\r\n"),
)
ODD = 20
# The kinds of steps; those below 20 that are not below send requests.
OTHER_EVENTS = {20: Side.release, 21: Side.tick, 22: Side.pause_or_resume, 23: Side.hang_up, 24: Side.release}
CHOOSING_ANSWERS = (25, 26, 27)
KINDS = 28


class Choices:
    """Bytes as choices; the first one of each when there are no more."""

    def __init__(self, data: bytes) -> None:
        self._data = iter(data)
        self.left = True

    def number(self, below: int) -> int:
        byte = next(self._data, None)
        self.left = byte is not None
        return (byte or 0) % below

    def of(self, table: Table) -> bytes:
        some = table[self.number(ODD) == 1]
        return some[self.number(len(some))]


def request(choices: Choices, tokens: list[bytes]) -> bytes:
    """A request: mostly a usual one, with a few lines more, in any order."""
    target = choices.of(PATHS) % choices.of(NAMES) + choices.of(QUERIES)
    line = choices.of(METHODS) + b" " + target + (b" HTTP/1.0" if choices.number(60) == 1 else b" HTTP/1.1")
    lines = [b"Host: gateway.test", b"Authorization: Bearer " + tokens[choices.number(len(tokens))]]
    for _ in range(choices.number(4)):
        lines.insert(choices.number(len(lines) + 1), choices.of(LINES))
    if choices.number(40) == 1:
        lines.pop(choices.number(len(lines)))
    if choices.number(40) == 1:
        lines += [b"X-%d: y" % number for number in range(19 - len(lines) + choices.number(3))]
    return b"\r\n".join((line, *lines, b"", choices.of(BODIES)))


async def play(choices: Choices, twins: Twins) -> None:
    twins.start_anew()
    earlier: list[bytes] = []
    for _ in range(MOST_STEPS):
        kind = choices.number(KINDS)
        if not choices.left:
            break
        if kind == 0:
            twins.clock.advance(choices.number(12))
            await turn(5)
        elif kind == 1:
            await twins.revoke(choices.number(len(twins.tokens)))
            await twins.renew_tokens()
        elif kind == 2:
            twins.use_policy(choices.number(len(POLICIES)))
        elif kind in OTHER_EVENTS:
            await twins.do(OTHER_EVENTS[kind])
        elif kind in CHOOSING_ANSWERS:
            twins.use_answer(choices.number(len(ANSWERS)))
        elif kind < 13 and earlier:
            # The very bytes, or with another name in them, or cut in odd places.
            again = earlier[choices.number(len(earlier))]
            if kind < 8:
                again = re.sub(rb"web-\d|settings|a\.b", b"web-%d" % choices.number(8), again, count=1)
            elif kind < 10:
                again = re.sub(
                    rb"00-\w+|resourceVersion=\d", lambda found: b"%b%d" % (found[0][:-1], choices.number(9)), again
                )
            elif kind == 10:
                # A trace id more, in any place: also where it is none.
                place = again.find(b"\r\n", choices.number(250)) + 2
                again = again[:place] + choices.of(LINES) + b"\r\n" + again[place:]
            cut = choices.number(255) if kind == 11 else 0
            for part in (again[:cut], again[cut:]) if cut else (again,):
                await twins.send(part)
        else:
            earlier.append(request(choices, twins.tokens))
            for _ in range(1 + choices.number(3)):
                await twins.send(earlier[-1])
    for side in twins.sides:
        side.hang_up()
    await turn(5)
    twins.compare()


class _Site:
    """The gateways of this process, started once: starting them takes longer than a hundred requests."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._folder = tempfile.TemporaryDirectory()
        self._context = twin_gateways(Path(self._folder.name))
        self.twins = self._runner.run(self._context.__aenter__())
        atexit.register(self.close)

    def run(self, data: bytes) -> None:
        self._runner.run(play(Choices(data), self.twins))

    def close(self) -> None:
        self._runner.run(self._context.__aexit__(None, None, None))
        self._runner.close()
        self._folder.cleanup()


_sites: list[_Site] = []


def one_input(data: bytes) -> None:
    if not _sites:
        _sites.append(_Site())
    _sites[0].run(data)


@given(st.binary(min_size=30, max_size=300))
@settings(max_examples=150, deadline=None, print_blob=True)
@example(bytes(100))
@example(bytes([11, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3, 3, 0, 2, 3, 0, 1] * 6))
def test_shortcuts_change_nothing(data: bytes) -> None:
    one_input(data)
