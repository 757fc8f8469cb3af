"""The section ``pages`` and the icons of identity providers: mistakes are told at the start, with a way out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ostiary.errors import ConfigurationError
from ostiary.model import Problem
from ostiary_gateway.config import loads
from ostiary_gateway.config.branding import LARGEST_FILE, Branding
from ostiary_gateway.config.gateway_config import GatewayConfig

SVG = '<svg xmlns="http://www.w3.org/2000/svg"/>'


def load(folder: Path, pages: dict[str, Any] | None = None, **identity: Any) -> GatewayConfig:
    (folder / "logo.svg").write_text(SVG)
    (folder / "logo.gif").write_text("GIF89a")
    (folder / "large.svg").write_text(SVG + " " * (LARGEST_FILE - len(SVG)))
    text = {
        "apiVersion": "ostiary.dev/v1",
        "kind": "Gateway",
        "listen": {"address": "127.0.0.1:0"},
        "store": {"type": "memory"},
        "identity": [{"name": "me", "type": "single_user", **identity}],
        "authorization": {"chain": [{"name": "all", "type": "allow_all"}]},
        **({"pages": pages} if pages is not None else {}),
    }
    return loads(json.dumps(text), directory=folder)


def only_problem(folder: Path, pages: dict[str, Any] | None = None, **identity: Any) -> Problem:
    with pytest.raises(ConfigurationError) as caught:
        load(folder, pages, **identity)
    (problem,) = caught.value.problems
    return problem


def test_everything_may_be_left_out(tmp_path: Path) -> None:
    assert load(tmp_path).look == Branding()


def test_what_the_operator_says_is_the_look(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        {"name": "Acme", "logo": "logo.svg", "accent": "#8A1C4A", "help": "mailto:help@acme.test", "languages": ["de"]},
        displayName="Acme accounts",
        iconFile="logo.svg",
    )
    look = config.look
    assert (look.name, look.accent, look.help, look.languages) == ("Acme", "#8a1c4a", "mailto:help@acme.test", ("de",))
    assert look.logo.startswith("data:image/svg+xml;base64,")
    assert look.colours["on_accent"] == "#ffffff"
    (identity,) = config.identity
    assert (identity.label, identity.image) == ("Acme accounts", look.logo)


def test_a_colour_that_people_cannot_read_is_refused_with_one_that_they_can(tmp_path: Path) -> None:
    problem = only_problem(tmp_path, {"accent": "#ffcc00"})
    assert problem.place.path == "pages.accent"
    assert "its contrast is 1.4, and 4.5 is needed" in problem.message
    assert problem.hint is not None
    load(tmp_path, {"accent": problem.hint.split("'")[1]})
    assert only_problem(tmp_path, {"accentDark": "#0b57a4"}).place.path == "pages.accentDark"


def test_a_mistake_has_its_place(tmp_path_factory: pytest.TempPathFactory, subtests: pytest.Subtests) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"accent": "red"}, "it is not a colour"),
        ({"help": "javascript:alert(1)"}, "neither a web address nor mailto:"),
        ({"languages": ["en", "fr"]}, "unknown language"),
        ({"languages": []}, "an empty list would leave no language"),
        ({"languages": ["de", "de"]}, "duplicate entry"),
        ({"name": "x" * 61}, "longer than 60 characters"),
        ({"support": "a\nb"}, "cannot be shown"),
        ({"logo": "logo.gif"}, "neither PNG nor SVG nor WebP"),
        ({"logo": "none.svg"}, "the file cannot be read"),
        ({"logo": "large.svg", "favicon": "large.svg"}, "more than 12 KiB together"),
    ]
    for pages, message in cases:
        with subtests.test(pages=pages, message=message):
            tmp_path = tmp_path_factory.mktemp("case")
            problem = only_problem(tmp_path, pages)
            assert problem.place.path.startswith("pages")
            assert message in problem.message


@pytest.mark.parametrize(
    ("identity", "message"),
    [
        ({"icon": "github"}, "unknown value"),
        ({"icon": "key", "iconFile": "logo.svg"}, "there are two icons"),
        ({"iconFile": "logo.gif"}, "neither PNG nor SVG nor WebP"),
    ],
)
def test_an_icon_is_a_bundled_one_or_an_image(tmp_path: Path, identity: dict[str, Any], message: str) -> None:
    problem = only_problem(tmp_path, **identity)
    assert problem.place.path.startswith("identity[0].icon")
    assert message in problem.message
