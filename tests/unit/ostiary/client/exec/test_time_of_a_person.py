"""A person who types is not hurried: time limits hold for plugins that nobody sits before."""

from __future__ import annotations

import os

import pytest

from ostiary.client.exec.plugin import ExecPlugin, ExecSettings
from ostiary.errors import PluginFailed
from ostiary.kubeconfig import ExecConfig
from ostiary.wire.client_authentication import V1
from tests.support.plugins import PluginScript

AT_ONCE = ExecSettings(seconds=0.0)


def asking(plugin: PluginScript, mode: str) -> ExecPlugin:
    plugin.before("read -r typed; printf '%s' \"$typed\" > typed")
    config = ExecConfig(api_version=V1, command=str(plugin.path), interactive_mode=mode)
    return ExecPlugin(config, user="dev", settings=AT_ONCE)


def test_a_plugin_that_asks_a_person_has_no_time_limit(plugin: PluginScript, terminal: int) -> None:
    """F27."""
    os.write(terminal, b"my password\n")
    assert asking(plugin, "Always").run().token is not None
    assert (plugin.folder / "typed").read_text() == "my password"


def test_the_same_limit_ends_a_plugin_that_asks_nobody(plugin: PluginScript, terminal: int) -> None:
    """E21."""
    plugin.before("cat /dev/zero > /dev/null")
    config = ExecConfig(api_version=V1, command=str(plugin.path), interactive_mode="Never")
    with pytest.raises(PluginFailed) as caught:
        ExecPlugin(config, user="dev", settings=AT_ONCE).run()
    assert caught.value.code == "exec-plugin-timeout"
