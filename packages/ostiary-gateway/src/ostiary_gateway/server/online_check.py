"""``serve --check --online``: query every system that a configuration needs, concurrently and each with a time limit.

Covers the token store, issuers, directories, upstreams and API plugins. Changes nothing, except that an empty token
store is initialized and claimed for this gateway, as at the first start.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable
from dataclasses import dataclass
from urllib.parse import urlsplit

from ostiary.errors import OstiaryError
from ostiary_gateway.capabilities import ability, has_trait
from ostiary_gateway.config import settings
from ostiary_gateway.config.gateway_config import GatewayConfig
from ostiary_gateway.interfaces.identity import SignIn, TellsSignIn
from ostiary_gateway.interfaces.lifecycle import Probes, ProbesRedirectUri
from ostiary_gateway.interfaces.store_capabilities import OwnedStore
from ostiary_gateway.interfaces.token_store import KeptInFile, SharedBetweenProcesses
from ostiary_gateway.login.identity_service import redirect_uri
from ostiary_gateway.observability.reasons import reason_of
from ostiary_gateway.proxy.api_plugin import declared_plugin
from ostiary_gateway.proxy.api_plugin_registry import upstream_settings
from ostiary_gateway.proxy.following import followers_of, probe
from ostiary_gateway.replicas.owner import StoreOwner
from ostiary_gateway.settings.outgoing import client_context
from ostiary_gateway.wire.authorization import GROUP, SELF, V1, ReviewError, decode_status

SECONDS = 10.0
# A review that reports whether the gateway may create SubjectAccessReviews.
_MAY_ASK = {
    "kind": SELF,
    "apiVersion": V1,
    "spec": {"resourceAttributes": {"verb": "create", "group": GROUP, "resource": "subjectaccessreviews"}},
}


@dataclass(frozen=True, slots=True)
class OnlineCheckResult:
    """The result of one check.

    `detail` is what responded, or the error. If `determined` is false, it is the reason why the result is unknown.
    """

    what: str
    ok: bool
    detail: str = ""
    determined: bool = True

    @property
    def outcome(self) -> str:
        return ("OK" if self.ok else "FAILED") if self.determined else "UNKNOWN"


class _Undetermined(Exception):
    """The check cannot be decided from here."""


async def probe_all(config: GatewayConfig, *, seconds: float = SECONDS) -> list[OnlineCheckResult]:
    """Check every system that can be queried, in the order of the configuration."""
    questions: dict[str, Awaitable[str]] = {}
    if has_trait(config.store.instance, SharedBetweenProcesses):
        questions[f'store "{config.store.type}"'] = _ask_store(config)
    sections = (
        ("identity", config.identity),
        ("groups", config.groups),
        ("authorization", config.authorization.chain),
        ("admission", config.admission),
        ("audit", config.audit_sinks),
    )
    instances: set[int] = set()
    for section, providers in sections:
        for provider in providers:
            probing = ability(provider.instance, Probes)
            if probing is not None and id(probing) not in instances:
                instances.add(id(probing))
                questions[f'{section} "{provider.name}"'] = probing.probe()
    for identity in config.identity:
        uri = redirect_uri(config.external_url, identity)
        if (trying := ability(identity.instance, ProbesRedirectUri)) is not None:
            questions[f'redirect URI of "{identity.name}"'] = _try_redirect_uri(trying, uri)
        elif _sends_elsewhere(identity):
            questions[f'redirect URI of "{identity.name}"'] = _untried(uri)
    by_name = {upstream.name: upstream for upstream in config.upstreams}
    for name, follower in followers_of(config.authorization.chain):
        questions[f'authorization "{name}"'] = probe(follower, by_name[follower.upstream])
    for upstream in config.upstreams:
        # An upstream without a server is reached only by other proxies.
        if not upstream.server:
            continue
        questions[f'upstream "{upstream.name}"'] = _ask_upstream(upstream)
    for plugin in _declared_plugins(config):
        questions[f'API plugin "{plugin.name}"'] = _ask_upstream(plugin)
    return list(await asyncio.gather(*(_probe(what, asking, seconds) for what, asking in questions.items())))


def _declared_plugins(config: GatewayConfig) -> list[settings.UpstreamConfig]:
    """Return the declared API plugins as upstreams. Registered ones are watched by the gateway itself."""
    upstreams = {upstream.name: upstream for upstream in config.upstreams}
    return [
        upstream_settings(declared_plugin(each), upstreams[each.upstream], config.api_plugins)
        for each in config.api_plugins.declared
    ]


async def _probe(what: str, asking: Awaitable[str], seconds: float) -> OnlineCheckResult:
    try:
        async with asyncio.timeout(seconds):
            return OnlineCheckResult(what, True, await asking)
    except _Undetermined as why:
        return OnlineCheckResult(what, True, str(why), determined=False)
    except TimeoutError:
        return OnlineCheckResult(what, False, f"it did not answer within {seconds:g} seconds")
    except OstiaryError as error:
        hint = f" ({error.hint})" if error.hint else ""
        return OnlineCheckResult(what, False, reason_of(error) + hint)
    except Exception as error:
        return OnlineCheckResult(what, False, reason_of(error))


def _sends_elsewhere(identity: settings.Identity) -> bool:
    telling = ability(identity.instance, TellsSignIn)
    return telling is not None and telling.sign_in is SignIn.REDIRECT


async def _try_redirect_uri(trying: ProbesRedirectUri, uri: str) -> str:
    if not await trying.probe_redirect_uri(uri):
        raise _Undetermined(f"could not determine whether {uri} is registered: the issuer shows its login page first")
    return f"the issuer accepts {uri}"


async def _untried(uri: str) -> str:
    raise _Undetermined(f"could not determine whether {uri} is registered: only a sign-in shows it")


async def _ask_store(config: GatewayConfig) -> str:
    store = config.store.instance
    file = ability(store, KeptInFile)
    if file is not None and not await asyncio.to_thread(os.path.exists, file.path):
        # Opening it would create the file, possibly with another owner than the gateway's user.
        return f"there is no {file.path} yet; the first start makes it"
    try:
        # This session does not exist. To determine that, the store must be reachable and its schema supported.
        await store.session("-")
        probing = ability(store, Probes)
        answer = "it answered" if probing is None else await probing.probe()
        return answer + await _confirm_owner(config)
    finally:
        # Closed here, because no gateway is started that would close it.
        await store.close()


async def _confirm_owner(config: GatewayConfig) -> str:
    owned = ability(config.store.instance, OwnedStore)
    if owned is None:
        return ""
    if not config.owner:
        return "; it has no owner, because externalURL is not set"
    await StoreOwner(owned, config.owner).confirm()
    return f"; it belongs to {config.owner}"


async def _ask_upstream(upstream: settings.UpstreamConfig) -> str:
    # Imported lazily: it is as large as the rest of the gateway.
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
            cause = _error_text(error)
        may_ask = True
        if not cause and upstream.shadow is not None and answer.status_code < 500:
            url = f"{upstream.server}/apis/{V1}/selfsubjectaccessreviews"
            try:
                review = await client.post(url, headers=headers, extensions=extensions, json=_MAY_ASK)
                may_ask = _is_allowed(review.content)
            except httpx2.HTTPError as error:
                cause = _error_text(error)
        # Raised outside the handler: the library's exception references the request and thus its token.
        if cause:
            raise OstiaryError("it cannot be reached", cause=cause, code="provider-failed")
    if answer.status_code == 401 and (upstream.token_file or upstream.tls.certificate):
        hint = "its tokenFile or client certificate is not valid there"
        raise OstiaryError("it rejects the gateway's own credential", cause="status 401", hint=hint)
    if answer.status_code >= 500 or (upstream.health and answer.status_code != 200):
        raise OstiaryError("it is unhealthy", cause=f"status {answer.status_code}")
    if not may_ask:
        hint = "apply what ostiary-gateway impersonation-role prints there, or remove shadow"
        raise OstiaryError("the gateway may not create subjectaccessreviews there, as shadow needs", hint=hint)
    return f"{upstream.server} answered with status {answer.status_code}"


def _is_allowed(answer: bytes) -> bool:
    try:
        return decode_status(answer, kind=SELF).allowed
    except ReviewError:
        return False


def _error_text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
