"""Which statuses say that a credential was rejected: 401, and 403 for those who want the draft of 2019."""

from __future__ import annotations

from typing import Any

import pytest

from ostiary import ConfigurationError
from tests.conftest import Connect
from tests.support.apiserver import ApiServer
from tests.support.plugins import PluginScript, exec_user


def test_a_403_replaces_the_credential_only_for_those_who_ask_for_it(
    connect_to: Connect, api: ApiServer, plugin: PluginScript
) -> None:
    """D5. Draft of 2019: "In case client gets `401 Unauthorized` or `403 Forbidden`"."""
    user = exec_user(plugin.path, version="v1alpha1")
    plugin.answer(token="token-1", version="v1alpha1")
    with connect_to(user=user, retry_on=(401, 403)).httpx() as client:
        assert client.get("/api/v1/forbidden").status_code == 403
    assert (api.statuses, plugin.runs) == ([403, 403], 2)
    assert '"code":403' in plugin.infos[1]


def test_with_retry_on_401_false_the_403_is_returned_and_the_credential_replaced(
    connect_to: Connect, api: ApiServer, plugin: PluginScript
) -> None:
    with connect_to(retry_on=[403, 401], retry_on_401=False).httpx() as client:
        assert client.get("/api/v1/forbidden").status_code == 403
    assert (api.statuses, plugin.runs) == ([403], 2)


def test_no_status_at_all_leaves_the_credential_alone(
    connect_to: Connect, api: ApiServer, plugin: PluginScript
) -> None:
    api.rules.tokens = {"another"}
    with connect_to(retry_on=()).httpx() as client:
        assert client.get("/version").status_code == 401
    assert plugin.runs == 1


@pytest.mark.parametrize("statuses", [(401, 500), 401, "401", None, (True,), ("401",)])
def test_other_statuses_are_refused(statuses: Any, connect_to: Connect) -> None:
    with pytest.raises(ConfigurationError, match="retry_on"):
        connect_to(retry_on=statuses)
