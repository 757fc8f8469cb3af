"""Every bundled admission provider keeps the contract that is also published for others' providers."""

from __future__ import annotations

import pytest

from ostiary.model import Attributes, RequestInfo, UserInfo
from ostiary_gateway.interfaces.admission import AdmissionProvider
from ostiary_gateway.providers.quota import Limit, RequestQuota
from ostiary_gateway.testing import FakeClock
from ostiary_gateway.testing.admission import AdmissionContract

POD = RequestInfo("create", "POST", "/api/v1/namespaces/dev/pods", is_resource=True, resource="pods", namespace="dev")


class TestRequestQuota(AdmissionContract):
    """S71, S3."""

    @pytest.fixture
    def provider(self, clock: FakeClock) -> AdmissionProvider:
        largest = Limit("size", largest_body=1000, users=frozenset({"large"}))
        return RequestQuota([Limit("creations", count=20), largest], clock=clock)

    @pytest.fixture
    def admitted(self) -> Attributes:
        return Attributes(UserInfo("jane"), POD)

    @pytest.fixture
    def refused(self) -> tuple[Attributes, int | None]:
        return Attributes(UserInfo("large"), POD), 1001
