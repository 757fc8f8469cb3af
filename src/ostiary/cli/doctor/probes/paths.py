"""Paths with two readings: nothing that an application could take for the denied path may arrive."""

from __future__ import annotations

from ostiary.cli.doctor.judges import denied_path_stays_out, one_host_arrives
from ostiary.cli.doctor.probe import Check, Ground, Group, Need, Probe, marked


def checks(ground: Ground) -> tuple[Check, ...]:
    variants = _variants(ground) if ground.denied else {}
    kinds = {
        "path-dots": ("dot segments, plain and encoded", _DOTS),
        "path-slashes": ("empty segments, encoded slashes and backslashes", _SLASHES),
        "path-parameters": ("parameters after a semicolon", _PARAMETERS),
        "path-encoding": ("letters that are encoded, once or twice; NUL; overlong UTF-8", _ENCODINGS),
        "path-target": ("other forms of the request target: absolute, with a fragment, without a slash", _TARGETS),
    }
    by_path = [
        Check(
            name=name,
            group=Group.PATHS,
            asks=f"the denied path does not arrive by {means}",
            judge=denied_path_stays_out,
            probes=tuple(_probe(ground, label, variants[label]) for label in labels if label in variants),
            needs=(Need.TOKEN, Need.DENIED),
        )
        for name, (means, labels) in kinds.items()
    ]
    return (*by_path, _host_check(ground))


_DOTS = (
    *("/x/../", "/x/%2e%2e/", "/x/.%2e/", "/./", "/%2e/", "out by /../", "out by /%2e%2e/", "out by /.."),
    *("/x/%252e%252e/", "/x/..%00/"),
)
_SLASHES = ("//", "%2f", "..%2f", "\\", "..\\", "%5c", "..%5c", "%252f", "out by %2f..%2f", "///")
_PARAMETERS = (";x", ";/", "/..;/", "/;x/", "out by /..;/", "/.;/")
_ENCODINGS = ("an encoded letter", "a letter encoded twice", "NUL", "overlong dots", "overlong slashes")
_TARGETS = (
    "absolute",
    "absolute with another host",
    "fragment behind",
    "fragment before",
    "no slash",
    "https absolute",
)


def _variants(ground: Ground) -> dict[str, bytes]:
    """By name, what an application may take for the denied path; the label shows the part that is odd."""
    denied, path = ground.denied, ground.path.partition(b"?")[0]
    base = path.rpartition(b"/")[0] + b"/"
    rest, depth = denied.lstrip(b"/"), base.count(b"/")
    up = b"../" * depth
    last = denied.rstrip(b"/").rpartition(b"/")[2][:1] or b"/"
    encoded = denied[: denied.rfind(last)] + b"%%%02x" % last[0] + denied[denied.rfind(last) + 1 :]
    return {
        "/x/../": base + b"x/" + up + rest,
        "/x/%2e%2e/": base + b"x/" + up.replace(b"..", b"%2e%2e") + rest,
        "/x/.%2e/": base + b"x/" + up.replace(b"..", b".%2e") + rest,
        "/./": b"/." + denied,
        "/%2e/": b"/%2e" + denied,
        "out by /../": denied + b"/../" * (denied.count(b"/")) + path.lstrip(b"/"),
        "out by /%2e%2e/": denied + b"/%2e%2e" * denied.count(b"/") + path,
        "out by /..": denied + b"/..",
        "/x/%252e%252e/": base + b"x/" + up.replace(b"..", b"%252e%252e") + rest,
        "/x/..%00/": base + b"x/" + up.replace(b"..", b"..%00") + rest,
        "//": b"/" + denied,
        "///": b"//" + denied,
        "%2f": b"/%2f" + rest,
        "..%2f": base + b"x/" + up.replace(b"/", b"%2f") + rest,
        "\\": b"/\\" + rest,
        "..\\": base + b"x/" + up.replace(b"/", b"\\") + rest,
        "%5c": b"/%5c" + rest,
        "..%5c": base + b"x/" + up.replace(b"/", b"%5c") + rest,
        "%252f": b"/%252f" + rest,
        "out by %2f..%2f": denied + b"%2f.." * denied.count(b"/") + b"%2f" + path.lstrip(b"/"),
        ";x": denied + b";x",
        ";/": denied + b";/",
        "/..;/": base + b"x/" + up.replace(b"/", b";/") + rest,
        "/;x/": b"/;x" + denied,
        "/.;/": b"/.;" + denied,
        "out by /..;/": denied + b"/..;" * denied.count(b"/") + path,
        "an encoded letter": encoded,
        "a letter encoded twice": encoded.replace(b"%", b"%25"),
        "NUL": denied + b"%00",
        "overlong dots": base + b"x/" + up.replace(b"..", b"%c0%ae%c0%ae") + rest,
        "overlong slashes": base + b"x" + b"%c0%af.." * depth + b"%c0%af" + rest,
        "absolute": b"http://" + ground.host + denied,
        "https absolute": b"https://" + ground.host + denied,
        "absolute with another host": b"http://" + ground.claim + b".invalid" + denied,
        "fragment behind": denied + b"#x",
        "fragment before": path + b"#/" + up + rest,
        "no slash": rest,
    }


def _probe(ground: Ground, label: str, path: bytes) -> Probe:
    return Probe(label=f"{path.decode('latin-1')} ({label})", target=marked(path))


def _host_check(ground: Ground) -> Check:
    other = ground.claim + b".invalid"
    return Check(
        name="host",
        group=Group.PATHS,
        asks="one Host arrives, and it is the one that was decided on",
        judge=one_host_arrives,
        probes=(
            Probe(label="two Host lines", lines=(b"Host: " + other,)),
            Probe(
                label="two Host lines, the other one first",
                lines=(b"Host: " + other, b"Host: " + ground.host),
                with_host=False,
            ),
            Probe(label="another host in the request line", target=b"http://" + other + marked(ground.path)),
            Probe(label="a Host with a space before the colon", lines=(b"Host : " + other,)),
        ),
        needs=(Need.TOKEN,),
    )
