"""Google Artifact Registry and Container Registry: ``ostiary-google-credential-provider``.

    (annotated service account token -> token exchange)  or  application default credentials -> an access token

On a node the default credentials are those of its metadata server. A pod whose service account has the annotation
``iam.gke.io/enable-wi-image-pull: "true"`` signs in as itself, and never as the node instead.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.model import Secret
from ostiary.registry.providers.common import signing_in, unavailable
from ostiary.sdk import ImageCredentials, ImageRequest, image_provider

USERNAME = "_token"
SCOPE = "https://www.googleapis.com/auth/cloud-platform"
ANNOTATION = "iam.gke.io/enable-wi-image-pull"
# identitynamespace:<project>.svc.id.goog:<identity provider of the cluster>
AUDIENCE_VARIABLE = "OSTIARY_GOOGLE_STS_AUDIENCE"
STS_VARIABLE = "OSTIARY_GOOGLE_STS_URL"
STS_URL = "https://sts.googleapis.com/v1/token"
GRANT_TYPE = "urn:ietf:params:oauth:grant-type:token-exchange"
JWT = "urn:ietf:params:oauth:token-type:jwt"
ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"  # noqa: S105
# The metadata server returns the same token until shortly before it expires.
MARGIN = timedelta(minutes=1)
_HOST = re.compile(r"container\.cloud\.google\.com|(?:[a-z0-9-]+\.)?gcr\.io|[a-z0-9-]+\.pkg\.dev")
_HINT = "see that the node's service account may read from Artifact Registry"


class GoogleProvider:
    """Credentials for Google. Override `access_token` to sign in differently."""

    def __init__(self, environ: Mapping[str, str] | None = None, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._environ = os.environ if environ is None else environ
        self._clock = clock

    def credentials(self, request: ImageRequest) -> ImageCredentials | None:
        """Return the login of the image's registry; None if it is not a Google registry."""
        if not is_google(request.registry):
            return None
        with signing_in(request, cloud="Google", extra="google", hint=_HINT):
            token, lifetime = self.access_token(request)
        return ImageCredentials.for_registry(USERNAME, token, cache=max(timedelta(0), lifetime - MARGIN))

    def access_token(self, request: ImageRequest) -> tuple[Secret, timedelta]:
        """Return a token and its lifetime: the pod's if its service account opts in, else the node's."""
        if request.annotations.get(ANNOTATION) == "true":
            return self._token_of_pod(request)
        return self._token_of_node()

    def _token_of_node(self) -> tuple[Secret, timedelta]:
        import google.auth
        import google.auth.transport.requests

        credentials: Any
        credentials, _ = google.auth.default(scopes=[SCOPE])
        credentials.refresh(google.auth.transport.requests.Request())
        expiry: datetime | None = credentials.expiry
        # The library returns a naive datetime in UTC.
        remaining = timedelta(0) if expiry is None else expiry.replace(tzinfo=UTC) - self._clock.now()
        return Secret(str(credentials.token)), timedelta(seconds=int(remaining.total_seconds()))

    def _token_of_pod(self, request: ImageRequest) -> tuple[Secret, timedelta]:
        import google.auth.transport.requests
        from google.oauth2 import sts

        audience = self._environ.get(AUDIENCE_VARIABLE, "")
        if not request.service_account_token or not audience:
            missing = AUDIENCE_VARIABLE if request.service_account_token else "the service account token"
            hint = f"set tokenAttributes, and {AUDIENCE_VARIABLE} among the env of this provider"
            raise unavailable(request, f"Google: the pod is to sign in as itself, and {missing} is missing", hint=hint)
        client: Any = sts.Client(self._environ.get(STS_VARIABLE) or STS_URL)  # type: ignore[no-untyped-call]
        answer = client.exchange_token(
            google.auth.transport.requests.Request(),
            grant_type=GRANT_TYPE,
            subject_token=request.service_account_token.reveal(),
            subject_token_type=JWT,
            audience=audience,
            scopes=[SCOPE],
            requested_token_type=ACCESS_TOKEN,
        )
        return Secret(str(answer["access_token"])), timedelta(seconds=int(answer.get("expires_in") or 0))


def is_google(registry: str) -> bool:
    """Return whether a Google token may be sent to *registry*. Any user can choose an image name, and so its host."""
    return _HOST.fullmatch(registry) is not None


@image_provider
def main(request: ImageRequest) -> ImageCredentials | None:
    """A login for Google Artifact Registry and Container Registry, with the application default credentials.

    Needs google-auth: pip install 'ostiary[google]'
    """
    return GoogleProvider().credentials(request)


if __name__ == "__main__":
    main()
