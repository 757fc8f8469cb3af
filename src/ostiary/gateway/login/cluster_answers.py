"""Answers which clusters somebody can use: as JSON, and as a kubeconfig with all of them.

Called by the routes, for programs with a token and for browsers with a session.
"""

from __future__ import annotations

from ostiary.core.config.edit import dump
from ostiary.core.delegation import Delegation, decode
from ostiary.gateway.login import answers
from ostiary.gateway.login.answers import LoginAnswer
from ostiary.gateway.login.clusters import NO_CLUSTERS, Clusters, UsersClusters
from ostiary.gateway.login.events import LoginEvents
from ostiary.gateway.login.pages.views.site import Site
from ostiary.gateway.login.sessions.browser import BrowserSessions
from ostiary.gateway.login.sessions.calls import SessionCalls
from ostiary.gateway.login.visit import bearer, is_page_load
from ostiary.interfaces.identity import LoginRequest
from ostiary.model import UserInfo


class ClusterAnswers:
    def __init__(
        self,
        site: Site,
        clusters: Clusters | None,
        *,
        sessions: SessionCalls,
        browsers: BrowserSessions,
        events: LoginEvents,
    ) -> None:
        self._site = site
        self._clusters = clusters
        self._sessions = sessions
        self._browsers = browsers
        self._events = events

    async def list_clusters(self, request: LoginRequest) -> LoginAnswer:
        offered = await self._offered(request)
        return offered if isinstance(offered, LoginAnswer) else answers.clusters(offered, self._site.external_url)

    async def download_kubeconfig(self, request: LoginRequest) -> LoginAnswer:
        offered = await self._offered(request)
        if isinstance(offered, LoginAnswer):
            return offered
        if not offered.clusters:
            return answers.error(404, "there is no cluster that you may use")
        kubeconfig = self._site.kubeconfig_of(offered.clusters)
        return answers.download(dump(kubeconfig), f"{self._site.context}.kubeconfig")

    async def _offered(self, request: LoginRequest) -> UsersClusters | LoginAnswer:
        """The clusters of whoever asks, or what they are told in place of them."""
        if request.method not in ("GET", "HEAD"):
            return answers.method_not_allowed(["GET"])
        try:
            caller = await self._caller(request)
            if isinstance(caller, LoginAnswer):
                return caller
            user, delegation = caller
            return NO_CLUSTERS if self._clusters is None else await self._clusters.of(user, delegation)
        except Exception as error:
            return self._events.record_failure(error, request)

    async def _caller(self, request: LoginRequest) -> tuple[UserInfo, Delegation | None] | LoginAnswer:
        token = bearer(request)
        if token is not None:
            record = await self._sessions.find(token)
            if record is None:
                return answers.no_good_token()
            delegation = decode(record.token.delegation) if record.token.delegation else None
            return record.session.user, delegation
        # A script of an upstream on this host has the cookie, too.
        visitor = await self._browsers.find(request) if is_page_load(request) else None
        return answers.bearer_challenge() if visitor is None else (visitor.session.user, None)
