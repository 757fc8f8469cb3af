"""The server that the clients are measured against: a process of its own, over TLS, as quick as asyncio allows.

    GET  anything    a small PodList, or 401 if the token is not the one in force
    PUT  /token      the body is the token in force from now on; empty: any

Prints its port, then serves until its stdin ends.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import sys

PODS = json.dumps(
    {
        "kind": "PodList",
        "apiVersion": "v1",
        "metadata": {},
        "items": [{"metadata": {"name": f"pod-{n}"}} for n in range(5)],
    }
).encode()
REFUSAL = b'{"kind":"Status","apiVersion":"v1","status":"Failure","code":401}'


def response(status: bytes, body: bytes) -> bytes:
    head = b"HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    return head % (status, len(body)) + body


VERSION = response(b"200 OK", b'{"major":"1","minor":"32","gitVersion":"v1.32.0"}')
OK, UNAUTHORIZED = response(b"200 OK", PODS), response(b"401 Unauthorized", REFUSAL)


class Server(asyncio.Protocol):
    token = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.buffer = b""

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while (end := self.buffer.find(b"\r\n\r\n")) >= 0:
            head = self.buffer[:end].lower()
            length = 0
            if (at := head.find(b"content-length:")) >= 0:
                length = int(head[at + 15 :].split(b"\r\n", 1)[0])
            if len(self.buffer) < end + 4 + length:
                return
            body, original = self.buffer[end + 4 : end + 4 + length], self.buffer[:end]
            self.buffer = self.buffer[end + 4 + length :]
            self.answer(original, body)

    def answer(self, head: bytes, body: bytes) -> None:
        if head.startswith(b"PUT /token"):
            Server.token = body
            self.send(OK)
        elif head.startswith(b"GET /version"):
            self.send(VERSION)
        elif not Server.token or b"Bearer " + Server.token in head:
            self.send(OK)
        else:
            self.send(UNAUTHORIZED)

    def send(self, data: bytes) -> None:
        assert isinstance(self.transport, asyncio.Transport)
        self.transport.write(data)


async def serve(certificate: str) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Server, "127.0.0.1", 0, ssl=context, backlog=512)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))
