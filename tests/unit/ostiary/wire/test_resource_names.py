"""What people call resources, and what policies call them."""

from __future__ import annotations

import pytest

from ostiary.wire.resource_names import plural_of


def test_a_singular_or_short_name_leads_to_the_plural(subtests: pytest.Subtests) -> None:
    cases = [
        ("pod", "pods"),
        ("po", "pods"),
        ("Pods", "pods"),
        ("Deployment", "deployments"),
        ("deploy", "deployments"),
        ("ingress", "ingresses"),
        ("networkpolicy", "networkpolicies"),
        ("storageclass", "storageclasses"),
        ("namespace", "namespaces"),
        ("secret", "secrets"),
        ("session", "sessions"),
        ("pods", None),
        ("endpoints", None),
        ("widget", None),
        ("widgets", None),
        ("*", None),
        ("", None),
    ]
    for written, meant in cases:
        with subtests.test(written=written, meant=meant):
            assert plural_of(written) == meant
