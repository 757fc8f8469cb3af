"""A TokenReview about the very token that its sender presents is answered here; every other one goes its usual way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ostiary_gateway.wire.protobuf import decode
from tests.support.http1 import chunked, upstream
from tests.unit.ostiary_gateway.proxy.test_engine import Served, at, configured, served
from tests.unit.ostiary_gateway.proxy.test_upstream_credential import credential

PATH = "/apis/authentication.k8s.io/v1/tokenreviews"
JSON = "Content-Type: application/json"


def config(folder: Path, server: str, *, allowed: bool) -> Any:
    section = {"name": "cluster", "server": server, **credential(folder)}
    (folder / "policy.yaml").write_text("[]" if allowed else "")
    chain = [{"name": "all", "type": "allow_all"}] if allowed else [{"name": "none", "type": "rbac", "paths": ["p"]}]
    (folder / "p").mkdir(exist_ok=True)
    return configured(folder, server, upstreams=[section], authorization={"chain": chain})


def review(token: str, **spec: Any) -> bytes:
    return json.dumps({"spec": {"token": token, **spec}}).encode()


async def ask(site: Served, body: bytes, *lines: str) -> Any:
    return await site.client.ask(site.request(PATH, JSON, *lines, method="POST", body=body))


@pytest.mark.parametrize("allowed", [True, False])
async def test_the_sender_is_told_who_they_are_whatever_the_policy_says(tmp_path: Path, allowed: bool) -> None:
    async with upstream() as made, served(config(tmp_path, at(made), allowed=allowed)) as site:
        for _ in range(3):
            answer = await ask(site, review(site.token, audiences=["a"]))
            said = json.loads(answer.body)
            assert (answer.status, said["kind"], said["apiVersion"]) == (
                201,
                "TokenReview",
                "authentication.k8s.io/v1",
            )
            assert said["status"]["authenticated"] is True
            assert said["status"]["audiences"] == ["a"]
            user = said["status"]["user"]
            assert (user["username"], user["uid"]) == ("alice", "7")
            assert user["groups"] == ["dev", "system:authenticated"]
            assert site.token.encode() not in answer.body
        assert (made.requests, site.seats) == ([], 0)


async def test_it_is_counted_and_recorded(tmp_path: Path) -> None:
    async with upstream() as made, served(config(tmp_path, at(made), allowed=False)) as site:
        answer = await ask(site, review(site.token))
        await site.worker.app.auditor.flush()
        events = [json.loads(line) for line in (tmp_path / "audit.log").read_text().splitlines()]
        (event,) = [each for each in events if each["auditID"] == (answer.one("Audit-Id") or b"").decode()]
        assert (event["verb"], event["responseStatus"]["code"]) == ("create", 201)
        assert site.token not in (tmp_path / "audit.log").read_text()


async def test_it_comes_in_the_encoding_that_was_asked_for(tmp_path: Path) -> None:
    async with upstream() as made, served(config(tmp_path, at(made), allowed=True)) as site:
        answer = await ask(site, review(site.token), "Accept: application/vnd.kubernetes.protobuf")
        assert decode(answer.body, "")["status"]["authenticated"] is True


async def test_who_asks_for_an_encoding_that_nobody_has_is_answered_by_the_upstream(tmp_path: Path) -> None:
    async with upstream() as made, served(config(tmp_path, at(made), allowed=True)) as site:
        body = review(site.token)
        assert (await ask(site, body, "Accept: image/png")).body == body
        assert len(made.requests) == 1


async def test_a_review_of_another_token_is_decided_and_passed_on_as_it_came(
    tmp_path_factory: pytest.TempPathFactory, subtests: pytest.Subtests
) -> None:
    for other in ["ost_another", "", "the system's own", None]:
        for allowed in [True, False]:
            with subtests.test(other=other, allowed=allowed):
                tmp_path = tmp_path_factory.mktemp("case")
                body = b"{not a review" if other is None else review(other)
                async with upstream() as made, served(config(tmp_path, at(made), allowed=allowed)) as site:
                    for _ in range(3):
                        answer = await ask(site, body)
                        # The upstream answers with the body that it got.
                        assert (answer.status, answer.body) == (200, body) if allowed else answer.status == 403
                    assert [request.body for request in made.requests] == ([body] * 3 if allowed else [])


async def test_bodies_in_chunks_and_large_ones_reach_the_upstream_whole(tmp_path: Path) -> None:
    async with upstream() as made, served(config(tmp_path, at(made), allowed=True)) as site:
        site.client.send(site.request(PATH, JSON, "Transfer-Encoding: chunked", method="POST"))
        site.client.send(chunked(b'{"spec": ', b'{"token": "x"}}'))
        assert (await site.client.answer()).body == b'{"spec": {"token": "x"}}'
        large = review("x" * 100_000)
        assert (await ask(site, large)).body == large
        site.client.send(site.request(PATH, JSON, "Transfer-Encoding: chunked", method="POST"))
        site.client.send(chunked(review(site.token)))
        assert json.loads((await site.client.answer()).body)["status"]["authenticated"] is True


@pytest.mark.parametrize(
    "path",
    ["/apis/authentication.k8s.io/v1beta1/tokenreviews", f"{PATH}/x", "/apis/authentication.example/v1/tokenreviews"],
)
async def test_other_paths_are_the_upstreams(tmp_path: Path, path: str) -> None:
    async with upstream() as made, served(config(tmp_path, at(made), allowed=True)) as site:
        body = review(site.token)
        answer = await site.client.ask(site.request(path, JSON, method="POST", body=body))
        assert (answer.status, answer.body) == (200, body)


async def test_a_review_of_64_kibibytes_is_read_and_a_larger_one_is_not(tmp_path: Path) -> None:
    async with upstream() as made, served(config(tmp_path, at(made), allowed=True)) as site:
        body = review(site.token)
        largest = body + b" " * (64 * 1024 - len(body))
        assert json.loads((await ask(site, largest)).body)["status"]["authenticated"] is True
        assert made.requests == []
        assert (await ask(site, largest + b" ")).body == largest + b" "


async def test_a_review_in_chunks_that_is_too_large_is_refused(tmp_path: Path) -> None:
    async with upstream() as made, served(config(tmp_path, at(made), allowed=True)) as site:
        site.client.send(site.request(PATH, JSON, "Transfer-Encoding: chunked", method="POST"))
        site.client.send(chunked(b" " * (64 * 1024), b" "))
        answer = await site.client.answer()
        assert answer.status == 413
        assert json.loads(answer.body)["kind"] == "Status"
        assert (made.requests, site.seats) == ([], 0)
