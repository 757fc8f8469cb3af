"""The audit API of Kubernetes (``audit.k8s.io/v1``): the policy that says what is recorded, and the events.

    policy file  ->  Policy  ->  scope of a request  ->  Frame (what equal requests share)  ->  one line per stage

Called by `ostiary.gateway.audit`. Pure. Events that were recorded are read by `recorded_event`, which is imported by
those alone who do that: it needs a library of the gateway.
"""

from __future__ import annotations

from ostiary.wire.audit.events import (
    LONGEST_USER_AGENT,
    AboutObjects,
    Frame,
    KeptNotes,
    about_objects,
    authentication_failed,
    body_object,
    event_list,
    frame,
    kept_notes,
    line,
    middle,
    origin,
    outcome,
    shadow_line,
    tail,
)
from ostiary.wire.audit.levels import (
    ACTOR,
    CAPABILITIES,
    DECISION,
    LEVEL_NAMES,
    REASON,
    REQUEST_OBJECT_OMITTED,
    RESPONSE_OBJECT_OMITTED,
    SCOPE,
    SHADOW,
    SHADOW_REASON,
    SHADOW_STAGE,
    STEP_UP,
    UPSTREAM,
    AuditLevel,
    Stage,
)
from ostiary.wire.audit.policy import DEFAULT_POLICY, AuditRule, AuditScope, GroupResources, Policy
from ostiary.wire.audit.policy_file import load_policy, parse_policy
from ostiary.wire.audit.redaction import carries_credentials, redacted_uri

__all__ = [
    "ACTOR",
    "CAPABILITIES",
    "DECISION",
    "DEFAULT_POLICY",
    "LEVEL_NAMES",
    "LONGEST_USER_AGENT",
    "REASON",
    "REQUEST_OBJECT_OMITTED",
    "RESPONSE_OBJECT_OMITTED",
    "SCOPE",
    "SHADOW",
    "SHADOW_REASON",
    "SHADOW_STAGE",
    "STEP_UP",
    "UPSTREAM",
    "AboutObjects",
    "AuditLevel",
    "AuditRule",
    "AuditScope",
    "Frame",
    "GroupResources",
    "KeptNotes",
    "Policy",
    "Stage",
    "about_objects",
    "authentication_failed",
    "body_object",
    "carries_credentials",
    "event_list",
    "frame",
    "kept_notes",
    "line",
    "load_policy",
    "middle",
    "origin",
    "outcome",
    "parse_policy",
    "redacted_uri",
    "shadow_line",
    "tail",
]
