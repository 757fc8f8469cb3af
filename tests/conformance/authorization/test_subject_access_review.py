"""The provider that asks another server, through the shipped suite: the other server is one of ours."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from ostiary.model import Attributes, RequestInfo, UserInfo
from ostiary_gateway.providers.subject_access_review import ReviewTls, SubjectAccessReviewAuthorization
from ostiary_gateway.testing.authorization import AuthorizationContract
from tests.support.http_server import Response
from tests.support.review_server import ReviewServer, status

POD = RequestInfo("get", "GET", "/api/v1/namespaces/dev/pods/web", True, "", "", "v1", "dev", "pods", "", "web")


class TestSubjectAccessReview(AuthorizationContract):
    """S2, S13, S45."""

    @pytest.fixture
    def remote(self, ca: trustme.CA) -> Iterator[ReviewServer]:
        def answer(review: dict[str, Any]) -> Response:
            return status(review, allowed="dev" in review["spec"].get("groups", ()))

        with ReviewServer(ca).running() as server:
            server.answer = answer
            yield server

    @pytest.fixture
    async def provider(
        self, remote: ReviewServer, ca: trustme.CA, tmp_path: Path
    ) -> AsyncIterator[SubjectAccessReviewAuthorization]:
        (tmp_path / "ca.pem").write_bytes(ca.cert_pem.bytes())
        provider = SubjectAccessReviewAuthorization(
            remote.url, tls=ReviewTls(ca=tmp_path / "ca.pem"), groups=["dev"], timeout=30
        )
        yield provider
        await provider.close()

    @pytest.fixture
    def allowed(self) -> Attributes:
        return Attributes(UserInfo("alice", groups=("dev",)), POD)

    @pytest.fixture
    def refused(self) -> Attributes:
        return Attributes(UserInfo("bob", groups=("ops",)), POD)

    @pytest.fixture
    def change_policy(self, remote: ReviewServer) -> Callable[[], None]:
        def change() -> None:
            remote.answer = lambda review: status(review, allowed=True)

        return change
