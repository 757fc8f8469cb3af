"""Admission providers: the first refusal ends the chain, a failure refuses, and what was admitted is settled."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ostiary.model import Attributes
from ostiary_gateway.config.provider import Provider
from ostiary_gateway.interfaces.admission import Admission
from tests.support.http1 import until, upstream
from tests.unit.ostiary_gateway.proxy.gateways import at, configured, serving


class Admitting:
    """An admission provider that says what it was told to, and notes what it is asked."""

    def __init__(self, admission: Admission) -> None:
        self.admission = admission
        self.sizes: list[int | None] = []
        self.settlements: list[tuple[str, int]] = []

    def admit(self, attributes: Attributes, *, size: int | None) -> Admission:
        self.sizes.append(size)
        return self.admission

    def settled(self, attributes: Attributes, *, status: int) -> None:
        self.settlements.append((attributes.user.username, status))


@pytest.mark.parametrize(("retry_after", "status"), [(None, 403), (2.4, 429)])
async def test_what_an_admission_provider_refuses_is_told_with_its_reason(
    tmp_path: Path, retry_after: float | None, status: int
) -> None:
    provider = Admitting(Admission(False, "the quota is used up", retry_after))
    async with upstream() as made:
        config = replace(configured(tmp_path, at(made)), admission=(Provider("quota", "quota", provider),))
        async with serving(config) as site:
            answer = await site.ask()
            assert answer.status == status
            if status == 403:
                assert json.loads(answer.body)["message"].endswith(": the quota is used up")
            else:
                assert answer.one("Retry-After") == b"3"
                assert site.count("rate_limited_total", "admission") == 1
            assert site.count("admission_refusals_total") == 1
            assert site.seats == 0
            assert provider.settlements == [], "only what was admitted is settled"
        assert made.requests == []


async def test_an_admission_provider_is_told_the_size_of_a_body_and_how_the_request_ended(tmp_path: Path) -> None:
    provider = Admitting(Admission(True))
    async with upstream() as made:
        config = replace(configured(tmp_path, at(made)), admission=(Provider("quota", "quota", provider),))
        async with serving(config) as site:
            assert (await site.ask()).status == 200
            assert (await site.ask(method="POST", body=b"12345")).status == 200
            chunked = site.request("/x", "Transfer-Encoding: chunked", method="POST") + b"0\r\n\r\n"
            assert (await site.client.ask(chunked)).status == 200
            assert provider.sizes == [0, 5, None]
            await until(lambda: len(provider.settlements) == 3)
            assert provider.settlements == [("alice", 200)] * 3


async def test_providers_are_asked_in_their_order_and_the_first_refusal_ends_it(tmp_path: Path) -> None:
    first, second, third = (
        Admitting(Admission(True)),
        Admitting(Admission(False, "the second says no")),
        Admitting(Admission(False, "the third says no")),
    )
    async with upstream() as made:
        chain = tuple(
            Provider(name, "x", provider) for name, provider in zip("abc", (first, second, third), strict=True)
        )
        async with serving(replace(configured(tmp_path, at(made)), admission=chain)) as site:
            answer = await site.ask()
            assert json.loads(answer.body)["message"].endswith(": the second says no")
        assert (len(first.sizes), len(second.sizes), len(third.sizes)) == (1, 1, 0)
        assert made.requests == []


class Failing(Admitting):
    """Raises at what it is told to."""

    def __init__(self, where: str) -> None:
        super().__init__(Admission(True))
        self._where = where

    def admit(self, attributes: Attributes, *, size: int | None) -> Any:
        super().admit(attributes, size=size)
        if self._where == "admit":
            raise OSError("down")
        return None if self._where == "nothing" else self.admission

    def settled(self, attributes: Attributes, *, status: int) -> None:
        super().settled(attributes, status=status)
        if self._where == "settled":
            raise OSError("down")


@pytest.mark.parametrize("where", ["admit", "nothing"])
async def test_a_provider_that_fails_refuses_the_request(
    tmp_path: Path, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    failing, after = Failing(where), Admitting(Admission(True))
    async with upstream() as made:
        chain = (Provider("a", "x", failing), Provider("b", "x", after))
        async with serving(replace(configured(tmp_path, at(made)), admission=chain)) as site:
            assert (await site.ask()).status == 500
            assert site.seats == 0
            assert site.count("admission_refusals_total") == 0
        assert after.sizes == []
        assert made.requests == []
    causes = [record.__dict__["cause"] for record in caplog.records if "an admission provider failed" in record.message]
    assert causes == ["OSError" if where == "admit" else "AttributeError"]


async def test_a_provider_that_fails_at_the_end_hinders_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    failing, after = Failing("settled"), Admitting(Admission(True))
    async with upstream() as made:
        chain = (Provider("a", "x", failing), Provider("b", "x", after))
        async with serving(replace(configured(tmp_path, at(made)), admission=chain)) as site:
            assert (await site.ask()).status == 200
            await until(lambda: bool(after.settlements))
            assert after.settlements == [("alice", 200)]
            assert len(await site.events()) == 1
    assert [record.levelno for record in caplog.records if "an admission provider" in record.message] == [logging.ERROR]
