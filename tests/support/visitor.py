"""A browser in the hands of a test, as far as cookies, redirects and the headers that browsers set themselves go.

It speaks to a gateway on loopback, whatever the host of a URL, and over a connection of its own for each request.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from tests.support.http1 import Message, connected

GATEWAY = "https://gateway.test"
PAGE = ("Accept: text/html,application/xhtml+xml,*/*;q=0.8", "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: document")
SCRIPT = ("Accept: */*", "Sec-Fetch-Mode: cors", "Sec-Fetch-Dest: empty")


class Visitor:
    """`cookies` by host and name; `tossed` are more of them, which somebody else has set. `url` is the last page's."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.cookies: dict[str, dict[str, str]] = {}
        self.tossed: dict[str, list[str]] = {}
        self.url = ""

    async def ask(self, url: str, *lines: str, method: str = "GET", body: bytes = b"") -> Message:
        """One request with the cookies of its host; what the answer sets is kept."""
        parts = urlsplit(url)
        target = parts.path + (f"?{parts.query}" if parts.query else "")
        return await self.ask_raw(target, parts.netloc, *lines, method=method, body=body)

    async def ask_raw(self, target: str, host: str, *lines: str, method: str = "GET", body: bytes = b"") -> Message:
        """The same for the very bytes of *target*."""
        jar = self.cookies.setdefault(host, {})
        cookies = "; ".join([*(f"{name}={value}" for name, value in jar.items()), *self.tossed.get(host, ())])
        head = [f"{method} {target} HTTP/1.1", f"Host: {host}", *lines]
        head += [f"Cookie: {cookies}"] if cookies else []
        head += [f"Content-Length: {len(body)}"] if body or method == "POST" else []
        async with connected(self.port) as client:
            answer = await client.ask("\r\n".join([*head, "", ""]).encode("latin-1") + body, method)
        for line in answer.all("Set-Cookie"):
            name, _, value = line.decode().partition(";")[0].partition("=")
            if "Max-Age=0" in line.decode():
                jar.pop(name, None)
            else:
                jar[name] = value
        return answer

    async def step(self, url: str) -> tuple[Message, str]:
        """A page load; the answer, and where it leads to."""
        answer = await self.ask(url, *PAGE)
        location = (answer.one("Location") or b"").decode()
        if location.startswith("/"):
            parts = urlsplit(url)
            location = f"{parts.scheme}://{parts.netloc}{location}"
        return answer, location

    async def open(self, url: str, *, most: int = 10) -> Message:
        """A page, through all redirects to it."""
        for _ in range(most):
            answer, location = await self.step(url)
            self.url = url
            if not location:
                return answer
            url = location
        raise AssertionError(f"redirected for ever, at last to {url}")

    async def way_to(self, url: str, part: str) -> str:
        """The first address on the way to *url* that has *part* in it; it is not opened."""
        for _ in range(10):
            _, url = await self.step(url)
            assert url, f"the way ends before {part}"
            if part in url:
                return url
        raise AssertionError(f"no {part} on the way")
