"""Self reviews through a whole gateway, compared with what a real kube-apiserver 1.36.4 answered."""

from __future__ import annotations

import asyncio
import json
import re
from base64 import b64decode
from pathlib import Path
from typing import Any

import yaml

from ostiary.model import UserInfo
from ostiary_gateway.wire import protobuf
from tests.support.http1 import Message, Upstreamed, upstream
from tests.support.vectors import VECTORS, Vector, load, replay
from tests.unit.ostiary_gateway.proxy.test_engine import Served, at, configured, served

POLICY = json.loads((VECTORS / "self-review-policy.json").read_text())
ALICE = UserInfo(POLICY["user"]["username"], groups=tuple(POLICY["user"]["groups"]))
NOT_FOUND = b'{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","reason":"NotFound","code":404}\n'
HEADERS = ("Content-Type", "Warning", "Cache-Control")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


async def knows_no_other_review(connection: Upstreamed) -> None:
    """As an API server that has neither these paths nor these versions."""
    while True:
        await connection.request()
        head = b"HTTP/1.1 404 Not Found\r\nCache-Control: no-cache, private\r\nContent-Type: application/json\r\n"
        connection.send(head + b"Content-Length: %d\r\n\r\n%s" % (len(NOT_FOUND), NOT_FOUND))


def test_self_reviews_are_answered_as_kube_apiserver_does(tmp_path: Path) -> None:
    """Every encoding, every option, every mistake; but for `managedFields`, which only what is stored can have."""
    vectors = load("self-review")
    answers = asyncio.run(ask_all(tmp_path, vectors))
    assert len(vectors) == len(answers) == 172
    numbered = iter(answers)
    replay("self-review", lambda vector: difference(vector, next(numbered)))


async def ask_all(folder: Path, vectors: list[Vector]) -> list[Message]:
    (folder / "policy.yaml").write_text(yaml.safe_dump_all(POLICY["manifests"]))
    (folder / "token").write_text("a-token")
    chain = [{"name": "policy", "type": "rbac", "paths": ["policy.yaml"]}]
    async with upstream(knows_no_other_review) as made:
        cluster = {"name": "cluster", "server": at(made), "identity": "impersonation", "tokenFile": "token"}
        config = configured(folder, at(made), authorization={"chain": chain}, upstreams=[cluster])
        async with served(config) as site:
            token = (await site.worker.app.shared.tokens.issue(ALICE, provider="me")).token.reveal()
            return [await ask(site, vector, token) for vector in vectors]


async def ask(site: Served, vector: Vector, token: str) -> Message:
    body = (vector.get("body") or "").encode("utf-8", "surrogatepass")
    lines = [
        f"{vector['method']} {vector['path']} HTTP/1.1",
        "Host: gateway.test",
        f"Authorization: Bearer {token}",
        *(f"{name}: {value}" for name, value in vector["headers"].items()),
        f"Content-Length: {len(body)}",
    ]
    return await site.client.ask("\r\n".join([*lines, "", ""]).encode() + body)


def difference(vector: Vector, answer: Message) -> str | None:
    if answer.status != vector["status"]:
        return f"status {answer.status}, expected {vector['status']}: {answer.body!r}"
    for name in HEADERS:
        expected = vector["response_headers"].get(name)
        given = b", ".join(answer.all(name)).decode() or None
        if given != expected:
            return f"{name} is {given}, expected {expected}"
    if "response" not in vector and "response_base64" not in vector:
        return None
    return _body_difference(vector, answer)


def _body_difference(vector: Vector, answer: Message) -> str | None:
    media_type = vector["response_headers"]["Content-Type"]
    if vector.get("response_base64"):
        expected: Any = protobuf.decode(b64decode(vector["response_base64"]), "")
        given: Any = protobuf.decode(answer.body, "")
        return None if expected == given else f"{given}, expected {expected}"
    if vector.get("response") is None:
        return None
    text, wanted = answer.body.decode(), vector["response"]
    if "managedFields" not in wanted and vector["status"] == 201 and "RulesReview" not in wanted:
        same = _TIME.sub("@@time@@", text) == wanted
        return None if same else f"{text!r}, expected {wanted!r}"
    if text.endswith("\n") != wanted.endswith("\n") or text.startswith("{\n") != wanted.startswith("{\n"):
        return f"written otherwise: {text!r}"
    read = yaml.safe_load if media_type == "application/yaml" else json.loads
    given, expected = _comparable(read(text)), _comparable(read(wanted))
    return None if given == expected else f"{given}, expected {expected}"


def _comparable(value: Any) -> Any:
    """Without what has no meaning: the words of an error, the order of rules, and who wrote what into an object."""
    if value["kind"] == "Status":
        causes = [(each["reason"], each["field"]) for each in value.get("details", {}).get("causes", ())]
        return value["status"], value["reason"], value["code"], causes
    value["metadata"].pop("managedFields", None)
    for key in ("resourceRules", "nonResourceRules"):
        if key in value["status"]:
            value["status"][key].sort(key=json.dumps)
    return value
