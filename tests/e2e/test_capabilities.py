"""Capabilities of objects, with the real kubectl: who may create a pod may not thereby create a privileged one. S46."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import trustme

from ostiary_gateway.cli import main
from tests.e2e.test_backend import narrowed
from tests.support.cluster import Cluster
from tests.support.gateway import ServedGateway, Site, role
from tests.support.waiting import until

pytestmark = pytest.mark.needs("kubectl")

PODS = "/api/v1/namespaces/team/pods"
WRITES = {"apiGroups": ["*"], "resources": ["pods", "pods/ephemeralcontainers", "deployments"], "verbs": ["*"]}
READS = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}
OURS = {"apiGroups": ["ostiary.dev"], "resources": ["refusals"], "verbs": ["get"]}


def use(*names: str) -> dict[str, Any]:
    rule: dict[str, Any] = {"apiGroups": ["ostiary.dev"], "resources": ["capabilities"], "verbs": ["use"]}
    return {**rule, "resourceNames": list(names)} if names else rule


@pytest.fixture(scope="module")
def cluster(ca: trustme.CA) -> Iterator[Cluster]:
    with Cluster(ca) as cluster:
        cluster.add_namespace("team")
        cluster.add_namespace("other")
        yield cluster


@pytest.fixture(scope="module")
def gateway(ca: trustme.CA, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedGateway]:
    site = Site(tmp_path_factory.mktemp("capabilities"), ca)
    site.users("dev", "net", "admin", "reader", "root")
    site.policy(
        role("team", WRITES, User="dev"),
        role("team", WRITES, use("host-network", "added-capability:NET_ADMIN"), User="net"),
        role("other", WRITES, User="net"),
        role("team", WRITES, use(), User="admin"),
        role("team", READS, User="reader"),
        role("", OURS, User="root"),
    )
    own = {
        "name": "ours",
        "resources": ["pods"],
        "fields": ["spec.runtimeClassName", "spec.schedulerName"],
        "values": ["kata", "ours"],
    }
    attributes = {"type": "kubernetes", "capabilities": {"preset": "podSecurity", "entries": [own]}}
    upstream = site.impersonating(cluster) | {"attributes": attributes}
    with site.serving(upstreams=[upstream]) as served:
        yield served


@pytest.fixture(scope="module")
def tokens(gateway: ServedGateway) -> dict[str, str]:
    return {user: gateway.login(user).token for user in ("dev", "net", "admin", "reader")}


def pod(name: str, *, context: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    container = {"name": "main", "image": "nginx", **({"securityContext": context} if context else {})}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "team"},
        "spec": {"containers": [container], **spec},
    }


def deployment(name: str, template: dict[str, Any]) -> dict[str, Any]:
    labels = {"app": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": "team"},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": template["spec"]},
        },
    }


PRIVILEGED = {"privileged": True}


def stored(cluster: Cluster, name: str) -> bool:
    return any(record.method == "POST" and name.encode() in record.body for record in cluster.requests)


class TestKubectl:
    """S46: WithCapabilities."""

    def test_a_plain_pod_is_created_and_a_privileged_one_is_not(
        self, gateway: ServedGateway, cluster: Cluster, tokens: dict[str, str]
    ) -> None:
        kubectl = gateway.kubectl(tokens["dev"])
        kubectl.output("create", "-f", "-", stdin=json.dumps(pod("plain")))
        refused = kubectl("create", "-f", "-", stdin=json.dumps(pod("strong", context=PRIVILEGED)))
        assert refused.returncode == 1
        assert 'User "dev" cannot create resource "pods"' in refused.stderr
        asked = "the object asks for the capability privileged"
        assert f'{asked}; this needs "use" of capabilities.ostiary.dev "privileged"' in refused.stderr
        assert stored(cluster, "plain")
        assert not stored(cluster, "strong")

    def test_who_has_the_right_may(self, gateway: ServedGateway, tokens: dict[str, str]) -> None:
        kubectl = gateway.kubectl(tokens["admin"])
        kubectl.output("create", "-f", "-", stdin=json.dumps(pod("of-admin", context=PRIVILEGED, hostPID=True)))
        net = gateway.kubectl(tokens["net"])
        added = {"capabilities": {"add": ["NET_ADMIN", "CHOWN"]}}
        net.output("create", "-f", "-", stdin=json.dumps(pod("of-net", context=added, hostNetwork=True)))
        for name, more in (
            ("pid", pod("x-pid", context=added, hostPID=True)),
            ("raw", pod("x-raw", context={"capabilities": {"add": ["NET_ADMIN", "NET_RAW"]}})),
        ):
            assert net("create", "-f", "-", stdin=json.dumps(more)).returncode == 1, name

    def test_a_right_is_one_in_its_namespace(self, gateway: ServedGateway, tokens: dict[str, str]) -> None:
        elsewhere = pod("elsewhere", hostNetwork=True)
        elsewhere["metadata"]["namespace"] = "other"
        refused = gateway.kubectl(tokens["net"])("create", "-f", "-", stdin=json.dumps(elsewhere))
        assert "host-network" in refused.stderr

    @pytest.mark.parametrize("how", [["apply"], ["apply", "--server-side"], ["create"]], ids=" ".join)
    def test_templates_of_pods_are_pods(self, gateway: ServedGateway, tokens: dict[str, str], how: list[str]) -> None:
        kubectl = gateway.kubectl(tokens["dev"])
        name = "-".join(how).replace("--", "")
        kubectl.output(*how, "-f", "-", stdin=json.dumps(deployment(f"{name}-plain", pod("x"))))
        strong = deployment(f"{name}-strong", pod("x", volumes=[{"name": "v", "hostPath": {"path": "/"}}]))
        refused = kubectl(*how, "-f", "-", stdin=json.dumps(strong))
        assert (refused.returncode, "host-path" in refused.stderr) == (1, True), refused.stderr

    def test_a_patch_is_read_and_a_json_patch_is_not(
        self, gateway: ServedGateway, cluster: Cluster, tokens: dict[str, str]
    ) -> None:
        kubectl, admin = gateway.kubectl(tokens["dev"]), gateway.kubectl(tokens["admin"])
        kubectl.output("create", "-f", "-", stdin=json.dumps(deployment("patched", pod("x"))))
        spec = {"spec": {"template": {"spec": {"hostIPC": True}}}}
        label = {"metadata": {"labels": {"a": "b"}}}
        for kind in ("strategic", "merge"):
            kubectl.output("patch", "deployment", "patched", f"--type={kind}", "-p", json.dumps(label))
            refused = kubectl("patch", "deployment", "patched", f"--type={kind}", "-p", json.dumps(spec))
            assert (refused.returncode, "host-ipc" in refused.stderr) == (1, True), refused.stderr
        harmless = json.dumps([{"op": "add", "path": "/metadata/labels", "value": {"a": "c"}}])
        refused = kubectl("patch", "deployment", "patched", "--type=json", "-p", harmless)
        doubt = "the object may ask for any capability, as its body cannot be read with certainty: it is a JSON patch"
        assert (refused.returncode, doubt in refused.stderr) == (1, True), refused.stderr
        before = len(cluster.requests)
        admin("patch", "deployment", "patched", "--type=json", "-p", harmless)
        # It went on: what the cluster says to it is its own business.
        assert any(record.method == "PATCH" for record in cluster.requests[before:])

    def test_a_capability_of_ones_own(self, gateway: ServedGateway, tokens: dict[str, str]) -> None:
        kubectl = gateway.kubectl(tokens["dev"])
        refused = kubectl("create", "-f", "-", stdin=json.dumps(pod("own", runtimeClassName="kata")))
        assert "the capability ours" in refused.stderr
        kubectl.output("create", "-f", "-", stdin=json.dumps(pod("own", runtimeClassName="runc")))

    def test_can_i_tells(self, gateway: ServedGateway, capsys: pytest.CaptureFixture[str]) -> None:
        config = str(gateway.site.folder / "gateway.yaml")
        question = ["can-i", "use", "capabilities.ostiary.dev", "privileged", "-n", "team", "--config", config]
        assert main([*question, "--user", "dev"]) == 1
        assert main([*question, "--user", "admin"]) == 0
        assert capsys.readouterr().out.split() == ["no", "yes"]


class TestNarrowedTokens:
    def test_a_token_for_pods_is_not_one_for_capabilities(self, gateway: ServedGateway, tokens: dict[str, str]) -> None:
        """S46, S69: its scope must have both."""
        strong = json.dumps(pod("narrowed", context=PRIVILEGED))
        pods = narrowed(gateway, tokens["admin"], "create,get pods -n team")
        with gateway.http(pods) as http:
            refused = http.post(PODS, content=strong, headers={"Content-Type": "application/json"})
        assert (refused.status_code, "beyond this token's scope" in refused.json()["message"]) == (403, True)
        both = narrowed(
            gateway, tokens["admin"], "create,get pods -n team; use capabilities.ostiary.dev --name privileged -n team"
        )
        with gateway.http(both) as http:
            assert http.post(PODS, content=strong, headers={"Content-Type": "application/json"}).status_code == 201


class TestCertainty:
    """S46: what is decided on is what is forwarded, or everything is assumed."""

    def send(self, gateway: ServedGateway, token: str, body: bytes, **headers: str) -> httpx.Response:
        sent = {"Content-Type": "application/json", **{name.replace("_", "-"): each for name, each in headers.items()}}
        with gateway.http(token) as http:
            return http.post(PODS, content=body, headers=sent)

    def test_whoever_may_use_all_goes_on_and_others_learn_why_not(
        self, gateway: ServedGateway, cluster: Cluster, tokens: dict[str, str], subtests: pytest.Subtests
    ) -> None:
        cases: list[tuple[bytes, dict[str, str], str]] = [
            (b'{"spec":{"hostPID":false,"hostPID":true}}', {}, "a field stands twice"),
            (b'{"spec":{"hostpid":true}}', {}, "other letters"),
            (b'{"spec":{"hostPID":"true"}}', {}, "something else"),
            (b'{"spec":{"hostPID":NaN}}', {}, "a number that JSON does not have"),
            (b'{"spec":[]}', {}, "something else"),
            (b"[]", {}, "not an object"),
            (b"{", {}, "not JSON"),
            (b"", {}, "not JSON"),
            (b"\xff", {}, "not UTF-8"),
            (b"{}", {"Content_Type": "application/vnd.kubernetes.protobuf"}, "protobuf"),
            (b"{}", {"Content_Type": "text/plain"}, "content type is another"),
            (b"{}", {"Content_Type": "application/json;as=Pod"}, "parameters"),
            (b"{}", {"Content_Encoding": "gzip"}, "compressed"),
            (b"spec: {hostPID: yes}", {"Content_Type": "application/yaml"}, "readers of YAML differ"),
            (b"a: &a {}\nspec: *a", {"Content_Type": "application/yaml"}, "anchors or tags"),
        ]
        for body, headers, doubt in cases:
            with subtests.test(body=body, headers=headers, doubt=doubt):
                refused = self.send(gateway, tokens["dev"], body, **headers)
                assert refused.status_code == 403
                assert doubt in refused.json()["message"]
                before = len(cluster.requests)
                self.send(gateway, tokens["admin"], body, **headers)
                assert cluster.requests[before].body == body

    def test_plain_yaml_is_read(self, gateway: ServedGateway, tokens: dict[str, str]) -> None:
        body = b"apiVersion: v1\nkind: Pod\nspec:\n  hostNetwork: true\n  containers: []\n"
        refused = self.send(gateway, tokens["dev"], body, Content_Type="application/yaml")
        assert refused.json()["message"].endswith('"use" of capabilities.ostiary.dev "host-network"')

    def test_a_large_object_is_in_doubt(self, gateway: ServedGateway, tokens: dict[str, str]) -> None:
        body = json.dumps({"metadata": {"annotations": {"a": "x" * 2**18}}}).encode()
        assert "it is too large" in self.send(gateway, tokens["dev"], body).json()["message"]

    def test_whoever_may_not_create_it_is_refused_before_it_is_read(
        self, gateway: ServedGateway, tokens: dict[str, str]
    ) -> None:
        refused = self.send(gateway, tokens["reader"], b"{")
        assert (refused.status_code, "capability" in refused.json()["message"]) == (403, False)

    def test_one_answer_is_not_anothers(self, gateway: ServedGateway, tokens: dict[str, str]) -> None:
        """The same request line with another object, again and again, in any order."""
        plain, strong = (json.dumps(pod("turns", context=context)).encode() for context in (None, PRIVILEGED))
        for body, codes in ((plain, (201, 409)), (strong, (403,)), (plain, (409,)), (strong, (403,))):
            assert self.send(gateway, tokens["dev"], body).status_code in codes

    def test_a_chunked_body_goes_on_as_it_came(
        self, gateway: ServedGateway, cluster: Cluster, tokens: dict[str, str]
    ) -> None:
        body = json.dumps(pod("chunked")).encode()
        with gateway.http(tokens["dev"]) as http:
            parts = iter([body[:10], body[10:]])
            answer = http.post(PODS, content=parts, headers={"Content-Type": "application/json"})
        assert answer.status_code == 201
        assert cluster.requests[-1].body == body


def test_the_record_has_them_and_the_refusal_is_explained(
    gateway: ServedGateway, tokens: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """S46, S70."""
    with gateway.http(tokens["dev"]) as http:
        refused = http.post(PODS, json=pod("noted", context=PRIVILEGED, hostPID=True))
    audit_id = refused.headers["Audit-Id"]
    until(lambda: audit_id in gateway.site.audit_log.read_text())
    event = next(each for each in gateway.site.events() if each["auditID"] == audit_id)
    assert event["annotations"]["audit.ostiary.dev/capabilities"] == "host-pid,privileged"
    assert event["annotations"]["authorization.k8s.io/decision"] == "forbid"
    assert event["objectRef"]["resource"] == "pods"
    config = str(gateway.site.folder / "gateway.yaml")
    main(["explain", audit_id, "--config", config])
    told = capsys.readouterr().out
    now = next(line for line in told.splitlines() if line.strip().startswith("now"))
    assert "refused" in now
    # The rule that would allow it.
    assert "capabilities" in told.split(now)[1]
    assert "host-pid" in told.split(now)[1]
    # Nothing has changed: the same policy decides all of them as it did.
    assert main(["policy", "replay", "--config", config, str(gateway.site.audit_log)]) == 0, capsys.readouterr()
