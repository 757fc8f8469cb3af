"""The message catalogue: every text in every language, nothing unused, and no text for people anywhere else."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

from ostiary.core.languages import LANGUAGES
from ostiary_gateway.login.pages.messages import catalogue, recognized, values_in

PACKAGES = Path(__file__).parents[2] / "packages"
# Of the gateway and of what it shares with the client.
MODULES = sorted(PACKAGES.glob("*/src/**/*.py"))
ASSETS = PACKAGES / "ostiary-gateway" / "src" / "ostiary_gateway" / "login" / "pages" / "assets"
OTHERS = LANGUAGES[1:]
TEMPLATES = sorted(ASSETS.rglob("*.html"))
# Ids that the code puts together, as in say(f"error.heading_{code}").
MADE_IDS = re.compile(
    r"(time\.month|error\.heading|error\.advice)_\d+|.+\.(zero|one|other)|command_line\.(ended|failed|used|unknown)(_title)?|language|refusals\..+"
)
READ_BY_PEOPLE = ("aria-label", "placeholder", "title", "alt", "value")
# Which argument of a call is a sentence that a page may show.
SENTENCES = {"LoginRefused": 0, "answers.error": 1, "NotPossible": 0}
# Names and examples that are the same in every language.
SAME_EVERYWHERE = re.compile(
    r"[^A-Za-z]*|get|pods|get,list pods -n shop|/healthz|release-agent|XXXX-XXXX|true|approve|deny"
    r"|2030-01-31T1[48]:00|/api/v1"
)


def test_each_language_has_a_file_and_each_file_is_a_language() -> None:
    assert {path.stem for path in (ASSETS / "messages").iterdir()} == set(LANGUAGES)


@pytest.mark.parametrize("language", OTHERS)
def test_every_language_has_the_same_messages_with_the_same_values_and_tags(language: str) -> None:
    english, texts = catalogue(LANGUAGES[0]), catalogue(language)
    assert english.keys() == texts.keys()
    different = [
        message
        for message, text in english.items()
        if values_in(text) != values_in(texts[message]) or _tags(text) != _tags(texts[message])
    ]
    assert different == []


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_text_is_a_safe_piece_of_html(language: str) -> None:
    for message, text in catalogue(language).items():
        assert text == text.strip() != "", message
        if message.startswith("refusals."):
            # Plain text, which a page escapes.
            continue
        rest = re.sub(r"</?(b|code)>|</a>|<a href=\"(/auth[a-z/]*|\{url\})\">", "", text)
        assert not re.search(r"[<>\"]|&(?!amp;)", rest), f"{language}, {message}: {rest}"


def test_every_message_is_used() -> None:
    used = {message for path in TEMPLATES for message in _messages_in(path.read_text())}
    for path in MODULES:
        used |= set(re.findall(r"[\"']([a-z_]+\.[a-z0-9_.]+)[\"']", path.read_text()))
    unused = [message for message in catalogue(LANGUAGES[0]) if message not in used and not MADE_IDS.fullmatch(message)]
    assert unused == []
    counted = {message.rpartition(".")[0] for message in catalogue(LANGUAGES[0]) if message.endswith(".other")}
    assert counted - used - {"replicas"} == set()


def test_what_a_template_says_is_in_the_catalogue() -> None:
    for path in TEMPLATES:
        unknown = [message for message in _messages_in(path.read_text()) if message not in catalogue(LANGUAGES[0])]
        assert unknown == [], path.name


def test_a_template_has_no_text_of_its_own(subtests: pytest.Subtests) -> None:
    for path in TEMPLATES:
        with subtests.test(path.stem):
            reader = _Texts()
            reader.feed(re.sub(r"\{\{\w+\}\}|\[\[[\w.]+\]\]", "", path.read_text()))
            assert [text for text in reader.texts if not SAME_EVERYWHERE.fullmatch(text.strip())] == []


def test_a_message_with_tags_is_in_no_attribute() -> None:
    for path in TEMPLATES:
        attributes = re.findall(r"=\"([^\"]*)\"", path.read_text())
        for message in _messages_in(" ".join(attributes)):
            assert not _tags(catalogue(LANGUAGES[0])[message]), f"{path.name}: {message}"


def test_every_refusal_that_a_page_may_show_has_a_translation() -> None:
    """The first argument of a LoginRefused, and what `answers.error` says. The command line speaks English."""
    sentences = {
        (path, text)
        for path in MODULES
        if "cli" not in path.relative_to(PACKAGES).parts
        for text in _refusals_in(ast.parse(path.read_text()), path)
    }
    assert len(sentences) > 80
    assert [
        f"{path.relative_to(PACKAGES)}: {text}" for path, text in sorted(sentences) if not recognized(text)[0]
    ] == []


def test_every_refusal_of_the_catalogue_is_one_of_the_code() -> None:
    """A sentence that was reworded would be shown in English."""
    literals = "\n".join(
        node.value
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
    for message, text in catalogue(LANGUAGES[0]).items():
        if message.startswith("refusals."):
            pieces = [piece.strip(': "?') for piece in re.split(r"\{\w+\}", text)]
            assert all(piece in literals for piece in pieces), f"{message}: {text}"


def _refusals_in(tree: ast.AST, path: Path) -> Iterator[str]:
    constants = {
        target.id: node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        index = SENTENCES.get(ast.unparse(node.func))
        if path.name == "lockout.py" and ast.unparse(node.func) == "_refusal":
            index = 0
        # What takes them over from elsewhere has no literal.
        if index is None or len(node.args) <= index:
            continue
        argument = node.args[index]
        if isinstance(argument, ast.Name):
            argument = constants.get(argument.id, argument)
        if isinstance(argument, (ast.Constant, ast.JoinedStr)):
            text = _as_text(argument)
            # Service accounts have no page.
            if "service account" not in text or index == 1:
                yield text


def _as_text(node: ast.Constant | ast.JoinedStr) -> str:
    """A literal, with something in the place of each value."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    return "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values)


def _messages_in(text: str) -> list[str]:
    return re.findall(r"\[\[([\w.]+)\]\]", text)


def _tags(text: str) -> Counter[str]:
    return Counter(re.findall(r"<[^>]+>", text))


class _Texts(HTMLParser):
    """What of a template people read."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.texts += [value for name, value in attrs if name in READ_BY_PEOPLE and value]

    def handle_data(self, data: str) -> None:
        self.texts.append(data)
