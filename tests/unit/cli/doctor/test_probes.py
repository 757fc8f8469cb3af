"""The tables: every check has a remedy, every probe can be sent, and none of them carries what it must not."""

from __future__ import annotations

from ostiary.cli.doctor import command
from ostiary.cli.doctor.command import CLASSES
from ostiary.cli.doctor.probe import Ground, Group, Presents, Probe, request_bytes
from ostiary.cli.doctor.probes import all_checks
from ostiary.cli.doctor.recognition import PROXIES
from ostiary.cli.doctor.remedies import REMEDIES, remedy_lines
from ostiary.cli.doctor.traffic.http_bytes import read_message
from ostiary.model import Secret

MARK = "0123456789abcdef-0007"
GROUND = Ground(
    host=b"shop.example",
    path=b"/shop/x",
    claim=b"doctor-claim",
    token=Secret("a-token"),
    denied=b"/shop/admin",
    denied_method=b"POST",
    denied_method_path=b"/shop/orders",
    paths=(b"/static/a", b"/open/b"),
    public=(b"/open",),
    door=b"edge/shop",
)


def every_probe() -> list[Probe]:
    probes = [probe for check in all_checks(GROUND) for probe in check.probes]
    return [*probes, *(part for probe in probes for part in probe.parts)]


def test_every_check_has_a_name_of_its_own_and_a_remedy() -> None:
    names = [check.name for check in all_checks(GROUND)]
    assert len(names) == len(set(names))
    assert set(names) == set(REMEDIES)


def test_a_remedy_says_something_for_every_proxy() -> None:
    lines = {(name, proxy): remedy_lines(name, proxy) for name in REMEDIES for proxy in ("", *PROXIES)}
    blank = [key for key, remedy in lines.items() if not all(line.strip() for line in remedy)]
    assert not blank, "\n".join(map(str, blank))


def test_the_lines_name_what_arrived() -> None:
    names = ("x-webauth-user", "x_remote_user")
    assert '  proxy_set_header x-webauth-user "";' in remedy_lines("identity-others", "nginx", names)
    assert "  underscores_in_headers off;" in remedy_lines("identity-others", "nginx", names)
    (line,) = [line for line in remedy_lines("identity-others", "traefik", names) if "Regex" in line]
    assert "(?i)^(x.webauth.user|x.remote.user)$" in line
    many = [f"x-webauth-{number}" for number in range(50)]
    assert len(remedy_lines("identity-others", "envoy", many)) < 20


def test_the_command_line_knows_every_class_and_every_proxy() -> None:
    assert tuple(group.name.lower() for group in Group) == CLASSES
    assert command.PROXIES == PROXIES


def test_the_requests_are_a_few_hundred_at_most() -> None:
    assert len(every_probe()) < 400


def test_every_request_is_marked_and_has_nothing_left_to_fill_in() -> None:
    for probe in every_probe():
        data = request_bytes(probe, GROUND, MARK)
        assert data.count(MARK.encode()) >= 2, probe.label
        assert b"@" not in data, probe.label


def test_only_a_probe_that_presents_the_token_has_it() -> None:
    for probe in every_probe():
        has_token = b"Bearer a-token" in request_bytes(probe, GROUND, MARK)
        assert has_token == (probe.presents is Presents.TOKEN), probe.label


def test_the_request_inside_of_a_body_has_no_token() -> None:
    for probe in every_probe():
        _, _, body = request_bytes(probe, GROUND, MARK).partition(b"\r\n\r\n")
        assert b"a-token" not in body
        assert body == b"" or b"GET /shop/x?doctor=" + MARK.encode() + b"i HTTP/1.1" in body or b"doctor" in body


def test_a_body_has_the_length_that_is_said() -> None:
    (probe,) = [probe for probe in every_probe() if probe.label == "CL.TE"]
    data = request_bytes(probe, GROUND, MARK)
    length = next(value for name, value in read_message(data).headers if name == b"Content-Length")
    assert int(length) == len(data.partition(b"\r\n\r\n")[2])


def test_what_is_public_is_not_tried_without_a_token() -> None:
    (check,) = [check for check in all_checks(GROUND) if check.name == "no-token-elsewhere"]
    labels = [probe.label for probe in check.probes]
    assert "/static/a without a token" in labels
    assert not any(label.startswith("/open") for label in labels)
