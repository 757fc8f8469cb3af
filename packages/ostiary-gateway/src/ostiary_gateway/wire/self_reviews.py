"""Self reviews, and a TokenReview, as kube-apiserver reads and writes them. Pure.

    bytes + headers + query -> read_review -> SelfReview  ...  answer -> object -> `ostiary_gateway.wire.protobuf`

``kind`` and ``apiVersion`` are optional, since the path implies them. The body may be JSON, YAML or protobuf. Unknown
fields cause warnings, or errors with ``fieldValidation=Strict``; contradictions cause a 422. Errors never quote what
could not be parsed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

from ostiary.model import Decision, RequestInfo, UserInfo, Verdict
from ostiary_gateway.interfaces.authorization import Rules
from ostiary_gateway.wire import authentication, authorization, protobuf
from ostiary_gateway.wire.negotiation import MEDIA_TYPES, PARTIAL_METADATA, PROTOBUF, YAML, body_media_type
from ostiary_gateway.wire.protobuf import ProtobufError
from ostiary_gateway.wire.typed_json import (
    ListOf,
    MapOf,
    NotOfThisType,
    Problems,
    Struct,
    Type,
    parse_json,
    parse_yaml,
    read_typed,
)

ACCESS, RULES, WHO = "SelfSubjectAccessReview", "SelfSubjectRulesReview", "SelfSubjectReview"
TOKEN = "TokenReview"  # noqa: S105
API_VERSIONS = {ACCESS: authorization.V1, RULES: authorization.V1, WHO: authentication.V1, TOKEN: authentication.V1}
LONGEST_FIELD_MANAGER = 128

_METADATA = Struct(
    {
        **dict.fromkeys(("name", "generateName", "namespace", "selfLink", "uid", "resourceVersion"), str),
        "generation": int,
        "creationTimestamp": str,
        "deletionTimestamp": str,
        "deletionGracePeriodSeconds": int,
        "labels": MapOf(str),
        "annotations": MapOf(str),
        "ownerReferences": ListOf(None),
        "finalizers": ListOf(str),
        "managedFields": ListOf(None),
    }
)
# The server sets or clears these itself, so they count as absent.
_OF_THE_SERVER = frozenset(
    (
        *("namespace", "selfLink", "uid", "creationTimestamp", "deletionTimestamp"),
        *("deletionGracePeriodSeconds", "managedFields"),
    )
)
_REQUIREMENTS = ListOf(
    Struct({"key": str, "operator": str, "values": ListOf(str)}, always=frozenset(("key", "operator")))
)
_SELECTOR = Struct({"rawSelector": str, "requirements": _REQUIREMENTS})
_RESOURCE = Struct(
    {
        **dict.fromkeys(("namespace", "verb", "group", "version", "resource", "subresource", "name"), str),
        "fieldSelector": _SELECTOR,
        "labelSelector": _SELECTOR,
    }
)
_PATH = Struct({"path": str, "verb": str})
_RULE = Struct(dict.fromkeys(("verbs", "apiGroups", "resources", "resourceNames", "nonResourceURLs"), ListOf(str)))
_USER = Struct({"username": str, "uid": str, "groups": ListOf(str), "extra": MapOf(ListOf(str))})


def _review(spec: Struct | None, status: Struct) -> Struct:
    about: dict[str, Type] = {"kind": str, "apiVersion": str, "metadata": _METADATA}
    question: dict[str, Type] = {} if spec is None else {"spec": spec}
    return Struct({**about, **question, "status": status})


_TYPES = {
    ACCESS: _review(
        Struct({"resourceAttributes": _RESOURCE, "nonResourceAttributes": _PATH}),
        Struct({"allowed": bool, "denied": bool, "reason": str, "evaluationError": str}),
    ),
    RULES: _review(
        Struct({"namespace": str}),
        Struct(
            {
                "resourceRules": ListOf(_RULE),
                "nonResourceRules": ListOf(_RULE),
                "incomplete": bool,
                "evaluationError": str,
            }
        ),
    ),
    WHO: _review(None, Struct({"userInfo": _USER})),
    TOKEN: _review(
        Struct({"token": str, "audiences": ListOf(str)}),
        Struct({"authenticated": bool, "user": _USER, "audiences": ListOf(str), "error": str}),
    ),
}
_SELECTORS = ("fieldSelector", "labelSelector")
# Whether an operator takes values. An unknown operator is ignored, together with its selector.
_OPERATORS = {"In": True, "NotIn": True, "Exists": False, "DoesNotExist": False}


@dataclass(frozen=True, slots=True)
class Cause:
    """One error of a review, as in the details of a ``Status``."""

    reason: str
    field: str
    message: str


class ReviewRefused(ValueError):
    """A review cannot be read (400, 415) or is invalid (422). The message may be shown to the client."""

    def __init__(
        self, code: int, message: str, *, causes: tuple[Cause, ...] = (), subject: str = "", group: str = ""
    ) -> None:
        super().__init__(message)
        self.code = code
        self.causes = causes
        self.subject, self.group = subject, group
        self.warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SelfReview:
    """A valid review. `spec` is the original one, without empty or unknown fields."""

    kind: str
    spec: dict[str, Any]
    warnings: tuple[str, ...] = ()


# Reading.


def read_review(kind: str, data: bytes, *, content_type: str, query: str) -> SelfReview:
    """Parse and validate a review; raises `ReviewRefused`."""
    media_type = body_media_type(content_type)
    if media_type is None:
        accepted = ", ".join(MEDIA_TYPES)
        message = f"the body of the request was in an unknown format - accepted media types include: {accepted}"
        raise ReviewRefused(415, message)
    field_validation = _check_options(query)
    problems = Problems()
    try:
        value = _parse(media_type, kind, data)
        _check_type(kind, value)
        review = read_typed(value, _TYPES[kind], problems) or {}
    except (NotOfThisType, ProtobufError) as error:
        raise ReviewRefused(400, f"the object provided is no {kind}: {error}") from None
    if problems.texts and field_validation == "Strict":
        message = f"{kind} cannot be handled: strict decoding error: {', '.join(problems.texts)}"
        raise ReviewRefused(400, message)
    warnings = () if field_validation == "Ignore" else tuple(problems.texts)
    try:
        _validate(kind, review)
    except ReviewRefused as refused:
        refused.warnings = warnings
        raise
    return SelfReview(kind, review.get("spec", {}), warnings)


def _parse(media_type: str, kind: str, data: bytes) -> Any:
    if media_type == PROTOBUF:
        return protobuf.decode(data, kind)
    return parse_yaml(data) if media_type == YAML else parse_json(data)


def _check_type(kind: str, value: Any) -> None:
    """Check kind and apiVersion, which may be missing, but must not contradict the path."""
    if value is None:
        return
    fields = {name: value.get(name) for name in _TYPE.fields} if isinstance(value, dict) else value
    about = read_typed(fields, _TYPE, Problems())
    group, _, version = API_VERSIONS[kind].partition("/")
    if about.get("kind", kind) != kind:
        raise NotOfThisType("its kind is another one")
    if about.get("apiVersion", "/") not in ("/", f"{group}/", f"{group}/{version}"):
        raise NotOfThisType("its apiVersion is not that of the path")


def _check_options(query: str) -> str:
    """Check the options of a create in the query; return ``fieldValidation``."""
    options = parse_qs(query, keep_blank_values=True)
    causes = []
    dry_run = options.get("dryRun", [])
    if any(value != "All" for value in dry_run):
        causes.append(Cause("FieldValueNotSupported", "dryRun", 'Unsupported value: supported values: "All"'))
    validation = options.get("fieldValidation", [""])[0]
    if validation not in ("", "Ignore", "Warn", "Strict"):
        message = 'Unsupported value: supported values: "", "Ignore", "Strict", "Warn"'
        causes.append(Cause("FieldValueNotSupported", "fieldValidation", message))
    manager = options.get("fieldManager", [""])[0]
    if len(manager.encode()) > LONGEST_FIELD_MANAGER:
        causes.append(Cause("FieldValueTooLong", "fieldManager", f"may not be more than {LONGEST_FIELD_MANAGER} bytes"))
    elif not manager.isprintable():
        causes.append(Cause("FieldValueInvalid", "fieldManager", "should only contain printable characters"))
    if causes:
        raise _invalid("CreateOptions", "meta.k8s.io", causes)
    return validation


def _validate(kind: str, review: dict[str, Any]) -> None:
    spec = review.get("spec", {})
    if kind == RULES and not spec.get("namespace"):
        raise ReviewRefused(400, "no namespace on request")
    if kind != ACCESS:
        return
    causes = [*_spec_causes(spec), *_metadata_causes(review.get("metadata", {}))]
    if causes:
        raise _invalid("", authorization.GROUP, causes)


def _spec_causes(spec: dict[str, Any]) -> list[Cause]:
    resource, path = spec.get("resourceAttributes"), spec.get("nonResourceAttributes")
    causes = []
    if resource is not None and path is not None:
        message = "Invalid value: cannot be specified in combination with resourceAttributes"
        causes.append(Cause("FieldValueInvalid", "spec.nonResourceAttributes", message))
    if resource is None and path is None:
        message = "Invalid value: exactly one of nonResourceAttributes or resourceAttributes must be specified"
        causes.append(Cause("FieldValueInvalid", "spec.resourceAttributes", message))
    for name in _SELECTORS:
        selector = (resource or {}).get(name)
        if selector is not None:
            causes += _selector_causes(selector, f"spec.resourceAttributes.{name}", labels=name == "labelSelector")
    return causes


def _selector_causes(selector: dict[str, Any], place: str, *, labels: bool) -> list[Cause]:
    raw, requirements = selector.get("rawSelector"), selector.get("requirements", ())
    causes = []
    if raw and requirements:
        message = "Invalid value: may not specified at the same time as requirements"
        causes.append(Cause("FieldValueInvalid", f"{place}.rawSelector", message))
    if not raw and not requirements:
        message = f"Required value: when {place} is specified, requirements or rawSelector is required"
        causes.append(Cause("FieldValueRequired", f"{place}.requirements", message))
    for number, requirement in enumerate(requirements):
        causes += _requirement_causes(requirement or {}, f"{place}.requirements[{number}]", labels=labels)
    return causes


def _requirement_causes(requirement: dict[str, Any], place: str, *, labels: bool) -> list[Cause]:
    causes = []
    if not requirement.get("key"):
        reason = "FieldValueInvalid" if labels else "FieldValueRequired"
        causes.append(Cause(reason, f"{place}.key", "Required value: must be specified"))
    wants_values, values = _OPERATORS.get(requirement.get("operator") or ""), requirement.get("values")
    if wants_values is True and not values:
        message = "Required value: must be specified when `operator` is 'In' or 'NotIn'"
        causes.append(Cause("FieldValueRequired", f"{place}.values", message))
    if wants_values is False and values:
        message = "Forbidden: may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
        causes.append(Cause("FieldValueForbidden", f"{place}.values", message))
    return causes


def _metadata_causes(metadata: dict[str, Any]) -> list[Cause]:
    if not metadata.keys() - _OF_THE_SERVER:
        return []
    return [Cause("FieldValueInvalid", "metadata", "Invalid value: must be empty")]


def _invalid(subject: str, group: str, causes: list[Cause]) -> ReviewRefused:
    causes_text = [f"{cause.field}: {cause.message}" for cause in causes]
    words = causes_text[0] if len(causes_text) == 1 else f"[{', '.join(causes_text)}]"
    message = f'{subject}.{group} "" is invalid: {words}'
    return ReviewRefused(422, message, causes=tuple(causes), subject=subject, group=group)


_TYPE = Struct({"kind": str, "apiVersion": str})


# Requested access.


def access_question(review: SelfReview) -> tuple[RequestInfo, str]:
    """Return the attributes to authorize, and an error about ignored parts; empty if there are none."""
    resource = review.spec.get("resourceAttributes")
    if resource is None:
        return authorization.self_question(review.spec), ""
    ignored = [name for name in _SELECTORS if not _is_readable(resource.get(name, {}))]
    unknown = {name: value for name, value in resource.items() if name not in ignored}
    error = ", ".join(f"spec.resourceAttributes.{name} ignored due to parse error" for name in ignored)
    return authorization.self_question({"resourceAttributes": unknown}), error


def _is_readable(selector: dict[str, Any]) -> bool:
    return all(each.get("operator") in _OPERATORS for each in selector.get("requirements", ()))


# Responses.


def access_answer(review: SelfReview, decision: Decision, *, error: str = "", refused: str = "") -> dict[str, Any]:
    """Build the response. A denial has no reason but *refused*, and does not reveal whether it is hidden."""
    status: dict[str, Any] = {"allowed": decision.allowed}
    if decision.verdict is Verdict.DENY:
        status["denied"] = True
    if decision.allowed and decision.reason:
        status["reason"] = decision.reason
    if refused:
        status["reason"] = refused
    if error:
        status["evaluationError"] = error
    return _answer(ACCESS, spec=review.spec, status=status)


def rules_answer(rules: Rules) -> dict[str, Any]:
    # The API server does not repeat the namespace either.
    return _answer(RULES, spec={}, status=authorization.rules_status(rules))


def who_answer(user: UserInfo, now: str) -> dict[str, Any]:
    return _answer(WHO, metadata={"creationTimestamp": now}, status={"userInfo": authentication.user_fields(user)})


def token_answer(review: SelfReview, user: UserInfo, credential_id: str) -> dict[str, Any]:
    """Build the response for an authenticated token. Its field is cleared but present: some clients need it."""
    spec = {**review.spec, "token": ""}
    status: dict[str, Any] = {"authenticated": True, "user": authentication.user_fields(user, credential_id)}
    if "audiences" in spec:
        # Our tokens are valid for any audience.
        status["audiences"] = spec["audiences"]
    return _answer(TOKEN, spec=spec, status=status)


def token_refusal(review: SelfReview, error: str) -> dict[str, Any]:
    """Build the response for a token that must not be treated as its owner."""
    return _answer(TOKEN, spec={**review.spec, "token": ""}, status={"authenticated": False, "error": error})


def _answer(kind: str, *, metadata: dict[str, Any] | None = None, **parts: Any) -> dict[str, Any]:
    return {"kind": kind, "apiVersion": API_VERSIONS[kind], "metadata": metadata or {}, **parts}


def only_metadata(answer: dict[str, Any], version: str) -> dict[str, Any]:
    """Return the ``PartialObjectMetadata`` of an object, for a client that accepts only that."""
    return {"kind": PARTIAL_METADATA, "apiVersion": f"meta.k8s.io/{version}", "metadata": answer["metadata"]}
