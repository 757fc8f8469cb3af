"""What everybody may do who may do anything: read which resources there are, and ask about oneself. Pure.

Used for the scope ``discovery`` of a token, and to tell whether somebody may use a cluster at all: a rule that gives no
more than this is no reason to offer it.
"""

from __future__ import annotations

from ostiary.core.rules.policy_rule import PolicyRule

# What kubectl and other clients read to find out which resources there are: the ClusterRole ``system:discovery``.
DISCOVERY_PATHS = tuple(
    sorted(
        (
            *("/api", "/api/*", "/apis", "/apis/*", "/openapi", "/openapi/*"),
            *("/healthz", "/livez", "/readyz", "/version", "/version/"),
        )
    )
)
_READING = frozenset(("get", "head", "list", "watch"))
# The ClusterRole ``system:basic-user``.
_REVIEW_GROUPS = frozenset(("authentication.k8s.io", "authorization.k8s.io"))
_SELF_REVIEWS = frozenset(("selfsubjectaccessreviews", "selfsubjectrulesreviews", "selfsubjectreviews"))
# Our own API is at no cluster.
_OWN_GROUP = frozenset(("ostiary.dev",))


def gives_more_than_discovery(rule: PolicyRule) -> bool:
    """Whether somebody with *rule* can do something in a cluster besides looking what there is."""
    if not rule.verbs:
        return False
    paths = frozenset(rule.non_resource_urls)
    if paths and not (paths <= frozenset(DISCOVERY_PATHS) and _READING.issuperset(rule.verbs)):
        return True
    groups, resources = frozenset(rule.api_groups), frozenset(rule.resources)
    if not groups or not resources or groups <= _OWN_GROUP:
        return False
    return not (groups <= _REVIEW_GROUPS and resources <= _SELF_REVIEWS)
