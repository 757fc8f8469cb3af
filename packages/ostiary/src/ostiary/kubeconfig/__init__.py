"""Kubeconfigs: find the files, merge them, select a context, and validate the selection.

The names below are public. `files` loads, `selection` selects, `model` defines the values.
"""

from ostiary.kubeconfig.files import load, loads, merge
from ostiary.kubeconfig.model import (
    NO_OVERRIDES,
    AuthProvider,
    Cluster,
    Context,
    ExecConfig,
    Impersonation,
    Kubeconfig,
    Overrides,
    Selection,
    SigningConfig,
    User,
    ValueFrom,
)
from ostiary.kubeconfig.selection import choose, select
from ostiary.kubeconfig.service_account import in_cluster
from ostiary.wire.kubeconfig import EXEC_EXTENSION

__all__ = [
    "EXEC_EXTENSION",
    "NO_OVERRIDES",
    "AuthProvider",
    "Cluster",
    "Context",
    "ExecConfig",
    "Impersonation",
    "Kubeconfig",
    "Overrides",
    "Selection",
    "SigningConfig",
    "User",
    "ValueFrom",
    "choose",
    "in_cluster",
    "load",
    "loads",
    "merge",
    "select",
]
