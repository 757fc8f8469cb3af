"""What several sections of the configuration must agree on; called by `gateway.config` when all of them are read."""

from __future__ import annotations

from itertools import combinations

from ostiary.core.abilities import has_trait
from ostiary.core.config import Fields
from ostiary.core.net import is_loopback
from ostiary.core.settings.kinds import short_duration
from ostiary.gateway.config.certificates import is_from_a_known_authority
from ostiary.gateway.config.renewal_check import renewal_check
from ostiary.gateway.config.settings import Authorization, GatewayConfig, Identity, UpstreamConfig
from ostiary.gateway.config.settings.config import DEFAULT_STORE_TYPE
from ostiary.gateway.config.settings.kinds import ALL_UPSTREAMS
from ostiary.gateway.config.values import parse_origin
from ostiary.interfaces.authorization import AllowsEverything
from ostiary.interfaces.identity import ProvesNothing, RenewalCheck
from ostiary.interfaces.token_store import SharedBetweenProcesses, SurvivesRestart

SYSTEM = "system:"


def check(config: GatewayConfig, root: Fields, *, insecure_allow_all: bool) -> None:
    """Note in *root* what does not go together."""
    problem = root.problem
    # A proxy in front lets in whom it likes, wherever the gateway itself listens.
    reachable = not config.listen.address.is_loopback or config.listen.trusted_proxies
    if is_open_to_all(config) and reachable and not insecure_allow_all:
        hint = "configure identity and authorization, or set insecureAllowAll: true"
        problem("everybody who reaches this address could do everything", "listen", hint)
    same = config.health == config.listen.address and config.health.port != 0
    if same and root.is_right_at("listen.address") and root.is_right_at("health.address"):
        problem("health probes need their own address, so that no request can be mistaken for a probe", "health")
    if config.listen.workers > 1 and not has_trait(config.store.instance, SharedBetweenProcesses):
        message = f'several workers cannot share the store "{config.store.type}": it does not say that processes can'
        problem(message, "store", f"use the type {DEFAULT_STORE_TYPE}, or one worker")
    needs_identity = bool(config.upstreams) or config.webhooks.token_review
    if not config.identity and needs_identity and root.is_right("identity"):
        problem("required: without it nobody can sign in", "identity")
    _check_prefixes(config.identity, root)
    _check_routes(config.upstreams, root)
    _check_policies(config, root)


def is_open_to_all(config: GatewayConfig) -> bool:
    """Whether whoever can connect may do everything: one user without a proof, and nothing that says no."""
    without_proof = any(has_trait(identity.instance, ProvesNothing) for identity in config.identity)
    return without_proof and bool(_links_that_allow_everything(config))


def _links_that_allow_everything(config: GatewayConfig) -> list[Authorization]:
    return [link for link in config.authorization.chain if has_trait(link.instance, AllowsEverything)]


def warnings(config: GatewayConfig) -> list[str]:
    """What is allowed and should not be overlooked; told loudly at every start."""
    messages = []
    if is_open_to_all(config):
        messages.append("everybody who can connect may do everything: one user, and all actions allowed")
    elif links := _links_that_allow_everything(config):
        messages.append(f"everybody who can sign in may do everything: the authorization chain has {links[0].type}")
    if not config.listen.address.is_loopback and config.listen.tls is None:
        messages.append(f"{config.listen.address} accepts tokens in plain text")
    tls = config.listen.tls
    if tls is not None and config.authorities_pem is None and not is_from_a_known_authority(tls.certificate):
        messages.append(
            "kubeconfigs from the sign-in page lack the CA certificate of listen.tls.certificate, which this"
            " system does not know: name it with externalCA"
        )
    messages += _warnings_of_upstreams(config.upstreams)
    messages += _warnings_of_policies(config)
    if not config.upstreams and not config.webhooks.enabled:
        messages.append("there is no upstream and no webhook: this gateway can only sign users in")
    messages += [_renewal_note(identity, config) for identity in config.identity if _asks_nobody(identity)]
    if not has_trait(config.store.instance, SurvivesRestart):
        messages.append("sessions are kept in memory: a restart ends them all")
    return messages


def _asks_nobody(identity: Identity) -> bool:
    checks = (RenewalCheck.NOBODY, RenewalCheck.WITH_KEPT, RenewalCheck.ACCEPTED)
    return renewal_check(identity.instance) in checks


def _renewal_note(identity: Identity, config: GatewayConfig) -> str:
    """Whoever is disabled at the identity system should not be in for longer than the operator knows."""
    shorter, session = short_duration(config.tokens.unchecked_session), short_duration(config.tokens.session)
    match renewal_check(identity.instance):
        case RenewalCheck.ACCEPTED:
            return (
                f'identity "{identity.name}" has renewal: session: somebody whose account is disabled stays signed in'
                f" for up to {session} (tokens.session) if nobody can be asked"
            )
        case RenewalCheck.WITH_KEPT:
            return (
                f'identity "{identity.name}" asks at each renewal only where the issuer gives a refresh token (often'
                f" with scopes: [offline_access]); other sessions end after {shorter} (tokens.uncheckedSession)"
            )
    return (
        f'identity "{identity.name}" cannot check users again after sign-in: its sessions end after'
        f" {shorter} (tokens.uncheckedSession), and until then nobody notices a disabled account"
    )


def _warnings_of_upstreams(upstreams: tuple[UpstreamConfig, ...]) -> list[str]:
    return [
        f'requests to the upstream "{upstream.name}" may cross the network in plain text'
        for upstream in upstreams
        if upstream.server.startswith("http://") and upstream.socket is None and not _is_local(upstream)
    ]


def _warnings_of_policies(config: GatewayConfig) -> list[str]:
    """A right on one cluster should be one on another only where somebody said so."""
    names = ", ".join(f'"{upstream.name}"' for upstream in config.upstreams)
    return [
        f'the policy of "{link.name}" holds for every upstream alike ({names}): '
        f"say which it is for (upstreams: [...]), or that this is meant (upstreams: {ALL_UPSTREAMS})"
        for link in config.authorization.chain
        if len(config.upstreams) > 1 and not link.shared
    ]


def _is_local(upstream: UpstreamConfig) -> bool:
    return is_loopback(parse_origin(upstream.server).hostname or "")


def _check_prefixes(identities: tuple[Identity, ...], root: Fields) -> None:
    for identity in identities:
        if identity.prefix.startswith(SYSTEM):
            root.problem(f'"{identity.name}" would name users of the system itself ("{SYSTEM}")', "identity")
    for first, second in combinations(identities, 2):
        # "a" and "ab" are not enough: the user "bc" of the one would be the user "c" of the other.
        if first.prefix.startswith(second.prefix) or second.prefix.startswith(first.prefix):
            hint = "let no prefix be the beginning of another; without one it is the name and a colon"
            root.problem(f'users of "{first.name}" and of "{second.name}" could have the same name', "identity", hint)


def _check_policies(config: GatewayConfig, root: Fields) -> None:
    names = {upstream.name for upstream in config.upstreams}
    for link in config.authorization.chain:
        for name in sorted((link.upstreams or frozenset()) - names):
            hint = f"there are: {', '.join(sorted(names))}" if names else "there are no upstreams"
            root.problem(f'the policy of "{link.name}" is for an unknown upstream "{name}"', "authorization", hint)


def _check_routes(upstreams: tuple[UpstreamConfig, ...], root: Fields) -> None:
    for first, second in combinations(upstreams, 2):
        same_host = set(first.hosts) & set(second.hosts) or (not first.hosts and not second.hosts)
        if first.prefix == second.prefix and same_host:
            message = f'the upstreams "{first.name}" and "{second.name}" serve the same host and prefix'
            root.problem(message, "upstreams", "give one of them another prefix, or hosts")
