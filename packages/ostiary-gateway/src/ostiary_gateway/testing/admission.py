"""The conformance suite for admission providers:

    class TestMyProvider(AdmissionContract):
        @pytest.fixture
        def provider(self): return MyProvider(...)

        @pytest.fixture
        def admitted(self): return Attributes(...)            # a request that it admits

        @pytest.fixture
        def refused(self): return (Attributes(...), 10_000)   # one that it denies, with the length of its body

Requires pytest.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator

import pytest

from ostiary.model import Attributes, RequestInfo, UserInfo
from ostiary_gateway.interfaces.admission import Admission, AdmissionProvider
from ostiary_gateway.testing.capabilities import check_members


def _requests(user: UserInfo) -> Iterator[Attributes]:
    """Yield requests of every shape: a provider receives all of them, whatever it is for."""
    resource = {"is_resource": True, "api_version": "v1", "resource": "pods", "namespace": "dev"}
    yield Attributes(user, RequestInfo("get", "GET", "/"))
    yield Attributes(user, RequestInfo("", "BREW", "/healthz"))
    for verb, method in (("create", "POST"), ("delete", "DELETE"), ("watch", "GET"), ("deletecollection", "DELETE")):
        yield Attributes(user, RequestInfo(verb, method, "/api/v1/namespaces/dev/pods", **resource))  # type: ignore[arg-type]
    odd = RequestInfo("get", "GET", "/x", is_resource=True, resource="ü\n", namespace='a,b|"', name="\x00")
    yield Attributes(user, odd)


class AdmissionContract:
    """Requires the fixtures `provider`, `admitted` and `refused`, as shown at the top of the module."""

    @pytest.fixture
    def provider(self) -> AdmissionProvider:
        raise NotImplementedError("give a fixture `provider`")

    @pytest.fixture
    def admitted(self) -> Attributes:
        raise NotImplementedError("give a fixture `admitted`: a request that the provider admits")

    @pytest.fixture
    def refused(self) -> tuple[Attributes, int | None]:
        raise NotImplementedError("give a fixture `refused`: a request that the provider refuses, and its length")

    def test_its_members_are_spelt_and_shaped_as_the_contract_says(self, provider: AdmissionProvider) -> None:
        check_members("admission", provider)

    def test_it_answers_at_once(self, provider: AdmissionProvider) -> None:
        assert not inspect.iscoroutinefunction(provider.admit)
        assert not inspect.iscoroutinefunction(provider.settled)

    def test_it_admits_what_is_within_bounds(self, provider: AdmissionProvider, admitted: Attributes) -> None:
        answer = provider.admit(admitted, size=0)
        assert isinstance(answer, Admission)
        assert answer.admitted
        assert answer.retry_after is None

    def test_a_refusal_says_why_in_one_line(
        self, provider: AdmissionProvider, refused: tuple[Attributes, int | None]
    ) -> None:
        attributes, size = refused
        answer = provider.admit(attributes, size=size)
        assert not answer.admitted
        assert answer.reason
        assert answer.reason.isprintable(), "the caller reads it: no line break, nothing that steers a terminal"

    def test_waiting_time_is_a_positive_number(
        self, provider: AdmissionProvider, refused: tuple[Attributes, int | None]
    ) -> None:
        attributes, size = refused
        seconds = provider.admit(attributes, size=size).retry_after
        assert seconds is None or (math.isfinite(seconds) and seconds > 0)

    def test_a_refusal_is_repeated(self, provider: AdmissionProvider, refused: tuple[Attributes, int | None]) -> None:
        attributes, size = refused
        assert not provider.admit(attributes, size=size).admitted
        assert not provider.admit(attributes, size=size).admitted

    def test_a_refused_request_does_not_change_what_others_may(
        self, provider: AdmissionProvider, admitted: Attributes, refused: tuple[Attributes, int | None]
    ) -> None:
        attributes, size = refused
        for _ in range(100):
            provider.admit(attributes, size=size)
        assert provider.admit(admitted, size=0).admitted

    @pytest.mark.parametrize("status", [100, 200, 201, 304, 400, 403, 404, 429, 499, 500, 503, 599])
    def test_every_status_can_settle_a_request(
        self, provider: AdmissionProvider, admitted: Attributes, status: int
    ) -> None:
        provider.admit(admitted, size=0)
        provider.settled(admitted, status=status)

    def test_a_refused_creation_can_be_tried_again_for_ever(
        self, provider: AdmissionProvider, admitted: Attributes
    ) -> None:
        for _ in range(200):
            assert provider.admit(admitted, size=0).admitted
            provider.settled(admitted, status=403)

    def test_settling_what_was_never_admitted_is_harmless(
        self, provider: AdmissionProvider, admitted: Attributes
    ) -> None:
        for _ in range(3):
            provider.settled(admitted, status=500)
        assert provider.admit(admitted, size=0).admitted

    @pytest.mark.parametrize("size", [None, 0, 1, 2**40])
    def test_it_has_an_answer_for_every_request(self, provider: AdmissionProvider, size: int | None) -> None:
        for user in (UserInfo("jane", groups=("dev",)), UserInfo(""), UserInfo("x" * 10_000, groups=("g",) * 1000)):
            for attributes in _requests(user):
                answer = provider.admit(attributes, size=size)
                assert isinstance(answer, Admission)
                if answer.admitted:
                    provider.settled(attributes, status=200)
