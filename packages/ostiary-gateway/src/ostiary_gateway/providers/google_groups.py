"""The group provider ``google``: direct and nested memberships in Google Groups.

    groups: [{name: google, type: google, keyFile: service-account.json, subject: admin@example.com}]

A group is named by its address, as in policies: ``platform@example.com``. Each relevant group is queried for the
username, so names must be addresses that Google verified: restrict the provider with `identities` to the identity
providers for which this is true. If names have a prefix, set `userPrefix`; users without it are skipped.

With ``consent: true`` there is no service account. The user is redirected to Google, allows the reading of groups, and
returns to ``/auth/<name>/groups/provider``. Such a session ends at its first refresh, which has no user to consent.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Protocol, Self
from urllib.parse import quote, urlencode

from cryptography.exceptions import UnsupportedAlgorithm
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import RSAKey

from ostiary.core.cache import Cache
from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.text import fits_token_header
from ostiary.core.watched_file import WatchedFile
from ostiary.core.yaml import ConfigSection
from ostiary.errors import ConfigurationError, LoginRefused, ProviderError
from ostiary.model import Place, Problem, Secret, UserInfo
from ostiary_gateway.catalog import Context
from ostiary_gateway.interfaces.group import Membership
from ostiary_gateway.interfaces.identity import LoginRequest, Redirect
from ostiary_gateway.providers.common.authorization_code import begin, parse_return
from ostiary_gateway.providers.common.outbound import SECONDS, HttpAnswer, Outbound, Rest, SecretFile, all_of, is_safe
from ostiary_gateway.providers.oidc.preset_settings import APIS, BAD_API, BAD_ENDPOINT, EMPTY_LIST, GoogleGroupSettings
from ostiary_gateway.settings.declare import read_settings

JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"
TOKEN_URI = "https://oauth2.googleapis.com/token"  # noqa: S105
ASSERTION_SECONDS = 600
# A token is replaced this long before it expires, so that none expires in flight.
EARLY_SECONDS = 60.0
NAME_SECONDS = 300.0
NAMES = 4096
REST_SECONDS = 10.0
MAX_KEY_BYTES = 64 * 1024
MIN_KEY_BITS = 2048

_ADDRESS = re.compile(r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~.-]{1,64}@([A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?)")
_RESOURCE = re.compile(r"groups/[A-Za-z0-9_-]{1,255}")
_RATE_REASONS = frozenset(("rateLimitExceeded", "userRateLimitExceeded", "quotaExceeded", "RATE_LIMIT_EXCEEDED"))


class TokenRejected(Exception):
    """Google rejected the access token."""


class MembershipApi(Protocol):
    """Query whether *member* is in *group*, both e-mail addresses. Raises `TokenRejected` or `ProviderError`.

    There are two: Cloud Identity (`groups:lookup`, `checkTransitiveMembership`; some editions of Workspace only) and
    the Directory of Workspace (`hasMember`). Both count members of nested groups.
    """

    scope: str

    async def is_member(self, token: Secret, group: str, member: str) -> bool: ...


def domain_of(address: str) -> str | None:
    """Return the domain of an e-mail address in lower case, or None if it is not an address."""
    match = _ADDRESS.fullmatch(address)
    return match[1].lower() if match else None


# --- membership queries ---


class GoogleApi:
    """HTTP requests for both APIs: the authorization header, and the meaning of errors.

    A clear "no such group" (404) means that the user is not a member. Any other error raises: Google responds with 403
    for groups that do not exist as well as for those that it hides.
    """

    def __init__(self, outbound: Outbound, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._outbound = outbound
        self._rest = Rest("Google", clock)

    async def get(self, token: Secret, url: str, *, also: tuple[int, ...] = ()) -> HttpAnswer:
        """Return the response if its status is 200, 404 or one of *also*. Raises for every other status."""
        self._rest.check()
        answer = await self._outbound.ask("GET", url, headers={"Authorization": f"Bearer {token.reveal()}"})
        if answer.status in (200, 404, *also):
            return answer
        if answer.status == 401:
            raise TokenRejected
        if answer.status == 429 or (answer.status == 403 and _reasons(answer.body) & _RATE_REASONS):
            after = answer.headers.get("retry-after", "")
            self._rest.begin(float(after) if after.isdecimal() and len(after) < 6 else REST_SECONDS)
            raise self._outbound.failure(url, "rate limit exceeded")
        raise self._outbound.failure(url, *_unclear(answer))


class CloudIdentity:
    """Membership queries to the Cloud Identity API."""

    scope = "https://www.googleapis.com/auth/cloud-identity.groups.readonly"
    endpoint = "https://cloudidentity.googleapis.com"

    def __init__(self, api: GoogleApi, endpoint: str | None = None, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._api = api
        self._base = f"{endpoint or self.endpoint}/v1"
        self._names: Cache[str, str] = Cache(seconds=NAME_SECONDS, entries=NAMES, clock=clock)

    async def is_member(self, token: Secret, group: str, member: str) -> bool:
        name = await self._name(token, group)
        if name is None:
            return False
        # An address may contain an apostrophe, which would end the string literal.
        quoted = member.replace("'", "\\'")
        query = urlencode({"query": f"member_key_id == '{quoted}'"})
        try:
            answer = await self._api.get(token, f"{self._base}/{name}/memberships:checkTransitiveMembership?{query}")
        except ProviderError:
            # A group that was created again has the same address and another resource name.
            self._names.drop(lambda known, _: known == group)
            raise
        if answer.status == 404:
            self._names.drop(lambda known, _: known == group)
            return False
        return _flag(answer, "hasMembership")

    async def _name(self, token: Secret, group: str) -> str | None:
        cached_name = self._names.get(group)
        if cached_name is not None:
            return cached_name
        answer = await self._api.get(token, f"{self._base}/groups:lookup?{urlencode({'groupKey.id': group})}")
        if answer.status == 404:
            return None
        name = answer.text("name")
        if not _RESOURCE.fullmatch(name):
            raise ProviderError("Google is unavailable", cause="it looks a group up without naming it")
        self._names.put(group, name)
        return name


class Directory:
    """Membership queries to the Admin SDK's Directory API."""

    scope = "https://www.googleapis.com/auth/admin.directory.group.member.readonly"
    endpoint = "https://admin.googleapis.com"

    def __init__(self, api: GoogleApi, endpoint: str | None = None) -> None:
        self._api = api
        self._base = f"{endpoint or self.endpoint}/admin/directory/v1/groups"

    async def is_member(self, token: Secret, group: str, member: str) -> bool:
        group_path, member_path = (quote(address, safe="@") for address in (group, member))
        answer = await self._api.get(token, f"{self._base}/{group_path}/hasMember/{member_path}", also=(400,))
        if answer.status == 400:
            # The response for every address outside the group's domain, which can still be a direct member.
            answer = await self._api.get(token, f"{self._base}/{group_path}/members/{member_path}")
            return answer.status == 200 and answer.text("status") == "ACTIVE"
        return answer.status == 200 and _flag(answer, "isMember")


def _flag(answer: HttpAnswer, name: str) -> bool:
    """Return a boolean field. These APIs omit a field that is false."""
    if not isinstance(answer.body, dict):
        raise ProviderError("Google is unavailable", cause="its response is not a JSON object")
    return answer.body.get(name) is True


def _reasons(body: object) -> set[str]:
    """Return the reasons in an error body, in both of Google's formats: a list of errors, and details with a reason."""
    error = body.get("error") if isinstance(body, dict) else None
    parts = [error.get(key) for key in ("errors", "details")] if isinstance(error, dict) else []
    items = [item for part in parts if isinstance(part, list) for item in part if isinstance(item, dict)]
    return {str(item.get("reason", "")) for item in items}


def _unclear(answer: HttpAnswer) -> tuple[str, str | None]:
    if answer.status == 403:
        hint = "the API must be enabled, and its scope delegated; a group that policies name must exist and be visible"
        return "it hides a group, or there is none of this name", hint
    return f"it answered with status {answer.status}", None


# --- the service account ---


@dataclass(frozen=True, slots=True)
class Key:
    """The content of a service account's key file."""

    email: str
    id: str
    token_uri: str
    private: RSAKey = field(repr=False)


def read_key(path: str) -> Key:
    """Read a key file. Raises `ConfigurationError`, which does not quote the file."""
    try:
        with open(path, "rb") as file:
            content = json.loads(file.read(MAX_KEY_BYTES))
        return _key(content)
    except OSError as error:
        why = error.strerror or "it cannot be opened"
    except (ValueError, RecursionError) as error:
        # A plain ValueError is our own. Its subclasses come from decoders, and quote what they could not read.
        why = str(error) if type(error) is ValueError else "it is not JSON"
    # Raised outside of the handler, because a decoder's exception contains the key.
    raise ConfigurationError("the key of the service account cannot be used", problems=[Problem(why, Place(path))])


def _key(content: object) -> Key:
    fields = content if isinstance(content, dict) else {}
    values = [fields.get(name) for name in _TEXTS]
    texts = [value for value in values if isinstance(value, str) and value]
    if len(texts) != len(_TEXTS):
        raise ValueError(f"it is not the JSON key of a service account: it needs {', '.join(_TEXTS)}")
    kind, email, key_id, private_pem = texts
    if kind != "service_account":
        raise ValueError("it is not the key of a service account")
    token_uri = fields.get("token_uri", TOKEN_URI)
    if not isinstance(token_uri, str) or not is_safe(token_uri):
        raise ValueError("its token_uri is not an https URL")
    return Key(email, key_id, token_uri, _private_key(private_pem))


def _private_key(pem: str) -> RSAKey:
    try:
        private = RSAKey.import_key(pem)
    except (ValueError, TypeError, JoseError, UnsupportedAlgorithm):
        private = None
    if private is None or not private.is_private or private.raw_value.key_size < MIN_KEY_BITS:
        raise ValueError("its private_key is not an RSA key, or too short")
    return private


_TEXTS = ("type", "client_email", "private_key_id", "private_key")


class GoogleServiceAccount:
    """Access tokens with *scope*, as *subject* if the domain's administrator has delegated that.

    A token is requested with a signed assertion (RFC 7523), and cached until shortly before it expires.
    """

    def __init__(
        self,
        key_file: str | os.PathLike[str],
        *,
        scope: str,
        subject: str | None,
        outbound: Outbound,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.file = WatchedFile(key_file, read_key, clock=clock)
        self._scope, self._subject = scope, subject
        self._outbound, self._clock = outbound, clock
        self._lock = asyncio.Lock()
        self._token: Secret | None = None
        self._good_until = float("-inf")

    async def token(self) -> Secret:
        """Return a valid token. Concurrent callers that need a new one share one request."""
        async with self._lock:
            if self._token is None or self._clock.monotonic() >= self._good_until:
                asked_at = self._clock.monotonic()
                self._token, seconds = await self._request()
                self._good_until = asked_at + seconds - EARLY_SECONDS
            return self._token

    def reject(self, token: Secret) -> None:
        """Drop *token*, unless it has already been replaced."""
        if self._token is token:
            self._token = None

    async def _request(self) -> tuple[Secret, float]:
        try:
            key = self.file.current()
        except ConfigurationError as error:
            raise ProviderError("Google is unavailable", cause=error.cause, where=error.where) from error
        form = {"grant_type": JWT_BEARER, "assertion": self._assertion(key)}
        answer = await self._outbound.ask("POST", key.token_uri, form=form)
        if answer.status != 200:
            hint = "check that the key is valid, its scope is delegated, and the clock of this machine is right"
            raise self._outbound.failure(key.token_uri, f"it returned no token (status {answer.status})", hint)
        return token_of(answer, self._outbound, key.token_uri)

    def _assertion(self, key: Key) -> str:
        now = int(self._clock.now().timestamp())
        claims: dict[str, str | int] = {"iss": key.email, "scope": self._scope, "aud": key.token_uri}
        claims |= {"iat": now, "exp": now + ASSERTION_SECONDS}
        if self._subject:
            claims["sub"] = self._subject
        return jwt.encode({"alg": "RS256", "typ": "JWT", "kid": key.id}, claims, key.private, algorithms=["RS256"])


def token_of(answer: HttpAnswer, outbound: Outbound, url: str) -> tuple[Secret, float]:
    """Return the access token in a token response, and the seconds for which it is valid."""
    token, kind = answer.text("access_token"), answer.text("token_type")
    lasts = answer.body.get("expires_in") if isinstance(answer.body, dict) else None
    if not fits_token_header(token) or kind.lower() != "bearer":
        raise outbound.failure(url, "its answer holds no token")
    return Secret(token), float(lasts) if type(lasts) is int and 0 < lasts <= 86_400 else 0.0


AUTHORIZE_URL = "https://accounts.google.com/o/oauth2/v2/auth"
MAX_CHECKS = 500


@dataclass(frozen=True, slots=True)
class Consent:
    """The registered application that requests the users' consent."""

    client_id: str
    client_secret_file: str | os.PathLike[str]
    authorize_url: str = AUTHORIZE_URL
    token_url: str = TOKEN_URI


class GoogleGroups:
    """Query Google as a service account (*key_file*, *subject*), or with the user's *consent*.

    *domains* limits the groups to query; without it every relevant group that is an address is queried.
    *endpoint* replaces the API's public address. Raises `ConfigurationError` if a setting is invalid.
    """

    def __init__(
        self,
        *,
        key_file: str | os.PathLike[str] | None = None,
        subject: str | None = None,
        consent: Consent | None = None,
        api: str = "cloudIdentity",
        domains: Iterable[str] | None = None,
        user_prefix: str = "",
        endpoint: str | None = None,
        ca: str | os.PathLike[str] | None = None,
        seconds: float = SECONDS,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._outbound = Outbound("Google", ca=ca, seconds=seconds)
        self._api = _api(api, self._outbound, _endpoint(endpoint), clock)
        self._domains = _domains(domains)
        self._user_prefix = user_prefix
        self._consent = consent
        self._secret = None if consent is None else SecretFile(consent.client_secret_file, "the secret for Google")
        if (key_file is None) == (consent is None):
            raise _unusable("keyFile", "set either a service account's key or consent: true, not both")
        self._account: GoogleServiceAccount | None = None
        if key_file is not None:
            scope = self._api.scope
            self._account = GoogleServiceAccount(
                key_file, scope=scope, subject=subject, outbound=self._outbound, clock=clock
            )

    @classmethod
    def from_config(cls, fields: ConfigSection, context: Context) -> Self:
        settings = read_settings(GoogleGroupSettings, fields, context.directory)
        consent = None
        if settings.consent:
            consent = Consent(settings.client_id, settings.client_secret_file or context.directory)
        key_file = settings.key_file
        try:
            provider = cls(
                key_file=key_file or context.directory if consent is None else key_file,
                subject=settings.subject or None,
                consent=consent,
                api=settings.api,
                domains=settings.domains,
                user_prefix=settings.user_prefix,
                endpoint=settings.endpoint,
                ca=settings.ca,
                clock=context.clock,
            )
        except ConfigurationError as error:
            fields.problem(error.cause or error.summary, str(error.where), error.hint)
            # A placeholder that is never used: after a configuration error the gateway does not start.
            return cls(key_file="")
        if provider._account is not None and key_file:
            provider._account.file.check(fields, "keyFile")
        if provider._secret is not None:
            provider._secret.check(fields, "clientSecretFile")
        return provider

    async def close(self) -> None:
        await self._outbound.close()

    async def groups_of(
        self, user: UserInfo, relevant: AbstractSet[str], request: LoginRequest
    ) -> tuple[Membership, ...] | Redirect:
        member, groups = self._member(user), self._groups(relevant)
        if member is None or not groups:
            return ()
        if self._consent is not None:
            parameters = {
                "client_id": self._consent.client_id,
                "response_type": "code",
                "scope": self._api.scope,
                "login_hint": member,
            }
            return begin(self._consent.authorize_url, parameters, request)
        try:
            return await self._ask(await self._service_token(), groups, member)
        except TokenRejected:
            pass
        # Retry once with a new token: the old one may have been revoked elsewhere with the key.
        try:
            return await self._ask(await self._service_token(), groups, member)
        except TokenRejected:
            raise ProviderError("Google is unavailable", cause="it refuses the token it has just given") from None

    async def groups_from_provider(
        self, user: UserInfo, relevant: AbstractSet[str], request: LoginRequest
    ) -> tuple[Membership, ...]:
        if self._consent is None or self._secret is None:
            raise LoginRefused(
                "there is no sign-in to continue: start again", cause="a service account sends nobody elsewhere"
            )
        token = await self._exchange(self._consent, self._secret, request)
        member, groups = self._member(user), self._groups(relevant)
        if member is None or not groups:
            return ()
        try:
            return await self._ask(token, groups, member)
        except TokenRejected:
            raise LoginRefused("the Google consent has expired: start again", cause="it refuses the token") from None

    # --- the steps ---

    def _member(self, user: UserInfo) -> str | None:
        if not user.username.startswith(self._user_prefix):
            return None
        address = user.username[len(self._user_prefix) :]
        return address if domain_of(address) is not None else None

    def _groups(self, relevant: AbstractSet[str]) -> list[str]:
        domains = {group: domain_of(group) for group in relevant}
        return sorted(
            group
            for group, domain in domains.items()
            if domain is not None and (not self._domains or domain in self._domains)
        )

    async def _ask(self, token: Secret, groups: list[str], member: str) -> tuple[Membership, ...]:
        if len(groups) > MAX_CHECKS:
            hint = "use fewer groups in policies, or name fewer domains"
            raise ProviderError("Google is not asked", cause=f"policies name more than {MAX_CHECKS} groups", hint=hint)
        try:
            answers = await all_of(self._api.is_member(token, group, member) for group in groups)
        except TokenRejected:
            if self._account is not None:
                self._account.reject(token)
            raise
        return tuple(Membership(group, "Google group") for group, is_in in zip(groups, answers, strict=True) if is_in)

    async def _service_token(self) -> Secret:
        assert self._account is not None, "without consent there is a service account"
        return await self._account.token()

    async def _exchange(self, consent: Consent, secret: SecretFile, request: LoginRequest) -> Secret:
        back = parse_return(request, "Google")
        form = {
            "grant_type": "authorization_code",
            "client_id": consent.client_id,
            "client_secret": secret.current().reveal(),
            "code": back.code.reveal(),
            "code_verifier": back.verifier.reveal(),
            "redirect_uri": request.callback_url,
        }
        answer = await self._outbound.ask("POST", consent.token_url, form=form)
        if answer.status == 400 and answer.text("error") == "invalid_grant":
            raise LoginRefused(
                "the Google consent has expired: start again", cause="the code was already used or has expired"
            )
        if answer.status != 200:
            hint = "compare clientID, secret and redirect URI with the application's settings there"
            raise self._outbound.failure(consent.token_url, f"it returned no token (status {answer.status})", hint)
        granted = answer.text("scope").split()
        # Users can deselect a scope on the consent page; then every single group would look hidden.
        if self._api.scope not in granted:
            raise LoginRefused("access to your Google groups was not granted", cause="the scope was not granted")
        return token_of(answer, self._outbound, consent.token_url)[0]


# --- settings ---


def _api(name: str, outbound: Outbound, endpoint: str | None, clock: Clock) -> MembershipApi:
    if name not in APIS:
        raise _unusable("api", BAD_API)
    common = GoogleApi(outbound, clock=clock)
    return Directory(common, endpoint) if name == "directory" else CloudIdentity(common, endpoint, clock=clock)


def _endpoint(url: str | None) -> str | None:
    if url is not None and (not is_safe(url) or "?" in url or "#" in url):
        raise _unusable("endpoint", BAD_ENDPOINT)
    return None if url is None else url.rstrip("/")


def _domains(names: Iterable[str] | None) -> frozenset[str]:
    domains = None if names is None else [name.lower() for name in names]
    if domains is not None and not domains:
        raise _unusable("domains", EMPTY_LIST)
    if domains is not None and not all(domain_of(f"group@{name}") == name for name in domains):
        raise _unusable("domains", "it must list domains, as in example.com")
    return frozenset(domains or ())


def _unusable(setting: str, cause: str) -> ConfigurationError:
    return ConfigurationError("Google's groups cannot be used", cause=cause, where=setting)
