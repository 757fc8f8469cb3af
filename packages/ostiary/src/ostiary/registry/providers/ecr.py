"""Amazon Elastic Container Registry, private and public: ``ostiary-ecr-credential-provider``.

    host of the image -> account, region -> (service account token -> role) -> GetAuthorizationToken

Uses the node's AWS credentials as found by botocore. With a service account token, the role of the annotation
``eks.amazonaws.com/ecr-role-arn``, or else of $AWS_ECR_ROLE_ARN, is assumed instead.
"""

from __future__ import annotations

import binascii
import os
import re
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.model import Secret
from ostiary.registry.providers.common import signing_in, unavailable
from ostiary.sdk import ImageCredentials, ImageRequest, image_provider

if TYPE_CHECKING:
    from botocore.client import BaseClient
    from botocore.session import Session

ROLE_ANNOTATION = "eks.amazonaws.com/ecr-role-arn"
ROLE_VARIABLE = "AWS_ECR_ROLE_ARN"
SESSION_NAME = "ostiary-ecr-credential-provider"
PUBLIC_HOSTS = ("public.ecr.aws", "ecr-public.aws.com")
# The only region that issues tokens for public images.
PUBLIC_REGION = "us-east-1"
# The domains of Amazon's partitions, including the isolated ones.
_DOMAINS = (
    "amazonaws.com",
    "amazonaws.com.cn",
    "amazonaws.eu",
    "on.aws",
    "on.amazonwebservices.com.cn",
    "sc2s.sgov.gov",
    "c2s.ic.gov",
    "cloud.adc-e.uk",
    "csp.hci.ic.gov",
)
_HOST = re.compile(
    r"(?P<account>[0-9]{12})\.dkr(?P<form>[.-])ecr(?P<fips>-fips)?\.(?P<region>[a-z0-9][a-z0-9-]*)\.(?:"
    + "|".join(map(re.escape, _DOMAINS))
    + ")"
)
_HINT = "see that the node, or the role, may call ecr:GetAuthorizationToken"


@dataclass(frozen=True, slots=True)
class EcrRegistry:
    """The registry of an image. `account` is empty for the public one."""

    account: str
    region: str
    fips: bool = False
    dual_stack: bool = False


def parse_host(host: str) -> EcrRegistry | None:
    """Parse *host*, with or without a port; None if it is not an Amazon registry."""
    name = host.partition(":")[0]
    if name in PUBLIC_HOSTS:
        return EcrRegistry("", PUBLIC_REGION)
    match = _HOST.fullmatch(name)
    if match is None:
        return None
    return EcrRegistry(match["account"], match["region"], bool(match["fips"]), match["form"] == "-")


class EcrProvider:
    """Credentials for ECR. Override `role_for` or `session` to use another identity."""

    def __init__(self, environ: Mapping[str, str] | None = None, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._environ = os.environ if environ is None else environ
        self._clock = clock

    def credentials(self, request: ImageRequest) -> ImageCredentials | None:
        """Return the login of the image's registry; None if it is not an Amazon registry."""
        registry = parse_host(request.registry)
        if registry is None:
            return None
        with signing_in(request, cloud="Amazon ECR", extra="ecr", hint=_HINT):
            data = self._authorization(self.session(registry, request), registry)
        login = _login(data.get("authorizationToken"))
        if login is None:
            raise unavailable(request, "Amazon ECR: its answer holds no login", hint=_HINT)
        return ImageCredentials.for_registry(*login, cache=self._half_life(data.get("expiresAt")))

    def role_for(self, request: ImageRequest) -> str:
        """Return the role that the pod's service account assumes."""
        return request.annotations.get(ROLE_ANNOTATION) or self._environ.get(ROLE_VARIABLE, "")

    def session(self, registry: EcrRegistry, request: ImageRequest) -> Session:
        """Return a botocore session for the node, or for the pod's service account."""
        import botocore.session

        session = botocore.session.get_session()
        if not request.service_account_token:
            return session
        role = self.role_for(request)
        if not role:
            raise unavailable(
                request,
                f"the service account has no annotation {ROLE_ANNOTATION}, and {ROLE_VARIABLE} is not set",
                hint="name the role there, or leave tokenAttributes out to use the node's own role",
            )
        keys = _assume_role(session, registry, role, request.service_account_token)
        session.set_credentials(keys["AccessKeyId"], keys["SecretAccessKey"], keys["SessionToken"])
        return session

    def _authorization(self, session: Session, registry: EcrRegistry) -> Mapping[str, object]:
        if not registry.account:
            data = _client(session, "ecr-public", registry).get_authorization_token()["authorizationData"]
        else:
            client = _client(session, "ecr", registry)
            (data, *_) = client.get_authorization_token(registryIds=[registry.account])["authorizationData"]
        assert isinstance(data, dict)
        return data

    def _half_life(self, expires_at: object) -> timedelta:
        """Return half of the remaining lifetime, so that no pull starts with a token that is about to expire."""
        if not isinstance(expires_at, datetime):
            return timedelta(0)
        half = max(timedelta(0), (expires_at - self._clock.now()) / 2)
        return timedelta(seconds=int(half.total_seconds()))


def _assume_role(session: Session, registry: EcrRegistry, role: str, token: Secret) -> Mapping[str, str]:
    from botocore import UNSIGNED

    client = _client(session, "sts", registry, signature_version=UNSIGNED)
    answer = client.assume_role_with_web_identity(
        RoleArn=role, RoleSessionName=SESSION_NAME, WebIdentityToken=token.reveal()
    )
    keys = answer["Credentials"]
    assert isinstance(keys, dict)
    return keys


def _client(session: Session, service: str, registry: EcrRegistry, **options: object) -> BaseClient:
    from botocore.config import Config

    # The kubelet's timeout is one minute in total.
    config = Config(
        connect_timeout=5,
        read_timeout=10,
        retries={"mode": "standard", "total_max_attempts": 3},
        use_fips_endpoint=registry.fips or None,
        use_dualstack_endpoint=registry.dual_stack or None,
        **options,
    )
    return session.create_client(service, region_name=registry.region, config=config)


def _login(token: object) -> tuple[str, Secret] | None:
    """Decode a token, which is base64 of ``AWS:<password>``."""
    try:
        text = b64decode(token, validate=True).decode() if isinstance(token, str) else ""
    except (binascii.Error, ValueError):
        return None
    username, colon, password = text.partition(":")
    return (username, Secret(password)) if colon and username and password else None


@image_provider
def main(request: ImageRequest) -> ImageCredentials | None:
    """A login for Amazon ECR, private and public, with the node's own credentials or those of a pod's service account.

    With tokenAttributes the pod's role is assumed: that of the annotation eks.amazonaws.com/ecr-role-arn, or else of
    $AWS_ECR_ROLE_ARN.
    Needs botocore: pip install 'ostiary[ecr]'
    """
    return EcrProvider().credentials(request)


if __name__ == "__main__":
    main()
