"""What does not go together in the settings of a workload provider, and rules that can match nobody.

Called by `workload.identity` while the configuration is read, so ``ostiary serve --check`` tells all of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from difflib import get_close_matches

from ostiary.core.config import Fields
from ostiary.plugins.common.jwt.issuer import check_issuer, usable_url
from ostiary.plugins.common.spiffe_id import SCHEME, TRUST_DOMAIN
from ostiary.plugins.workload.platforms import Platform
from ostiary.plugins.workload.rules import SYSTEM, WorkloadRule
from ostiary.plugins.workload.settings import WorkloadSettings

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_OF_KUBERNETES = ("server", "tokenFile", "tokenReview", "cluster")
_OF_SPIFFE = ("trustDomain",)
NOBODY = "it can match nobody"


def check_settings(settings: WorkloadSettings, platform: Platform, fields: Fields) -> None:
    """Note every mistake in *fields*."""
    name = settings.platform
    for key in (*(_OF_KUBERNETES if name != "kubernetes" else ()), *(_OF_SPIFFE if name != "spiffe" else ())):
        if key in fields:
            fields.problem(f"it is of no use for the platform {name}", key)
    if name == "oidc" and not settings.issuer:
        fields.problem("it is missing: the URL of the issuer", "issuer")
    if name == "spiffe":
        _check_spiffe(settings, fields)
    else:
        check_issuer(settings.issuer, fields)
    for key, url in (("server", settings.server), ("keysURL", settings.keys_url)):
        if url and usable_url(url, plain=True) is None:
            fields.problem("it is not a https URL", key, "plain http is for this machine only")
    _check_keys(settings, fields)
    if not settings.rules and platform.needs_rules and fields.is_right("rules"):
        fields.problem("it is missing: without a rule nobody can sign in", "rules")


def _check_spiffe(settings: WorkloadSettings, fields: Fields) -> None:
    domain = settings.trust_domain
    if not domain:
        fields.problem("it is missing: the trust domain", "trustDomain")
    elif not re.fullmatch(TRUST_DOMAIN, domain):
        fields.problem(
            "it is not the name of a trust domain",
            "trustDomain",
            f"write example.org, without {SCHEME} and in lower case",
        )
    if not settings.keys_url and settings.keys_file is None:
        fields.problem("the trust bundle is missing: set keysFile, or keysURL for a bundle endpoint", "keysFile")


def _check_keys(settings: WorkloadSettings, fields: Fields) -> None:
    if settings.keys_url and settings.keys_file is not None:
        fields.problem("either keysURL or keysFile is set, not both", "keysFile")
    has_keys = settings.keys_url != "" or settings.keys_file is not None
    if settings.token_review and has_keys:
        fields.problem("the API server is asked about each token: no keys are used", "tokenReview")
    if settings.server and has_keys and not settings.token_review:
        fields.problem("the keys are elsewhere: the API server is not asked", "server")
    if settings.token_review and settings.token_file is None:
        hint = "the token of a service account that may create tokenreviews (system:auth-delegator)"
        fields.problem("tokenReview needs it: the API server answers only whom it knows", "tokenFile", hint)


def check_rules(rules: tuple[WorkloadRule, ...], platform: Platform, sections: Iterable[Fields]) -> None:
    """Note the rules that can match nobody, and names that nobody may have; *sections* is where each stands."""
    for index, (rule, section) in enumerate(zip(rules, sections, strict=True)):
        _check_claims(rule, platform, section)
        if rule.username is None and platform.needs_rules and section.is_right("username"):
            section.problem("it is missing: the name of who matches", "username")
        for key, templates in (("username", (rule.username,)), ("groups", rule.groups), ("uid", (rule.uid,))):
            for template in templates:
                if template is not None and template.literals[0].startswith(SYSTEM):
                    hint = "service accounts have such names with platform: kubernetes and cluster: <upstream>"
                    section.problem(f"no rule gives names that begin with {SYSTEM}", key, hint)
                for claim in () if template is None else template.names:
                    _check_claim(claim, platform, section, key)
        if not rule.match and not platform.needs_rules and rule.username is None and not rule.groups:
            section.problem("it does nothing: it matches everybody, and gives neither a name nor groups")
        earlier = next((number for number, each in enumerate(rules[:index]) if each.covers(rule)), None)
        if earlier is not None:
            section.problem(f"{NOBODY}: rules[{earlier}] matches the same claims, and comes first", "match")


def _check_claims(rule: WorkloadRule, platform: Platform, section: Fields) -> None:
    if not rule.match and platform.needs_rules and section.is_right("match"):
        hint = f"name the claims that count, such as {min(platform.claims - {'aud', 'exp'}, default='sub')}"
        section.problem("it is empty: everybody who has a token of this issuer would match", "match", hint)
    match = section.section("match")
    # Read before, by the declaration.
    match.ignore(*match)
    for claim, patterns in rule.match.items():
        _check_claim(claim, platform, match, claim)
        for mistake in _mistakes(platform, claim, [pattern.text for pattern in patterns]):
            match.problem(f"{NOBODY}: {mistake}", claim)


def _check_claim(claim: str, platform: Platform, section: Fields, key: str) -> None:
    if platform.claims and claim not in platform.claims:
        near = get_close_matches(claim, platform.claims, n=1)
        hint = f"did you mean {near[0]}?" if near else "platform: oidc takes rules for any claim"
        section.problem(f'{NOBODY}: tokens of the platform {platform.name} have no claim "{claim}"', key, hint)


def _mistakes(platform: Platform, claim: str, texts: list[str]) -> Iterator[str]:
    """What is known of the values of a claim, where a rule for others is a likely slip."""
    for text in texts:
        if platform.name == "github" and claim in ("repository", "job_workflow_ref", "workflow_ref"):
            if "/" not in text and text != "**":
                yield "it has the form OWNER/NAME"
        elif platform.name == "github" and claim == "ref" and not text.startswith(("refs/", "*")):
            yield "it has the form refs/heads/BRANCH or refs/tags/TAG"
        elif platform.name == "gitlab" and claim == "ref" and text.startswith("refs/"):
            yield "GitLab writes a branch or tag without refs/heads/ (that form is in ref_path)"
        elif platform.name == "gitlab" and claim == "project_path" and "/" not in text and text != "**":
            yield "it has the form GROUP/PROJECT"
        elif platform.name == "kubernetes" and claim == "namespace" and "*" not in text and not _LABEL.fullmatch(text):
            yield "it is not the name of a namespace"
        elif platform.name == "spiffe" and claim == "path" and not text.startswith(("/", "*")):
            yield "a path begins with /"
        elif platform.name == "spiffe" and claim == "sub" and not text.startswith((SCHEME, "*")):
            yield f"a SPIFFE ID begins with {SCHEME}"
