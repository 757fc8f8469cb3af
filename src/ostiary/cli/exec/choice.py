"""The exec plugin that a command line chooses: kubeconfig, context, user, cluster and plugin policy."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace

from ostiary.client import kubeconfig as kubeconfigs
from ostiary.client.authenticator import Authenticator
from ostiary.client.connection import Connection
from ostiary.client.credentials import cluster_info
from ostiary.client.exec.kuberc import from_kuberc
from ostiary.client.exec.plugin import ExecPlugin, ExecSettings
from ostiary.client.kubeconfig import ExecConfig, Kubeconfig, Selection
from ostiary.errors import ConfigurationError
from ostiary.wire.client_authentication import V1ALPHA1

SHIPPED, PROPOSAL = "shipped", "proposal"
DIALECTS = (SHIPPED, PROPOSAL)


@dataclass(frozen=True, slots=True)
class ExecChoice:
    config: Kubeconfig
    selection: Selection
    settings: ExecSettings

    def plugin(self) -> ExecPlugin:
        """The plugin, exactly as a client of this selection would run it."""
        selection, exec_config = self.selection, self._exec_config()
        connection = Connection(selection, settings=self.settings)
        if isinstance(connection.source, Authenticator) and isinstance(connection.source.plugin, ExecPlugin):
            return connection.source.plugin
        # Something else signs for this user. What the plugin would be told is wanted all the same.
        cluster = cluster_info(selection.cluster) if exec_config.provide_cluster_info else None
        return ExecPlugin(exec_config, user=selection.user.name, cluster=cluster, settings=self.settings)

    def without_a_person(self) -> ExecChoice:
        """The same plugin with ``interactiveMode: Never``."""
        user = replace(self.selection.user, exec=replace(self._exec_config(), interactive_mode="Never"))
        return replace(self, selection=replace(self.selection, user=user))

    def _exec_config(self) -> ExecConfig:
        user = self.selection.user
        if user.exec is None:
            raise ConfigurationError(
                f"user {user.name!r} has no exec plugin",
                where=user.place,
                hint="choose another with --context or --user",
                code="config-not-found",
            )
        return user.exec


def wrong_dialect(cause: str) -> ConfigurationError:
    return ConfigurationError(
        "the dialect of the 2018 proposal cannot be spoken here",
        cause=cause,
        hint="it was spoken with apiVersion client.authentication.k8s.io/v1alpha1 alone",
        code="usage",
    )


def choice(arguments: argparse.Namespace) -> ExecChoice:
    """What ``--kubeconfig``, ``--context``, ``--user``, ``--cluster`` and the switches for plugins choose."""
    as_proposed = arguments.dialect == PROPOSAL
    config = kubeconfigs.load(arguments.kubeconfig)
    selection = kubeconfigs.select(config, context=arguments.context, cluster=arguments.cluster, user=arguments.user)
    exec_config = selection.user.exec
    if as_proposed and exec_config is not None and exec_config.api_version != V1ALPHA1:
        raise wrong_dialect(f"the kubeconfig says {exec_config.api_version!r} in {exec_config.place}")
    settings = ExecSettings(
        policy=from_kuberc(),
        seconds=arguments.timeout,
        as_proposed=as_proposed,
        clean_environment=arguments.clean_environment,
        plugin_input=arguments.input,
        value_from=arguments.value_from,
    )
    return ExecChoice(config, selection, settings)
