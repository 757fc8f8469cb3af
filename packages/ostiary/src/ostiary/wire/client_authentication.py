"""``client.authentication.k8s.io``: the input and output of exec plugins.

Three shipped versions, and the dialect of the 2018 proposal that v1alpha1 evolved from. Pure; used by the client, the
plugin SDK, ``ostiary get-token`` and the conformance checks.
"""

from __future__ import annotations

import binascii
import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from ostiary.core.go_text import decode_base64
from ostiary.core.text import fits_token_header
from ostiary.errors import ConfigurationError
from ostiary.model import Secret
from ostiary.wire.go_json import TEXT_AFTER, go_json, read_go_json
from ostiary.wire.go_time import ZERO, parse_rfc3339

# Versions and kinds.

GROUP = "client.authentication.k8s.io"
V1 = f"{GROUP}/v1"
V1BETA1 = f"{GROUP}/v1beta1"
V1ALPHA1 = f"{GROUP}/v1alpha1"
API_VERSIONS = (V1, V1BETA1, V1ALPHA1)

KIND = "ExecCredential"
PROPOSAL_INFO_KIND = "ExecInfo"
PROPOSAL_ANSWER_KIND = "ExecCredentials"
INFO_VARIABLE = "KUBERNETES_EXEC_INFO"

TYPE_NAMES = {dict: "an object", list: "a list", str: "a string", bool: "true or false", int: "a whole number"}


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """The cluster as passed to a plugin (``spec.cluster``)."""

    server: str
    tls_server_name: str = ""
    insecure_skip_tls_verify: bool = False
    certificate_authority_data: bytes = b""
    # A proxy URL may hold a password.
    proxy_url: str = field(default="", repr=False)
    disable_compression: bool = False
    config: Any = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class ExecCredentialSpec:
    """The content of ``KUBERNETES_EXEC_INFO``. `rejection` is (status, headers) of the 401, for v1alpha1.

    `as_proposed` selects the flat ``ExecInfo`` of the 2018 proposal.
    """

    api_version: str
    interactive: bool
    cluster: ClusterInfo | None = None
    rejection: tuple[int, Mapping[str, Sequence[str]]] | None = None
    as_proposed: bool = False


# --- input, written by the client ---


def encode_info(info: ExecCredentialSpec) -> str:
    """Encode *info* as JSON, byte for byte as client-go does, with its newline."""
    if info.as_proposed:
        fields = {"kind": PROPOSAL_INFO_KIND, "apiVersion": info.api_version, **_alpha_fields(info)}
    elif info.api_version == V1ALPHA1:
        fields = {"kind": KIND, "apiVersion": info.api_version, "spec": _alpha_fields(info)}
    else:
        spec: dict[str, Any] = {} if info.cluster is None else {"cluster": _cluster_fields(info.cluster)}
        fields = {
            "kind": KIND,
            "apiVersion": info.api_version,
            "spec": {**spec, "interactive": info.interactive},
        }
    return go_json(fields) + "\n"


def _alpha_fields(info: ExecCredentialSpec) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if info.rejection is not None:
        status, headers = info.rejection
        fields["response"] = {
            "header": {name: list(values) for name, values in sorted(headers.items())},
            "code": status,
        }
    if info.interactive:
        fields["interactive"] = True
    return fields


def _cluster_fields(cluster: ClusterInfo) -> dict[str, Any]:
    optional = {
        "tls-server-name": cluster.tls_server_name,
        "insecure-skip-tls-verify": cluster.insecure_skip_tls_verify,
        "certificate-authority-data": b64encode(cluster.certificate_authority_data).decode("ascii"),
        "proxy-url": cluster.proxy_url,
        "disable-compression": cluster.disable_compression,
    }
    present = {name: value for name, value in optional.items() if value}
    return {"server": cluster.server, **present, "config": _key_sorted(cluster.config)}


def _key_sorted(value: Any) -> Any:
    # kubectl reads every kubeconfig through Go maps, so an extension reaches the plugin with sorted keys.
    if isinstance(value, dict):
        return {key: _key_sorted(value[key]) for key in sorted(value)}
    return [_key_sorted(item) for item in value] if isinstance(value, list) else value


# --- input, read by the plugin ---


def decode_info(text: str) -> ExecCredentialSpec:
    """Decode the input of a plugin; raises `ConfigurationError` if it is invalid.

    Absent fields have client-go's defaults: other clients omit some.
    """
    fields = _info_object(text)
    version, kind = fields.get("apiVersion"), fields.get("kind")
    as_proposed = kind == PROPOSAL_INFO_KIND and version == V1ALPHA1
    if version not in API_VERSIONS:
        raise _unusable_info("its apiVersion is not known", hint=f"use one of {', '.join(API_VERSIONS)}")
    if kind != KIND and not as_proposed:
        raise _unusable_info(f"it is not of kind {KIND}")
    spec = fields if as_proposed else _field(fields, "spec", dict, {})
    cluster = _field(spec, "cluster", dict, None)
    response = _field(spec, "response", dict, None) if version == V1ALPHA1 else None
    return ExecCredentialSpec(
        version,
        interactive=_field(spec, "interactive", bool, False),
        cluster=None if cluster is None else _cluster(cluster),
        rejection=None if response is None else _rejection(response),
        as_proposed=as_proposed,
    )


def _number(text: str) -> int | float:
    """Go writes a negative zero as ``-0``; as an integer it would lose its sign."""
    return -0.0 if text == "-0" else int(text)


def _info_object(text: str) -> dict[str, Any]:
    try:
        fields = json.loads(text, parse_int=_number)
    except (ValueError, RecursionError):
        raise _unusable_info("it is not JSON") from None
    if not isinstance(fields, dict):
        raise _unusable_info("it is not a JSON object")
    return fields


def _cluster(fields: dict[str, Any]) -> ClusterInfo:
    try:
        authority = b64decode(_field(fields, "certificate-authority-data", str, ""), validate=True)
    except (binascii.Error, ValueError):
        raise _unusable_info("certificate-authority-data is not base64") from None
    return ClusterInfo(
        server=_field(fields, "server", str, ""),
        tls_server_name=_field(fields, "tls-server-name", str, ""),
        insecure_skip_tls_verify=_field(fields, "insecure-skip-tls-verify", bool, False),
        certificate_authority_data=authority,
        proxy_url=_field(fields, "proxy-url", str, ""),
        disable_compression=_field(fields, "disable-compression", bool, False),
        config=fields.get("config"),
    )


def _rejection(response: dict[str, Any]) -> tuple[int, Mapping[str, Sequence[str]]]:
    headers = _field(response, "header", dict, {})
    names = {name: tuple(map(str, _field(headers, name, list, []))) for name in headers}
    return _field(response, "code", int, 0), names


def _field(fields: dict[str, Any], name: str, kind: type, absent: Any) -> Any:
    value = fields.get(name)
    if value is None:
        return absent
    # type, not isinstance: in Python a boolean is a number too.
    if type(value) is not kind:
        raise _unusable_info(f"{name} is not {TYPE_NAMES[kind]}")
    return value


def _unusable_info(cause: str, *, hint: str | None = None) -> ConfigurationError:
    return ConfigurationError(
        f"{INFO_VARIABLE} cannot be used",
        cause=cause,
        hint=hint or "a Kubernetes client sets it; to try a plugin by hand: ostiary exec check COMMAND",
        code="exec-info-missing",
    )


# --- output ---

KEY_ADDRESS = "clientKeyAddress"


@dataclass(frozen=True, slots=True)
class ExecAnswer:
    """The decoded output of a plugin. The certificate and key are not validated yet."""

    token: Secret | None
    certificate_pem: str | None
    key_pem: Secret | None
    expires_at: datetime | None
    key_address: str | None = None
    """Address of the certificate's key, instead of `key_pem`. An ostiary field that kubectl does not support."""


class AnswerRefused(Exception):
    """The output of a plugin is not a credential. `code` is one of ours; `rule` names the broken rule."""

    def __init__(self, cause: str, *, hint: str, rule: str, code: str = "exec-plugin-answer-invalid") -> None:
        super().__init__(cause)
        self.cause, self.hint, self.rule, self.code = cause, hint, rule, code


def encode_answer(answer: ExecAnswer, *, api_version: str, as_proposed: bool = False) -> str:
    """Encode the output of a plugin as JSON, with a newline; the expiry in whole seconds, rounded down.

    *as_proposed* selects the flat ``ExecCredentials`` of the 2018 proposal.
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
    # Always this form: some clients parse neither fractions nor offsets.
    try:
        return moment.astimezone(UTC).replace(microsecond=0, tzinfo=None).isoformat() + "Z"
    except OverflowError:
        # The last hours of the year 9999, west of Greenwich.
        return moment.isoformat(timespec="seconds")


# Decoding, by the rules of client-go. `decode_answer` stops at the first broken rule, `refusals` lists all of them.
# Neither quotes the output: the part that cannot be decoded may be the token.


def decode_answer(stdout: bytes, *, api_version: str) -> ExecAnswer:
    """Decode the output of a plugin; raises `AnswerRefused`, which describes the error without quoting the output."""
    fields = answer_fields(stdout)
    for check in _VERSION_CHECKS:
        check(fields, api_version)
    answer = _answer(fields)
    for usable in _USABLE_CHECKS:
        usable(answer)
    return answer


def refusals(stdout: bytes, *, api_version: str) -> Iterator[AnswerRefused]:
    """Yield every rule that the output breaks; none if `decode_answer` would accept it.

    Rules that depend on a broken one are not evaluated: a status that is no object has no token to check.
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
    """Return the one object in the output, before validation."""
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


# The only scalar of the output that is a pointer in client-go, so that null clears it.
_POINTERS = frozenset({"expirationTimestamp"})


def _decode(stdout: bytes) -> Any:
    # Like client-go: output that begins with a brace is JSON only. A byte order mark leads to YAML, which supports
    # UTF-16 too: redirection in PowerShell writes that.
    if stdout.lstrip().startswith(b"{"):
        try:
            return read_go_json(stdout, pointers=_POINTERS)
        except ValueError as error:
            where = str(error)
        if where == TEXT_AFTER:
            raise _undecodable("there is text after the JSON object on stdout")
        raise _undecodable(f"what it printed on stdout is not JSON ({where})")
    # Imported here: nearly every plugin prints JSON, and a plugin that checks its own output starts faster.
    from ostiary.core.yaml import KUBERNETES, parse

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
    # client-go accepts output without a kind, and scripts rely on it.
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
    """Return ``apiVersion`` or ``kind``. Only for these two, client-go ignores case, and the last one counts."""
    values = [value for key, value in fields.items() if key.lower() == name.lower() and value is not None]
    wrong = [value for value in values if not isinstance(value, str)]
    return (wrong or values or [None])[-1]


_VERSION_CHECKS = (_check_kind, _check_version)


def _is_proposed(fields: dict[str, Any]) -> bool:
    return fields.get("kind") == PROPOSAL_ANSWER_KIND


def _body(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the object that holds the credential."""
    if _is_proposed(fields):
        return fields
    status = fields.get("status")
    if status is None:
        raise AnswerRefused("its answer has no status", hint="put the credential under status", rule="status")
    if not isinstance(status, dict):
        raise AnswerRefused("status is not an object", hint="put the credential under status", rule="status")
    return status


# The fields that client-go decodes beside the status: it rejects a wrong type even where it does not use the field.
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
        # type, not isinstance: in Python a boolean is a number too.
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
