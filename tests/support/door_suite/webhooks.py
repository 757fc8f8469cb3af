"""The webhooks as a door: does with a request what kube-apiserver does, and asks the gateway over HTTP.

A TokenReview says who it is; then SubjectAccessReviews say whether they may be whom they ask to be, and may do what is
asked for. The gateway sees nothing else of the request.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import unquote

import httpx

from ostiary.model import Attributes, RequestInfo, UserInfo
from ostiary_gateway.authentication.bearer_token import bearer
from ostiary_gateway.interfaces.attributes import RequestLine
from ostiary_gateway.wire.authorization import encode_review
from tests.support.door_cases import Case
from tests.support.door_suite.outcome import Arrived, Outcome
from tests.support.door_suite.policy import EXTRA, MAPPERS

EVERYBODY = "system:authenticated"


class WebhookDoor:
    """*http* is a client of the gateway that presents the token of the webhooks' callers."""

    name = "webhooks"

    def __init__(self, http: httpx.Client, tokens: Mapping[str, str]) -> None:
        self._http, self._tokens = http, tokens

    def send(self, case: Case) -> Outcome:
        lines = [(name.lower(), value) for name, value in case.lines(self._token(case))]
        user = self._identify([value for name, value in lines if name == "authorization"])
        if user is None:
            return Outcome(401)
        try:
            info = MAPPERS[case.upstream].request_info(RequestLine(case.method, *_path_and_query(case), ""))
        except ValueError:
            return Outcome(400)
        for asked in _impersonations(lines):
            status = self._ask(user, asked)
            if status != 200:
                return Outcome(status)
        effective = _impersonated(lines) or user
        status = self._ask(effective, info)
        if status != 200:
            return Outcome(status)
        # The groups that every API server adds by itself are nobody's answer.
        groups = effective.groups if effective is not user else tuple(g for g in user.groups if g != EVERYBODY)
        target, body = case.arrives or case.target, case.body if case.framing is None else case.content
        extra = dict(effective.extra).get(EXTRA, ())
        told = (effective.username,), effective.uid, groups, extra
        return Outcome(200, Arrived(*told, case.method, target, "", body=body))

    def _token(self, case: Case) -> str | None:
        return None if case.user is None else self._tokens[case.user]

    def _identify(self, authorizations: list[str]) -> UserInfo | None:
        # Go takes the first of several.
        token = bearer(authorizations[0].encode("latin-1")) if authorizations else None
        if token is None:
            return None
        review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview"}
        spec = {"token": token.decode("latin-1")}
        answer = self._http.post("/webhooks/token-review?timeout=30s", json={**review, "spec": spec}).json()["status"]
        if not answer.get("authenticated"):
            return None
        user: dict[str, Any] = answer["user"]
        extra = tuple((key, tuple(values)) for key, values in user.get("extra", {}).items())
        return UserInfo(user["username"], user.get("uid", ""), tuple(user.get("groups", ())), extra)

    def _ask(self, user: UserInfo, info: RequestInfo) -> int:
        body = encode_review(Attributes(user, info))
        reply = self._http.post("/webhooks/subject-access-review?timeout=30s", content=body)
        if reply.status_code != 200:
            return reply.status_code
        return 200 if reply.json()["status"]["allowed"] else 403


def _path_and_query(case: Case) -> tuple[str, str]:
    path, _, query = (case.arrives or case.target).partition("?")
    return unquote(path, errors="surrogateescape").encode("utf-8", "replace").decode(), query


def _impersonations(lines: list[tuple[str, str]]) -> list[RequestInfo]:
    """The rights that a request needs to be in the name of another."""
    kinds = {"impersonate-user": "users", "impersonate-group": "groups"}
    asked = RequestInfo("impersonate", "", "", is_resource=True, api_version="v1")
    return [replace(asked, resource=kinds[name], name=value) for name, value in lines if name in kinds]


def _impersonated(lines: list[tuple[str, str]]) -> UserInfo | None:
    names = [value for name, value in lines if name == "impersonate-user"]
    groups = [value for name, value in lines if name == "impersonate-group"]
    return UserInfo(names[0], "", (*groups, EVERYBODY)) if any(names) else None
