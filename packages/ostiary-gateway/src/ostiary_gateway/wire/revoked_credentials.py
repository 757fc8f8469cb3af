"""The revocation list of our issuer: the unexpired JWTs that a verifier must reject, as values and as JSON. Pure.

    revocations -> (`issuer.deny_list`) -> RevokedCredentials -> JSON -> ``issuer kubernetes`` -> CEL

The gateway sends it to the tools that maintain the configuration of a kube-apiserver. It contains usernames if a rule
is about a user, and no secrets; it does not reveal whose the listed ids are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

KIND = "RevokedCredentials"
API_VERSION = "ostiary.dev/v1"


@dataclass(frozen=True, slots=True)
class RevokedSubject:
    """A rule that rejects a JWT if all set conditions match: this user, this group, began before.

    `sequence`: its session began before the revocation of this number. `began_until`: at this time or earlier, in
    seconds. `issued_until`: the JWT itself was issued at this time or earlier. Without any condition it matches every
    JWT.
    """

    username: str | None = None
    group: str | None = None
    sequence: int | None = None
    began_until: int | None = None
    issued_until: int | None = None


@dataclass(frozen=True, slots=True)
class RevokedCredentials:
    """The list. `head` is the number of its last revocation. `issued_until`: all JWTs up to this time are rejected.

    The latter replaces a list that would be too long: clients with an active session get a new JWT.
    """

    issuer: str
    audiences: tuple[str, ...]
    head: int = 0
    credential_ids: tuple[str, ...] = ()
    sessions: tuple[str, ...] = ()
    subjects: tuple[RevokedSubject, ...] = ()
    issued_until: int | None = None

    def __len__(self) -> int:
        return len(self.credential_ids) + len(self.sessions) + len(self.subjects)


def with_audiences(revoked: RevokedCredentials, audiences: tuple[str, ...]) -> RevokedCredentials:
    return replace(revoked, audiences=audiences)


def encode_revoked_credentials(revoked: RevokedCredentials) -> bytes:
    subjects = [
        {
            "username": each.username,
            "group": each.group,
            "sequence": each.sequence,
            "beganUntil": each.began_until,
            "issuedUntil": each.issued_until,
        }
        for each in revoked.subjects
    ]
    return json.dumps(
        {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "issuer": revoked.issuer,
            "audiences": list(revoked.audiences),
            "head": revoked.head,
            "credentialIDs": list(revoked.credential_ids),
            "sessions": list(revoked.sessions),
            "subjects": [{key: value for key, value in subject.items() if value is not None} for subject in subjects],
            **({} if revoked.issued_until is None else {"issuedUntil": revoked.issued_until}),
        }
    ).encode()


def decode_revoked_credentials(fields: Mapping[str, Any]) -> RevokedCredentials:
    """Decode a list; raises `ValueError` for anything else: a partial list would accept revoked credentials."""
    mistake = "it is not a list of revoked credentials"
    if (fields.get("apiVersion"), fields.get("kind")) != (API_VERSION, KIND):
        raise ValueError(mistake)
    subjects = fields.get("subjects")
    if not isinstance(subjects, list) or not all(isinstance(each, dict) for each in subjects):
        raise ValueError(mistake)
    return RevokedCredentials(
        issuer=_text(fields, "issuer") or "",
        audiences=_texts(fields, "audiences"),
        head=_number(fields, "head") or 0,
        credential_ids=_texts(fields, "credentialIDs"),
        sessions=_texts(fields, "sessions"),
        subjects=tuple(_subject(each) for each in subjects),
        issued_until=_number(fields, "issuedUntil"),
    )


def _subject(fields: Mapping[str, Any]) -> RevokedSubject:
    if not fields.keys() <= {"username", "group", "sequence", "beganUntil", "issuedUntil"}:
        # Ignoring an unknown condition would reject too much or too little.
        raise ValueError("it has a condition that this version does not know")
    return RevokedSubject(
        username=_text(fields, "username"),
        group=_text(fields, "group"),
        sequence=_number(fields, "sequence"),
        began_until=_number(fields, "beganUntil"),
        issued_until=_number(fields, "issuedUntil"),
    )


def _texts(fields: Mapping[str, Any], key: str) -> tuple[str, ...]:
    values = fields.get(key)
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise ValueError(f"{key} is not a list of texts")
    return tuple(values)


def _text(fields: Mapping[str, Any], key: str) -> str | None:
    value = fields.get(key)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{key} is not a text")
    return value


def _number(fields: Mapping[str, Any], key: str) -> int | None:
    value = fields.get(key)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise ValueError(f"{key} is not a number")
    return value
