"""Policies that are looked at and not served: where they come from, and of which type they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from ostiary.errors import ConfigurationError
from ostiary_gateway.policy.source import is_gateway, lint, open_policy_at, type_of


def test_the_type_of_a_policy_is_seen_from_its_files(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.cedar").touch()
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "x.yaml").touch()
    assert type_of([str(tmp_path / "a"), "p.cedar"]) == "cedar"
    assert type_of([str(tmp_path / "b"), "p.yaml", "p"]) == "rbac"
    with pytest.raises(ConfigurationError, match="different types"):
        type_of(["p.cedar", "p.yaml"])


def test_a_gateway_of_another_kind_is_no_configuration_of_ours(tmp_path: Path) -> None:
    path = tmp_path / "g.yaml"
    path.write_text("apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\n")
    assert not is_gateway(str(path))
    path.write_text("apiVersion: ostiary.dev/v1\nkind: Gateway\n")
    assert is_gateway(str(path))


def test_a_broken_policy_is_refused_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text("apiVersion: rbac.authorization.k8s.io/v1\nkind: Rolle\nmetadata: {name: r}\n")
    with pytest.raises(ConfigurationError) as raised:
        open_policy_at(str(path))
    assert f"{path}:2" in str(raised.value)
    with pytest.raises(ConfigurationError, match="the policy does not exist"):
        open_policy_at(str(tmp_path / "gone"))


def test_a_provider_without_rules_to_judge_by_says_so() -> None:
    with pytest.raises(ConfigurationError, match="has no lint rules"):
        lint(["p"], "allow_all")
