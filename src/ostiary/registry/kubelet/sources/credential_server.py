"""A login from the credential server of a cluster: ``ostiary registry serve --listen``, through a gateway.

Called by `respond`. The node shows a token of the gateway, or a client certificate; its policy says whether the node
may have the credentials of this image.
"""

from __future__ import annotations

from datetime import timedelta
from urllib.parse import urlsplit

from ostiary.core.clock import SYSTEM_CLOCK
from ostiary.core.text import fits_token_header, printable
from ostiary.errors import CredentialError
from ostiary.registry.kubelet.sources.config import CredentialServer
from ostiary.registry.kubelet.sources.login_answer import no_credential
from ostiary.registry.kubelet.sources.sending import NoReply, client_context, post, secret_in_file
from ostiary.wire.credential_provider import CREDENTIALS_PATH, BasicAuth, Request, ResponseRefused, decode_response

# What a status means to whoever runs the node.
MEANINGS = {
    401: ("does not know this node's token", "renew the token: ostiary get-token --watch keeps one fresh in a file"),
    403: ("does not let this node have the credentials of this image", "its policy says who may create which paths"),
    503: ("could not ask its credential providers", "its log says why"),
}


def ask_server(server: CredentialServer, request: Request) -> tuple[BasicAuth, timedelta | None] | None:
    """The login that the server has for the image, if any; raises `CredentialError`."""
    headers = {"Accept": "application/json"}
    if server.token_file:
        token = secret_in_file(server.token_file, what="the token for the credential server")
        if not fits_token_header(token):
            raise _failure(server, request.image, "cannot be asked: the token file holds no token")
        headers["Authorization"] = f"Bearer {token}"
    context = client_context(
        server.certificate_authority,
        of="the credential server",
        certificate=server.client_certificate,
        key=server.client_key,
    )
    try:
        status, body = post(server.url.rstrip("/") + CREDENTIALS_PATH + request.image, b"", headers, context)
    except NoReply as error:
        raise _failure(server, request.image, str(error)) from None
    if status != 200:
        why, hint = MEANINGS.get(status, (f"answered with status {status}", "its log says why"))
        raise _failure(server, request.image, why, hint)
    try:
        response = decode_response(body, Request(request.image), now=SYSTEM_CLOCK.now())
    except ResponseRefused as refused:
        raise _failure(server, request.image, f"gave an answer that cannot be used: {refused.cause}") from None
    # It answers for the image that was asked for, and nothing else of it is looked at.
    basic = response.auth.get(request.image)
    return None if basic is None else (basic, response.cache_duration)


def _failure(server: CredentialServer, image: str, why: str, hint: str | None = None) -> CredentialError:
    return CredentialError(
        no_credential(image),
        cause=f"the credential server at {printable(urlsplit(server.url).netloc.rpartition('@')[2])} {why}",
        hint=hint,
        code="credential-server-failed",
    )
