"""The chain of admission providers."""

from __future__ import annotations

import logging

import pytest

from ostiary.errors import ProviderError
from ostiary.model import Attributes, RequestInfo, UserInfo
from ostiary_gateway.interfaces.admission import Admission
from ostiary_gateway.limits.admission_chain import AdmissionChain

ATTRIBUTES = Attributes(UserInfo("alice"), RequestInfo("create", "POST", "/x"))


class Provider:
    def __init__(self, admission: Admission | None = None) -> None:
        self.admission = admission or Admission(True)
        self.sizes: list[int | None] = []
        self.statuses: list[int] = []

    def admit(self, attributes: Attributes, *, size: int | None) -> Admission:
        self.sizes.append(size)
        return self.admission

    def settled(self, attributes: Attributes, *, status: int) -> None:
        self.statuses.append(status)


class Broken(Provider):
    def admit(self, attributes: Attributes, *, size: int | None) -> Admission:
        raise RuntimeError("canary")

    def settled(self, attributes: Attributes, *, status: int) -> None:
        raise RuntimeError("canary")


def test_every_provider_is_asked_until_one_refuses() -> None:
    first, second, third = Provider(), Provider(Admission(False, "full")), Provider()
    assert AdmissionChain([first, second, third]).refusal_of(ATTRIBUTES, size=7) == Admission(False, "full")
    assert (first.sizes, second.sizes, third.sizes) == ([7], [7], [])


def test_what_all_admit_has_no_refusal() -> None:
    assert AdmissionChain([Provider(), Provider()]).refusal_of(ATTRIBUTES, size=None) is None


def test_a_provider_that_fails_admits_nothing(caplog: pytest.LogCaptureFixture) -> None:
    after = Provider()
    with caplog.at_level(logging.ERROR), pytest.raises(ProviderError):
        AdmissionChain([Broken(), after]).refusal_of(ATTRIBUTES, size=0)
    assert after.sizes == []
    assert "canary" not in caplog.text


def test_every_provider_learns_how_the_request_ended() -> None:
    first, second = Provider(), Provider()
    AdmissionChain([first, Broken(), second]).settle(ATTRIBUTES, status=201)
    assert (first.statuses, second.statuses) == ([201], [201])
