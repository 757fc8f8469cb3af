"""ostiary: authentication for users and developers of Kubernetes.

    import ostiary

    client = ostiary.connect().httpx()      # authenticates like kubectl, and refreshes the credential

The names below are public. They are imported on first use, so that ``import ostiary`` is fast.
"""

# Not from typing, whose import would take longer than everything else here.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from ostiary.client.authenticator import Authenticator
    from ostiary.client.connection import Connection, connect
    from ostiary.client.custom_credentials import AsyncOwnSource, OwnSource
    from ostiary.client.exec.policy import AllowAll, Allowlist, Confirm, DenyAll, Pinned, Plan, Trusted
    from ostiary.client.retry_on_401 import Rejection
    from ostiary.client.signing import AsyncRequestSigner, RequestSigner, RequestToSign
    from ostiary.client.signing_command import SigningCommand
    from ostiary.errors import (
        AnswerInvalid,
        BackingOff,
        ConfigurationError,
        CredentialError,
        KeyUnusable,
        OstiaryError,
        PluginFailed,
        PluginNotFound,
        PluginNotInteractive,
        PluginRefused,
        RequestNotSigned,
        SourceFailed,
        TransportError,
    )
    from ostiary.kubeconfig import Kubeconfig, Overrides
    from ostiary.model import ClientCertificate, Credential, DeviceKey, Secret, SignatureScheme

__version__ = "0.1.0"

_HOME = {
    "ostiary.client.authenticator": ("Authenticator",),
    "ostiary.client.connection": ("Connection", "connect"),
    "ostiary.kubeconfig": ("Kubeconfig", "Overrides"),
    "ostiary.client.custom_credentials": ("AsyncOwnSource", "OwnSource"),
    "ostiary.client.retry_on_401": ("Rejection",),
    "ostiary.client.signing_command": ("SigningCommand",),
    "ostiary.client.signing": ("AsyncRequestSigner", "RequestSigner", "RequestToSign"),
    "ostiary.client.exec.policy": ("AllowAll", "Allowlist", "Confirm", "DenyAll", "Pinned", "Plan", "Trusted"),
    "ostiary.errors": (
        "AnswerInvalid",
        "BackingOff",
        "ConfigurationError",
        "CredentialError",
        "KeyUnusable",
        "OstiaryError",
        "PluginFailed",
        "PluginNotFound",
        "PluginNotInteractive",
        "PluginRefused",
        "RequestNotSigned",
        "SourceFailed",
        "TransportError",
    ),
    "ostiary.model": ("ClientCertificate", "Credential", "DeviceKey", "Secret", "SignatureScheme"),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "AllowAll",
    "Allowlist",
    "AnswerInvalid",
    "AsyncOwnSource",
    "AsyncRequestSigner",
    "Authenticator",
    "BackingOff",
    "ClientCertificate",
    "ConfigurationError",
    "Confirm",
    "Connection",
    "Credential",
    "CredentialError",
    "DenyAll",
    "DeviceKey",
    "KeyUnusable",
    "Kubeconfig",
    "OstiaryError",
    "Overrides",
    "OwnSource",
    "Pinned",
    "Plan",
    "PluginFailed",
    "PluginNotFound",
    "PluginNotInteractive",
    "PluginRefused",
    "Rejection",
    "RequestNotSigned",
    "RequestSigner",
    "RequestToSign",
    "Secret",
    "SignatureScheme",
    "SigningCommand",
    "SourceFailed",
    "TransportError",
    "Trusted",
    "connect",
]


def __getattr__(name: str) -> object:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'ostiary' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
