"""TLS with one upstream, which resumes the session of the connection before.

Made by `upstream.upstreams`, one for each address: another certificate of ours, another authority or another upstream
has another context, and a session never gets from one to the other. The certificate of the upstream is checked in full
handshakes only, so a session is good for so long after one, and no longer than the certificate.
"""

from __future__ import annotations

import ssl
from weakref import ReferenceType, ref

from ostiary.core.clock import Clock
from ostiary.core.tls import SealedContext
from ostiary.gateway.http1.handshakes import CountedHandshake, CountingContext, use_directly

# How long after a full handshake its session, and those that follow from it, are resumed.
MOST_SECONDS = 3600.0


class UpstreamTls(CountedHandshake):
    """The TLS of one connection. `good_until` is up to when its session may be resumed, in Unix time."""

    # Until the handshake is through, that of the session which it would resume.
    good_until = 0.0

    def do_handshake(self) -> None:
        context = self._context
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError:
            # Perhaps because of the session: the next handshake is a full one.
            context.forget_session()
            raise
        context.note_handshake(self)

    def keep_session(self) -> None:
        """The connection ends: what its session is now can be resumed by the next one."""
        self._context.keep_session(self)

    @property
    def _context(self) -> UpstreamContext:
        context = self.context
        assert isinstance(context, UpstreamContext)
        return context


class UpstreamContext(SealedContext, CountingContext):
    """The context of one upstream."""

    sslobject_class = UpstreamTls
    _clock: Clock | None = None
    _session: ssl.SSLSession | None = None
    _good_until = 0.0
    # The connection that was opened last. Its session is asked for when it is wanted: with TLS 1.3 what can be resumed
    # comes after the handshake, and may be replaced at any time.
    _latest: ReferenceType[UpstreamTls] | None = None

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        session = session or self._resumable()
        wrapped = super().wrap_bio(incoming, outgoing, server_side, server_hostname, session)
        assert isinstance(wrapped, UpstreamTls)
        wrapped.good_until = self._good_until
        use_directly(wrapped)
        return wrapped

    def resume_sessions(self, clock: Clock) -> None:
        """From now on sessions are resumed, for as long as *clock* says."""
        self._clock = clock

    def keep_session(self, tls: UpstreamTls) -> None:
        """Keep the session of *tls*, if that is the latest one."""
        if self._latest is not None and self._latest() is tls:
            self._keep_latest()

    def forget_session(self) -> None:
        self._session, self._latest = None, None

    def note_handshake(self, tls: UpstreamTls) -> None:
        """*tls* is established."""
        if self._clock is None:
            return
        # Of a resumed one nothing was checked again: its time goes on.
        if not tls.session_reused:
            tls.good_until = min(self._clock.now().timestamp() + MOST_SECONDS, _expiry(tls))
        self._keep_latest()
        self._latest = ref(tls)

    def _resumable(self) -> ssl.SSLSession | None:
        if self._clock is None:
            return None
        self._keep_latest()
        if self._session is not None and self._clock.now().timestamp() >= self._good_until:
            self.forget_session()
        return self._session

    def _keep_latest(self) -> None:
        tls = None if self._latest is None else self._latest()
        session = None if tls is None else tls.session
        # Without an id it cannot be resumed: the ticket has not come yet.
        if tls is not None and session is not None and session.id:
            self._session, self._good_until = session, tls.good_until


def _expiry(tls: ssl.SSLObject) -> float:
    """When the certificate of the other side expires, in Unix time; 0 if it was not checked."""
    certificate = tls.getpeercert()
    return ssl.cert_time_to_seconds(str(certificate["notAfter"])) if certificate else 0.0
