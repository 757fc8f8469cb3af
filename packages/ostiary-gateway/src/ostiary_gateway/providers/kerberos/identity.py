"""The identity provider ``kerberos``: a browser or client authenticates with a ticket, without a password.

    identity:
    - name: staff
      type: kerberos
      keytab: gateway.keytab
      realms: [{name: EXAMPLE.COM}]

    no header                   ->  401, WWW-Authenticate: Negotiate
    Authorization: Negotiate    ->  parsed by `negotiate`  ->  verified by `acceptor`  ->  username from `principals`
                                    ->  the gateway stores the authenticator, so that it can be used once

Only Kerberos is accepted, alone or in SPNEGO: no NTLM, no password, no delegation. Groups come from a group provider,
usually ``ldap``. For checks at refreshes, see `docs/decisions/0069`.
"""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from secrets import token_hex
from typing import Self, TypeVar

from ostiary.core.channel_binding import server_end_point
from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.watched_file import WatchedFile
from ostiary.core.yaml import ConfigSection
from ostiary.errors import LoginRefused, ProviderError
from ostiary.model import UserInfo
from ostiary_gateway.catalog import Context
from ostiary_gateway.interfaces.identity import Challenge, Identified, LoginRequest, RenewalCheck, SignIn
from ostiary_gateway.interfaces.shared_counts import ImmediateCounts
from ostiary_gateway.limits.rates import Buckets
from ostiary_gateway.providers.common.refresh import sign_in_again
from ostiary_gateway.providers.kerberos.acceptor import Accepted, Acceptor, Kdc
from ostiary_gateway.providers.kerberos.checks import (
    check_instances,
    check_keytab,
    checked_realms,
    named_services,
    usable_services,
)
from ostiary_gateway.providers.kerberos.keytab import read_keytab
from ostiary_gateway.providers.kerberos.negotiate import SentTicket, read_header
from ostiary_gateway.providers.kerberos.principals import Principal, PrincipalNames
from ostiary_gateway.providers.kerberos.settings import ChannelBinding, KerberosRenewal, KerberosSettings
from ostiary_gateway.settings.declare import read_settings

THREADS, MAX_WAITING = 4, 64
# The library accepts an authenticator for five minutes before and after its time, unless krb5.conf sets another
# clockskew. An authenticator stored for longer than ten minutes can no longer be replayed.
REMEMBERED = timedelta(hours=1)
# Each sign-in is stored for `REMEMBERED`, and one user must not fill the store.
SIGN_INS_PER_MINUTE = 60.0
_ADVICE = (
    "your browser sent no Kerberos ticket: get one with kinit, or sign in to the domain, and allow this site in the"
    " settings of the browser; or sign in another way"
)
_CHALLENGE = Challenge("Negotiate", _ADVICE)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class KerberosService:
    """The gateway as a Kerberos service: its keytab and principals (empty: those of its own host)."""

    keytab: str
    principals: tuple[Principal, ...] = ()
    external_url: str = ""


class KerberosIdentity:
    """Authenticates users with tickets. *names* maps principals to usernames. The ticket is not stored."""

    sign_in = SignIn.NEGOTIATE
    renewal_check: RenewalCheck

    def __init__(
        self,
        service: KerberosService,
        names: PrincipalNames,
        *,
        channel_binding: ChannelBinding = ChannelBinding.OFFERED,
        renewal: KerberosRenewal = KerberosRenewal.DEFAULT,
        clock: Clock = SYSTEM_CLOCK,
        counts: ImmediateCounts | None = None,
        name: str = "",
    ) -> None:
        self._service = service
        self._names = names
        self._binding = channel_binding
        self._clock = clock
        self._entries = WatchedFile(service.keytab, read_keytab, clock=clock)
        self._acceptor = Acceptor(service.keytab, self._services, self._entries.current)
        self._kdc = Kdc(service.keytab, cache=f"ostiary-{token_hex(8)}")
        rate, burst = SIGN_INS_PER_MINUTE / 60, SIGN_INS_PER_MINUTE
        self._sign_ins = Buckets(rate, burst, clock=clock, counts=counts, name=f"kerberos/{name}")
        # Separate threads: waiting for an unresponsive KDC must not block sign-ins.
        self._tickets, self._questions = _Threads("kerberos"), _Threads("kdc")
        self.renewal_check = renewal.check()
        match renewal:
            case KerberosRenewal.KDC:
                self.revalidate = self._ask_kdc
            case KerberosRenewal.SIGN_IN:
                self.revalidate = sign_in_again

    @classmethod
    def from_config(cls, fields: ConfigSection, context: Context) -> Self:
        settings = read_settings(KerberosSettings, fields, context.directory)
        services, url = named_services(settings, fields), context.external_url
        realms = checked_realms(settings)
        check_instances(settings, fields)
        check_keytab(settings, services, url, fields)
        return cls(
            KerberosService(str(settings.keytab), services, url),
            PrincipalNames(realms, instances=settings.instances),
            channel_binding=settings.channel_binding,
            renewal=settings.renewal,
            clock=context.clock,
            counts=context.counts,
            name=context.name,
        )

    async def close(self) -> None:
        self._tickets.close()
        self._questions.close()

    async def probe(self) -> str:
        services = ", ".join(map(str, self._services()))
        if not services:
            raise ProviderError("the keytab has no service principal of the gateway", where=self._service.keytab)
        if self.renewal_check is not RenewalCheck.ASKED:
            return f"the keytab has keys of {services}"
        await self._questions.run(lambda: self._kdc.sign_in_as(self._services()[0]))
        return f"the KDC accepts the keytab, as {services}"

    async def handle_client(self, request: LoginRequest) -> Identified | Challenge:
        header = request.header("authorization")
        ticket = None if header is None else read_header(header)
        if ticket is None:
            return _CHALLENGE
        binding = self._expected_binding(request)
        accepted = await self._tickets.run(lambda: self._acceptor.accept(ticket, binding))
        self._check_binding(accepted)
        username = self._names.username(accepted.principal)
        if wait := self._sign_ins.take(username):
            raise LoginRefused(
                "too many sign-ins with this account: wait a moment",
                cause=f"more than {SIGN_INS_PER_MINUTE:g} tickets a minute",
                retry_after=wait,
            )
        return self._identified(username, ticket, accepted)

    async def handle_provider(self, request: LoginRequest) -> UserInfo:
        raise LoginRefused("there is no sign-in to continue: start again", cause="Kerberos sends nobody elsewhere")

    def _identified(self, username: str, ticket: SentTicket, accepted: Accepted) -> Identified:
        reply = b64encode(accepted.reply).decode()
        return Identified(
            UserInfo(username),
            token_id=ticket.proof_id,
            once_until=self._clock.now() + REMEMBERED,
            www_authenticate=f"Negotiate {reply}" if reply else "",
        )

    def _services(self) -> tuple[Principal, ...]:
        """Return the principals that tickets may be for. Raise `ConfigurationError` if the keytab cannot be read."""
        return usable_services(self._entries.current(), self._service.principals, self._service.external_url)

    # --- channel binding ---

    def _expected_binding(self, request: LoginRequest) -> bytes | None:
        if self._binding is ChannelBinding.NONE or request.server_certificate is None:
            return None
        return server_end_point(request.server_certificate)

    def _check_binding(self, accepted: Accepted) -> None:
        if self._binding is ChannelBinding.REQUIRED and not accepted.is_bound:
            raise LoginRefused(
                "this gateway requires tickets that are bound to the connection, and your browser or program did not"
                " bind its own: use another one, or another way to sign in",
                cause="channelBinding: required, and the ticket is not bound, or our listener has no TLS of its own",
            )

    # --- refreshes ---

    async def _ask_kdc(self, user: UserInfo) -> UserInfo:
        principal = self._names.principal(user.username)
        if principal is None:
            raise LoginRefused("the user is no longer known", cause="no realm of the settings has this username")
        await self._questions.run(lambda: self._kdc.check(self._asking_service(), principal))
        return user

    def _asking_service(self) -> Principal:
        services = self._services()
        if not services:
            raise ProviderError("the keytab has no service principal of the gateway", where=self._service.keytab)
        return services[0]


class _Threads:
    """A thread pool for a library that blocks. Threads start with the first job; at most `MAX_WAITING` jobs wait."""

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(THREADS, thread_name_prefix=name)
        self._pending = 0

    async def run(self, job: Callable[[], T]) -> T:
        if self._pending >= THREADS + MAX_WAITING:
            raise ProviderError("too many requests to Kerberos", cause=f"{MAX_WAITING} wait for a thread")
        self._pending += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, job)
        finally:
            self._pending -= 1

    def close(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)
