"""Asks everything outside that a configuration needs: issuers, directories, upstreams. Nothing is changed there.

Called by ``ostiary serve --check --online``. All are asked at once, each with a time limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from urllib.parse import urlsplit

from ostiary.core.abilities import ability
from ostiary.errors import OstiaryError
from ostiary.gateway.config import settings
from ostiary.gateway.config.settings import GatewayConfig
from ostiary.gateway.observe.reasons import reason_of
from ostiary.gateway.upstream.upstreams import client_context
from ostiary.interfaces.probe import Probes

SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """What came of one question. `detail` is what answered, or why nobody did."""

    what: str
    ok: bool
    detail: str = ""


async def probe_all(config: GatewayConfig, *, seconds: float = SECONDS) -> list[ProbeResult]:
    """Each system that can be asked, in the order of the configuration."""
    questions: dict[str, Awaitable[str]] = {}
    sections = (
        ("identity", config.identity),
        ("groups", config.groups),
        ("authorization", config.authorization.chain),
        ("admission", config.admission),
    )
    instances: set[int] = set()
    for section, providers in sections:
        for provider in providers:
            probing = ability(provider.instance, Probes)
            if probing is not None and id(probing) not in instances:
                instances.add(id(probing))
                questions[f'{section} "{provider.name}"'] = probing.probe()
    for upstream in config.upstreams:
        questions[f'upstream "{upstream.name}"'] = _ask_upstream(upstream)
    return list(await asyncio.gather(*(_probe(what, asking, seconds) for what, asking in questions.items())))


async def _probe(what: str, asking: Awaitable[str], seconds: float) -> ProbeResult:
    try:
        async with asyncio.timeout(seconds):
            return ProbeResult(what, True, await asking)
    except TimeoutError:
        return ProbeResult(what, False, f"it did not answer within {seconds:g} seconds")
    except OstiaryError as error:
        hint = f" ({error.hint})" if error.hint else ""
        return ProbeResult(what, False, reason_of(error) + hint)
    except Exception as error:
        return ProbeResult(what, False, reason_of(error))


async def _ask_upstream(upstream: settings.UpstreamConfig) -> str:
    # Imported only by those who use it: it is as large as the rest of the gateway.
    import httpx2

    server = urlsplit(upstream.server)
    verify = client_context(upstream.tls) if server.scheme == "https" else True
    socket = None if upstream.socket is None else str(upstream.socket)
    transport = httpx2.AsyncHTTPTransport(verify=verify, uds=socket, trust_env=False)
    headers = {"User-Agent": "ostiary"}
    if upstream.token_file is not None:
        headers["Authorization"] = f"Bearer {upstream.token_file.read_text().strip()}"
    extensions = {"sni_hostname": upstream.tls.server_name} if upstream.tls.server_name else {}
    async with httpx2.AsyncClient(transport=transport, timeout=None, trust_env=False) as client:
        cause = ""
        try:
            answer = await client.get(
                f"{upstream.server}{upstream.health or '/'}", headers=headers, extensions=extensions
            )
        except httpx2.HTTPError as error:
            cause = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        # Raised outside of the handler: the library's exception holds the request, and so its token.
        if cause:
            raise OstiaryError("it cannot be reached", cause=cause, code="provider-failed")
    if answer.status_code == 401 and (upstream.token_file or upstream.tls.certificate):
        hint = "its tokenFile or client certificate is not valid there"
        raise OstiaryError("it rejects the gateway's own credential", cause="status 401", hint=hint)
    if answer.status_code >= 500 or (upstream.health and answer.status_code != 200):
        raise OstiaryError("it is unhealthy", cause=f"status {answer.status_code}")
    return f"{upstream.server} answered with status {answer.status_code}"
