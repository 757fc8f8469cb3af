"""Rules across sections of the configuration, checked after all of them are read."""

from __future__ import annotations

from itertools import combinations
from urllib.parse import urlsplit

from ostiary.core.account_names import OWN_NAMES
from ostiary.core.loopback import is_loopback
from ostiary.core.yaml import ConfigSection
from ostiary_gateway.capabilities import ability, has_trait
from ostiary_gateway.config.api_groups import check_provider_groups
from ostiary_gateway.config.certificate_files import is_from_a_known_authority
from ostiary_gateway.config.gateway_config import DEFAULT_STORE_TYPE, GatewayConfig
from ostiary_gateway.config.kinds import ALL_UPSTREAMS
from ostiary_gateway.config.provider import Authorization, Identity
from ostiary_gateway.config.refresh_check import renewal_check
from ostiary_gateway.config.upstream import IdentityMode, UpstreamConfig
from ostiary_gateway.config.values import origin_text
from ostiary_gateway.interfaces.authorization import AllowsEverything
from ostiary_gateway.interfaces.identity import BoundToCluster, RenewalCheck, StepsUp, Unauthenticated
from ostiary_gateway.interfaces.store_capabilities import ObjectStore, OwnedStore, PortableStore
from ostiary_gateway.interfaces.token_store import SharedBetweenProcesses, SurvivesRestart
from ostiary_gateway.interfaces.upstream_capabilities import FollowsUpstream
from ostiary_gateway.settings.kinds import short_duration
from ostiary_gateway.settings.outgoing import parse_origin

SYSTEM = "system:"


def check(config: GatewayConfig, root: ConfigSection, *, insecure_allow_all: bool) -> None:
    """Report conflicts in *root*."""
    problem = root.problem
    # A trusted proxy may admit any client, wherever the gateway itself listens.
    reachable = not config.listen.address.is_loopback or config.listen.trusted_proxies
    if is_open_to_all(config) and reachable and not insecure_allow_all:
        hint = "configure identity and authorization, or set insecureAllowAll: true"
        problem("everybody who reaches this address could do everything", "listen", hint)
    grpc = None if config.listen.grpc is None else config.listen.grpc.address
    same = config.health in (config.listen.address, grpc) and config.health.port != 0
    if same and root.is_right_at("listen.address") and root.is_right_at("health.address"):
        problem("health probes need their own address, so that no request can be mistaken for a probe", "health")
    if config.listen.workers > 1 and not has_trait(config.store.instance, SharedBetweenProcesses):
        message = f'several workers cannot share the store "{config.store.type}": it does not say that processes can'
        problem(message, "store", f"use the type {DEFAULT_STORE_TYPE}, or one worker")
    needs_identity = bool(config.upstreams) or config.webhooks.token_review or config.webhooks.introspection
    if not config.identity and needs_identity and root.is_right("identity"):
        problem("required: without it nobody can sign in", "identity")
    _check_issuer(config, root)
    if root.is_right("identity"):
        _check_prefixes(config.identity, root)
    _check_clusters(config, root)
    _check_routes(config.upstreams, root)
    _check_applications(config, root)
    _check_redirects(config, root)
    _check_policies(config, root)
    _check_step_up(config, root)
    check_provider_groups(config, root)


def _check_issuer(config: GatewayConfig, root: ConfigSection) -> None:
    if config.webhooks.revocations and config.issuer is None and root.is_right("issuer"):
        root.problem("revocations are told to clusters that verify JWTs, and none are signed", "webhooks", "set issuer")
    if config.webhooks.lists_revocations and ability(config.store.instance, PortableStore) is None:
        message = f'the store "{config.store.type}" cannot list its revocations, so nobody can be told of them'
        root.problem(message, "store", "use a store that `ostiary-gateway store migrate` can read")
    stores_keys = config.issuer is not None and config.issuer.keys.secret_file is not None
    if stores_keys and ability(config.store.instance, ObjectStore) is None:
        message = f'the store "{config.store.type}" cannot keep signing keys'
        root.problem(message, "store", "use another store, or issuer.keys.files")
    if config.issuer is not None and not config.identity and root.is_right("identity"):
        root.problem("required: without it there is nobody whom a JWT could name", "identity")


def _check_step_up(config: GatewayConfig, root: ConfigSection) -> None:
    rules = config.step_up.rules
    if not rules or not root.is_right("stepUp", "identity", "upstreams"):
        return
    if not any(has_trait(identity.instance, StepsUp) for identity in config.identity):
        message = "nobody could ever meet these rules: no identity provider can ask a person for more"
        root.problem(message, "stepUp", "add one that can: oidc, saml, or the type of an issuer other than google")
    names = {upstream.name for upstream in config.upstreams}
    for rule in rules:
        for unknown in sorted(set(rule.upstreams) - names):
            message = f'the rule "{rule.name}" names the unknown upstream "{unknown}"'
            root.problem(message, "stepUp", f"there are: {', '.join(sorted(names)) or 'none'}")


def _check_applications(config: GatewayConfig, root: ConfigSection) -> None:
    applications = [upstream for upstream in config.upstreams if upstream.is_application]
    if applications and not config.owner and root.is_right("externalURL"):
        root.problem("required: browsers of web applications (auth: browser) sign in there", "externalURL")
    for upstream in config.upstreams:
        if upstream.identity is not IdentityMode.ASSERTION:
            continue
        if config.issuer is None:
            if root.is_right("issuer"):
                root.problem(f'the upstream "{upstream.name}" is told by a JWT, and none are signed', "issuer")
        elif upstream.name in config.issuer.audiences:
            # The application could present the JWTs of its users to a cluster that trusts the same issuer.
            message = f'the upstream "{upstream.name}" has the name of an audience that clusters accept'
            root.problem(message, "upstreams", "give it another name, or change issuer.audiences")


def _check_redirects(config: GatewayConfig, root: ConfigSection) -> None:
    for upstream in config.upstreams:
        if upstream.redirect is None:
            continue
        who = f'the redirects of the upstream "{upstream.name}"'
        if config.issuer is None:
            if root.is_right("issuer"):
                root.problem(f"{who} carry a signed proof, and nothing is signed", "issuer")
        elif upstream.redirect.to in config.issuer.audiences:
            # Clusters do not check the type of a JWT: the proof of one download would be a credential there.
            message = f"{who} go to an origin that is an audience which clusters accept"
            root.problem(message, "upstreams", "change issuer.audiences: it must not have the origin itself")
        if config.owner and upstream.redirect.to == origin_text(urlsplit(config.external_url)):
            root.problem(f"{who} lead back to the gateway", "upstreams", "redirect.to is the address of the backend")


def is_open_to_all(config: GatewayConfig) -> bool:
    """Report whether any client may do everything: an unauthenticated user, and a policy that allows everything."""
    without_proof = any(has_trait(identity.instance, Unauthenticated) for identity in config.identity)
    return without_proof and bool(_links_that_allow_everything(config))


def _links_that_allow_everything(config: GatewayConfig) -> list[Authorization]:
    return [link for link in config.authorization.chain if has_trait(link.instance, AllowsEverything)]


def warnings(config: GatewayConfig) -> list[str]:
    """Return what is valid but deserves the operator's attention. Logged as warnings at every start."""
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
    messages += _warnings_of_applications(config)
    messages += _warnings_of_policies(config)
    if not config.upstreams and not config.webhooks.enabled and config.issuer is None:
        messages.append("there is no upstream and no webhook: this gateway can only sign users in")
    messages += [_renewal_note(identity, config) for identity in config.identity if _asks_nobody(identity, config)]
    messages += _warnings_about_programs(config)
    if not has_trait(config.store.instance, SurvivesRestart):
        messages.append("sessions are kept in memory: a restart ends them all")
    if not config.owner and ability(config.store.instance, OwnedStore) is not None:
        messages.append(
            "externalURL is not set: the token store has no owner, and another gateway that is given the same store"
            " by mistake would accept the same tokens"
        )
    return messages


def _warnings_about_programs(config: GatewayConfig) -> list[str]:
    messages = []
    if config.api_tokens.enabled:
        span = short_duration(min(config.api_tokens.unchecked_lifetime, config.api_tokens.longest_lifetime))
        messages += [
            f'identity "{identity.name}" cannot check users again: their API tokens live for {span} at most'
            " (apiTokens.uncheckedLifetime), and until then nobody notices a disabled account"
            for identity in config.identity
            if renewal_check(identity, config.groups) is not RenewalCheck.ASKED
        ]
    if ability(config.store.instance, ObjectStore) is None:
        messages.append(
            f'the token store "{config.store.type}" keeps no objects: service accounts can only be declared in'
            " serviceAccounts.declared"
        )
    return messages


def _asks_nobody(identity: Identity, config: GatewayConfig) -> bool:
    checks = (RenewalCheck.NOBODY, RenewalCheck.WITH_KEPT, RenewalCheck.ACCEPTED)
    return renewal_check(identity, config.groups) in checks


def _renewal_note(identity: Identity, config: GatewayConfig) -> str:
    """Return a note for the operator: how long a user disabled at the IdP can stay signed in."""
    shorter, session = short_duration(config.tokens.unchecked_session), short_duration(config.tokens.session)
    match renewal_check(identity, config.groups):
        case RenewalCheck.ACCEPTED:
            return (
                f'identity "{identity.name}" has renewal: session: somebody whose account is disabled stays signed in'
                f" for up to {session} (tokens.session) if nobody can be asked"
            )
        case RenewalCheck.WITH_KEPT:
            return (
                f'identity "{identity.name}" asks at each renewal only where the issuer gives a refresh token (type'
                f" oidc: often with scopes: [offline_access]); other sessions end after {shorter}"
                " (tokens.uncheckedSession)"
            )
    return (
        f'identity "{identity.name}" cannot check users again after sign-in: its sessions end after'
        f" {shorter} (tokens.uncheckedSession), and until then nobody notices a disabled account"
    )


def _warnings_of_applications(config: GatewayConfig) -> list[str]:
    """Warn about shared hosts: a page can do everything that other pages of its host can."""
    gateway_host = urlsplit(config.external_url).hostname or ""
    applications = [upstream for upstream in config.upstreams if upstream.is_application]
    messages = [
        f'the web application "{upstream.name}" has the same host as the sign-in pages ({gateway_host}): its scripts'
        " are not kept apart from them; give it a host of its own (hosts: [...])"
        for upstream in applications
        if not upstream.hosts or gateway_host in upstream.hosts
    ]
    for first, second in combinations(applications, 2):
        if shared := set(first.hosts) & set(second.hosts):
            messages.append(
                f'the web applications "{first.name}" and "{second.name}" share the host {min(shared)}: the scripts of'
                " each can use the other as its visitor"
            )
    return messages


def _warnings_of_upstreams(upstreams: tuple[UpstreamConfig, ...]) -> list[str]:
    return [
        f'requests to the upstream "{upstream.name}" may cross the network in plain text'
        for upstream in upstreams
        if upstream.server.startswith("http://") and upstream.socket is None and not _is_local(upstream)
    ]


def _warnings_of_policies(config: GatewayConfig) -> list[str]:
    """Warn about a policy that applies to several upstreams implicitly: permissions must not spread silently."""
    names = ", ".join(f'"{upstream.name}"' for upstream in config.upstreams)
    return [
        f'the policy of "{link.name}" holds for every upstream alike ({names}): '
        f"say which it is for (upstreams: [...]), or that this is meant (upstreams: {ALL_UPSTREAMS})"
        for link in config.authorization.chain
        if len(config.upstreams) > 1 and not link.shared
    ]


def _is_local(upstream: UpstreamConfig) -> bool:
    return is_loopback(parse_origin(upstream.server).hostname or "")


def _check_prefixes(identities: tuple[Identity, ...], root: ConfigSection) -> None:
    for identity in identities:
        if identity.prefix.startswith(SYSTEM):
            root.problem(f'"{identity.name}" would name users of the system itself ("{SYSTEM}")', "identity")
        if identity.prefix.startswith(OWN_NAMES):
            root.problem(f'"{identity.name}" would name users of the gateway itself ("{OWN_NAMES}")', "identity")
    for first, second in combinations(identities, 2):
        if (
            first.prefix == second.prefix
            or _begins(first.prefix, second.prefix)
            or _begins(second.prefix, first.prefix)
        ):
            hint = 'give each a prefix that is not the beginning of another one; one of them may have prefix: ""'
            root.problem(f'users of "{first.name}" and of "{second.name}" could have the same name', "identity", hint)


def _begins(prefix: str, other: str) -> bool:
    """Report whether *prefix* begins *other*: user "bc" with prefix "a" would equal user "c" with prefix "ab".

    False for an empty prefix: such users are denied when they sign in.
    """
    return prefix != "" and other.startswith(prefix)


def _check_clusters(config: GatewayConfig, root: ConfigSection) -> None:
    """Service accounts keep their names only if those of one cluster cannot be mistaken for those of another."""
    cluster_identities = [(each, cluster) for each in config.identity if (cluster := bound_cluster(each))]
    names = [upstream.name for upstream in config.upstreams]
    for identity, cluster in cluster_identities:
        whose = f'the service accounts of "{identity.name}"'
        hint = "leave out cluster: its users are then called serviceaccount:NAMESPACE:NAME, behind its prefix"
        if cluster not in names:
            listed = f"there are: {', '.join(sorted(names))}" if names else "there are no upstreams"
            root.problem(f'{whose} are those of an unknown upstream "{cluster}"', "identity", listed)
        elif len(names) > 1:
            root.problem(f"{whose} would be others' of the same name at the other upstreams", "identity", hint)
        elif config.webhooks.token_review:
            root.problem(f"{whose} would be others' in a cluster that asks by webhook", "identity", hint)
        elif len(cluster_identities) > 1:
            root.problem(f"{whose} could have the names of another provider's, of the same cluster", "identity", hint)


def bound_cluster(identity: Identity) -> str:
    """Return the upstream whose service accounts the users of *identity* may be; empty for none."""
    binding = ability(identity.instance, BoundToCluster)
    return "" if binding is None else binding.bound_cluster


def _check_policies(config: GatewayConfig, root: ConfigSection) -> None:
    names = {upstream.name for upstream in config.upstreams}
    for link in config.authorization.chain:
        for name in sorted((link.upstreams or frozenset()) - names):
            hint = f"there are: {', '.join(sorted(names))}" if names else "there are no upstreams"
            root.problem(f'the policy of "{link.name}" is for an unknown upstream "{name}"', "authorization", hint)
    _check_followed(config, root)


def _check_followed(config: GatewayConfig, root: ConfigSection) -> None:
    """A policy that follows an upstream needs an upstream that the gateway can query."""
    upstreams = {upstream.name: upstream for upstream in config.upstreams}
    for link in config.authorization.chain:
        following = ability(link.instance, FollowsUpstream)
        name = "" if following is None else following.following.upstream
        if not name or not root.is_right("upstreams"):
            continue
        upstream, whose = upstreams.get(name), f'the policy of "{link.name}" is that of'
        if upstream is None:
            hint = f"there are: {', '.join(sorted(upstreams))}" if upstreams else "there are no upstreams"
            root.problem(f'{whose} an unknown upstream "{name}"', "authorization", hint)
        elif not upstream.server:
            root.problem(f'{whose} the upstream "{name}", which has no server to ask', "authorization")
        elif not upstream.is_kubernetes:
            root.problem(f'{whose} the upstream "{name}", which is no Kubernetes API server', "authorization")


def _check_routes(upstreams: tuple[UpstreamConfig, ...], root: ConfigSection) -> None:
    for first, second in combinations(upstreams, 2):
        same_host = set(first.hosts) & set(second.hosts) or (not first.hosts and not second.hosts)
        if first.prefix == second.prefix and same_host:
            message = f'the upstreams "{first.name}" and "{second.name}" serve the same host and prefix'
            root.problem(message, "upstreams", "give one of them another prefix, or hosts")
