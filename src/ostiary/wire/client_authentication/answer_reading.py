"""Reads what an exec plugin printed, by the rules of client-go. Pure.

`decode_answer` stops at the first rule that is broken, `refusals` lists all of them. Neither quotes what the plugin
printed: the part that cannot be decoded may be the token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

from ostiary.core.go.text import decode_base64
from ostiary.core.text import fits_token_header
from ostiary.errors import ConfigurationError
from ostiary.model import Secret
from ostiary.wire.client_authentication.answer import KEY_ADDRESS, AnswerRefused, ExecAnswer
from ostiary.wire.client_authentication.versions import (
    API_VERSIONS,
    KIND,
    PROPOSAL_ANSWER_KIND,
    TYPE_NAMES,
    V1ALPHA1,
)
from ostiary.wire.codec.go_json import TEXT_AFTER, read_go_json
from ostiary.wire.codec.go_time import ZERO, parse_rfc3339


def decode_answer(stdout: bytes, *, api_version: str) -> ExecAnswer:
    """Read what a plugin printed; raises `AnswerRefused`, which says what is wrong and never quotes it."""
    fields = answer_fields(stdout)
    for check in _VERSION_CHECKS:
        check(fields, api_version)
    answer = _answer(fields)
    for usable in _USABLE_CHECKS:
        usable(answer)
    return answer


def refusals(stdout: bytes, *, api_version: str) -> Iterator[AnswerRefused]:
    """Every rule that an answer breaks, and not only the first; none if `decode_answer` would take it.

    What hides behind a broken rule is not guessed at: a status that is no object has no token to judge.
    """
    try:
        fields = answer_fields(stdout)
    except AnswerRefused as refused:
        yield refused
        return
    for check in _VERSION_CHECKS:
        yield from _refusals_of(check, fields, api_version)
    broken = list(_broken_parts(fields))
    yield from broken
    if not broken:
        answer = _answer(fields)
        for usable in _USABLE_CHECKS:
            yield from _refusals_of(usable, answer)


def _broken_parts(fields: dict[str, Any]) -> Iterator[AnswerRefused]:
    without_body = list(_refusals_of(_body, fields))
    if without_body:
        yield from without_body
        return
    yield from _refusals_of(_check_spec, fields)
    yield from _refusals_of(_expiry, fields)
    for name in _STRINGS:
        yield from _refusals_of(_string, _body(fields), name)


def _refusals_of(check: Callable[..., object], *arguments: object) -> Iterator[AnswerRefused]:
    try:
        check(*arguments)
    except AnswerRefused as refused:
        yield refused


def answer_fields(stdout: bytes) -> dict[str, Any]:
    """The one object that a plugin printed, before anything in it is judged."""
    if not stdout.strip():
        raise AnswerRefused(
            "it printed nothing on stdout",
            hint="print one ExecCredential object on stdout",
            rule="prints-an-answer",
            code="exec-plugin-answer-undecodable",
        )
    document = _decode(stdout)
    if not isinstance(document, dict):
        raise _undecodable("what it printed on stdout is not one JSON or YAML object")
    return document


# The one scalar of the answer for which client-go has a pointer, so that null takes it away.
_POINTERS = frozenset({"expirationTimestamp"})


def _decode(stdout: bytes) -> Any:
    # As client-go: what begins with a brace is JSON and nothing else. A byte order mark leads to YAML, which
    # reads UTF-16 too: that is what a redirection in PowerShell writes.
    if stdout.lstrip().startswith(b"{"):
        try:
            return read_go_json(stdout, pointers=_POINTERS)
        except ValueError as error:
            where = str(error)
        if where == TEXT_AFTER:
            raise _undecodable("there is text after the JSON object on stdout")
        raise _undecodable(f"what it printed on stdout is not JSON ({where})")
    # Imported here: nearly every plugin answers in JSON, and a plugin that judges itself starts faster.
    from ostiary.core.config import KUBERNETES, parse

    try:
        return parse(stdout, dialect=KUBERNETES).value
    except ConfigurationError:
        pass
    raise _undecodable("what it printed on stdout is neither JSON nor YAML, or there is text around it")


def _undecodable(cause: str) -> AnswerRefused:
    return AnswerRefused(
        cause,
        hint="print only the ExecCredential on stdout; write messages to stderr",
        rule="one-object-on-stdout",
        code="exec-plugin-answer-undecodable",
    )


def _check_kind(fields: dict[str, Any], wanted: str) -> None:
    kind = _type_meta(fields, "kind")
    kinds = (KIND, PROPOSAL_ANSWER_KIND) if wanted == V1ALPHA1 else (KIND,)
    # client-go takes an answer without a kind, and scripts rely on it.
    if kind not in (None, "", *kinds):
        raise AnswerRefused(
            f"its answer is not of kind {KIND}",
            hint=f'answer with "kind": "{KIND}"',
            rule="kind",
            code="exec-plugin-answer-version",
        )


def _check_version(fields: dict[str, Any], wanted: str) -> None:
    version = _type_meta(fields, "apiVersion")
    if version in (None, ""):
        raise AnswerRefused(
            "its answer has no apiVersion",
            hint=f'answer with "apiVersion": "{wanted}"',
            rule="api-version",
            code="exec-plugin-answer-version",
        )
    if version != wanted:
        actual = version if version in API_VERSIONS else "another apiVersion"
        raise AnswerRefused(
            f"it was asked for {wanted} and answered with {actual}",
            hint="answer in the apiVersion of KUBERNETES_EXEC_INFO, or change exec.apiVersion in the kubeconfig",
            rule="api-version",
            code="exec-plugin-answer-version",
        )


def _type_meta(fields: dict[str, Any], name: str) -> Any:
    """``apiVersion`` or ``kind``. For these two alone, client-go ignores case, and the last one counts."""
    values = [value for key, value in fields.items() if key.lower() == name.lower() and value is not None]
    wrong = [value for value in values if not isinstance(value, str)]
    return (wrong or values or [None])[-1]


_VERSION_CHECKS = (_check_kind, _check_version)


def _is_proposed(fields: dict[str, Any]) -> bool:
    return fields.get("kind") == PROPOSAL_ANSWER_KIND


def _body(fields: dict[str, Any]) -> dict[str, Any]:
    """The part that holds the credential."""
    if _is_proposed(fields):
        return fields
    status = fields.get("status")
    if status is None:
        raise AnswerRefused("its answer has no status", hint="put the credential under status", rule="status")
    if not isinstance(status, dict):
        raise AnswerRefused("status is not an object", hint="put the credential under status", rule="status")
    return status


# What client-go decodes beside the status: it refuses a field of another type even where it does not use it.
_SPEC_FIELDS: dict[str, type] = {"cluster": dict, "interactive": bool}
_CLUSTER_FIELDS: dict[str, type] = {
    "server": str,
    "tls-server-name": str,
    "insecure-skip-tls-verify": bool,
    "certificate-authority-data": str,
    "proxy-url": str,
    "disable-compression": bool,
}


def _check_spec(fields: dict[str, Any]) -> None:
    if _is_proposed(fields):
        return
    _check_types(fields, {"spec": dict}, "")
    spec = fields.get("spec") or {}
    _check_types(spec, _SPEC_FIELDS, "spec.")
    cluster = spec.get("cluster") or {}
    _check_types(cluster, _CLUSTER_FIELDS, "spec.cluster.")
    if decode_base64(cluster.get("certificate-authority-data") or "") is None:
        raise _wrong_type("spec.cluster.certificate-authority-data", "base64")


def _check_types(section: dict[str, Any], types: dict[str, type], path: str) -> None:
    for name, kind in types.items():
        value = section.get(name)
        # type, not isinstance: to Python a boolean is a number too.
        if value is not None and type(value) is not kind:
            raise _wrong_type(path + name, TYPE_NAMES[kind])


def _wrong_type(name: str, kind: str) -> AnswerRefused:
    hint = "leave spec out: an answer needs only apiVersion, kind and status"
    return AnswerRefused(f"{name} is not {kind}", hint=hint, rule="field-types")


def _answer(fields: dict[str, Any]) -> ExecAnswer:
    _check_spec(fields)
    body, expires_at = _body(fields), _expiry(fields)
    token, certificate, key, address = (_string(body, name) for name in _STRINGS)
    return ExecAnswer(
        token=Secret(token) if token else None,
        certificate_pem=certificate or None,
        key_pem=Secret(key) if key else None,
        expires_at=expires_at,
        key_address=address or None,
    )


_STRINGS = ("token", "clientCertificateData", "clientKeyData", KEY_ADDRESS)


def _string(fields: dict[str, Any], name: str) -> str:
    value = fields.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise AnswerRefused(f"{name} is not a string", hint=f"put {name} in quotes", rule="field-types")
    return value


def _check_pair(answer: ExecAnswer) -> None:
    if answer.key_pem is not None and answer.key_address is not None:
        hint = f"return clientKeyData or {KEY_ADDRESS}, and not both"
        raise AnswerRefused("it returned a client key twice", hint=hint, rule="certificate-and-key")
    has_key = answer.key_pem is not None or answer.key_address is not None
    if (answer.certificate_pem is not None) == has_key:
        return
    lone, missing = ("certificate", "clientKeyData") if answer.certificate_pem else ("key", "clientCertificateData")
    raise AnswerRefused(
        f"it returned a client {lone} alone",
        hint=f"return {missing} too, or neither",
        rule="certificate-and-key",
    )


def _check_credential(answer: ExecAnswer) -> None:
    if (answer.token, answer.certificate_pem, answer.key_pem, answer.key_address) == (None, None, None, None):
        raise AnswerRefused(
            "it returned neither a token nor a client certificate and key",
            hint="fill status.token, or status.clientCertificateData and status.clientKeyData",
            rule="has-credential",
        )


def _check_token(answer: ExecAnswer) -> None:
    if answer.token is not None and not fits_token_header(answer.token.reveal()):
        raise AnswerRefused(
            "its token holds a line break, a space or another character that no header can carry",
            hint="print the token without the newline at its end (printf instead of echo)",
            rule="token-is-header-safe",
        )


_USABLE_CHECKS = (_check_pair, _check_credential, _check_token)


def _expiry(fields: dict[str, Any]) -> datetime | None:
    if _is_proposed(fields):
        return _unix_time(fields.get("expiry"))
    return _timestamp(_body(fields).get("expirationTimestamp"))


def _timestamp(value: Any) -> datetime | None:
    if value is None:
        return None
    try:
        if isinstance(value, str):
            moment = parse_rfc3339(value)
            return None if moment == ZERO else moment
    except ValueError:
        pass
    raise AnswerRefused(
        "expirationTimestamp is not a time of RFC 3339 with its zone",
        hint="write it like 2030-01-31T12:00:00Z, in upper case; leave it out if the credential never expires",
        rule="expiration-timestamp",
    )


def _unix_time(value: Any) -> datetime | None:
    if value is None or value == 0:
        return None
    try:
        if isinstance(value, int) and not isinstance(value, bool):
            return datetime.fromtimestamp(value, UTC)
    except (OverflowError, ValueError, OSError):
        pass
    raise AnswerRefused(
        "expiry is not a unix time in seconds",
        hint="write the seconds since 1970 as a number",
        rule="expiration-timestamp",
    )
