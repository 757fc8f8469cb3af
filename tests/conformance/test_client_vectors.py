"""The verdicts of client-go 1.36.4 and of Go's proxy rules, each asked of us as well.

Where we mean to differ, ``tests/vectors/accepted_differences.json`` has the line, the reason and the decision record.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from ostiary.client.proxy import proxy_for
from ostiary.errors import TransportError
from tests.conformance.any_host_server import AnyHostServer
from tests.conformance.client_replay import Workshop, exec_differences, kubeconfig_differences
from tests.support.vectors import parts, replay


@pytest.fixture
def workshop(tmp_path_factory: pytest.TempPathFactory, no_terminal: None) -> Iterator[Workshop]:
    with AnyHostServer(tmp_path_factory.mktemp("server")).running() as server:
        yield Workshop(tmp_path_factory.mktemp("cases"), server)


@pytest.mark.parametrize("lines", parts("kubeconfig"), ids=str)
def test_kubeconfigs_are_taken_refused_and_obeyed_as_by_client_go(workshop: Workshop, lines: range) -> None:
    """What is sent where, with which credential, over which proxy, and what the exec plugin is told. E27, E30."""
    replay("kubeconfig", lambda vector: "; ".join(kubeconfig_differences(workshop, vector)) or None, lines=lines)


@pytest.mark.parametrize("lines", parts("exec-output"), ids=str)
def test_what_exec_plugins_print_is_taken_and_refused_as_by_client_go(workshop: Workshop, lines: range) -> None:
    """E42, E43, E48."""
    replay("exec-output", lambda vector: "; ".join(exec_differences(workshop, vector)) or None, lines=lines)


def test_the_proxy_of_the_environment_is_gos() -> None:
    replay("no-proxy", _proxy_difference)


def _proxy_difference(vector: dict[str, Any]) -> str | None:
    try:
        proxy = proxy_for(urlsplit(vector["url"]), configured=None, environ=vector["environment"])
    except TransportError as error:
        return None if "error" in vector else f"refused: {error.cause}; Go: {vector['proxy']}"
    expected = vector.get("error", vector.get("proxy"))
    return None if proxy == expected else f"{proxy}; Go: {expected}"
