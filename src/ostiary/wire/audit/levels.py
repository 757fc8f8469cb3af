"""The words of ``audit.k8s.io/v1``: levels, stages, and the annotations of an event."""

from __future__ import annotations

from enum import Enum, IntEnum

API_VERSION = "audit.k8s.io/v1"
# v1beta1 has the same fields; policies of that time are still around.
VERSIONS = (API_VERSION, "audit.k8s.io/v1beta1")

DECISION = "authorization.k8s.io/decision"
REASON = "authorization.k8s.io/reason"
UPSTREAM = "audit.ostiary.dev/upstream"
# What the object in the request asked for, as in "host-network,privileged".
CAPABILITIES = "audit.ostiary.dev/capabilities"
# The step-up rules that the request falls under.
STEP_UP = "audit.ostiary.dev/step-up"
# Of a request with a token that is less than its owner: what the token is for, and who uses it on the user's behalf.
SCOPE = "ostiary.dev/scope"
ACTOR = "ostiary.dev/actor"
REQUEST_OBJECT_OMITTED = "audit.ostiary.dev/request-object-omitted"
RESPONSE_OBJECT_OMITTED = "audit.ostiary.dev/response-object-omitted"

# What the cluster says to a question that we have decided, in an event of its own stage: see `shadow_event`.
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
