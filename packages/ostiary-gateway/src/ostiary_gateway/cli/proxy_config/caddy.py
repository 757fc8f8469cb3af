"""The configuration of Caddy, with ``forward_auth``. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from ostiary_gateway.cli.proxy_config.layout import ANY_HOST, Backend, Layout, prefixes
from ostiary_gateway.extauth.dialects import SIGN_IN_PATHS

# The forwarding header that Caddy does not overwrite itself.
_NOT_OVERWRITTEN = ("x-forwarded-port",)
_HEAD = """\
# {title}.
# It holds the secret of the door: chmod 600. It is a whole Caddyfile; the sites can also be put into another one. For
# HTTPS, write the names of the sites without "http://" and the port, and leave out auto_https.
{{
	auto_https off
	admin off
}}
"""
_SITE = """\
http://{host}:{port} {{
	bind {bind}
{handles}	handle {{
		respond 404
	}}
}}
"""
_OTHER_HOSTS = """\
# No upstream has this host.
http://:{port} {{
	bind {bind}
	respond 421
}}
"""
_HANDLE = """\
	@{name} {match}
	handle @{name} {{
		# In this order, and not in that of Caddy's own.
		route {{
			# Whatever Connection names is taken out before a request is passed on: also who the user is.
			@{name}-stays not header_regexp Connection {upgrade}
			request_header @{name}-stays -Connection
			@{name}-switches header_regexp Connection {upgrade}
			request_header @{name}-switches Connection Upgrade
			# What a client could claim to be. Impersonate-* and Authorization are for the gateway, and go afterwards.
{claims}			forward_auth {gateway} {{
				uri {path}
{proof}				# Who the user is, from the answer, in the place of what the client claims.
				copy_headers {identity}
			}}
			request_header -Impersonate*
			request_header -Authorization
{cookies}			# The path passes as the client wrote it, which is what was decided on.
			reverse_proxy {backend}{transport}
		}}
	}}
"""
_COOKIES = """\
			# The client's cookies without those of the gateway; if none are left, there is no such header.
			request_header -Cookie
			@Cookies-{name} header X-Ostiary-Cookie *
			request_header @Cookies-{name} Cookie {{http.request.header.X-Ostiary-Cookie}}
			request_header -X-Ostiary-Cookie
"""
_SIGN_IN = """\
	# Browsers come back from sign-in here, or sign out. Nothing else of the gateway is at this host.
	@{name} path {path}
	handle @{name} {{
		rewrite * {path}
		reverse_proxy {gateway} {{
			# Not as the client writes it, who could name another host.
			header_up Host {host}
{trust}		}}
	}}
"""
_TRANSPORT = """\
 {{
				transport http {{
					tls_server_name {name}
{authorities}				}}
			}}"""
# Matches a Connection header with this name.
_UPGRADE = r'"(?i)(^|,)[ \t]*upgrade[ \t]*(,|$)"'


def configuration(layout: Layout) -> str:
    sites = [_site(layout, host, backends) for host, backends in layout.sites().items()]
    if ANY_HOST not in layout.sites():
        sites.append(_OTHER_HOSTS.format(port=layout.listen_port, bind=layout.listen_host))
    return "\n".join([_HEAD.format(title=layout.title), *sites])


def _site(layout: Layout, host: str, backends: Sequence[Backend]) -> str:
    handles = "".join(_handle(layout, backend) for backend in backends)
    if sign_in_host := layout.sign_in_host(host):
        handles = "".join(_sign_in(layout, path, sign_in_host) for path in SIGN_IN_PATHS) + handles
    return _SITE.format(host=host, port=layout.listen_port, bind=layout.listen_host, handles=handles)


def _sign_in(layout: Layout, path: str, host: str) -> str:
    trust = ""
    if layout.gateway.scheme == "https":
        trust = f"\t\t\ttransport http {{\n\t\t\t\ttls_trust_pool file {layout.ca}\n\t\t\t}}\n"
    # Upstream names have no capital letters, so this cannot collide.
    name = "SignIn" + path.replace("/", "-")
    return _SIGN_IN.format(name=name, path=path, gateway=layout.gateway.geturl(), host=host, trust=trust)


def _handle(layout: Layout, backend: Backend) -> str:
    # Caddy's own path matcher is case-insensitive.
    match = "path /*" if backend.prefix == "/" else f"path_regexp {backend.prefix_pattern}"
    return _HANDLE.format(
        name=backend.name,
        match=match,
        upgrade=_UPGRADE,
        claims="".join(f"\t\t\trequest_header -{name}\n" for name in _claims(layout)),
        gateway=layout.gateway.geturl(),
        path=layout.question_path(backend),
        proof="".join(f"\t\t\t\t{line}\n" for line in _proof(layout)),
        identity=" ".join(layout.copied_headers(backend)),
        cookies=_COOKIES.format(name=backend.name) if layout.cleans_cookies else "",
        backend=backend.url.geturl(),
        transport=_transport(backend) if backend.is_tls else "",
    )


def _transport(backend: Backend) -> str:
    authorities = "" if backend.ca is None else f"\t\t\t\t\ttls_trust_pool file {backend.ca}\n"
    return _TRANSPORT.format(name=backend.certificate_name, authorities=authorities)


def _claims(layout: Layout) -> list[str]:
    """Return the names to delete before the query to the gateway; a trailing star makes a prefix."""
    beginnings = [prefix for prefix in prefixes(layout.drop_headers) if prefix != "impersonate"]
    for_gateway = ("authorization", "impersonate", *beginnings)
    return [
        *(f"{prefix}*" for prefix in beginnings),
        *(name for name in layout.cleared if not name.startswith(for_gateway)),
        *_NOT_OVERWRITTEN,
    ]


def _proof(layout: Layout) -> list[str]:
    """Return how Caddy authenticates to the gateway, and the gateway to Caddy."""
    lines = []
    if layout.secret is not None:
        lines.append(f'header_up X-Ostiary-Door "{layout.secret.reveal()}"')
    # Caddy sends the method and the path itself. The query must describe an upgrade, but not be one.
    lines += [
        "header_up X-Original-Host {http.request.hostport}",
        "header_up X-Original-Upgrade {http.request.header.Upgrade}",
        "header_up -Upgrade",
    ]
    lines += ["transport http {", "\tdial_timeout 2s", "\tresponse_header_timeout 15s"]
    if layout.gateway.scheme == "https":
        lines.append(f"\ttls_trust_pool file {layout.ca}")
    if layout.certificate is not None:
        lines.append(f"\ttls_client_auth {layout.certificate} {layout.key}")
    return [*lines, "}"]
