"""Whatever configuration can be read is written anew as v1, and means the same."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostiary.registry.kubelet.config import loads
from ostiary.registry.kubelet.migrate import migrate
from ostiary.registry.kubelet.model import ProviderConfig, ProvidersConfig, TokenAttributes
from ostiary.wire.credential_provider import API_VERSIONS, V1, V1ALPHA1, ProviderDialect

PROPOSED = """\
kind: credentialprovider
apiVersion: v1alpha1
providers:
- name: ecr-creds
  imageMatchers:
  - "*.dkr.ecr.*.amazonaws.com"
  extraArgs:
    region: us-west-2
"""


def test_the_proposals_dialect_becomes_v1() -> None:
    """To the byte below the comment. I3."""
    text = migrate(loads(PROPOSED))
    comment, _, rest = text.partition("apiVersion: kubelet")
    assert all(line.startswith("# ") for line in comment.splitlines())
    assert "apiVersion: kubelet" + rest == (
        "apiVersion: kubelet.config.k8s.io/v1\n"
        "kind: CredentialProviderConfig\n"
        "providers:\n"
        '- name: "ecr-creds"\n'
        "  matchImages:\n"
        '  - "*.dkr.ecr.*.amazonaws.com"\n'
        '  defaultCacheDuration: "0s"\n'
        "  apiVersion: credentialprovider.kubelet.k8s.io/v1\n"
        "  args:\n"
        '  - "get-credentials"\n'
        "  env:\n"
        '  - name: "REGION"\n'
        '    value: "us-west-2"\n'
    )


def test_what_was_migrated_is_the_same_provider_in_the_protocol_of_today() -> None:
    """I3."""
    before = loads(PROPOSED)
    after = loads(migrate(before))
    assert after.providers == tuple(
        replace(one, dialect=ProviderDialect.KUBELET, api_version=V1) for one in before.providers
    )
    assert after.warnings == ()


def test_a_provider_of_an_older_shipped_version_keeps_its_protocol() -> None:
    """I3."""
    text = (
        "apiVersion: kubelet.config.k8s.io/v1alpha1\nkind: CredentialProviderConfig\nproviders:\n"
        f"- name: a\n  matchImages: [a.io]\n  defaultCacheDuration: 90m\n  apiVersion: {V1ALPHA1}\n"
    )
    before = loads(text)
    written = migrate(before)
    assert written.startswith("apiVersion: kubelet.config.k8s.io/v1\n")
    assert loads(written).providers == before.providers


def test_all_fields_are_written() -> None:
    attributes = TokenAttributes("audience", "Token", True, ("a.io/required",), ("a.io/optional",))
    provider = ProviderConfig("a", ("a.io",), timedelta(minutes=5), V1, ("-v",), (("A", "B"),), attributes)
    assert loads(migrate(ProvidersConfig((provider,)))).providers == (provider,)


def test_text_that_yaml_would_take_for_something_else_stays_text(subtests: pytest.Subtests) -> None:
    for value in ["y", "5", "null", "*x", "a: b", " a ", "", "é😀", "\x7f", "\u2028", "a\nb", "word " * 100]:
        with subtests.test(value=value):
            provider = ProviderConfig("a", ("a.io",), args=(value,), env=((value, value),))
            assert loads(migrate(ProvidersConfig((provider,)))).providers == (provider,)


TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\ufeff"))
NAMES = st.text(alphabet="abc-._*", min_size=1, max_size=8).filter(lambda name: name not in (".", ".."))
PROVIDERS = st.builds(
    ProviderConfig,
    name=NAMES,
    match_images=st.lists(NAMES, min_size=1, max_size=3).map(tuple),
    default_cache_duration=st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=900)),
    api_version=st.sampled_from(API_VERSIONS),
    args=st.lists(TEXTS, max_size=3).map(tuple),
    env=st.lists(st.tuples(TEXTS, TEXTS), max_size=3).map(tuple),
)


@settings(deadline=None)
@given(st.lists(PROVIDERS, min_size=1, max_size=3, unique_by=lambda provider: provider.name))
def test_whatever_is_written_is_read_back(providers: list[ProviderConfig]) -> None:
    assert loads(migrate(ProvidersConfig(tuple(providers)))).providers == tuple(providers)
