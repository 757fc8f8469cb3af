"""Asks an API server about a token (TokenReview), where the gateway cannot or shall not read the cluster's keys.

Called by `workload.identity`. The API server also knows what a signature does not tell: that the pod, or the account
that a token is bound to, is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from urllib.parse import urlsplit

from ostiary.errors import LoginRefused
from ostiary.plugins.common.jwt.tokens import ParsedToken
from ostiary.plugins.common.outbound import Outbound

API_VERSION, KIND = "authentication.k8s.io/v1", "TokenReview"
PATH = "/apis/authentication.k8s.io/v1/tokenreviews"


class TokenReviewClient:
    def __init__(
        self,
        server: str,
        outbound: Outbound,
        *,
        audiences: Collection[str],
        headers: Callable[[], Mapping[str, str]],
    ) -> None:
        self._url = server.rstrip("/") + PATH
        self._outbound = outbound
        self._audiences = sorted(audiences)
        self._headers = headers

    async def check(self, token: str, parsed: ParsedToken) -> None:
        """Raises `LoginRefused` if the API server does not know the token, or as somebody else than it says."""
        review = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "spec": {"token": token, "audiences": self._audiences},
        }
        answer = await self._outbound.ask("POST", self._url, headers=self._headers(), json_body=review)
        status = answer.body.get("status") if isinstance(answer.body, dict) else None
        if answer.status not in (200, 201) or not isinstance(status, dict):
            hint = "the token in tokenFile must belong to somebody who may create tokenreviews"
            raise self._outbound.failure(self._url, f"it answered a TokenReview with status {answer.status}", hint)
        if status.get("authenticated") is not True:
            raise _refusal("the API server does not know it")
        # An API server that ignores audiences has none in its answer: then nobody has checked whom it is for.
        audiences = status.get("audiences")
        if not isinstance(audiences, list) or not set(map(str, audiences)) & set(self._audiences):
            raise _refusal("the API server does not say that it is for us")
        user = status.get("user")
        if not isinstance(user, dict) or user.get("username") != parsed.claims.get("sub"):
            raise _refusal("to the API server it is somebody else's than it says")

    async def probe(self) -> str:
        """Ask about a token that is none; raises if the API server cannot be asked, or does not answer us."""
        with suppress(LoginRefused):
            await self.check("no token", ParsedToken({}, {}, b"", b""))
        return f"the token reviews of {urlsplit(self._url).netloc}"


def _refusal(cause: str) -> LoginRefused:
    return LoginRefused("the token of this workload is not accepted", cause=f"the token: {cause}")
