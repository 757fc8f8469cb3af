"""What is allowed in the suite of the doors, and who asks: one policy for the gateway and for both middlewares."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from urllib.parse import unquote

from ostiary.model import Attributes, Decision, RequestInfo, Requirement, UserInfo, Verdict
from ostiary_gateway.interfaces.admission import Admission
from ostiary_gateway.interfaces.attributes import AttributesMapper, RequestLine
from ostiary_gateway.providers.http import HttpAttributes, Modifier
from ostiary_gateway.providers.kubernetes.attributes import KubernetesAttributes
from tests.support.door_suite.outcome import Arrived

# The key of the extra field that doors tell.
EXTRA = "team"
# The upstream "admin" has the host of the shop, and what is below this.
ADMIN = "/admin"
TEMPLATES = ["/v1/{namespace}/{resource}", "/v1/{namespace}/{resource}/{name}"]
RESTART = {"suffix": "/restart", "method": "POST", "modifier": "Restart"}
# What the requests to each upstream ask for, as configured, and as the judge reads them.
ATTRIBUTES: dict[str, Any] = {
    "shop": {"type": "http", "templates": TEMPLATES, "modifiers": [RESTART]},
    "cluster": "kubernetes",
    "admin": "http",
}
MAPPERS: dict[str, AttributesMapper] = {
    "shop": HttpAttributes(templates=TEMPLATES, modifiers=[Modifier(**RESTART)]),
    "cluster": KubernetesAttributes(),
    "admin": HttpAttributes(),
}
USERS = {
    "alice": UserInfo("alice", "7", ("dev", "ops")),
    "bob": UserInfo("bob", "", ("dev",)),
    "plain": UserInfo("plain", "1", ("dev",)),
    "commas": UserInfo("commas", "1", ("a,b", ",", "c,", "cn=dev,ou=groups,dc=example")),
    "percent": UserInfo("percent", "1", ("50%", "%2C", "%", "%%25")),
    "umlaut": UserInfo("jürgen", "1", ("ärzte", "日本", "naïve")),
    "spaces": UserInfo("a b", "1", ("all staff", "a  b")),
    "many": UserInfo("many", "1", tuple(f"group-{number:04}-of-a-large-directory" for number in range(230))),
    "nobody": UserInfo("nobody"),
    "colons": UserInfo("system-like:x", "1", ("oidc:dev", "ldap:cn=x")),
    "quotes": UserInfo("o'neil", "1", ('"quoted"', "back\\slash", "a;b", "<b>")),
    "long": UserInfo("long", "1", ("g" * 7000, "h" * 1000)),
    "equal": UserInfo("equal", "1", ("dev", "dev", "Dev", "DEV")),
    "plus": UserInfo("plus+tag@example.com", "1", ("a+b", "a&b=c", "#1", "?")),
    "encoded": UserInfo("50%25", "1", ("%20", "a%00b", "%C3%A4", "%ZZ")),
    "extras": UserInfo("extras", "1", ("dev",), (("team", ("a,b", "50%", "ä", "a b")),)),
    "emoji": UserInfo("日本", "1", ("🙂", "e\u0301", "\u00e9")),
}
GET_ONLY = ("get", "head")
SELECTED = (Requirement("metadata.name", "In", ("public",)),)


class Rules:
    """Decides by the path, or by the resource, and remembers what it has allowed: user, upstream and path."""

    def __init__(self) -> None:
        self.allowed: set[tuple[str, str, str]] = set()

    def decide(self, attributes: Attributes) -> Decision:
        request, user = attributes.request, attributes.user.username
        if request.verb == "impersonate":
            return _decision(user == "alice")
        if request.path == "/fails":
            raise RuntimeError("the provider's own words")
        hidden = request.path.startswith("/hidden") or request.namespace == "hidden"
        if hidden:
            return Decision(Verdict.DENY, "hidden", hidden=True)
        allowed = _may_use(request) if request.is_resource else _may_visit(request, user)
        if allowed:
            self.allowed.add((user, request.upstream, unquote(request.path)))
        return _decision(allowed)

    def have_allowed(self, user: str, arrived: Arrived) -> bool:
        """Whether what has arrived was allowed: its path was asked about, and its query makes no difference."""
        path, _, query = arrived.target.partition("?")
        if (user, arrived.upstream, unquote(path)) not in self.allowed:
            return False
        info = MAPPERS[arrived.upstream].request_info(RequestLine(arrived.method, path, query))
        asked = Attributes(UserInfo(user), replace(info, upstream=arrived.upstream))
        return self.decide(asked).verdict is Verdict.ALLOW

    async def authorize(self, attributes: Attributes) -> Decision:
        return self.decide(attributes)

    async def relevant_groups(self) -> frozenset[str]:
        return frozenset()


def _may_visit(request: RequestInfo, user: str) -> bool:
    if request.upstream == "admin":
        return user == "alice" and not request.path.endswith("/denied")
    match request.path:
        case "/alice-only":
            return user == "alice"
        case "/get-only":
            return request.verb in GET_ONLY
        case "/shop-only":
            # A webhook does not learn the upstream.
            return request.upstream != "cluster"
        case "/cluster-only":
            return request.upstream != "shop"
    return not request.path.startswith(("/denied", "/v1/"))


def _may_use(request: RequestInfo) -> bool:
    """Reading pods in one namespace; of secrets, those that a selector names."""
    if request.namespace != "x" or request.api_group:
        return False
    match request.resource:
        case "pods":
            # "log" and "exec" may be read: opening a terminal by GET needs more than that.
            return request.verb in ("get", "list", "watch") and request.subresource in ("", "log", "exec", "status")
        case "secrets":
            by_label = Requirement("team", "In", ("a",)) in (request.label_selector or ())
            return request.field_selector == SELECTED or (request.verb in ("list", "watch") and by_label)
        case "carts":
            return request.verb in ("get", "list", "restart")
        case "configmaps":
            return request.verb in ("create", "update", "patch", "delete")
    return False


def upstream_of(arrived: Arrived) -> str:
    """Where the path belongs, at the host at which it arrived."""
    path = unquote(arrived.target.partition("?")[0])
    if arrived.upstream == "cluster":
        return "cluster"
    return "admin" if path == ADMIN or path.startswith(f"{ADMIN}/") else "shop"


class Rooms:
    """An admission provider: too often at one path, never at another."""

    def admit(self, attributes: Attributes, *, size: int | None) -> Admission:
        match attributes.request.path:
            case "/limited":
                return Admission(False, "too often", retry_after=7)
            case "/full":
                return Admission(False, "no room")
        return Admission(True)

    def settled(self, attributes: Attributes, *, status: int) -> None: ...


def _decision(allowed: bool) -> Decision:
    return Decision(Verdict.ALLOW if allowed else Verdict.DENY, "the rules of the test")
