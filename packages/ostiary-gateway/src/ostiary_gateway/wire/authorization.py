"""The access reviews of Kubernetes (``authorization.k8s.io``, v1 and v1beta1), in both directions. Pure.

    a cluster queries us:  bytes -> decode_review -> AccessReview -> (decision) -> encode_status -> bytes
    we query a cluster:    Attributes -> encode_review -> bytes  ...  bytes -> decode_status -> Decision

Typed decoding is the schema check: anything but a review raises `ReviewError`, which never quotes the input. A review
has no HTTP request, so `RequestInfo.path` of a resource is empty, and its method is derived from the verb.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import msgspec

from ostiary.model import Attributes, Decision, RequestInfo, Requirement, UserInfo, Verdict
from ostiary_gateway.interfaces.authorization import Rules
from ostiary_gateway.wire.request_info import PROXY, WATCH

GROUP = "authorization.k8s.io"
V1 = f"{GROUP}/v1"
V1BETA1 = f"{GROUP}/v1beta1"
VERSIONS = (V1, V1BETA1)

SUBJECT = "SubjectAccessReview"
SELF = "SelfSubjectAccessReview"
LOCAL = "LocalSubjectAccessReview"

MAX_BYTES = 1024 * 1024

_METHODS = {
    "get": "GET",
    "list": "GET",
    "watch": "GET",
    "create": "POST",
    "update": "PUT",
    "patch": "PATCH",
    "delete": "DELETE",
    "deletecollection": "DELETE",
}


class ReviewError(ValueError):
    """The input is not a review, or contradicts itself. The message may be shown to the client."""


@dataclass(frozen=True, slots=True)
class AccessReview:
    """One review. `user` is None in a SelfSubjectAccessReview, which is about the caller.

    `spec` is the original text of the spec, which the response repeats.
    """

    api_version: str
    kind: str
    request: RequestInfo
    user: UserInfo | None = None
    namespace: str = ""
    spec: bytes = b"{}"

    def attributes(self, caller: UserInfo | None = None, *, upstream: str = "") -> Attributes:
        """Return the attributes to authorize. A self review needs its *caller* and the *upstream* it was sent to."""
        user = self.user or caller
        if user is None:
            raise ReviewError(f"a {self.kind} needs the user who asks")
        return Attributes(user, replace(self.request, upstream=upstream) if upstream else self.request)


# Shapes. Attribute names are those of the JSON, in Python's spelling.


class _Wire(msgspec.Struct, rename="camel"):
    pass


class _ReviewMetadata(_Wire):
    namespace: str = ""


class _Envelope(_Wire):
    kind: str
    api_version: str
    spec: msgspec.Raw
    metadata: _ReviewMetadata | None = None


# Go writes an absent list as null if the field is not omitted, so lists may be null.
class _RequirementShape(_Wire):
    key: str
    operator: str
    values: list[str] | None = None


class _Selector(_Wire):
    # rawSelector is deliberately ignored: it is for callers that cannot parse, and may contradict the requirements.
    requirements: list[_RequirementShape] | None = None


class _ResourceAttributes(_Wire):
    namespace: str = ""
    verb: str = ""
    group: str = ""
    version: str = ""
    resource: str = ""
    subresource: str = ""
    name: str = ""
    field_selector: _Selector | None = None
    label_selector: _Selector | None = None


class _NonResourceAttributes(_Wire):
    path: str = ""
    verb: str = ""


class _SelfSpec(_Wire):
    resource_attributes: _ResourceAttributes | None = None
    non_resource_attributes: _NonResourceAttributes | None = None


class _SpecV1(_SelfSpec):
    user: str = ""
    groups: list[str] | None = None
    extra: dict[str, list[str] | None] | None = None
    uid: str = ""


class _SpecV1beta1(_SelfSpec):
    user: str = ""
    # In v1beta1, the list has the name of a single group.
    groups: list[str] | None = msgspec.field(name="group", default=None)
    extra: dict[str, list[str] | None] | None = None
    uid: str = ""


class _Status(_Wire):
    allowed: bool
    denied: bool = False
    reason: str = ""
    evaluation_error: str = ""


class _AccessAnswer(_Wire):
    kind: str
    api_version: str
    status: _Status


# Created once: creating a decoder while another thread does the same crashes msgspec 0.22.
_ENVELOPE = msgspec.json.Decoder(_Envelope)
_SELF_SPEC = msgspec.json.Decoder(_SelfSpec)
_SPECS: dict[str, msgspec.json.Decoder[Any]] = {
    V1: msgspec.json.Decoder(_SpecV1),
    V1BETA1: msgspec.json.Decoder(_SpecV1beta1),
}
_ANSWER = msgspec.json.Decoder(_AccessAnswer)
_ENCODER = msgspec.json.Encoder()


# Incoming reviews.


def decode_review(data: bytes) -> AccessReview:
    """Decode a SubjectAccessReview, SelfSubjectAccessReview or LocalSubjectAccessReview; raises `ReviewError`."""
    envelope = _decode_envelope(data)
    if envelope.kind == SELF:
        spec = _decode(_SELF_SPEC, envelope.spec)
        return AccessReview(envelope.api_version, SELF, _request_info(spec), spec=bytes(envelope.spec))
    if envelope.kind not in (SUBJECT, LOCAL):
        raise ReviewError(f"kind must be {SUBJECT}, {SELF} or {LOCAL}")
    subject = _decode(_SPECS[envelope.api_version], envelope.spec)
    request = _request_info(subject)
    namespace = envelope.metadata.namespace if envelope.metadata is not None else ""
    if envelope.kind == LOCAL and (not request.is_resource or not namespace or request.namespace != namespace):
        raise ReviewError(f"a {LOCAL} is about a resource in its own namespace")
    review_user = _user(subject)
    return AccessReview(envelope.api_version, envelope.kind, request, review_user, namespace, spec=bytes(envelope.spec))


def self_question(spec: dict[str, Any]) -> RequestInfo:
    """Return the access in the spec of a SelfSubjectAccessReview; raises `ReviewError`."""
    try:
        return _request_info(msgspec.convert(spec, _SelfSpec))
    except msgspec.ValidationError as error:
        raise ReviewError(str(error)) from None


def encode_status(review: AccessReview, decision: Decision, *, reason: str | None = None, error: str = "") -> bytes:
    """Encode the response to *review*. *reason* replaces the decision's own, which may reveal too much to the caller.

    A review cannot express "not found", so a hidden denial is an ordinary one without a reason.
    """
    shown_reason = reason if reason is not None else "" if decision.hidden and not decision.allowed else decision.reason
    status: dict[str, Any] = {"allowed": decision.allowed}
    if decision.verdict is Verdict.DENY:
        status["denied"] = True
    _add(status, reason=shown_reason, evaluationError=error)
    return _encode_answer(review.kind, review.api_version, review.spec, status)


def rules_status(rules: Rules) -> dict[str, Any]:
    """Return the status of a SelfSubjectRulesReview."""
    status: dict[str, Any] = {
        "resourceRules": [
            _without_empty(
                {
                    "verbs": rule.verbs,
                    "apiGroups": rule.api_groups,
                    "resources": rule.resources,
                    "resourceNames": rule.resource_names,
                },
                keep="verbs",
            )
            for rule in rules.resource_rules
        ],
        "nonResourceRules": [
            _without_empty({"verbs": rule.verbs, "nonResourceURLs": rule.paths}, keep="verbs")
            for rule in rules.non_resource_rules
        ],
        "incomplete": rules.incomplete,
    }
    _add(status, evaluationError=rules.error)
    return status


# Outgoing reviews.


def encode_review(attributes: Attributes, *, api_version: str = V1) -> bytes:
    """Encode a SubjectAccessReview for *attributes*."""
    user = attributes.user
    spec: dict[str, Any] = _resource_attributes(attributes.request)
    groups = "groups" if api_version == V1 else "group"
    _add(spec, user=user.username, **{groups: list(user.groups)}, uid=user.uid)
    _add(spec, extra={key: list(values) for key, values in user.extra})
    return _ENCODER.encode({"kind": SUBJECT, "apiVersion": api_version, "metadata": {}, "spec": spec})


def decode_status(data: bytes, *, api_version: str = V1, kind: str = SUBJECT) -> Decision:
    """Decode the response of another server; raises `ReviewError` unless it is an unambiguous one in *api_version*."""
    if len(data) > MAX_BYTES:
        raise ReviewError(f"the answer is larger than {MAX_BYTES} bytes")
    answer = _decode(_ANSWER, data)
    if answer.kind != kind or answer.api_version != api_version:
        raise ReviewError(f"the answer is no {kind} of {api_version}")
    status: _Status = answer.status
    if status.allowed and status.denied:
        raise ReviewError("the answer says both allowed and denied")
    verdict = Verdict.ALLOW if status.allowed else Verdict.DENY if status.denied else Verdict.NO_OPINION
    # An evaluation error may accompany a valid decision.
    reason = "; ".join(text for text in (status.reason, status.evaluation_error) if text)
    return Decision(verdict, reason)


# Helpers.


def _decode_envelope(data: bytes) -> _Envelope:
    if len(data) > MAX_BYTES:
        raise ReviewError(f"the review is larger than {MAX_BYTES} bytes")
    envelope: _Envelope = _decode(_ENVELOPE, data)
    if envelope.api_version not in VERSIONS:
        raise ReviewError(f"apiVersion must be {V1} or {V1BETA1}")
    return envelope


def _decode(decoder: msgspec.json.Decoder[Any], data: bytes | msgspec.Raw) -> Any:
    try:
        return decoder.decode(data)
    except msgspec.ValidationError as error:
        # Its message contains the path and the types, and never the value.
        raise ReviewError(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise ReviewError("it is not JSON") from None


def _request_info(spec: _SelfSpec) -> RequestInfo:
    resource, path = spec.resource_attributes, spec.non_resource_attributes
    if resource is not None and path is None:
        return _resource_info(resource)
    if path is not None and resource is None:
        return RequestInfo(verb=path.verb, method=path.verb.upper(), path=path.path, of_kubernetes=True)
    raise ReviewError("exactly one of spec.resourceAttributes and spec.nonResourceAttributes must be set")


def _resource_info(asked: _ResourceAttributes) -> RequestInfo:
    return RequestInfo(
        verb=asked.verb,
        method=_METHODS.get(asked.verb, ""),
        path="",
        is_resource=True,
        modifier=_modifier(asked),
        api_group=asked.group,
        api_version=asked.version,
        namespace=asked.namespace,
        resource=asked.resource,
        subresource=asked.subresource,
        name=asked.name,
        field_selector=_requirements(asked.field_selector),
        label_selector=_requirements(asked.label_selector),
        of_kubernetes=True,
    )


def _modifier(asked: _ResourceAttributes) -> str:
    if asked.verb == "watch":
        return WATCH
    return PROXY if "proxy" in (asked.verb, asked.subresource) else ""


def _requirements(selector: _Selector | None) -> tuple[Requirement, ...] | None:
    if selector is None or not selector.requirements:
        return None
    return tuple(
        Requirement(requirement.key, requirement.operator, tuple(requirement.values or ()))
        for requirement in selector.requirements
    )


def _user(spec: _SpecV1 | _SpecV1beta1) -> UserInfo:
    if not spec.user and not spec.groups:
        raise ReviewError("at least one of the user and the groups must be set")
    extra = tuple(sorted((key, tuple(values or ())) for key, values in (spec.extra or {}).items()))
    return UserInfo(spec.user, spec.uid, tuple(spec.groups or ()), extra)


def _resource_attributes(request: RequestInfo) -> dict[str, Any]:
    if not request.is_resource:
        return {"nonResourceAttributes": _without_empty({"path": request.path, "verb": request.verb})}
    fields = _without_empty(
        {
            "namespace": request.namespace,
            "verb": request.verb,
            "group": request.api_group,
            "version": request.api_version,
            "resource": request.resource,
            "subresource": request.subresource,
            "name": request.name,
        }
    )
    _add(fields, fieldSelector=_selector(request.field_selector), labelSelector=_selector(request.label_selector))
    return {"resourceAttributes": fields}


def _selector(requirements: tuple[Requirement, ...] | None) -> dict[str, Any]:
    if not requirements:
        return {}
    rows: list[dict[str, Any]] = [
        {"key": requirement.key, "operator": requirement.operator} for requirement in requirements
    ]
    for row, requirement in zip(rows, requirements, strict=True):
        _add(row, values=list(requirement.values))
    return {"requirements": rows}


def _encode_answer(kind: str, api_version: str, spec: bytes, status: dict[str, Any]) -> bytes:
    answer = {"kind": kind, "apiVersion": api_version, "metadata": {}, "spec": msgspec.Raw(spec), "status": status}
    return _ENCODER.encode(answer)


def _add(target: dict[str, Any], **values: Any) -> None:
    target.update((key, value) for key, value in values.items() if value)


def _without_empty(values: dict[str, Any], *, keep: str = "") -> dict[str, Any]:
    return {key: value for key, value in values.items() if value or key == keep}
