"""A stand-in of GitHub Enterprise Server: the sign-in page, the token endpoint, accounts, organisations and teams.

The exchange of a code, its errors (a 200 with an error in it) and the rate limits are those of GitHub's documentation.
Which of 403 and 404 a hidden membership gets is an assumption, and never compared with GitHub itself: here 404 is "not
there", and 403 is what an operator's token gets for an organisation that it is no member of.
"""

from __future__ import annotations

import secrets
from base64 import b64encode
from dataclasses import dataclass, field
from html import escape
from typing import Any
from urllib.parse import urlencode

import trustme

from tests.support.http_server import Request, Response
from tests.support.oauth_server import OAuthServer

PAGE = """\
<!doctype html><html lang="en"><title>Authorize application</title>
<h1>Authorize {client}</h1><p>Signed in as {person}</p><a role="button" href="?{query}">Authorize</a></html>
"""
NOT_FOUND = Response(404, {"message": "Not Found", "documentation_url": "https://docs.github.com/rest"})
BAD_CREDENTIALS = Response(401, {"message": "Bad credentials"})


@dataclass
class Person:
    id: int
    login: str
    type: str = "User"
    suspended_at: str | None = None


@dataclass
class Organization:
    """`members` and each of the `teams` map a login to the state of the membership."""

    members: dict[str, str] = field(default_factory=dict)
    teams: dict[str, dict[str, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Token:
    login: str
    scope: str


class GitHub(OAuthServer):
    """`person` is who sits at the browser. `operator_token` sees the organisations of `operator_sees`.

    With `shows_page` there is a page with a button to press; else it is as if somebody had pressed it at once.
    """

    operator_token = "operator-token-canary"

    def __init__(self, ca: trustme.CA) -> None:
        super().__init__(ca)
        self.people = {"octocat": Person(583231, "octocat"), "hubot": Person(480938, "hubot")}
        self.organizations = {
            "acme": Organization({"octocat": "active"}, {"platform": {"octocat": "active"}, "security": {}}),
            "umbrella": Organization({"hubot": "active"}, {"labs": {"hubot": "active"}}),
        }
        self.person = "octocat"
        self.shows_page = False
        self.grants: str | None = None
        self.tokens: dict[str, Token] = {}
        self.operator_sees = {"acme", "umbrella"}

    def answer(self, request: Request) -> Response:
        match request.path.split("/")[1:]:
            case ["login", "oauth", "authorize"] if request.method == "GET":
                return self._authorize(request)
            case ["login", "oauth", "access_token"] if request.method == "POST":
                return self._exchange(request)
            case ["api", "v3", *steps] if request.method == "GET":
                return self._api(request, steps)
        return NOT_FOUND

    def _authorize(self, request: Request) -> Response:
        if not self.shows_page or "pressed" in request.query:
            return self.send_back(request.query, self.person)
        query = escape(urlencode({**request.query, "pressed": "1"}))
        page = PAGE.format(client=escape(request.query["client_id"]), person=escape(self.person), query=query)
        return Response(200, page.encode(), {"Content-Type": "text/html; charset=utf-8"})

    def _exchange(self, request: Request) -> Response:
        if (request.form.get("client_id"), request.form.get("client_secret")) != (self.client_id, self.client_secret):
            return Response(200, _error("incorrect_client_credentials"))
        code = self.codes.pop(request.form.get("code", ""), None)
        if code is None or not code.fits(request.form):
            return Response(200, _error("bad_verification_code"))
        scope = code.scope if self.grants is None else self.grants
        token = f"gho_{secrets.token_hex(18)}"
        self.tokens[token] = Token(code.person, scope)
        return Response(200, {"access_token": token, "scope": scope.replace(" ", ","), "token_type": "bearer"})

    def _api(self, request: Request, steps: list[str]) -> Response:
        if request.headers.get("x-github-api-version") != "2022-11-28" or not request.headers.get("user-agent"):
            return Response(400, {"message": "API version or User-Agent is missing"})
        basic = b64encode(f"{self.client_id}:{self.client_secret}".encode()).decode()
        token = self.tokens.get(request.bearer)
        operator = request.bearer == self.operator_token
        if token is None and not operator and request.headers.get("authorization") != f"Basic {basic}":
            return BAD_CREDENTIALS
        match steps:
            case ["user"] if token is not None:
                return self._account(token.login)
            case ["user", account_id]:
                logins = [person.login for person in self.people.values() if str(person.id) == account_id]
                return self._account(logins[0]) if logins else NOT_FOUND
            case ["user", "memberships", "orgs", name] if token is not None:
                if "read:org" not in token.scope:
                    return Response(403, {"message": "You need at least read:org scope to see your memberships."})
                return self._membership(name, token.login)
            case ["orgs", name, "memberships", login] if operator:
                if name in self.organizations and name not in self.operator_sees:
                    return Response(403, {"message": f"You must be a member of {name} to see membership information."})
                return self._membership(name, login)
            case ["orgs", name, "teams", slug, "memberships", login]:
                sees = operator or (token is not None and "read:org" in token.scope)
                states = self.organizations[name].teams.get(slug, {}) if name in self.organizations else {}
                if sees and login in states:
                    return Response(200, {"url": "", "role": "member", "state": states[login]})
        return NOT_FOUND

    def _account(self, login: str) -> Response:
        person = self.people[login]
        said: dict[str, Any] = {"login": person.login, "id": person.id, "type": person.type, "email": None}
        return Response(200, said | ({"suspended_at": person.suspended_at} if person.suspended_at else {}))

    def _membership(self, name: str, login: str) -> Response:
        organization = self.organizations.get(name)
        if organization is None or login not in organization.members:
            return NOT_FOUND
        said = {"state": organization.members[login], "role": "member", "organization": {"login": name}}
        return Response(200, said | {"user": {"login": login}})


def _error(name: str) -> dict[str, str]:
    return {"error": name, "error_description": "see the documentation", "error_uri": "/apps"}
