"""The sections of ``gateway.yaml``, one function each: fields in, settings out, mistakes noted.

Called by `gateway.config.loading`, which then applies the rules that concern several sections (`gateway.config.rules`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

from cryptography.hazmat.primitives.serialization import Encoding

from ostiary.core.abilities import has_trait
from ostiary.core.abilities.flaws import flaws
from ostiary.core.config import Document, Node, Reading
from ostiary.core.net import is_loopback
from ostiary.errors import ConfigurationError
from ostiary.gateway.admit.limits import LimitSettings
from ostiary.gateway.config.certificates import certificates, own_authorities
from ostiary.gateway.config.file_checks import DEFAULT_STORE_FILE
from ostiary.gateway.config.providers import Builder
from ostiary.gateway.config.settings import (
    ALL_UPSTREAMS,
    DEFAULT_STORE_TYPE,
    Address,
    Audit,
    AuditLog,
    AuditWebhook,
    Authorization,
    AuthorizationSettings,
    Callers,
    Groups,
    Identity,
    Listen,
    ListenLimits,
    Log,
    OnError,
    Provider,
    ServerTls,
    TokenSettings,
    Webhooks,
)
from ostiary.gateway.config.values import (
    Values,
    bad_authorities,
    parse_origin,
    unreadable,
)
from ostiary.gateway.observe.logging import FORMATS, LEVELS
from ostiary.interfaces.identity import NeedsClientCertificate
from ostiary.wire.audit import load_policy

T = TypeVar("T")
# The identity providers by name; None stands for one that could not be built, which has been told.
Known = Mapping[str, Identity | None]
NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
# /auth/<name> is where a provider's users go; these are other places below /auth, now or soon.
RESERVED_NAMES = frozenset(
    (
        *("provider", "groups", "renew", "logout", "login", "choose", "device", "token", "session", "sessions"),
        *("static", "start", "cli", "methods", "whoami", "kubeconfig", "admin"),
    )
)
HEALTH = Address("127.0.0.1", 8444)
DEFAULT_STORE = {"type": Node(DEFAULT_STORE_TYPE), "path": Node(DEFAULT_STORE_FILE)}


# --- where the gateway listens ---


def listen(values: Values) -> Listen:
    default = Listen()
    found = Listen(
        address=values.address("address", default.address),
        tls=_server_tls(values),
        workers=values.integer("workers", default.workers),
        trusted_proxies=values.networks("trustedProxies"),
        drop_headers=_drop_headers(values),
        limits=_listen_limits(values.section("limits"), values.section("timeouts")),
        drain=values.duration("drain", default.drain, zero=True),
    )
    insecure = values.flag("insecure")
    if found.tls is None and not found.address.is_loopback and not insecure and values.right("tls", "insecure"):
        hint = "set listen.tls, or listen.insecure: true if a proxy in front of it terminates TLS"
        values.fields.problem("tokens would cross the network in plain text", "address", hint)
    return found


def _drop_headers(values: Values) -> tuple[str, ...]:
    names = values.names("dropHeaders")
    for name in names:
        if name and not re.fullmatch(r"[A-Za-z0-9-]+\*?", name):
            hint = "write it as in X-Employee, or X-Employee-* for all that begin so"
            values.fields.problem("an entry is not a header name of letters, digits and dashes", "dropHeaders", hint)
    return names


def _server_tls(values: Values) -> ServerTls | None:
    section = values.optional_section("tls")
    if section is None:
        return None
    certificate, key, client_ca = (section.file(name) for name in ("certificate", "key", "clientCA"))
    for name, path in (("certificate", certificate), ("key", key)):
        if path is None:
            section.missing(name)
    section.check_pair(certificate, key)
    if client_ca is not None and (mistake := bad_authorities(client_ca)):
        section.fields.problem(mistake, "clientCA")
    return None if certificate is None or key is None else ServerTls(certificate, key, client_ca)


def _listen_limits(limits: Values, timeouts: Values) -> ListenLimits:
    default = ListenLimits()
    return ListenLimits(
        header_bytes=limits.integer("headerBytes", default.header_bytes, least=1024),
        headers=limits.integer("headers", default.headers, least=10),
        body_bytes=limits.optional_integer("bodyBytes"),
        connections=limits.integer("connections", default.connections),
        body_rate=limits.integer("bodyRate", default.body_rate, least=0),
        header_timeout=timeouts.duration("header", default.header_timeout),
        body_timeout=timeouts.duration("body", default.body_timeout),
        upload_timeout=timeouts.duration("upload", default.upload_timeout, zero=True),
        idle_timeout=timeouts.duration("idle", default.idle_timeout),
    )


def external_url(values: Values, listening: Listen) -> str:
    """What browsers and programs call the gateway; worked out from the address where that is possible."""
    text = values.text("externalURL")
    if not text:
        address = listening.address
        if address.host in ("0.0.0.0", "::"):  # noqa: S104
            values.missing("externalURL", "required: it cannot be derived from the address")
        return f"{'http' if listening.tls is None else 'https'}://{address}"
    try:
        url = parse_origin(text)
    except ValueError as mistake:
        values.fields.problem(str(mistake), "externalURL", "write it as in https://gateway.example.com")
        return ""
    if url.scheme == "http" and not is_loopback(url.hostname or ""):
        values.fields.problem("users would sign in over plain text", "externalURL", "begin it with https://")
    return url.geturl()


def external_ca(values: Values, listening: Listen) -> str | None:
    """The authority for those who connect to the external URL; that of a self-signed chain needs no setting."""
    path = values.file("externalCA")
    if path is not None and (mistake := bad_authorities(path)):
        values.fields.problem(mistake, "externalCA")
    if path is not None:
        authorities = [each.public_bytes(Encoding.PEM).decode() for each in certificates(path)]
        return "".join(authorities) or None
    return None if listening.tls is None else own_authorities(listening.tls.certificate)


# --- providers ---


def store(values: Values, builder: Builder) -> Provider[Any] | None:
    section = values.optional_section("store")
    if section is None:
        return builder.build("token_store", Reading(Document(Node(dict(DEFAULT_STORE)))).root, name="store")
    return builder.build("token_store", section.fields, name="store")


LEAST_MAX_STALE = timedelta(seconds=1)


def tokens(values: Values) -> TokenSettings:
    default = TokenSettings()
    found = TokenSettings(
        lifetime=values.duration("lifetime", default.lifetime),
        session=values.duration("session", default.session),
        unchecked_session=values.duration("uncheckedSession", default.unchecked_session),
        sessions_per_user=values.integer("sessionsPerUser", default.sessions_per_user, least=0),
        sweep=values.duration("sweep", default.sweep),
        max_stale=values.duration("maxStale", default.max_stale),
        revocation_file=values.writable("revocationFile"),
    )
    if found.max_stale < LEAST_MAX_STALE and values.right("maxStale"):
        values.fields.problem("it must be at least one second", "maxStale", "the token store needs time to answer")
    if found.lifetime > found.session and values.right("lifetime", "session"):
        values.fields.problem("a token cannot outlive its session", "lifetime", "make tokens.session longer")
    return found


def identities(root: Values, builder: Builder, listening: Listen) -> Known:
    sections = root.sections("identity")
    names = unique_names(sections)
    found: dict[str, Identity | None] = {}
    for section, name in zip(sections, names, strict=True):
        default = f"{name}:" if len(sections) > 1 else ""
        prefix, shown = section.fields.optional_string("prefix"), section.text("displayName")
        if name in RESERVED_NAMES:
            section.fields.problem("this name is reserved: the gateway uses it below /auth", "name")
        provider = builder.build("identity", section.fields, name=name)
        if provider is None:
            found.setdefault(name, None)
            continue
        if has_trait(provider.instance, NeedsClientCertificate):
            _check_certificates(section, "type", listening)
        found.setdefault(
            name,
            Identity(*_parts(provider), prefix=default if prefix is None else prefix, display_name=shown),
        )
    return found


def groups(root: Values, builder: Builder, known: Known) -> tuple[Groups, ...]:
    sections = root.sections("groups")
    found: list[Groups] = []
    for section, name in zip(sections, unique_names(sections), strict=True):
        prefix = section.fields.string("prefix")
        only = section.names("identities")
        _check_restriction(section, only, known)
        own = section.text("provider")
        if own and only:
            section.fields.problem("an identity provider can look up only its own users", "identities")
        provider = (
            shared(section, "group", name, own, known) if own else builder.build("group", section.fields, name=name)
        )
        if provider is not None:
            found.append(Groups(*_parts(provider), prefix=prefix, identities=(own,) if own else only, own=bool(own)))
    return tuple(found)


def _check_restriction(section: Values, only: tuple[str, ...], known: Known) -> None:
    if not only and "identities" in section.fields:
        hint = "leave it out if that is meant"
        section.fields.problem("an empty list would restrict nothing", "identities", hint)
    for other in only:
        if other not in known:
            section.fields.problem(f'unknown identity provider "{other}"', "identities")


def authorization(values: Values, builder: Builder, known: Known) -> AuthorizationSettings:
    sections = values.sections("chain")
    chain: list[Authorization] = []
    for section, name in zip(sections, unique_names(sections), strict=True):
        on_error = section.choice("onError", OnError.DENY)
        upstreams, said = _policy_upstreams(section)
        own = section.text("provider")
        provider = (
            shared(section, "authorization", name, own, known)
            if own
            else builder.build("authorization", section.fields, name=name)
        )
        if provider is not None:
            chain.append(Authorization(*_parts(provider), on_error=on_error, upstreams=upstreams, shared=said))
    if not sections:
        hint = "chain: [{name: everything, type: allow_all}] allows everything"
        values.missing("chain", "required: without a provider every request is denied", hint)
    return AuthorizationSettings(
        chain=tuple(chain),
        cache_ttl=values.duration("cacheTTL", timedelta(seconds=10), zero=True),
        cache_entries=values.integer("cacheEntries", 100_000),
        timeout=values.duration("timeout", timedelta(seconds=10)),
        unconfirmed=values.duration("unconfirmed", timedelta(seconds=60), zero=True),
        hide_denied=values.flag("hideDenied"),
    )


def _policy_upstreams(section: Values) -> tuple[frozenset[str] | None, bool]:
    """The upstreams that a policy is for, None for all; and whether that is what somebody wrote."""
    given = section.fields.plain("upstreams")
    if given is None:
        return None, False
    if isinstance(given, str):
        if section.text("upstreams") != ALL_UPSTREAMS:
            hint = f"write a list, as in [dev], or {ALL_UPSTREAMS}"
            section.fields.problem("it is neither a list of upstreams nor the keyword for all", "upstreams", hint)
        return None, True
    names = section.names("upstreams")
    if not names and section.right("upstreams"):
        section.fields.problem("a policy for no upstream never applies", "upstreams", "remove the provider")
    return frozenset(names), True


def admission(root: Values, builder: Builder) -> tuple[Provider[Any], ...]:
    sections = root.sections("admission")
    built = [
        builder.build("admission", section.fields, name=name)
        for section, name in zip(sections, unique_names(sections), strict=True)
    ]
    return tuple(provider for provider in built if provider is not None)


def shared(section: Values, plugin_type: str, name: str, own: str, known: Known) -> Provider[Any] | None:
    """The object of an identity provider in a second part: one object may be several kinds of provider."""
    if section.text("type"):
        section.fields.problem("either type or provider is set, not both", "provider")
    if own not in known:
        section.fields.problem(f'unknown identity provider "{own}"', "provider")
        return None
    identity = known[own]
    if identity is None:
        return None  # it has been told
    if found := flaws(plugin_type, identity.instance):
        for flaw in found:
            message = f'"{own}" is not a valid {plugin_type} provider: {flaw.message}'
            section.fields.problem(message, "provider", flaw.hint)
        return None
    return Provider(name, identity.type, identity.instance, section.fields.place())


def unique_names(sections: list[Values]) -> list[str]:
    seen: set[str] = set()
    names = []
    for section in sections:
        name = section.fields.string("name")
        if not section.right("name"):
            pass
        elif not NAME.fullmatch(name):
            message = "it is missing" if name == "" else "it is not a name of lower-case letters, digits and dashes"
            section.fields.problem(message, "name")
        elif name in seen:
            section.fields.problem("duplicate name", "name")
        seen.add(name)
        names.append(name)
    return names


def _parts(provider: Provider[T]) -> tuple[str, str, T, Any]:
    return provider.name, provider.type, provider.instance, provider.place


# --- the rest ---


def webhooks(values: Values, listening: Listen) -> Webhooks:
    section = values.section("callers")
    found = Webhooks(
        token_review=values.flag("tokenReview"),
        subject_access_review=values.flag("subjectAccessReview"),
        audiences=values.names("audiences"),
        callers=Callers(names=section.names("names"), token_file=section.file("tokenFile")),
    )
    callers = found.callers
    if found.enabled and not callers.names and callers.token_file is None and values.right("callers"):
        hint = "set callers.tokenFile, or callers.names with listen.tls.clientCA"
        values.fields.problem("without authentication, anybody could look up any user", "callers", hint)
    if callers.names:
        _check_certificates(section, "names", listening)
    return found


def _check_certificates(section: Values, key: str, listening: Listen) -> None:
    if (listening.tls is None or listening.tls.client_ca is None) and section.right_at("listen.tls"):
        section.fields.problem("no client certificate is checked without listen.tls.clientCA", key)


def audit(root: Values) -> Audit:
    values = root.optional_section("audit")
    if values is None:
        return Audit(stdout=True)
    log = values.optional_section("log")
    webhook = values.optional_section("webhook")
    return Audit(
        policy=_audit_policy(values),
        stdout=values.flag("stdout"),
        log=None if log is None else _audit_log(log),
        webhook=None if webhook is None else _audit_webhook(webhook),
        blocking=values.flag("blocking"),
    )


def _audit_policy(values: Values) -> Path | None:
    path = values.file("policy")
    if path is None or unreadable(path):
        return path
    try:
        load_policy(path)
    except ConfigurationError as error:
        for problem in error.problems:
            values.fields.problem(f"{error.summary}: {problem}", "policy", problem.hint)
    return path


def _audit_log(values: Values) -> AuditLog | None:
    path, fsync = values.writable("path"), values.flag("fsync")
    if path is None:
        values.missing("path")
        return None
    return AuditLog(path, fsync)


def _audit_webhook(values: Values) -> AuditWebhook:
    default = AuditWebhook("")
    found = AuditWebhook(
        url=values.text("url"),
        tls=values.client_tls("tls"),
        token_file=values.file("tokenFile"),
        buffer=values.integer("buffer", default.buffer),
        batch=values.integer("batch", default.batch),
        wait=values.duration("wait", default.wait),
        requests_per_second=values.rate("requestsPerSecond", default.requests_per_second),
        burst=values.integer("burst", default.burst),
    )
    scheme, _, rest = found.url.partition("://")
    try:
        url = parse_origin(f"{scheme}://{re.split('[/?]', rest)[0]}")
    except ValueError:
        if found.url:
            values.fields.problem("it is not a URL", "url")
        else:
            values.missing("url")
        return found
    if url.scheme == "http" and not is_loopback(url.hostname or ""):
        values.fields.problem("events would cross the network in plain text", "url", "use https")
    return found


def limits(values: Values) -> LimitSettings:
    default = LimitSettings()
    return LimitSettings(
        requests_per_second=values.rate("requestsPerSecond", default.requests_per_second, zero=True),
        burst=values.integer("burst", default.burst),
        concurrency=values.integer("concurrency", default.concurrency, least=0),
        concurrency_per_user=values.optional_integer("concurrencyPerUser", least=0),
        queue_length=values.integer("queueLength", default.queue_length, least=0),
        queued_in_all=values.integer("queuedInAll", default.queued_in_all, least=0),
        queue_wait=values.duration("queueWait", timedelta(seconds=default.queue_wait), zero=True).total_seconds(),
        streams=values.integer("streams", default.streams, least=0),
        streams_in_all=values.integer("streamsInAll", default.streams_in_all, least=0),
        stream_after=values.duration("streamAfter", timedelta(seconds=default.stream_after)).total_seconds(),
        connections_per_user=values.integer("connectionsPerUser", default.connections_per_user, least=0),
        unread_per_user=values.integer("unreadPerUser", default.unread_per_user, least=0),
        unread_in_all=values.integer("unreadInAll", default.unread_in_all, least=0),
        failures_per_minute=values.rate("failuresPerMinute", default.failures_per_minute, zero=True),
        exempt_users=frozenset(values.names("exemptUsers")),
        exempt_groups=frozenset(values.names("exemptGroups")) | default.exempt_groups,
    )


def log(values: Values) -> Log:
    level, form = values.text("level", "info"), values.text("format", "text")
    for key, found, options in (("level", level, LEVELS), ("format", form, FORMATS)):
        if found not in options:
            values.fields.problem("unknown value", key, f"use one of {', '.join(options)}")
    return Log(level, form)
