"""The judges: what is wrong with what one request led to. Pure; each is named by the checks in `probes`.

A judge gives a text for a person, which is empty where nothing is wrong. None quotes a token or a secret.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64encode

from ostiary.cli.doctor.path_readings import may_mean
from ostiary.cli.doctor.probe import Ground, Probe
from ostiary.cli.doctor.traffic.observed import Arrival, Observation
from ostiary.gateway.doors.forward.dialects import SECRET_HEADER
from ostiary.gateway.doors.forward.handler import NO_DOOR
from ostiary.gateway.http1.headers import OUR_COOKIES, normal_name

LONGEST_QUOTE = 80
_PLAIN_LENGTH = re.compile(rb"[0-9]+")


def shown(data: bytes) -> str:
    """What came from outside, for one line of a report."""
    text = data[:LONGEST_QUOTE].decode("ascii", "backslashreplace")
    escaped = "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in text)
    return escaped + ("..." if len(data) > LONGEST_QUOTE else "")


# --- who is let in ---


def nothing_arrives(ground: Ground, probe: Probe, observation: Observation) -> str:
    if not observation.has_arrived:
        return ""
    arrival = observation.arrivals[0]
    return f"{probe.label} reached the application as {shown(arrival.method)} {shown(_path(arrival))}"


def user_is_told(ground: Ground, probe: Probe, observation: Observation) -> str:
    """The user arrives once, and is the one of the token."""
    if not observation.has_arrived:
        return f"{probe.label} did not reach the application: the proxy answered {observation.answer.status}"
    name = ground.user_header.decode()
    users = observation.arrivals[0].values(ground.user_header)
    if not users or not users[0]:
        return f"the application was not told the user: no {name} arrived"
    if len(users) > 1:
        return f"{name} arrived {len(users)} times"
    user = users[0].decode("utf-8", "replace")
    if ground.expected_user and user != ground.expected_user:
        return f'{name} was "{shown(users[0])}", and the token is of "{ground.expected_user}"'
    return ""


def user_is_kept(ground: Ground, probe: Probe, observation: Observation) -> str:
    """If it arrives, the user does, too."""
    if not observation.has_arrived:
        return ""
    users = observation.arrivals[0].values(ground.user_header)
    if len(users) == 1 and users[0] and ground.claim not in users[0]:
        return ""
    return f"{probe.label}: {ground.user_header.decode()} arrived {'not at all' if not any(users) else 'otherwise'}"


# --- claims ---


def no_claim_arrives(ground: Ground, probe: Probe, observation: Observation) -> str:
    """No header that could be taken for one of the probe's arrives with what the client said."""
    names = ", ".join(shown(name) for name in sorted(arrived_claims(ground, probe, observation)))
    return f"{names} arrived with the value of the client" if names else ""


def arrived_claims(ground: Ground, probe: Probe, observation: Observation) -> set[bytes]:
    """The names of the headers that arrive with what the client said."""
    claimed = {normal_name(name) for name in probe.claims}
    return {
        name.strip()
        for arrival in observation.arrivals
        for name, value in (*arrival.headers, *arrival.trailers)
        if ground.claim in value and normal_name(name.strip()) in claimed
    }


def no_trailer_arrives(ground: Ground, probe: Probe, observation: Observation) -> str:
    names = {name for arrival in observation.arrivals for name, value in arrival.trailers if ground.claim in value}
    if names:
        return f"{', '.join(shown(name) for name in sorted(names))} arrived after the body, as a trailer"
    return no_claim_arrives(ground, probe, observation)


# --- what the application learns ---


def no_token_arrives(ground: Ground, probe: Probe, observation: Observation) -> str:
    if ground.token is None:
        return ""
    forms = (ground.token.reveal().encode(), encoded_token(ground))
    for arrival in observation.arrivals:
        for name, value in arrival.headers:
            if any(form in value for form in forms):
                return f"the token arrived in {shown(name)}"
        if any(form in arrival.head for form in forms):
            return "the token arrived in the request line"
    return ""


def encoded_token(ground: Ground) -> bytes:
    """The token as browsers send it among the protocols of a WebSocket."""
    token = b"" if ground.token is None else ground.token.reveal().encode()
    return urlsafe_b64encode(token).rstrip(b"=")


def no_secret_arrives(ground: Ground, probe: Probe, observation: Observation) -> str:
    values = [value for arrival in observation.arrivals for value in arrival.values(SECRET_HEADER)]
    return "the secret of the door arrived in X-Ostiary-Door" if any(values) else ""


def no_cookie_of_ours_arrives(ground: Ground, probe: Probe, observation: Observation) -> str:
    cookies = [value for arrival in observation.arrivals for value in arrival.values(b"cookie")]
    ours = [value for value in cookies if ground.claim in value and any(name in value for name in OUR_COOKIES)]
    return "a session cookie of the gateway would arrive" if ours else ""


# --- paths ---


def denied_path_stays_out(ground: Ground, probe: Probe, observation: Observation) -> str:
    """What arrives is nothing that an application could take for the denied path."""
    for arrival in observation.arrivals:
        if may_mean(arrival.target, ground.denied):
            return f"{probe.label} arrived as {shown(_path(arrival))}"
    return ""


def one_host_arrives(ground: Ground, probe: Probe, observation: Observation) -> str:
    for arrival in observation.arrivals:
        hosts = arrival.values(b"host")
        if len(hosts) > 1:
            return f"{probe.label}: {len(hosts)} Host lines arrived"
        if any(ground.claim in host for host in hosts) or ground.claim in arrival.target:
            return f"{probe.label}: the other host arrived"
    return ""


# --- smuggling ---


def one_request_arrives(ground: Ground, probe: Probe, observation: Observation) -> str:
    """Nobody can read two requests in what arrives."""
    if any(arrival.is_inner or arrival.number for arrival in observation.arrivals):
        return f"{probe.label}: the request inside of the body arrived as one of its own"
    doubts = [doubt for doubt in map(framing_doubt, observation.arrivals) if doubt]
    return f"{probe.label}: {doubts[0]}" if doubts else ""


def framing_doubt(arrival: Arrival) -> str:
    """Why two programs could disagree on where the body of this request ends; empty if they cannot."""
    lengths = [value for name, value in arrival.headers if name.strip().lower() == b"content-length"]
    codings = [value for name, value in arrival.headers if name.strip().lower() == b"transfer-encoding"]
    if lengths and codings:
        return "both Content-Length and Transfer-Encoding arrived"
    if len(lengths) > 1 or len(codings) > 1:
        return "a header about the length of the body arrived twice"
    if any(not _PLAIN_LENGTH.fullmatch(value) for value in lengths):
        return f"Content-Length arrived as {shown(lengths[0])}"
    if any(value.lower() != b"chunked" for value in codings):
        return f"Transfer-Encoding arrived as {shown(codings[0])}"
    lines = arrival.head.split(b"\n")[1:]
    if any(line[:1] in (b" ", b"\t") for line in lines):
        return "a header line that continues another arrived"
    if any(name != name.strip() for name, _ in arrival.headers):
        return "a space before the colon of a header arrived"
    if b"\0" in arrival.head or re.search(rb"\r(?!\n|$)", arrival.head):
        return "a NUL or a bare CR arrived in a header"
    return ""


def no_upgrade_arrives(ground: Ground, probe: Probe, observation: Observation) -> str:
    for arrival in observation.arrivals:
        if any(b"h2c" in value.lower() for value in arrival.values(b"upgrade")):
            return f"{probe.label}: Upgrade arrived, which can open a way behind the decision"
    return ""


# --- the gateway itself ---


def no_oracle_answers(ground: Ground, probe: Probe, observation: Observation) -> str:
    """Nobody but the proxy is told what somebody may do."""
    if observation.has_arrived:
        return ""
    answer = observation.answer
    if answer.header(b"x-remote-user"):
        return f"{probe.label} answers anybody: it said who the user is"
    return ""


def gateway_is_not_exposed(ground: Ground, probe: Probe, observation: Observation) -> str:
    answer = observation.answer
    if observation.has_arrived or answer.status != NO_DOOR.code or answer.body != NO_DOOR.body:
        return ""
    return f"{probe.label} of the gateway can be reached through the proxy; it refuses whoever has no secret"


def _path(arrival: Arrival) -> bytes:
    """Without the query, in which the mark is."""
    return arrival.target.partition(b"?")[0]
