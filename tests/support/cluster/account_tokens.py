"""Signed tokens of service accounts, as kube-apiserver issues, publishes and reviews them.

POST .../serviceaccounts/NAME/token                 a JWT, for the audiences that were asked for
GET /.well-known/openid-configuration               who issues them, and where the keys are
GET /openid/v1/jwks                                 the keys
POST /apis/authentication.k8s.io/v1/tokenreviews    whose a token is; nobody's, once its pod or account is gone
"""

from __future__ import annotations

import base64
import json
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from joserfc.jwk import ECKey, KeyParameters
from joserfc.jws import JWSRegistry

from tests.support.cluster.store import Object

ISSUER = "https://kubernetes.default.svc.cluster.local"
JWKS_PATH, JWKS_TYPE = "/openid/v1/jwks", "application/jwk-set+json"
DISCOVERY_PATH = "/.well-known/openid-configuration"


def new_key() -> ECKey:
    return ECKey.generate_key("P-256", KeyParameters(kid=uuid.uuid4().hex))


@dataclass
class AccountTokens:
    """The first of `keys` signs; all are published. `now` is the time in seconds."""

    issuer: str = ISSUER
    keys: list[ECKey] = field(default_factory=lambda: [new_key()])
    now: Callable[[], float] = time.time

    def rotate(self, *, keep: bool = True) -> None:
        """Sign with a new key; the old ones stay published, or are gone at once."""
        self.keys[:] = [new_key(), *(self.keys if keep else ())]

    def issue(self, account: Object, spec: Object, pod: Object | None) -> tuple[str, str]:
        """A token of *account* and when it expires, as TokenRequest answers it."""
        now = int(self.now())
        expires = now + int(spec["expirationSeconds"])
        claims = {
            "aud": spec["audiences"],
            "exp": expires,
            "iat": now,
            "iss": self.issuer,
            "jti": str(uuid.uuid4()),
            "kubernetes.io": _private_claims(account, pod),
            "nbf": now,
            "sub": f"system:serviceaccount:{account['metadata']['namespace']}:{account['metadata']['name']}",
        }
        return self.sign(claims), datetime.fromtimestamp(expires, UTC).isoformat().replace("+00:00", "Z")

    def sign(self, claims: dict[str, Any]) -> str:
        key = self.keys[0]
        signed = ".".join(_encoded(json.dumps(part).encode()) for part in ({"alg": "ES256", "kid": key.kid}, claims))
        return f"{signed}.{_encoded(JWSRegistry.algorithms['ES256'].sign(signed.encode(), key))}"

    def discovery(self, server: str) -> Object:
        return {
            "issuer": self.issuer,
            "jwks_uri": f"{server}{JWKS_PATH}",
            "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["ES256"],
        }

    def jwks(self) -> Object:
        return {"keys": [{"use": "sig", "alg": "ES256", **key.as_dict(private=False)} for key in self.keys]}

    def claims(self, token: str) -> dict[str, Any] | None:
        """What *token* says, if it is ours and has not expired."""
        signed, _, signature = token.rpartition(".")
        try:
            header, payload = (json.loads(_decoded(part)) for part in signed.split("."))
        except ValueError:
            return None
        key = next((key for key in self.keys if key.kid == header.get("kid")), None)
        good = key is not None and JWSRegistry.algorithms["ES256"].verify(signed.encode(), _decoded(signature), key)
        return payload if good and payload["exp"] > self.now() else None

    def review(self, spec: Object, find: Callable[[str, str, str], Object | None], api_audience: str) -> Object:
        """The status of a TokenReview. *find* looks up an object by resource, namespace and name."""
        claims = self.claims(str(spec.get("token", "")))
        audiences = spec.get("audiences") or [api_audience]
        common = [] if claims is None else [each for each in audiences if each in claims["aud"]]
        if claims is None or not common:
            return {"user": {}, "error": "[invalid bearer token, token audiences not accepted]"}
        private = claims["kubernetes.io"]
        namespace = private["namespace"]
        for resource, kind in (("serviceaccounts", "serviceaccount"), ("pods", "pod")):
            bound = private.get(kind)
            known = None if bound is None else find(resource, namespace, bound["name"])
            if bound is not None and (known is None or known["metadata"]["uid"] != bound["uid"]):
                return {"user": {}, "error": f"[invalid bearer token, {kind} has been deleted or replaced]"}
        user = {
            "username": claims["sub"],
            "uid": private["serviceaccount"]["uid"],
            "groups": ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"],
            "extra": {"authentication.kubernetes.io/credential-id": [f"JTI={claims['jti']}"]},
        }
        return {"authenticated": True, "user": user, "audiences": common}


def _private_claims(account: Object, pod: Object | None) -> Object:
    metadata = account["metadata"]
    claims: Object = {
        "namespace": metadata["namespace"],
        "serviceaccount": {"name": metadata["name"], "uid": metadata["uid"]},
    }
    if pod is not None:
        claims["pod"] = {"name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
        if node := pod["spec"].get("nodeName"):
            claims["node"] = {"name": node, "uid": f"uid-of-{node}"}
    return claims


def _encoded(part: bytes) -> str:
    return base64.urlsafe_b64encode(part).rstrip(b"=").decode()


def _decoded(part: str) -> bytes:
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))
