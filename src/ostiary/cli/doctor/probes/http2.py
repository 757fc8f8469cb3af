"""The same over HTTP/2, where the proxy makes HTTP/1.1 of it: what is one value there may become several lines here."""

from __future__ import annotations

from ostiary.cli.doctor.judges import denied_path_stays_out, no_claim_arrives, nothing_arrives, one_request_arrives
from ostiary.cli.doctor.probe import INNER, Check, Ground, Group, Judge, Need, Presents, Probe, marked
from ostiary.cli.doctor.probes.identity import spellings
from ostiary.cli.doctor.traffic.observed import Observation, Pairs

PLAIN = Probe(label="a plain request over HTTP/2", http2=())


def checks(ground: Ground) -> tuple[Check, ...]:
    return (
        _check("http2-no-token", "nothing reaches the application without a token", nothing_arrives, _anonymous()),
        _check("http2-identity", "the client's value of a header does not arrive", no_claim_arrives, _claims(ground)),
        _check("http2-lines", "no value becomes a line or a request of its own", _no_line_arrives, _lines(ground)),
        _check("http2-smuggling", "no request arrives inside of another", one_request_arrives, _bodies(ground)),
        _check(
            "http2-paths",
            "the denied path does not arrive",
            denied_path_stays_out,
            _paths(ground) if ground.denied else (),
            Need.DENIED,
        ),
    )


def _check(name: str, asks: str, judge: Judge, probes: tuple[Probe, ...], *needs: Need) -> Check:
    return Check(
        name=name, group=Group.HTTP2, asks=asks, judge=judge, probes=probes, needs=(Need.TOKEN, Need.HTTP2, *needs)
    )


def _no_line_arrives(ground: Ground, probe: Probe, observation: Observation) -> str:
    return no_claim_arrives(ground, probe, observation) or one_request_arrives(ground, probe, observation)


def _anonymous() -> tuple[Probe, ...]:
    methods = (b"GET", b"POST", b"OPTIONS", b"DOCTOR")
    return tuple(
        Probe(label=f"{method.decode()} without a token", method=method, http2=(), presents=Presents.NONE)
        for method in methods
    )


def _claims(ground: Ground) -> tuple[Probe, ...]:
    names = [name.lower() for name in spellings(ground.user_header)]
    names += [ground.user_header, b"x-remote-group", b"x-remote-extra-doctor", b"x-forwarded-user", b"x-http-method"]
    return tuple(
        Probe(label=name.decode(), http2=((name, ground.claim),), claims=(name,)) for name in dict.fromkeys(names)
    )


def _lines(ground: Ground) -> tuple[Probe, ...]:
    claim = ground.user_header + b": " + ground.claim
    target = marked(ground.path)
    written: dict[str, Pairs] = {
        "CR LF in a value": ((b"x-doctor", b"a\r\n" + claim),),
        "LF in a value": ((b"x-doctor", b"a\n" + claim),),
        "CR in a value": ((b"x-doctor", b"a\r" + claim),),
        "CR LF in a name": ((b"x-doctor: a\r\n" + ground.user_header.lower(), ground.claim),),
        "a colon in a name": ((ground.user_header.lower() + b": " + ground.claim + b"\r\nx", b"y"),),
        "a space in a name": ((ground.user_header.lower() + b" ", ground.claim),),
        "CR LF in the path": ((b":path", target + b" HTTP/1.1\r\n" + claim + b"\r\nx-doctor: a"),),
        "CR LF in the method": ((b":method", b"GET " + target + b" HTTP/1.1\r\n" + claim + b"\r\nx-doctor: a"),),
        "CR LF in the authority": ((b":authority", ground.host + b"\r\n" + claim),),
        "a request in a value": ((b"x-doctor", b"a\r\n\r\n" + INNER),),
    }
    return tuple(Probe(label=label, http2=pairs, claims=(ground.user_header,)) for label, pairs in written.items())


def _bodies(ground: Ground) -> tuple[Probe, ...]:
    chunks = b"0\r\n\r\n" + INNER
    written: dict[str, tuple[Pairs, bytes]] = {
        "H2.TE": (((b"transfer-encoding", b"chunked"),), chunks),
        "H2.CL": (((b"content-length", b"0"),), INNER),
        "two lengths": (((b"content-length", b"0"), (b"content-length", b"5")), INNER),
        "Transfer-Encoding by CR LF": (((b"x-doctor", b"a\r\nTransfer-Encoding: chunked"),), chunks),
    }
    return tuple(
        Probe(label=label, method=ground.body_method, http2=pairs, body=body)
        for label, (pairs, body) in written.items()
    )


def _paths(ground: Ground) -> tuple[Probe, ...]:
    denied = ground.denied
    variants = (
        *(denied, b"/x/.." + denied, b"/x/%2e%2e" + denied, b"/" + denied, b"/./" + denied.lstrip(b"/")),
        *(denied.replace(b"/", b"\\"), b"/%2f" + denied.lstrip(b"/"), denied + b"/../x", denied + b"#x"),
        *(b"http://" + ground.host + denied, denied.lstrip(b"/")),
    )
    return tuple(
        Probe(label=path.decode("latin-1"), http2=((b":path", marked(path)),)) for path in dict.fromkeys(variants)
    )
