"""What is wrong with the settings of a workload provider is told before it starts, rules that match nobody included."""

from __future__ import annotations

from pathlib import Path

import pytest

from ostiary_gateway.testing import FakeClock
from tests.support.workloads import read_workload

RULE = "rules: [{match: {sub: x}, username: x}]"


def problems(text: str, clock: FakeClock, folder: Path, external_url: str = "https://gateway.example.com") -> list[str]:
    _, noted = read_workload(text, clock, folder, external_url)
    return [f"{problem.place.path}: {problem.message}" for problem in noted]


def test_settings_that_do_not_go_together_are_told(
    tmp_path_factory: pytest.TempPathFactory, subtests: pytest.Subtests
) -> None:
    cases = [
        ("{}", "platform: it is missing: whose tokens these are"),
        ("platform: bitbucket", "platform: unknown value"),
        (f"platform: oidc\n{RULE}", "issuer: it is missing: the URL of the issuer"),
        (f"platform: oidc\nissuer: http://issuer.example\n{RULE}", "issuer: it is not a https URL without a query"),
        ("platform: github", "rules: it is missing: without a rule nobody can sign in"),
        (
            "platform: github\nrules: [{match: {ref: refs/heads/x}}]",
            "rules[0].username: it is missing: the name",
        ),
        ("platform: github\nrules: [{match: {}, username: x}]", "rules[0].match: it is empty: everybody"),
        ("platform: github\nrules: [{username: x}]", "rules[0].match: it is empty: everybody"),
        (f"platform: github\naudiences: []\n{RULE}", "audiences: it is empty: nobody could sign in"),
        (f"platform: github\ntrustDomain: example.org\n{RULE}", "trustDomain: it is of no use for the platform github"),
        (f"platform: github\ncluster: main\n{RULE}", "cluster: it is of no use for the platform github"),
        (f"platform: github\nkeysURL: ftp://x\n{RULE}", "keysURL: it is not a https URL"),
        (f"platform: github\nkeysURL: https://x/y\nkeysFile: keys\n{RULE}", "keysFile: either keysURL or keysFile"),
        (f"platform: github\nalgorithms: [HS256]\n{RULE}", "algorithms: unknown or unsafe algorithm"),
        (f"platform: github\nmaxAge: 300\n{RULE}", "maxAge: it has no unit"),
        (f"platform: github\nextra: {{kubernetes.io/x: sub}}\n{RULE}", 'extra["kubernetes.io/x"]: it is not a key'),
        ("platform: spiffe\nkeysFile: keys", "trustDomain: it is missing: the trust domain"),
        ("platform: spiffe\nkeysFile: keys\ntrustDomain: spiffe://example.org", "trustDomain: it is not the name"),
        ("platform: spiffe\ntrustDomain: example.org", "keysFile: the trust bundle is missing"),
        ("platform: kubernetes\ntokenReview: true", "tokenFile: tokenReview needs it"),
        ("platform: kubernetes\ntokenFile: none", "tokenFile: the API server's token cannot be read"),
        ("platform: kubernetes\nserver: http://10.0.0.1", "server: it is not a https URL"),
        ("platform: kubernetes\nserver: https://x\nkeysFile: keys", "server: the keys are elsewhere"),
        ("platform: kubernetes\nrules: [{match: {}}]", "rules[0]: it does nothing"),
        ("platform: kubernetes\nunknown: 1", "unknown: unknown field"),
        ("platform: github\nrules: [{match: {sub: x}, username: x, nmae: y}]", "rules[0].nmae: unknown field"),
    ]
    for text, expected in cases:
        with subtests.test(text=text, expected=expected):
            clock = FakeClock()
            tmp_path = tmp_path_factory.mktemp("case")
            (tmp_path / "keys").write_text('{"keys": []}')
            assert any(problem.startswith(expected) for problem in problems(text, clock, tmp_path)), problems(
                text, clock, tmp_path
            )


def test_a_rule_that_can_match_nobody_is_told(
    tmp_path_factory: pytest.TempPathFactory, subtests: pytest.Subtests
) -> None:
    cases = [
        ("github", "{repo: acme/shop}", 'it can match nobody: tokens of the platform github have no claim "repo"'),
        ("github", "{repository: shop}", "it can match nobody: it has the form OWNER/NAME"),
        ("github", "{ref: main}", "it can match nobody: it has the form refs/heads/BRANCH"),
        ("gitlab", "{ref: refs/heads/main}", "it can match nobody: GitLab writes a branch"),
        ("gitlab", "{project_path: shop}", "it can match nobody: it has the form GROUP/PROJECT"),
        ("gitlab", "{repository: acme/shop}", "it can match nobody: tokens of the platform gitlab have no claim"),
        ("kubernetes", "{namespace: Shop}", "it can match nobody: it is not the name of a namespace"),
        ("kubernetes", "{repository: x}", "it can match nobody: tokens of the platform kubernetes have no claim"),
        ("github", "{ref: []}", "it matches nobody: the list is empty"),
        ("github", "{ref: ''}", "it is empty, or longer"),
    ]
    for platform, match, expected in cases:
        with subtests.test(platform=platform, match=match, expected=expected):
            clock = FakeClock()
            tmp_path = tmp_path_factory.mktemp("case")
            text = f"platform: {platform}\nrules: [{{match: {match}, username: x}}]"
            assert any(expected in problem for problem in problems(text, clock, tmp_path)), problems(
                text, clock, tmp_path
            )


def test_a_rule_after_one_that_matches_all_of_it_is_told(
    tmp_path_factory: pytest.TempPathFactory, subtests: pytest.Subtests
) -> None:
    cases = [
        ("{ref: refs/heads/main}", "{ref: refs/heads/main, actor: x}", True),
        ("{ref: 'refs/heads/*'}", "{ref: [refs/heads/a, refs/heads/b]}", True),
        ("{ref: '**'}", "{ref: 'refs/heads/*'}", True),
        ("{ref: [refs/heads/a, refs/heads/b]}", "{ref: refs/heads/b}", True),
        ("{ref: 'refs/heads/*'}", "{ref: refs/heads/a/b}", False),
        ("{ref: refs/heads/main, actor: x}", "{ref: refs/heads/main}", False),
        ("{ref: refs/heads/main}", "{actor: x}", False),
    ]
    for first, second, hidden in cases:
        with subtests.test(first=first, second=second, hidden=hidden):
            clock = FakeClock()
            tmp_path = tmp_path_factory.mktemp("case")
            text = f"platform: github\nrules: [{{match: {first}, username: a}}, {{match: {second}, username: b}}]"
            told = [problem for problem in problems(text, clock, tmp_path) if "comes first" in problem]
            assert bool(told) is hidden


@pytest.mark.parametrize(
    "rule", ["username: 'system:x'", "username: x, groups: ['system:masters']", "username: x, uid: 'system:{sub}'"]
)
def test_a_template_for_a_name_of_the_system_is_told(clock: FakeClock, tmp_path: Path, rule: str) -> None:
    for platform in ("github", "kubernetes\ncluster: main"):
        text = f"platform: {platform}\nrules: [{{match: {{sub: x}}, {rule}}}]"
        assert any("no rule gives names that begin with system:" in each for each in problems(text, clock, tmp_path))


def test_a_claim_in_a_template_that_no_token_has_is_told_with_the_one_that_is_meant(
    clock: FakeClock, tmp_path: Path
) -> None:
    _, noted = read_workload("platform: github\nrules: [{match: {sub: x}, username: '{repositori}'}]", clock, tmp_path)
    assert [problem.hint for problem in noted] == ["did you mean repository?"]


def test_without_an_audience_and_an_external_url_it_does_not_start(clock: FakeClock, tmp_path: Path) -> None:
    text = "platform: kubernetes"
    assert problems(text, clock, tmp_path) == []
    assert problems(text, clock, tmp_path, external_url="") == ["audiences: it is missing: whom a token must be for"]
