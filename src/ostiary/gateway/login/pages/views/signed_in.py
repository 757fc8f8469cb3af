"""The pages of people who are signed in: home, a token, their sessions, and signing out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from ostiary.core.text import printable
from ostiary.core.tokens import Issued
from ostiary.gateway.authorize.cluster_use import ClusterUse
from ostiary.gateway.login.answers import LoginAnswer
from ostiary.gateway.login.clusters import NO_CLUSTERS, ClusterOffer, UsersClusters
from ostiary.gateway.login.pages.markup import NOTHING, Markup, join
from ostiary.gateway.login.pages.messages import say
from ostiary.gateway.login.pages.page import page
from ostiary.gateway.login.pages.pieces import groups_of, navigation, shown_time, span_text, time_text
from ostiary.gateway.login.pages.templates import fill
from ostiary.gateway.login.pages.views.site import Site
from ostiary.gateway.login.sessions.browser import Visitor
from ostiary.interfaces.token_store import Session
from ostiary.wire.kubeconfig import cluster_context, kubectl_commands, ostiary_command

# As `ostiary.gateway.login.visit` writes them.
_CLIENT = re.compile(
    r"(?:(?P<browser>Edge|Firefox|Chrome|Safari) on (?P<system>\w+)|(?P<client>.+)) from (?P<address>\S+)"
)


def home(
    site: Site,
    visitor: Visitor,
    *,
    lifetime: timedelta,
    admin: bool,
    asks_nobody: bool,
    offered: UsersClusters = NO_CLUSTERS,
) -> LoginAnswer:
    session = visitor.session
    # One cluster at the gateway's own URL needs no list.
    listed = offered.clusters if [each.server for each in offered.clusters] != [site.external_url] else ()
    kubeconfig = site.kubeconfig_of(listed) if listed else site.kubeconfig
    body = fill(
        "home.html",
        user=printable(session.user.username),
        provider=site.label(session.provider),
        groups=groups_of(session),
        until=shown_time(session.expires_at),
        checked=say("home.unchecked") if asks_nobody else say("home.checked_every", span=span_text(lifetime)),
        lifetime=span_text(lifetime),
        clusters=_clusters(site, listed, incomplete=offered.incomplete),
        command=ostiary_command(kubeconfig),
        context=str(kubeconfig["current-context"]),
        commands="\n".join(kubectl_commands(kubeconfig)),
        kubeconfig="/auth/kubeconfig/all" if listed else "/auth/kubeconfig",
        filename=f"{site.context}.kubeconfig",
        form_token=visitor.form_token,
    )
    return page(
        say("home.title"),
        body,
        navigation=navigation("/auth/token", admin=admin, tokens=visitor.has_api_tokens, form_token=visitor.form_token),
    )


def _clusters(site: Site, listed: Sequence[ClusterOffer], *, incomplete: bool) -> Markup:
    """The clusters that the visitor can use, and the context that each has."""
    rows = [
        fill(
            "cluster.html",
            label=printable(each.label),
            command=f"kubectl --context {cluster_context(site.context, each.name)} get pods",
            server=each.server,
            tag=fill("tag.html", text=say("home.cluster_unsure")) if each.use is ClusterUse.UNKNOWN else NOTHING,
        )
        for each in listed
    ]
    note = fill("clusters_incomplete.html") if incomplete else NOTHING
    return join((fill("clusters.html", rows=join(rows)) if rows else NOTHING, note))


def token(site: Site, issued: Issued, *, lifetime: timedelta) -> LoginAnswer:
    """The only page that shows a token. Nothing on it is a form: it tells nobody where its visitor comes from."""
    # In this way the token is in no list of processes and in no history.
    commands = "\n".join(
        (
            f"read -rs TOKEN    # {say('token.paste')}",
            "printf 'Authorization: Bearer %s' \"$TOKEN\" |",
            f"  curl --header @- {site.external_url}/auth/whoami",
        )
    )
    body = fill(
        "token.html",
        token=issued.token.reveal(),
        until=shown_time(issued.expires_at),
        lifetime=span_text(lifetime),
        commands=commands,
    )
    return page(say("token.title"), body, private=True)


def sessions(site: Site, visitor: Visitor, listed: Sequence[Session], *, admin: bool) -> LoginAnswer:
    rows = join(
        session_row(
            replace(session, provider=site.label(session.provider)),
            visitor,
            action="/auth/sessions",
            here=session.id == visitor.session.id,
        )
        for session in listed
    )
    user = printable(visitor.session.user.username)
    body = fill("sessions.html", rows=rows, user=user, form_token=visitor.form_token)
    return page(
        say("sessions.title"),
        body,
        navigation=navigation(
            "/auth/sessions", admin=admin, tokens=visitor.has_api_tokens, form_token=visitor.form_token
        ),
    )


def session_row(session: Session, visitor: Visitor, *, action: str, here: bool = False, owner: bool = False) -> Markup:
    return fill(
        "session.html",
        client=client_of(session),
        tag=fill("tag.html", text=say("sessions.here")) if here else NOTHING,
        owner=fill("session_owner.html", user=printable(session.user.username)) if owner else NOTHING,
        since=shown_time(session.created_at),
        since_text=time_text(session.created_at),
        until=shown_time(session.expires_at),
        provider=session.provider,
        groups=groups_of(session),
        action=action,
        id=session.id,
        form_token=visitor.form_token,
    )


def client_of(session: Session) -> str:
    """What a session is used with, as its owner may recognise it."""
    if session.name:
        return say("sessions.api_token", name=printable(session.name))
    match = _CLIENT.fullmatch(session.client)
    if match is None:
        return printable(session.client) or say("sessions.client_unnamed")
    if match["browser"]:
        client: str = say("sessions.browser_on", browser=match["browser"], system=match["system"])
    else:
        client = _program(match["client"])
    return say("sessions.client_from", client=client, address=printable(match["address"]))


def _program(client: str) -> str:
    """The name of a program; those that we give ourselves are in the language of the reader."""
    if client == "token page":
        return say("sessions.token_page")
    if client.startswith("narrowed token: "):
        return say("sessions.narrowed_token", scope=printable(client.removeprefix("narrowed token: ")))
    return say("sessions.command_line") if client == "command line" else printable(client)


def sign_out(username: str, form_token: str) -> LoginAnswer:
    return page(say("sign_out.title"), fill("sign_out.html", user=printable(username), form_token=form_token))
