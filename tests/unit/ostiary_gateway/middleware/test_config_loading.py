"""``backend.yaml``: mistakes stop the start, each with its place."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ostiary.errors import ConfigurationError
from ostiary_gateway.middleware.config import BackendConfig, load, loads

CHAIN = {"chain": [{"name": "everything", "type": "allow_all"}]}


def settings(folder: Path, **sections: Any) -> dict[str, Any]:
    (folder / "token").write_text("token-of-the-backend")
    gateway = {"server": "https://gateway.example", "tokenFile": "token", **sections.pop("gateway", {})}
    merged = {
        "apiVersion": "ostiary.dev/v1",
        "kind": "Backend",
        "gateway": gateway,
        "authorization": CHAIN,
        **sections,
    }
    return {key: value for key, value in merged.items() if value is not None}


def config(folder: Path, **sections: Any) -> BackendConfig:
    return loads(json.dumps(settings(folder, **sections)), directory=folder)


def mistakes(folder: Path, **sections: Any) -> str:
    with pytest.raises(ConfigurationError) as caught:
        config(folder, **sections)
    return "\n".join(f"{problem} {problem.hint or ''}" for problem in caught.value.problems)


def test_what_is_left_out_has_its_default(tmp_path: Path) -> None:
    read = config(tmp_path)
    assert read.gateway.url == "https://gateway.example"
    assert read.gateway.max_stale == timedelta(seconds=10)
    assert (read.upstream, read.jwt, read.audit, read.authorize_every_request) == ("", None, None, True)
    assert type(read.mapper).__name__ == "HttpAttributes"


def test_paths_are_meant_from_the_file(tmp_path: Path) -> None:
    (tmp_path / "backend.yaml").write_text(json.dumps(settings(tmp_path)))
    assert load(tmp_path / "backend.yaml").gateway.token_file == tmp_path / "token"


def test_without_a_policy_the_gateway_is_asked(tmp_path: Path) -> None:
    (link,) = config(tmp_path, authorization=None).authorization.chain
    assert (link.name, link.type) == ("gateway", "subject_access_review")


def test_the_mapper_has_settings(tmp_path: Path) -> None:
    read = config(tmp_path, attributes={"type": "http", "templates": ["/v1/{resource}"]})
    assert type(read.mapper).__name__ == "HttpAttributes"
    assert type(config(tmp_path, attributes="kubernetes").mapper).__name__ == "KubernetesAttributes"


def test_mistakes_are_told(tmp_path_factory: pytest.TempPathFactory, subtests: pytest.Subtests) -> None:
    """T7."""
    cases: list[tuple[dict[str, Any], str]] = [
        ({"kind": "Gateway"}, "kind"),
        ({"gateway": {"server": "http://gateway.example"}}, "plain text"),
        ({"gateway": {"server": "gateway"}}, "gateway.server"),
        ({"gateway": {"tokenFile": None}}, "would not know who asks"),
        ({"gateway": {"tokenFile": "nowhere"}}, "cannot be read"),
        ({"gateway": {"maxStale": "1s"}}, "at least two seconds"),
        ({"gateway": {"tls": {"ca": "token"}}}, "no certificate"),
        ({"gateway": {"maxstale": "5s"}}, "did you mean maxStale"),
        ({"jwt": {}}, "jwt.audiences"),
        ({"jwt": {"audiences": ["a"], "issuer": "http://issuer.example"}}, "https URL"),
        ({"jwt": {"audiences": ["a"], "issuer": "https://issuer.example?x"}}, "https URL"),
        ({"attributes": "htpp"}, "attributes"),
        ({"openPaths": ["healthz"]}, "not a plain path"),
        ({"openPaths": ["/a*b"]}, "not a plain path"),
        ({"upstream": "Shop 1"}, "lower-case"),
        ({"authorization": {"chain": []}}, "authorization.chain"),
        ({"authorization": {"chain": [{"name": "p", "provider": "staff"}]}}, "unknown identity provider"),
        (
            {
                "authorization": {"chain": [{"name": "p", "type": "allow_all", "upstreams": ["other"]}]},
                "upstream": "shop",
            },
            "for other upstreams only",
        ),
        (
            {"authorization": {"chain": [{"name": "p", "type": "rbac", "from": {"upstream": "cluster"}}]}},
            "which only a gateway follows",
        ),
        ({"audit": {"log": {}}}, "audit.log"),
        ({"policy": "x"}, "unknown field"),
    ]
    for sections, expected in cases:
        with subtests.test(sections=sections, expected=expected):
            tmp_path = tmp_path_factory.mktemp("case")
            assert expected in mistakes(tmp_path, **sections)


def test_all_mistakes_are_told_at_once_and_no_secret(tmp_path: Path) -> None:
    told = mistakes(tmp_path, gateway={"server": "http://gateway.example"}, upstream="A", openPaths=["x"])
    assert len(told.splitlines()) == 3
    assert "token-of-the-backend" not in told


def test_a_second_document_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        loads("kind: Backend\n---\nkind: Backend\n")
    assert "second YAML document" in "\n".join(map(str, caught.value.problems))
