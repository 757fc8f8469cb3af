"""Which capabilities an object asks for. S46."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostiary.model import RequestInfo
from ostiary_gateway.interfaces.attributes import RequestContent
from ostiary_gateway.providers.kubernetes.attributes import MOST_NAMES, CapabilityEntry, CapabilitySettings, Preset
from ostiary_gateway.providers.kubernetes.pod_security import NAMES, POD_TEMPLATES

RULES = CapabilitySettings(preset=Preset.POD_SECURITY).rules()
CONTAINERS = ("containers", "initContainers", "ephemeralContainers")
# What the Pod Security Standards list, and what it makes.
OF_POD: list[tuple[str, dict[str, Any]]] = [
    ("host-network", {"hostNetwork": True}),
    ("host-pid", {"hostPID": True}),
    ("host-ipc", {"hostIPC": True}),
    ("host-path", {"volumes": [{"name": "a", "emptyDir": {}}, {"name": "b", "hostPath": {"path": "/"}}]}),
    ("host-process", {"securityContext": {"windowsOptions": {"hostProcess": True}}}),
    ("run-as-root", {"securityContext": {"runAsUser": 0}}),
    ("run-as-root", {"securityContext": {"runAsNonRoot": False}}),
    ("selinux-options", {"securityContext": {"seLinuxOptions": {"type": "spc_t"}}}),
    ("selinux-options", {"securityContext": {"seLinuxOptions": {"user": "u"}}}),
    ("seccomp-unconfined", {"securityContext": {"seccompProfile": {"type": "Unconfined"}}}),
    ("apparmor-unconfined", {"securityContext": {"appArmorProfile": {"type": "Unconfined"}}}),
    ("unsafe-sysctl:kernel.msgmax", {"securityContext": {"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}}),
]
OF_CONTAINER: list[tuple[str, dict[str, Any]]] = [
    ("privileged", {"securityContext": {"privileged": True}}),
    ("privilege-escalation", {"securityContext": {"allowPrivilegeEscalation": True}}),
    ("added-capability:NET_ADMIN", {"securityContext": {"capabilities": {"add": ["CHOWN", "NET_ADMIN"]}}}),
    ("added-capability:SYS_ADMIN", {"securityContext": {"capabilities": {"add": ["sys_admin"]}}}),
    ("added-capability", {"securityContext": {"capabilities": {"add": ["a b"]}}}),
    ("proc-mount", {"securityContext": {"procMount": "Unmasked"}}),
    ("run-as-root", {"securityContext": {"runAsUser": 0}}),
    ("seccomp-unconfined", {"securityContext": {"seccompProfile": {"type": "Unconfined"}}}),
    ("host-port", {"ports": [{"containerPort": 80}, {"containerPort": 81, "hostPort": 81}]}),
    ("probe-host", {"livenessProbe": {"httpGet": {"host": "10.0.0.1", "port": 80}}}),
    ("probe-host", {"lifecycle": {"preStop": {"tcpSocket": {"host": "10.0.0.1", "port": 80}}}}),
]
HARMLESS: dict[str, Any] = {
    "hostNetwork": False,
    "hostPID": None,
    "volumes": [{"name": "a", "emptyDir": {}}],
    "securityContext": {
        "runAsUser": 1000,
        "runAsNonRoot": True,
        "seLinuxOptions": {"type": "container_t", "level": "s0"},
        "seccompProfile": {"type": "RuntimeDefault"},
        "sysctls": [{"name": "net.ipv4.tcp_syncookies", "value": "1"}],
    },
    "containers": [
        {
            "name": "a",
            "ports": [{"containerPort": 80, "hostPort": 0}],
            "livenessProbe": {"httpGet": {"port": 80}},
            "securityContext": {
                "privileged": False,
                "allowPrivilegeEscalation": False,
                "procMount": "Default",
                "capabilities": {"add": ["CHOWN"], "drop": ["ALL"]},
            },
        }
    ],
}


def info_of(resource: str, verb: str = "create") -> RequestInfo:
    plain, _, subresource = resource.partition("/")
    name, _, group = plain.partition(".")
    return RequestInfo(
        verb, "", "", is_resource=True, resource=name, api_group=group, subresource=subresource, namespace="team"
    )


def asked(document: object, resource: str = "pods", verb: str = "create") -> tuple[str, ...]:
    kind = "application/strategic-merge-patch+json" if verb == "patch" else "application/json"
    reading = RULES.read(info_of(resource, verb), RequestContent((kind,), (), json.dumps(document).encode()))
    assert not reading.doubt, reading.doubt
    return reading.names


def in_template(resource: str, pod: dict[str, Any]) -> dict[str, Any]:
    document = pod
    for step in reversed(POD_TEMPLATES[resource]):
        document = {str(step): document}
    return document


def test_every_kind_that_has_a_pod_is_read(subtests: pytest.Subtests) -> None:
    """S46."""
    for resource in POD_TEMPLATES:
        for verb in ["create", "update", "patch"]:
            with subtests.test(resource=resource, verb=verb):
                assert RULES.cover(info_of(resource, verb))
                for name, spec in OF_POD:
                    assert asked(in_template(resource, {"spec": spec}), resource, verb) == (name,)
                for containers in CONTAINERS:
                    for name, container in OF_CONTAINER:
                        spec = {containers: [{"name": "first"}, {"name": "second", **container}]}
                        assert asked(in_template(resource, {"spec": spec}), resource, verb) == (name,)
                assert asked(in_template(resource, {"spec": HARMLESS}), resource, verb) == ()


def test_the_older_way_to_choose_a_profile() -> None:
    key = "container.apparmor.security.beta.kubernetes.io/main"
    assert asked({"metadata": {"annotations": {key: "unconfined"}}}) == ("apparmor-unconfined",)
    for profile in ("runtime/default", "localhost/ours"):
        assert asked({"metadata": {"annotations": {key: profile, "other": "unconfined"}}}) == ()


def test_no_other_body_is_read(subtests: pytest.Subtests) -> None:
    cases = [
        ("pods", "get"),
        ("pods", "delete"),
        ("pods", "deletecollection"),
        ("pods/status", "update"),
        ("pods/eviction", "create"),
        ("deployments.apps/scale", "patch"),
        ("deployments", "create"),
        ("configmaps", "create"),
    ]
    for resource, verb in cases:
        with subtests.test(resource=resource, verb=verb):
            assert not RULES.cover(info_of(resource, verb))


@given(
    st.sampled_from([(name, {"spec": spec}) for name, spec in OF_POD]),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=4),
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
        max_leaves=6,
    ),
    st.sampled_from(["spec", "metadata", "spec.containers", "spec.securityContext", "spec.volumes"]),
)
def test_nothing_beside_it_hides_it(dangerous: tuple[str, dict[str, Any]], other: object, where: str) -> None:
    """S46: what stands elsewhere in the object, of whatever type, leaves the capability there, or all are assumed."""
    name, document = dangerous
    document = json.loads(json.dumps(document))
    *parents, last = where.split(".")
    place = document
    for parent in parents:
        place = place[parent]
    if last in place and isinstance(place[last], dict) and isinstance(other, dict):
        place[last] = {**other, **place[last]}
    elif last not in place:
        place[last] = other
    reading = RULES.read(info_of("pods"), RequestContent((), (), json.dumps(document).encode()))
    assert name in reading.names or reading.doubt


@given(st.binary(max_size=100))
def test_whatever_cannot_be_read_has_them_all(body: bytes) -> None:
    reading = RULES.read(info_of("pods"), RequestContent((), (), body))
    try:
        document = json.loads(body)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        assert (reading.names, bool(reading.doubt)) == (NAMES, True)


def test_what_is_not_what_it_should_be_is_in_doubt(subtests: pytest.Subtests) -> None:
    cases = [
        {"spec": {"HostNetwork": True}},
        {"Spec": {}},
        {"spec": {"hostNetwork": 1}},
        {"spec": {"containers": {"a": {}}}},
        {"spec": {"containers": ["x"]}},
        {"spec": {"containers": [{"ports": [{"hostPort": "80"}]}]}},
        {"spec": {"containers": [{"securityContext": {"capabilities": {"add": "ALL"}}}]}},
        {"spec": {"securityContext": {"runAsUser": 0.0}}},
        {"metadata": {"annotations": []}},
    ]
    for document in cases:
        with subtests.test(document=document):
            reading = RULES.read(info_of("pods"), RequestContent((), (), json.dumps(document).encode()))
            assert (reading.names, bool(reading.doubt)) == (NAMES, True)


def test_an_object_cannot_make_us_ask_any_number_of_questions() -> None:
    added = {"capabilities": {"add": [f"CAP_{number}" for number in range(MOST_NAMES + 1)]}}
    document = {"spec": {"containers": [{"securityContext": added}]}}
    reading = RULES.read(info_of("pods"), RequestContent((), (), json.dumps(document).encode()))
    assert reading.doubt == "it asks for too many"


@pytest.mark.parametrize(
    "document",
    [
        {"spec": {"containers": [{}] * 20_000}},
        {"spec": {f"field-{number}": 1 for number in range(5_000)}},
    ],
)
def test_an_object_cannot_keep_everybody_else_waiting(document: object) -> None:
    """S73: all rules together look at so much and no more."""
    reading = RULES.read(info_of("pods"), RequestContent((), (), json.dumps(document).encode()))
    assert (reading.names, reading.doubt) == (NAMES, "it has too many parts")


def test_a_large_pod_is_read() -> None:
    container = {**HARMLESS["containers"][0], "env": [{"name": f"E{number}", "value": "x"} for number in range(100)]}
    assert asked({"spec": {**HARMLESS, "containers": [container] * 40}}) == ()


def test_capabilities_of_ones_own() -> None:
    entry = CapabilityEntry(
        name="gpu",
        resources=("pods", "machines.example.com"),
        fields=('spec.containers[*].resources.limits["nvidia.com/gpu"]', "spec.kind"),
        values=(),
    )
    kata = CapabilityEntry(
        name="kata", resources=("pods",), fields=("spec.runtimeClassName", "spec.x"), values=("kata", "true", "7")
    )
    rules = CapabilitySettings(entries=(entry, kata)).rules()

    def names(document: object, resource: str = "pods") -> tuple[str, ...]:
        return rules.read(info_of(resource), RequestContent((), (), json.dumps(document).encode())).names

    assert names({"spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": 1}}}]}}) == ("gpu",)
    assert names({"spec": {"kind": "large"}}, "machines.example.com") == ("gpu",)
    for value in list[object](("kata", True, 7)):
        assert names({"spec": {"x": value}}) == ("kata",)
    for value in list[object](("other", False, 8, None)):
        assert names({"spec": {"x": value}}) == ()
    assert names({"spec": {"x": {}}}) == ("gpu", "kata")
    assert names({"spec": {"hostNetwork": True}}) == ()
    assert not rules.cover(info_of("deployments.apps"))
