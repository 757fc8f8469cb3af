"""``--from github``: asks the token endpoint of the GitHub Actions job for an ID token with the gateway's audience."""

from __future__ import annotations

import json
import os
from urllib.parse import quote, urlsplit

from ostiary.cli.cached_workload_token import GITHUB, GITHUB_SECRET
from ostiary.cli.signin.platforms.proof import PlatformChoice, PlatformProof, no_proof
from ostiary.core.net import is_loopback
from ostiary.core.net.outgoing import NO_REPLY, OutgoingHttp, reason_of
from ostiary.core.secrets.redact import redact
from ostiary.core.text import printable
from ostiary.core.tls import TlsSettings, build_context
from ostiary.errors import ProviderError
from ostiary.model import Secret

URL_VARIABLE, SECRET_VARIABLE = "ACTIONS_ID_TOKEN_REQUEST_URL", GITHUB_SECRET.decode()
SECONDS, LARGEST = 20.0, 1 << 20


def find_proof(choice: PlatformChoice) -> PlatformProof:
    url, secret = os.environ.get(URL_VARIABLE, ""), os.environ.get(SECRET_VARIABLE, "")
    if not url or not secret:
        missing = URL_VARIABLE if not url else SECRET_VARIABLE
        raise no_proof("the job may not ask GitHub for an ID token", f"${missing}", hint_for(choice))
    _check_address(url)
    status, body = _ask(f"{url}{'&' if '?' in url else '?'}audience={quote(choice.wanted_audience, safe='')}", secret)
    token = _value(body) if status == 200 else None
    if token is None:
        why = f"it answered with status {status}" if status != 200 else "its answer holds no token"
        raise no_proof(f"GitHub gave no ID token: {why}", _host_of(url), hint_for(choice))
    return PlatformProof(GITHUB, Secret(token), _host_of(url))


def hint_for(choice: PlatformChoice) -> str:
    return "add to the workflow, or to the job:\npermissions:\n  id-token: write\n  contents: read"


def _check_address(url: str) -> None:
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        parts, host = urlsplit(""), ""
    if not host or parts.scheme not in ("https", "http") or (parts.scheme == "http" and not is_loopback(host)):
        # Not quoted: it is not the address that GitHub sets, and may be anything.
        raise no_proof(f"${URL_VARIABLE} is not an https address", f"${URL_VARIABLE}", "unset it; GitHub sets it")


def _host_of(url: str) -> str:
    return printable(urlsplit(url).netloc.rpartition("@")[2])


def _ask(url: str, secret: str) -> tuple[int, bytes]:
    http = OutgoingHttp(context=build_context(TlsSettings()), seconds=SECONDS, largest=LARGEST)
    headers = {"Authorization": f"bearer {secret}", "Accept": "application/json; api-version=2.0"}
    try:
        reply = http.send("GET", url, headers=headers)
        return reply.status, reply.body if reply.is_whole else b""
    except NO_REPLY as error:
        reason = reason_of(error)
        cause = redact(str(getattr(reason, "strerror", None) or type(reason).__name__))
    # Outside of the handler: the exception holds the request, and that the secret.
    raise ProviderError(
        "GitHub's token endpoint is unreachable",
        cause=cause,
        where=_host_of(url),
        hint="retry later; a proxy of the runner must let it through",
        code="platform-unreachable",
    )


def _value(body: bytes) -> str | None:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return None
    value = document.get("value") if isinstance(document, dict) else None
    return value if isinstance(value, str) and value else None
