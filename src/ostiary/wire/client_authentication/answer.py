"""What an exec plugin answers, and how it is written. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from ostiary.model import Secret
from ostiary.wire.client_authentication.versions import KIND, PROPOSAL_ANSWER_KIND
from ostiary.wire.codec.go_json import go_json

KEY_ADDRESS = "clientKeyAddress"


@dataclass(frozen=True, slots=True)
class ExecAnswer:
    """What a plugin printed, taken apart. The certificate and key are not checked yet."""

    token: Secret | None
    certificate_pem: str | None
    key_pem: Secret | None
    expires_at: datetime | None
    key_address: str | None = None
    """Where the key of the certificate is, in place of `key_pem`: a field of ours, which kubectl does not know."""


class AnswerRefused(Exception):
    """What a plugin printed is not a credential. `code` is one of ours; `rule` names what it broke."""

    def __init__(self, cause: str, *, hint: str, rule: str, code: str = "exec-plugin-answer-invalid") -> None:
        super().__init__(cause)
        self.cause, self.hint, self.rule, self.code = cause, hint, rule, code


def encode_answer(answer: ExecAnswer, *, api_version: str, as_proposed: bool = False) -> str:
    """The JSON of *answer*, as a plugin prints it, with a newline; the expiry in whole seconds, rounded down.

    *as_proposed* writes the flat ``ExecCredentials`` of the 2018 proposal instead.
    """
    key = answer.key_pem.reveal() if answer.key_pem else None
    credential: dict[str, Any] = {
        "token": answer.token.reveal() if answer.token else None,
        "clientCertificateData": answer.certificate_pem,
        "clientKeyData": key,
        KEY_ADDRESS: answer.key_address,
    }
    moment = answer.expires_at
    if as_proposed:
        credential["expiry"] = None if moment is None else int(moment.timestamp() // 1)
        return go_json({"kind": PROPOSAL_ANSWER_KIND, "apiVersion": api_version, **_without_none(credential)}) + "\n"
    status = {"expirationTimestamp": None if moment is None else _rfc3339(moment), **credential}
    return go_json({"kind": KIND, "apiVersion": api_version, "status": _without_none(status)}) + "\n"


def _without_none(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _rfc3339(moment: datetime) -> str:
    # Always in this one form: there are clients that read no other, neither fractions nor offsets.
    try:
        return moment.astimezone(UTC).replace(microsecond=0, tzinfo=None).isoformat() + "Z"
    except OverflowError:
        # The very end of the year 9999, west of Greenwich.
        return moment.isoformat(timespec="seconds")
