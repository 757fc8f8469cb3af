"""The bench as a program: its suites, its plots, and the recordings that it replays. Nothing is measured here."""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from bench import __main__ as bench
from bench import plots
from bench.mix.recording import FOLDER, NEW, Head, read, read_all, write
from bench.table import Row, as_markdown

README = Path(bench.__file__).with_name("README.md")
GROUPS = {"known head": {"ostiary": 1.8, "Envoy": 4.0}, "new head": {"ostiary": 2.0}}
CURVE = {"decision": [(10, 2.0), (100_000, 2.1)], "first": [(10, 20.0), (100_000, 29.0)]}


@pytest.fixture
def drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(plots, "_folder", tmp_path)
    return tmp_path


def test_every_suite_can_be_imported_and_run() -> None:
    for name, suite in bench.SUITES.items():
        assert callable(importlib.import_module(suite.module).run), name


def test_kept_figures_belong_to_suites() -> None:
    sections = re.findall(r"^## (.+)$", bench.RESULTS.read_text(), re.MULTILINE)
    assert sections == [name for name in bench.SUITES if name in sections]


def test_a_suite_whose_program_is_missing_is_left_out_and_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert bench.main(["heads", "rates"]) == 0
    said = capsys.readouterr()
    assert "heads is left out: there is no nginx, taskset, wrk here" in said.err
    assert "rates is left out: there is no nginx, taskset, h2load here" in said.err
    assert said.out.strip() == ""


def test_a_suite_that_fails_does_not_stop_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def good() -> Iterator[Row]:
        yield Row("a figure", "1")

    def bad() -> Iterator[Row]:
        raise RuntimeError("no answer")

    for name, run in (("bad", bad), ("some-good", good)):
        module = ModuleType(f"bench.made_for_{run.__name__}")
        monkeypatch.setattr(module, "run", run, raising=False)
        monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setitem(bench.SUITES, name, bench.Suite(module.__name__, 1))
    monkeypatch.setattr(bench, "RESULTS", tmp_path / "RESULTS.md")
    assert bench.main(["bad", "some", "--write"]) == 1
    said = capsys.readouterr()
    assert "RuntimeError: no answer" in said.err
    assert said.err.endswith("bench: failed: bad\n")
    assert "about 2 minutes to go" in said.err
    assert "| a figure | 1 | - |" in said.out
    assert "| a figure | 1 | - |" in (tmp_path / "RESULTS.md").read_text()


@pytest.mark.parametrize("arguments", [["haeds"], ["heads", "--quick", "--write"]])
def test_what_cannot_be_done_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        bench.main(arguments)
    assert refused.value.code == 2
    assert "haeds" in (said := capsys.readouterr().err) or "--quick makes no figures" in said


def test_written_figures_replace_those_of_their_suite_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = tmp_path / "RESULTS.md"
    results.write_text("# Figures\n\nold\n\n## rbac\n\nkept\n\n## gateway\n\nreplaced\n")
    monkeypatch.setattr(bench, "RESULTS", results)
    bench._keep({"gateway": "## gateway\n\nnew", "heads": "## heads\n\nnew, too"})
    assert results.read_text().endswith("## rbac\n\nkept\n\n## gateway\n\nnew\n\n## heads\n\nnew, too\n")


def test_the_same_figures_make_the_same_bytes(drawn: Path) -> None:
    texts = []
    for _ in range(2):
        plots.bar_plot(Path("bars.svg"), "CPU", "times", GROUPS, promise={"known head": 1.8})
        plots.line_plot(Path("lines.svg"), "Growth", "bindings", "us", CURVE, log_x=True, promise=5)
        texts.append([(drawn / name).read_text() for name in ("bars.svg", "lines.svg")])
    assert texts[0] == texts[1]


def test_a_plot_is_readable_on_both_grounds_and_its_text_is_text(drawn: Path) -> None:
    plots.line_plot(Path("lines.svg"), "Growth", "bindings", "us", CURVE, log_x=True, promise=5)
    svg = (drawn / "lines.svg").read_text()
    assert "prefers-color-scheme: dark" in svg
    for text in ("Growth", "bindings", "us", "decision", "promised: 5", "100,000"):
        assert f">{text}</text>" in svg
    # Every colour is one of the style sheet's.
    body = svg.partition("</style>")[2]
    assert not re.search(r"(fill|stroke): #", body), "a colour that only fits one ground"
    assert len(svg) < 60_000


def test_a_group_may_lack_a_bar(drawn: Path) -> None:
    plots.bar_plot(Path("bars.svg"), "CPU", "times", GROUPS, promise=2.0)
    bars = (drawn / "bars.svg").read_text()
    assert all(f">{label}</text>" in bars for label in ("1.8", "4.0", "2.0", "known head", "new head", "promised"))


def test_every_plot_is_shown_and_every_shown_plot_is_there() -> None:
    shown = set(re.findall(r"\]\(plots/([\w-]+\.svg)\)", README.read_text()))
    assert shown == {path.name for path in plots.FOLDER.glob("*.svg")}
    root = README.parents[1] / "README.md"
    first_page = set(re.findall(r"\]\(bench/plots/([\w-]+\.svg)\)", root.read_text()))
    assert first_page
    assert first_page <= shown


def test_a_recorded_head_has_no_secret_and_says_what_is_new() -> None:
    head = Head.parse(
        b"GET /api/v1/namespaces/team/pods/web-6c5d67dbfd-x7k2p?resourceVersion=812 HTTP/1.1\r\n"
        b"Host: 127.0.0.1:6443\r\nUser-Agent: kubectl/v1.37.1\r\nAuthorization: Bearer canary\r\nCookie: canary\r\n"
        b"Kubectl-Session: 7a52b2a2-3c0e-4e0a-8a54-0d6d3a1f2b3c\r\n\r\n"
    )
    recorded = head.recorded(b"canary")
    assert recorded.target == f"/api/v1/namespaces/team/pods/web-6c5d67dbfd-{NEW}?resourceVersion={NEW}"
    assert recorded.headers == [
        ("User-Agent", "kubectl/v1.37.1"),
        ("Kubectl-Session", f"00000000-0000-4000-8000-00{NEW}"),
    ]
    assert (recorded.client, recorded.length, recorded.body) == ("kubectl", 6, "")


def test_the_recordings_are_small_and_without_secrets(tmp_path: Path) -> None:
    files = sorted(FOLDER.glob("*.jsonl"))
    assert [file.stem for file in files] == ["dashboard", "kube-controller-manager", "kubectl"]
    assert sum(file.stat().st_size for file in files) < 300_000
    for request in read_all():
        assert not {name.lower() for name, _ in request.headers} & {"authorization", "cookie"}
        assert "eyJ" not in json.dumps([request.target, request.headers, request.body]), "a JWT"
        assert request.body == "" or "/selfsubject" in request.target
    write(tmp_path / "again.jsonl", read(files[0]))
    assert (tmp_path / "again.jsonl").read_bytes() == files[0].read_bytes()


def test_a_table_has_a_line_for_each_row() -> None:
    assert as_markdown([Row("a", "1", "<= 2")]).splitlines()[-1] == "| a | 1 | <= 2 |"
