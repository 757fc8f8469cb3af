"""The platform ``kubernetes``: service account tokens as issued by TokenRequest, and token reviews.

    sub                          system:serviceaccount:shop:deployer
    kubernetes.io                {namespace, serviceaccount: {name, uid}, pod: {name, uid}, node: {name, uid}}

Only service accounts of the cluster behind the gateway, to which the operator has bound the issuer, get the names of
Kubernetes. That cluster would treat a service account of another one as its own of the same name, so those get other
names: ``serviceaccount:shop:deployer``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from urllib.parse import urlsplit

from ostiary.errors import LoginRefused
from ostiary_gateway.authorization.implied_groups import service_account, service_account_groups
from ostiary_gateway.providers.common.jwt import ParsedToken
from ostiary_gateway.providers.common.outbound import Outbound
from ostiary_gateway.providers.workload.platforms import Extra, Platform, TokenClaims, Workload
from ostiary_gateway.providers.workload.rules import SYSTEM, WorkloadNames

PRIVATE_CLAIMS = "kubernetes.io"
# kube-apiserver's extra keys for the objects that a token is bound to. Its admission policies rely on them.
ITS_OWN, OTHERS = "authentication.kubernetes.io", "ostiary.dev"
BOUND_OBJECTS = ("node", "pod")


def kubernetes(*, bound: bool) -> Platform:
    return Platform(
        "kubernetes",
        issuer="https://kubernetes.default.svc.cluster.local",
        claims=frozenset(("iss", "sub", "aud", "jti", "namespace", "serviceaccount", "pod", "node")),
        needs_rules=False,
        read=_read_bound if bound else _read_other,
        extra=tuple(_extra_keys(bound=bound)),
    )


def _extra_keys(*, bound: bool) -> Iterator[str]:
    domain = ITS_OWN if bound else OTHERS
    return (f"{domain}/{kind}-{what}" for kind in BOUND_OBJECTS for what in ("name", "uid"))


def _read_bound(claims: Mapping[str, object]) -> Workload:
    return _read(claims, bound=True)


def _read_other(claims: Mapping[str, object]) -> Workload:
    return _read(claims, bound=False)


def _read(claims: Mapping[str, object], *, bound: bool) -> Workload:
    """Read the claims of a service account token. Raises `LoginRefused` if it is not one."""
    private = claims.get(PRIVATE_CLAIMS)
    details = private if isinstance(private, dict) else {}
    account, subject = _object(details, "serviceaccount"), claims.get("sub")
    namespace, name = details.get("namespace"), account.get("name")
    if not isinstance(subject, str) or service_account(subject) != (namespace, name):
        cause = "its subject is not the service account of its private claims"
        raise LoginRefused("this token is not a service account's", cause=cause)
    assert isinstance(namespace, str)
    bound_to = {kind: _object(details, kind).get("name") for kind in BOUND_OBJECTS}
    texts = TokenClaims(claims, {"namespace": namespace, "serviceaccount": name, **bound_to})
    return Workload(texts, _names(subject, namespace, account, bound=bound), tuple(_bound_objects(details, bound)))


def _names(subject: str, namespace: str, account: Mapping[str, object], *, bound: bool) -> WorkloadNames:
    uid = account.get("uid")
    groups = service_account_groups(namespace)
    if bound:
        return WorkloadNames(subject, groups, uid if isinstance(uid, str) else "")
    return WorkloadNames(subject.removeprefix(SYSTEM), tuple(group.removeprefix(SYSTEM) for group in groups))


def _bound_objects(details: Mapping[str, object], bound: bool) -> Extra:
    domain = ITS_OWN if bound else OTHERS
    return tuple(
        (f"{domain}/{kind}-{what}", (value,))
        for kind in BOUND_OBJECTS
        for what in ("name", "uid")
        if isinstance(value := _object(details, kind).get(what), str) and value
    )


def _object(details: Mapping[str, object], kind: str) -> Mapping[str, object]:
    value = details.get(kind)
    return value if isinstance(value, dict) else {}


API_VERSION, KIND = "authentication.k8s.io/v1", "TokenReview"
PATH = "/apis/authentication.k8s.io/v1/tokenreviews"


class TokenReviewClient:
    """Client of the TokenReview API of a cluster.

    A review needs no keys of the cluster. It also detects what a signature does not show: that the pod or the
    service account that a token is bound to was deleted.
    """

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
        """Send a TokenReview. Raises `LoginRefused` if the API server rejects the token, or names another subject."""
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
        # An API server that ignores audiences returns none: then the audience was not checked.
        audiences = status.get("audiences")
        if not isinstance(audiences, list) or not set(map(str, audiences)) & set(self._audiences):
            raise _refusal("the API server does not say that it is for us")
        user = status.get("user")
        if not isinstance(user, dict) or user.get("username") != parsed.claims.get("sub"):
            raise _refusal("to the API server it is somebody else's than it says")

    async def probe(self) -> str:
        """Send a review of an invalid token. Raises if the API server is unavailable, or rejects our credential."""
        with suppress(LoginRefused):
            await self.check("no token", ParsedToken({}, {}, b"", b""))
        return f"the token reviews of {urlsplit(self._url).netloc}"


def _refusal(cause: str) -> LoginRefused:
    return LoginRefused("the token of this workload is not accepted", cause=f"the token: {cause}")
