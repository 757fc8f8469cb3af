"""Reads an audit policy from its file. Called when the gateway starts, and by ``ostiary serve --check``."""

from __future__ import annotations

import os

from ostiary.core.config import KUBERNETES, Document, Fields, Reading, Source, parse, read
from ostiary.wire.audit.levels import API_VERSION, LEVELS, STAGES, VERSIONS, AuditLevel, Stage
from ostiary.wire.audit.policy import AuditRule, GroupResources, Policy
from ostiary.wire.rbac import is_dns_name


def load_policy(path: str | os.PathLike[str]) -> Policy:
    """The policy of a file; raises `ConfigurationError` with every mistake in it."""
    return _policy(read(path, dialect=KUBERNETES))


def parse_policy(source: Source, *, file: str | None = None) -> Policy:
    return _policy(parse(source, file=file, dialect=KUBERNETES))


def _policy(document: Document) -> Policy:
    reading = Reading(document)
    root = reading.root
    if root.string("apiVersion") not in VERSIONS:
        root.problem(f"expected {API_VERSION}", "apiVersion")
    # As in the API server, which knows what it reads: no kind is right, another is not.
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


def _check_metadata(fields: Fields) -> None:
    """Its texts must be texts, as the API server wants them. None of them means anything here."""
    for name in ("name", "generateName", "namespace", "uid", "resourceVersion"):
        fields.string(name)
    for name in ("labels", "annotations"):
        section = fields.section(name)
        for key in section:
            section.string(key)
    fields.ignore(*fields)


def _rule(fields: Fields) -> AuditRule:
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


def _level(fields: Fields) -> AuditLevel:
    name = fields.optional_string("level")
    if name not in LEVELS:
        fields.problem(f"expected one of {', '.join(LEVELS)}", "level")
        return AuditLevel.NONE
    return LEVELS[name]


def _stages(fields: Fields) -> frozenset[Stage]:
    names = fields.strings("omitStages")
    if any(name not in STAGES for name in names):
        fields.problem(f"there are only the stages {', '.join(STAGES)}", "omitStages")
    return frozenset(STAGES[name] for name in names if name in STAGES)


def _group_resources(fields: Fields) -> GroupResources:
    group = fields.string("group")
    if group not in ("", "*") and (len(group) > 253 or not is_dns_name(group)):
        message = "an API group has no version here" if "/" in group else "it is not the name of an API group"
        fields.problem(message, "group", "write apps, not apps/v1; a star matches all groups")
    resources, names = fields.strings("resources"), frozenset(fields.strings("resourceNames"))
    if names and not resources:
        fields.problem("names need the resources that they are names of", "resourceNames")
    return GroupResources(group, resources, names)


def _urls(fields: Fields) -> tuple[str, ...]:
    urls = fields.strings("nonResourceURLs")
    for url in urls:
        if url != "*" and not url.startswith("/"):
            fields.problem("a URL begins with a slash", "nonResourceURLs")
        if "*" in url[:-1]:
            fields.problem("a star may only stand at the end of a URL", "nonResourceURLs")
    return urls
