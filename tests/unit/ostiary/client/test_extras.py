"""Without its extras, the Python API says which one is missing, as an error of ours."""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Callable
from typing import Any

import pytest

from ostiary.client.connection import Connection
from ostiary.client.metrics import PrometheusMetrics
from ostiary.errors import ConfigurationError, LibraryMissing
from ostiary.kubeconfig import Cluster, Selection, User

EXTRAS = {
    "httpx": "httpx",
    "httpx_async": "httpx",
    "requests": "requests",
    "urllib3": "urllib3",
    "aiohttp": "aiohttp",
    "kubernetes": "kubernetes",
    "kubernetes_aio": "kubernetes",
    "kubernetes_asyncio": "kubernetes-asyncio",
    "lightkube": "lightkube",
    "lightkube_async": "lightkube",
    "kr8s": "kr8s",
    "kr8s_async": "kr8s",
}
LIBRARIES = (
    "httpx",
    "httpx2",
    "requests",
    "urllib3",
    "aiohttp",
    "kubernetes",
    "kubernetes_asyncio",
    "lightkube",
    "kr8s",
)


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(sys.modules):
        of_ours = name.startswith("ostiary.client.") and name.rpartition(".")[2] in {*EXTRAS, "kubernetes_aio"}
        if of_ours or name.partition(".")[0] in LIBRARIES:
            monkeypatch.delitem(sys.modules, name)
    for name in LIBRARIES:
        monkeypatch.setitem(sys.modules, name, None)


@pytest.mark.parametrize("method", EXTRAS)
def test_a_client_whose_library_is_missing_says_what_to_install(method: str, nothing_installed: None) -> None:
    connection = Connection(Selection("c", Cluster("c", "https://c.test"), User("u")))
    with pytest.raises(LibraryMissing) as missing:
        asyncio.run(_made(getattr(connection, method)))
    assert missing.value.hint == f"pip install 'ostiary[{EXTRAS[method]}]'"
    assert missing.value.code == "library-missing"


async def _made(method: Callable[[], Any]) -> None:
    made = method()
    if inspect.isawaitable(made):
        await made


def test_so_do_the_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(LibraryMissing, match="PrometheusMetrics") as missing:
        PrometheusMetrics()
    assert missing.value.hint == "pip install 'ostiary[metrics]'"


def test_the_error_is_ours_and_python_s() -> None:
    assert issubclass(LibraryMissing, ConfigurationError)
    assert issubclass(LibraryMissing, ModuleNotFoundError)
