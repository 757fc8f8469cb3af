"""Makes an `Examination` of the command line, runs it, and prints the report."""

from __future__ import annotations

import argparse
import re
import secrets
import sys
from dataclasses import replace
from urllib.parse import urlsplit

from ostiary.cli.arguments import JSON, UsageError
from ostiary.cli.authorities import authorities
from ostiary.cli.doctor.examination import Examination
from ostiary.cli.doctor.probe import Ground, Group
from ostiary.cli.doctor.recognition import BUILT_IN, recognised_proxy
from ostiary.cli.doctor.report import Examined, print_examined
from ostiary.cli.doctor.traffic.echo import Echo
from ostiary.cli.doctor.traffic.front import Front, ProxyAddress, proxy_address
from ostiary.cli.exit_codes import FAILED, OK
from ostiary.cli.output import print_note
from ostiary.cli.signin.gateway import GatewayClient
from ostiary.cli.signin.options import chosen_account, chosen_authorities
from ostiary.cli.signin.turn import session_token
from ostiary.cli.token_file import token_text
from ostiary.core.text import fits_token_header
from ostiary.errors import ConfigurationError, ProviderError
from ostiary.gateway.config.values import Address, parse_address
from ostiary.model import Secret

_PATH = re.compile(r"/[!-~]*")
_DENIED = re.compile(r"(?:([A-Z]+) )?(/[!-~]*)")
_HEADER = re.compile(r"[A-Za-z0-9-]+")
_DOOR = re.compile(r"[^/\s?]+/[^/\s?]+")


def run(arguments: argparse.Namespace) -> int:
    address = proxy_address(arguments.through, arguments.host)
    echo_at = _echo_address(arguments.echo)
    authorities_pem = authorities(arguments.ca)
    ground = _ground(arguments, address)
    gateway = None
    if arguments.gateway is not None:
        gateway = Front(proxy_address(arguments.gateway, None, option="--gateway"), authorities_pem, arguments.timeout)
    run_word = secrets.token_hex(8)
    with Echo(echo_at.host, echo_at.port, run_word) as echo:
        front = Front(address, authorities_pem, arguments.timeout)
        stop = _stop_gateway if arguments.while_gateway_down else None
        groups = tuple(group for group in Group if arguments.only is None or group.name.lower() in arguments.only)
        examination = Examination(front, echo, run_word, ground, gateway, print_note, stop, groups)
        plain = examination.prove()
        proxy = arguments.proxy or recognised_proxy(plain, examination.answer_to_nonsense())
        examination.ground = replace(ground, is_gateway=proxy == BUILT_IN)
        findings = tuple(examination.findings())
    examined = Examined(address.url, proxy, front.sent, findings)
    print_examined(examined, as_json=arguments.output == JSON)
    return OK if examined.ok else FAILED


def _stop_gateway() -> None:
    print_note("stop the gateway now, and press Enter")
    if not sys.stdin.readline():
        raise UsageError("nobody says that the gateway is stopped", hint="press Enter once it is")


def _echo_address(text: str) -> Address:
    try:
        return parse_address(text)
    except ValueError as mistake:
        raise UsageError(f"--echo: {mistake}", hint="write it as in 127.0.0.1:9000") from None


# --- what is known of the user and the paths ---


def _ground(arguments: argparse.Namespace, address: ProxyAddress) -> Ground:
    token, user = _token(arguments)
    paths = [_path(text, "--path") for text in arguments.path] or [b"/"]
    denied = [_denied(text) for text in arguments.denied]
    plain = [path for method, path in denied if method in (b"", b"GET")]
    by_method = [(method, path) for method, path in denied if method not in (b"", b"GET")]
    method, method_path = by_method[0] if by_method else (b"", b"")
    if not _HEADER.fullmatch(arguments.user_header):
        raise UsageError("--user-header is not the name of a header", hint="--user-header X-Remote-User")
    if arguments.door is not None and not _DOOR.fullmatch(arguments.door):
        raise UsageError("--door is not a door and an upstream", hint="--door edge/shop")
    return Ground(
        host=address.authority.encode(),
        path=paths[0],
        claim=b"doctor-" + secrets.token_hex(8).encode(),
        token=token,
        denied=plain[0] if plain else b"",
        denied_method=method,
        denied_method_path=method_path,
        paths=tuple(paths[1:]),
        public=tuple(_path(text, "--public") for text in arguments.public),
        user_header=arguments.user_header.encode(),
        expected_user=user,
        door=(arguments.door or "").encode(),
        shares_host_with_gateway=_shares_host(arguments.gateway, address),
        scheme=address.scheme.encode(),
    )


def _path(text: str, option: str) -> bytes:
    if not _PATH.fullmatch(text) or "?" in text or "#" in text:
        raise UsageError(f"{option} is not a path", hint=f"{option} /shop")
    return text.encode()


def _denied(text: str) -> tuple[bytes, bytes]:
    parts = _DENIED.fullmatch(text)
    if parts is None or "?" in text or "#" in text or parts[2] == "/":
        raise UsageError("--denied is not a path below /", hint="--denied /admin, or --denied 'POST /orders'")
    return (parts[1] or "").encode(), parts[2].encode()


def _shares_host(gateway: str | None, address: ProxyAddress) -> bool:
    name = address.authority.rpartition(":")[0] or address.authority
    return gateway is not None and urlsplit(gateway).hostname == name.lower()


def _token(arguments: argparse.Namespace) -> tuple[Secret, str]:
    """The token, and its user as far as anybody says so."""
    expected: str = arguments.expect_user or ""
    if arguments.token_file is not None:
        token = Secret(token_text(arguments.token_file).strip())
        if not fits_token_header(token.reveal()):
            raise ConfigurationError(
                "the file holds no token",
                cause="it is empty, or has other characters than a token",
                where=arguments.token_file,
                code="token-file-unreadable",
            )
        server, authorities_pem = arguments.gateway, authorities(arguments.ca)
    else:
        account = chosen_account(arguments)
        token, authorities_pem = session_token(account, chosen_authorities(arguments, account))
        server = account.server
    if expected or server is None:
        return token, expected
    return token, _user(token, server, authorities_pem)


def _user(token: Secret, server: str, authorities_pem: str | None) -> str:
    try:
        return str(GatewayClient(server, authorities_pem=authorities_pem).whoami(token).get("user", ""))
    except ProviderError as error:
        # Where the gateway has no sign-in, or is not reachable from here, the operator knows whose token it is.
        print_note(f"the gateway does not say whose token it is ({error.summary}): say it with --expect-user")
        return ""
