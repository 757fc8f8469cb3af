"""AuthenticationConfiguration and AuthorizationConfiguration (v1) of a kube-apiserver that trusts our issuer. Pure.

Revoked credentials become CEL rules on the claims of a token: an API server verifies JWTs without querying the gateway,
and reads its configuration again when the file changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ostiary.core.yaml import Json
from ostiary_gateway.wire.revoked_credentials import RevokedCredentials, RevokedSubject

API_VERSION = "apiserver.config.k8s.io/v1"
# Keys of `extra` of a JWT's user. kube-apiserver itself adds the credential id, which is the JWT's `jti`.
ISSUER_KEY = "ostiary.dev/issuer"
SESSION_KEY = "ostiary.dev/session"
CREDENTIAL_ID_KEY = "authentication.kubernetes.io/credential-id"

# cel-go rejects expressions of more than 100,000 characters; the rest goes into further rules.
LONGEST_EXPRESSION = 60_000
REVOKED = "the credential has been revoked"


def authentication_configuration(
    revoked: RevokedCredentials, *, authorities_pem: str = "", discovery_url: str = "", base: Json = None
) -> dict[str, Json]:
    """Return the whole file. Our issuer is added to the configuration *base*, replacing a previous entry of it."""
    issuer: dict[str, Json] = {"url": revoked.issuer}
    if discovery_url:
        issuer["discoveryURL"] = discovery_url
    issuer["audiences"] = list(revoked.audiences)
    if len(revoked.audiences) > 1:
        issuer["audienceMatchPolicy"] = "MatchAny"
    if authorities_pem:
        issuer["certificateAuthority"] = authorities_pem
    rules: list[Json] = [{"expression": each, "message": REVOKED} for each in deny_expressions(revoked)]
    ours: dict[str, Json] = {
        "issuer": issuer,
        **({"claimValidationRules": rules} if rules else {}),
        "claimMappings": {
            "username": {"claim": "username", "prefix": ""},
            "groups": {"claim": "groups", "prefix": ""},
            "uid": {"claim": "uid"},
            "extra": [
                {"key": ISSUER_KEY, "valueExpression": "claims.iss"},
                {"key": SESSION_KEY, "valueExpression": "claims.sid"},
            ],
        },
        "userValidationRules": [
            {
                "expression": "!user.username.startsWith('system:')",
                "message": "the issuer must not name users of the system",
            },
            {
                "expression": "user.groups.all(group, !group.startsWith('system:'))",
                "message": "the issuer must not name groups of the system",
            },
        ],
    }
    file: dict[str, Json] = dict(base) if isinstance(base, dict) else {}
    file = {"apiVersion": API_VERSION, "kind": "AuthenticationConfiguration", **file}
    others = file.get("jwt")
    file["jwt"] = [
        *(each for each in (others if isinstance(others, list) else []) if _issuer_of(each) != revoked.issuer),
        ours,
    ]
    return file


def _issuer_of(entry: Json) -> Json:
    issuer = entry.get("issuer") if isinstance(entry, dict) else None
    return issuer.get("url") if isinstance(issuer, dict) else None


def authorization_configuration(issuer: str, *, kubeconfig: str, failure_policy: str) -> dict[str, Json]:
    """A webhook that only ever denies, before the usual authorizers of kube-apiserver.

    It is called for users of our issuer only, so that other users do not depend on it. Its responses are not cached: a
    previous "no opinion" may be outdated.
    """
    webhook: dict[str, Json] = {
        "timeout": "3s",
        "subjectAccessReviewVersion": "v1",
        "matchConditionSubjectAccessReviewVersion": "v1",
        "failurePolicy": failure_policy,
        "authorizedTTL": "1s",
        "cacheAuthorizedRequests": False,
        "unauthorizedTTL": "1s",
        "cacheUnauthorizedRequests": False,
        "connectionInfo": {"type": "KubeConfigFile", "kubeConfigFile": kubeconfig},
        "matchConditions": [
            {"expression": f"has(request.extra) && {cel_text(ISSUER_KEY)} in request.extra"},
            {"expression": f"{cel_text(issuer)} in request.extra[{cel_text(ISSUER_KEY)}]"},
        ],
    }
    return {
        "apiVersion": API_VERSION,
        "kind": "AuthorizationConfiguration",
        "authorizers": [
            {"type": "Webhook", "name": "ostiary-revocations", "webhook": webhook},
            {"type": "Node", "name": "node"},
            {"type": "RBAC", "name": "rbac"},
        ],
    }


# CEL.


def deny_expressions(revoked: RevokedCredentials) -> list[str]:
    """Return the conditions that every JWT must meet; none if nothing is revoked."""
    expressions = [f"int(claims.iat) > {revoked.issued_until}"] if revoked.issued_until is not None else []
    for claim, values in (("jti", revoked.credential_ids), ("sid", revoked.sessions)):
        for texts in _portions(map(cel_text, values), ", "):
            expressions.append(f"!(claims.{claim} in [{texts}])")
    for texts in _portions((_subject(each) for each in revoked.subjects), " || "):
        expressions.append(f"!({texts})")
    return expressions


def _subject(subject: RevokedSubject) -> str:
    conditions = []
    if subject.username is not None:
        conditions.append(f"claims.username == {cel_text(subject.username)}")
    if subject.group is not None:
        conditions.append(f"{cel_text(subject.group)} in claims.groups")
    if subject.sequence is not None:
        conditions.append(f"int(claims.sequence) < {subject.sequence}")
    if subject.began_until is not None:
        conditions.append(f"int(claims.auth_time) <= {subject.began_until}")
    if subject.issued_until is not None:
        conditions.append(f"int(claims.iat) <= {subject.issued_until}")
    return f"({' && '.join(conditions)})" if conditions else "true"


def _portions(texts: Iterable[str], separator: str) -> Iterator[str]:
    """Join *texts* into as few portions as the maximum length of an expression allows."""
    portion: list[str] = []
    length = 0
    for text in texts:
        if portion and length + len(text) > LONGEST_EXPRESSION:
            yield separator.join(portion)
            portion, length = [], 0
        portion.append(text)
        length += len(text) + len(separator)
    if portion:
        yield separator.join(portion)


def cel_text(text: str) -> str:
    """Return *text* as a CEL literal. Everything but plain ASCII is escaped, so that no name can end the literal."""
    return f'"{"".join(map(_cel_character, text))}"'


def _cel_character(character: str) -> str:
    if character in '"\\':
        return f"\\{character}"
    if " " <= character <= "~":
        return character
    code = ord(character)
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
