"""What the file of ``--azure-container-registry-config`` said about signing in, as variables of the provider of today.

Called by ``ostiary registry migrate``. The clouds' other files (``cloud.conf`` of AWS and GCE) said nothing that their
credential providers read. A secret in the file is named and never printed: the configuration of the kubelet is no place
for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ostiary.core.config import Json, read
from ostiary.core.text import printable
from ostiary.errors import ConfigurationError

# The value of aadClientId and aadClientSecret that stood for the machine's own identity.
_MACHINE = "msi"
_AUTHORITIES = {
    "azurepubliccloud": "",
    "azurechinacloud": "https://login.chinacloudapi.cn",
    "azureusgovernmentcloud": "https://login.microsoftonline.us",
    "azureusgovernment": "https://login.microsoftonline.us",
}


@dataclass(frozen=True, slots=True)
class AzureIdentity:
    """As whom the node signs in: variables that azure-identity reads, and what has to be done by hand."""

    env: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()


def read_azure_identity(path: str) -> AzureIdentity:
    """What ``azure.json`` says, which may be YAML as well; raises `ConfigurationError`."""
    value = read(path).value
    if not isinstance(value, dict):
        raise ConfigurationError(
            "the cloud configuration cannot be read", cause="it is no object", where=path, code="config-invalid"
        )
    return AzureIdentity(tuple(_variables(value)), tuple(_notes(value)))


def _variables(value: dict[str, Json]) -> Iterator[tuple[str, str]]:
    if tenant := _text(value, "tenantId"):
        yield "AZURE_TENANT_ID", tenant
    by_machine = value.get("useManagedIdentityExtension") is True
    client = _text(value, "userAssignedIdentityID") if by_machine else _text(value, "aadClientId")
    if client and client != _MACHINE:
        yield "AZURE_CLIENT_ID", client
    if not by_machine and (certificate := _text(value, "aadClientCertPath")):
        yield "AZURE_CLIENT_CERTIFICATE_PATH", certificate
    if authority := _AUTHORITIES.get(_text(value, "cloud").lower()):
        yield "AZURE_AUTHORITY_HOST", authority


def _notes(value: dict[str, Json]) -> Iterator[str]:
    cloud = _text(value, "cloud")
    if cloud and cloud.lower() not in _AUTHORITIES:
        yield f"the cloud {printable(cloud)} is not known: set AZURE_AUTHORITY_HOST for the provider"
    if value.get("useManagedIdentityExtension") is True:
        return
    if _text(value, "aadClientSecret") not in ("", _MACHINE):
        yield "aadClientSecret is not printed: give it to the kubelet as AZURE_CLIENT_SECRET, from a file"
    if _text(value, "aadClientCertPassword"):
        yield "aadClientCertPassword is not printed: give it to the kubelet as AZURE_CLIENT_CERTIFICATE_PASSWORD"


def _text(value: dict[str, Json], key: str) -> str:
    text = value.get(key)
    return text if isinstance(text, str) else ""
