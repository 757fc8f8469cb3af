"""The audit policy of Kubernetes (``audit.k8s.io/v1``): levels, stages, rules, and redaction. Pure."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from enum import Enum, IntEnum
from urllib.parse import unquote_plus

from ostiary.core.redaction import without_tokens
from ostiary.core.yaml import KUBERNETES, ConfigReader, ConfigSection, Document, Source, parse, read
from ostiary.model import RequestInfo, UserInfo
from ostiary_gateway.wire.rbac import is_dns_name

API_VERSION = "audit.k8s.io/v1"
# v1beta1 has the same fields; such policies are still in use.
VERSIONS = (API_VERSION, "audit.k8s.io/v1beta1")

DECISION = "authorization.k8s.io/decision"
REASON = "authorization.k8s.io/reason"
UPSTREAM = "audit.ostiary.dev/upstream"
# The capabilities of the object in the request, as in "host-network,privileged".
CAPABILITIES = "audit.ostiary.dev/capabilities"
# The step-up rules that apply to the request.
STEP_UP = "audit.ostiary.dev/step-up"
# Of a request with a scoped token: the purpose of the token, and who uses it on the user's behalf.
SCOPE = "ostiary.dev/scope"
ACTOR = "ostiary.dev/actor"
REQUEST_OBJECT_OMITTED = "audit.ostiary.dev/request-object-omitted"
RESPONSE_OBJECT_OMITTED = "audit.ostiary.dev/response-object-omitted"

# The cluster's own decision about a request that the gateway has decided, in an event of its own: see `shadow_line`.
SHADOW = "ostiary.dev/shadow"
SHADOW_REASON = "ostiary.dev/shadow-reason"
# Not one of the API's stages, so that readers who count requests do not count this event.
SHADOW_STAGE = "ShadowReview"


class AuditLevel(IntEnum):
    """How much of a request is recorded. Ordered: each level includes the ones before it."""

    NONE = 0
    METADATA = 1
    REQUEST = 2
    REQUEST_RESPONSE = 3


class Stage(Enum):
    RECEIVED = "RequestReceived"
    STARTED = "ResponseStarted"
    COMPLETE = "ResponseComplete"
    PANIC = "Panic"


LEVELS = {"None": AuditLevel.NONE, "Metadata": AuditLevel.METADATA, "Request": AuditLevel.REQUEST}
LEVELS["RequestResponse"] = AuditLevel.REQUEST_RESPONSE
LEVEL_NAMES = {level: name for name, level in LEVELS.items()}
STAGES = {stage.value: stage for stage in Stage}

# Redaction: tokens in a URI, and bodies that carry credentials.

REDACTED = "REDACTED"

# Names of query parameters, in lower case and without separators between words.
_SECRET_PARAMETERS = frozenset(
    (
        *("code", "state", "sig", "key", "pwd", "pass", "pin", "otp", "jwt", "auth", "authorization", "bearer"),
        *("sid", "session", "sessionid", "cookie", "ticket", "hmac", "devicecode", "usercode", "codeverifier"),
        *("samlresponse", "samlrequest", "relaystate"),
    )
)
# Suffixes of such names: X-Amz-Security-Token, client_secret, x-goog-signature.
_SECRET_ENDINGS = (
    *("token", "secret", "password", "passwd", "passphrase", "signature", "apikey", "accesskey", "privatekey"),
    *("secretkey", "credential", "credentials", "assertion"),
)
_PARAMETER = re.compile(r"[^&;#]+")
_BETWEEN_WORDS = re.compile(r"[^a-z0-9]+")


def redacted_uri(uri: str) -> str:
    """Return *uri* without secret values. A parameter's name is compared as a server would decode it."""
    path, mark, query = uri.partition("?")
    if "%" in path:
        path = "/".join(map(_redacted_segment, path.split("/")))
    if mark:
        query = _PARAMETER.sub(lambda found: _redacted_parameter(found[0]), query)
    return without_tokens(path + mark + query, REDACTED)


def _redacted_segment(segment: str) -> str:
    return REDACTED if _holds_token(unquote_plus(segment)) else segment


def _holds_token(text: str) -> bool:
    return without_tokens(text, REDACTED) != text


def _redacted_parameter(parameter: str) -> str:
    name, equals, value = parameter.partition("=")
    words = _BETWEEN_WORDS.sub("", unquote_plus(name).lower())
    secret = words in _SECRET_PARAMETERS or words.endswith(_SECRET_ENDINGS) or _holds_token(unquote_plus(value))
    return f"{name}={REDACTED}" if secret and equals and value else parameter


# Their bodies contain a credential. Recording it would create a second place to steal it from.
_CREDENTIALS = frozenset(
    {
        ("", "secrets", ""),
        ("", "serviceaccounts", "token"),
        ("ostiary.dev", "serviceaccounts", "token"),
        ("ostiary.dev", "apitokens", ""),
    }
)
_REVIEWS = ("authentication.k8s.io", "tokenreviews")


def carries_credentials(request: RequestInfo) -> bool:
    """Whether the bodies of such a request and its response are never recorded, whatever the level."""
    if (request.api_group, request.resource) == _REVIEWS:
        return True
    return (request.api_group, request.resource, request.subresource) in _CREDENTIALS


# Rules, with the semantics of Kubernetes: the first rule that matches decides; a request that no rule matches is not
# recorded.


@dataclass(frozen=True, slots=True)
class GroupResources:
    """Resources of one API group, or of all (``*``). No resources means all of it; no names means all objects."""

    group: str = ""
    resources: tuple[str, ...] = ()
    names: frozenset[str] = frozenset()

    def matches(self, request: RequestInfo) -> bool:
        if self.group not in (request.api_group, "*"):
            return False
        if not self.resources:
            return True
        if self.names and request.name not in self.names:
            return False
        return any(_resource_matches(pattern, request) for pattern in self.resources)


@dataclass(frozen=True, slots=True)
class AuditRule:
    """A level, and the requests that it applies to; an empty condition matches every request."""

    level: AuditLevel
    users: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()
    verbs: frozenset[str] = frozenset()
    resources: tuple[GroupResources, ...] = ()
    namespaces: frozenset[str] = frozenset()
    urls: tuple[str, ...] = ()
    omit_stages: frozenset[Stage] = frozenset()
    omit_managed_fields: bool | None = None

    def matches(self, request: RequestInfo, user: UserInfo | None) -> bool:
        if self.users and (user is None or user.username not in self.users):
            return False
        if self.groups and (user is None or self.groups.isdisjoint(user.groups)):
            return False
        if self.verbs and request.verb not in self.verbs:
            return False
        if self.namespaces or self.resources:
            return request.is_resource and self._resource_matches(request)
        if self.urls:
            return not request.is_resource and any(_url_matches(pattern, request.path) for pattern in self.urls)
        return True

    def _resource_matches(self, request: RequestInfo) -> bool:
        if self.namespaces and request.namespace not in self.namespaces:
            return False
        return not self.resources or any(group.matches(request) for group in self.resources)


@dataclass(frozen=True, slots=True)
class AuditScope:
    """What to record of one request."""

    level: AuditLevel
    omit_stages: frozenset[Stage] = frozenset()
    omit_managed_fields: bool = False


@dataclass(frozen=True, slots=True)
class Policy:
    """The rules of an audit policy, in order."""

    rules: tuple[AuditRule, ...]
    omit_stages: frozenset[Stage] = frozenset()
    omit_managed_fields: bool = False

    @property
    def has_names(self) -> bool:
        """Whether what is recorded depends on the names of objects."""
        return any(group.names for rule in self.rules for group in rule.resources)

    def scope(self, request: RequestInfo, user: UserInfo | None) -> AuditScope:
        """Return the scope by the first rule that matches. *user* is None if the request is unauthenticated."""
        for rule in self.rules:
            if rule.matches(request, user):
                own = rule.omit_managed_fields
                without_managed_fields = self.omit_managed_fields if own is None else own
                return AuditScope(rule.level, self.omit_stages | rule.omit_stages, without_managed_fields)
        return AuditScope(AuditLevel.NONE, self.omit_stages, self.omit_managed_fields)


# Without a policy file: every request once, when it is complete.
DEFAULT_POLICY = Policy((AuditRule(AuditLevel.METADATA),), omit_stages=frozenset({Stage.RECEIVED}))


def _resource_matches(pattern: str, request: RequestInfo) -> bool:
    resource, subresource = request.resource, request.subresource
    if pattern in ("*", f"{resource}/{subresource}" if subresource else resource):
        return True
    if subresource and pattern.startswith("*/"):
        return pattern[2:] == subresource
    # Unlike in RBAC, this form covers the resource itself too.
    return pattern.endswith("/*") and pattern[:-2] == resource


def _url_matches(pattern: str, path: str) -> bool:
    if pattern in ("*", path):
        return True
    return pattern.endswith("*") and path.startswith(pattern.rstrip("*"))


# Loading.


def load_policy(path: str | os.PathLike[str]) -> Policy:
    """Load a policy file; raises `ConfigurationError` with every error in it."""
    return _policy(read(path, dialect=KUBERNETES))


def parse_policy(source: Source, *, file: str | None = None) -> Policy:
    return _policy(parse(source, file=file, dialect=KUBERNETES))


def _policy(document: Document) -> Policy:
    reading = ConfigReader(document)
    root = reading.root
    if root.string("apiVersion") not in VERSIONS:
        root.problem(f"expected {API_VERSION}", "apiVersion")
    # As in the API server, the kind may be missing, but not be another one.
    if root.string("kind") not in ("", "Policy"):
        root.problem("expected Policy", "kind")
    _check_metadata(root.section("metadata"))
    rules = tuple(_rule(fields) for fields in root.sections("rules"))
    if not rules:
        root.problem("there must be a rule", "rules", "to record nothing, write one rule with the level None")
    omit_managed_fields = root.boolean("omitManagedFields")
    policy = Policy(rules, _stages(root), omit_managed_fields)
    # Strict, unlike the API server: a misspelled condition would make a rule match more than its author meant.
    reading.finish("the audit policy cannot be used", strict=True)
    return policy


def _check_metadata(fields: ConfigSection) -> None:
    """Check the types of the metadata, as the API server does. It has no effect."""
    for name in ("name", "generateName", "namespace", "uid", "resourceVersion"):
        fields.string(name)
    for name in ("labels", "annotations"):
        section = fields.section(name)
        for key in section:
            section.string(key)
    fields.ignore(*fields)


def _rule(fields: ConfigSection) -> AuditRule:
    rule = AuditRule(
        level=_level(fields),
        users=frozenset(fields.strings("users")),
        groups=frozenset(fields.strings("userGroups")),
        verbs=frozenset(fields.strings("verbs")),
        resources=tuple(_group_resources(group) for group in fields.sections("resources")),
        namespaces=frozenset(fields.strings("namespaces")),
        urls=_urls(fields),
        omit_stages=_stages(fields),
        omit_managed_fields=fields.optional_boolean("omitManagedFields"),
    )
    if rule.urls and (rule.resources or rule.namespaces):
        message = "a rule is about resources or about other URLs, and not about both"
        fields.problem(message, "nonResourceURLs", "make it two rules")
    return rule


def _level(fields: ConfigSection) -> AuditLevel:
    name = fields.optional_string("level")
    if name not in LEVELS:
        fields.problem(f"expected one of {', '.join(LEVELS)}", "level")
        return AuditLevel.NONE
    return LEVELS[name]


def _stages(fields: ConfigSection) -> frozenset[Stage]:
    names = fields.strings("omitStages")
    if any(name not in STAGES for name in names):
        fields.problem(f"there are only the stages {', '.join(STAGES)}", "omitStages")
    return frozenset(STAGES[name] for name in names if name in STAGES)


def _group_resources(fields: ConfigSection) -> GroupResources:
    group = fields.string("group")
    if group not in ("", "*") and (len(group) > 253 or not is_dns_name(group)):
        message = "an API group has no version here" if "/" in group else "it is not the name of an API group"
        fields.problem(message, "group", "write apps, not apps/v1; a star matches all groups")
    resources, names = fields.strings("resources"), frozenset(fields.strings("resourceNames"))
    if names and not resources:
        fields.problem("names need the resources that they are names of", "resourceNames")
    return GroupResources(group, resources, names)


def _urls(fields: ConfigSection) -> tuple[str, ...]:
    urls = fields.strings("nonResourceURLs")
    for url in urls:
        if url != "*" and not url.startswith("/"):
            fields.problem("a URL begins with a slash", "nonResourceURLs")
        if "*" in url[:-1]:
            fields.problem("a star may only stand at the end of a URL", "nonResourceURLs")
    return urls
