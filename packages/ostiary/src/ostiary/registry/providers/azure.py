"""Azure Container Registry: ``ostiary-azure-credential-provider``.

    Entra ID -> access token -> GET /v2/ -> challenge -> POST /oauth2/exchange -> refresh token, which is the password

The node signs in as azure-identity determines (managed identity, environment, ...). With a service account token the
pod signs in as the application of its annotations. Tokens are sent only to Azure registries, and only to the registry
itself: its challenge comes from a server that has not proved its identity yet.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from ostiary.core.text import printable
from ostiary.model import Secret
from ostiary.registry.providers.common import signing_in, unavailable
from ostiary.sdk import ImageCredentials, ImageRequest, image_provider
from ostiary.wire.www_authenticate import ChallengeError, find_challenge

if TYPE_CHECKING:
    from azure.identity import ClientAssertionCredential, DefaultAzureCredential

USERNAME = "00000000-0000-0000-0000-000000000000"
SCOPE = "https://containerregistry.azure.net/.default"
CLIENT_ANNOTATION = "kubernetes.azure.com/acr-client-id"
TENANT_ANNOTATION = "kubernetes.azure.com/acr-tenant-id"
CLIENT_VARIABLE, TENANT_VARIABLE = "AZURE_CLIENT_ID", "AZURE_TENANT_ID"
# For private clouds: more host suffixes of Azure registries, separated by commas.
SUFFIXES_VARIABLE = "OSTIARY_AZURE_REGISTRY_SUFFIXES"
SUFFIXES = (".azurecr.io", ".azurecr.cn", ".azurecr.us", ".azurecr.de")
MIRROR_OPTION = "--registry-mirror="
# A refresh token of a registry is valid for three hours.
CACHE = timedelta(hours=1)
TIMEOUT_SECONDS = 15.0
_HINT = "see that the node's identity, or the pod's, has the role AcrPull for this registry"


class AzureProvider:
    """Credentials for Azure. Override `identity` to sign in differently.

    *mirrors* maps the host of an image to the Azure registry that it is pulled from.
    """

    def __init__(self, environ: Mapping[str, str] | None = None, *, mirrors: Mapping[str, str] | None = None) -> None:
        self._environ = os.environ if environ is None else environ
        self._mirrors = mirrors or {}
        more = self._environ.get(SUFFIXES_VARIABLE, "")
        self._suffixes = (*SUFFIXES, *(text.strip() for text in more.split(",") if text.strip()))

    def credentials(self, request: ImageRequest) -> ImageCredentials | None:
        """Return the login of the image's registry, or of its mirror; None if it is not an Azure registry."""
        registry = self._mirrors.get(request.registry, request.registry)
        if not self.is_azure(registry):
            return None
        with signing_in(request, cloud="Azure", extra="azure", hint=_HINT):
            token = Secret(str(self.identity(request).get_token(SCOPE).token))
            password = _RefreshTokenExchange(request, registry, self._tenant(request)).refresh_token(token)
        return ImageCredentials.for_registry(USERNAME, password, cache=CACHE)

    def is_azure(self, registry: str) -> bool:
        """Return whether an Azure token may be sent to *registry*."""
        return registry.partition(":")[0].endswith(self._suffixes)

    def identity(self, request: ImageRequest) -> ClientAssertionCredential | DefaultAzureCredential:
        """Return a credential of azure-identity, for the node or for the pod."""
        from azure.identity import ClientAssertionCredential, DefaultAzureCredential

        assertion = request.service_account_token
        if not assertion:
            return DefaultAzureCredential(exclude_interactive_browser_credential=True)
        client = request.annotations.get(CLIENT_ANNOTATION) or self._environ.get(CLIENT_VARIABLE)
        tenant = self._tenant(request)
        if not client or not tenant:
            names = f"{CLIENT_ANNOTATION} and {TENANT_ANNOTATION}"
            raise unavailable(
                request, "Azure: the service account does not say as which application to sign in", hint=f"set {names}"
            )
        return ClientAssertionCredential(tenant, client, assertion.reveal)

    def _tenant(self, request: ImageRequest) -> str:
        return request.annotations.get(TENANT_ANNOTATION) or self._environ.get(TENANT_VARIABLE, "")


class _RefreshTokenExchange:
    """Exchanges an Azure access token for a refresh token of one registry, at that registry."""

    def __init__(self, request: ImageRequest, registry: str, tenant: str) -> None:
        # A dependency of azure-identity.
        import requests

        self._request, self._registry, self._tenant = request, registry, tenant
        self._http = requests.Session()

    def refresh_token(self, access_token: Secret) -> Secret:
        with self._http:
            form = {"grant_type": "access_token", "service": self._service(), "access_token": access_token.reveal()}
            if self._tenant:
                form["tenant"] = self._tenant
            url = f"https://{self._registry}/oauth2/exchange"
            reply = self._http.post(url, data=form, timeout=TIMEOUT_SECONDS, allow_redirects=False)
            if reply.status_code != 200:
                raise self._failure(f"the registry refused the exchange with status {reply.status_code}")
            try:
                refresh_token = reply.json().get("refresh_token")
            except (ValueError, AttributeError):
                refresh_token = None
        if not isinstance(refresh_token, str) or not refresh_token:
            raise self._failure("the registry's answer has no refresh_token")
        return Secret(refresh_token)

    def _service(self) -> str:
        reply = self._http.get(f"https://{self._registry}/v2/", timeout=TIMEOUT_SECONDS, allow_redirects=False)
        try:
            challenge = find_challenge(reply.headers.get("WWW-Authenticate", ""), "bearer")
        except ChallengeError:
            challenge = None
        if reply.status_code != 401 or challenge is None:
            raise self._failure("the registry does not ask for a token, as registries of Azure do")
        realm = urlsplit(challenge.realm)
        if realm.scheme != "https" or realm.netloc != self._registry:
            raise self._failure("the registry wants the token to be sent to another place")
        return challenge.parameters.get("service") or self._registry

    def _failure(self, why: str) -> Exception:
        return unavailable(self._request, f"Azure: {printable(self._registry)}: {why}", hint=_HINT)


def mirrors_of(arguments: Sequence[str]) -> dict[str, str]:
    """Parse ``--registry-mirror=mcr.example.com:cache.azurecr.io,...``."""
    values = [word.removeprefix(MIRROR_OPTION) for word in arguments if word.startswith(MIRROR_OPTION)]
    pairs = [pair.strip().partition(":") for value in values for pair in value.split(",")]
    return {source: target for source, colon, target in pairs if source and colon and target}


@image_provider
def main(request: ImageRequest) -> ImageCredentials | None:
    """A login for Azure Container Registry, with the node's managed identity or what else Azure's library finds.

    --registry-mirror=SOURCE:TARGET,...   images of SOURCE are pulled from the registry TARGET
    Needs azure-identity: pip install 'ostiary[azure]'
    """
    return AzureProvider(mirrors=mirrors_of(sys.argv[1:])).credentials(request)


if __name__ == "__main__":
    main()
