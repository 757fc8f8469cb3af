"""The preset ``podSecurity``: the controls of the Pod Security Standards as capabilities.

It has the controls of the level Baseline, and those of Restricted that a pod must request: to run as root, and to
escalate privileges. The rules apply to pods, and to pod templates in the built-in kinds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from ostiary_gateway.providers.kubernetes.field_rules import (
    FieldRule,
    Steps,
    Test,
    is_false,
    is_none_of,
    is_not_zero,
    is_one_of,
    is_set,
    is_true,
    is_zero,
)
from ostiary_gateway.providers.kubernetes.object_reading import Unreadable

# Where each kind has its pod: an object with metadata and spec.
_TEMPLATE: Steps = ("spec", "template")
POD_TEMPLATES: Mapping[str, Steps] = {
    "pods": (),
    "pods/ephemeralcontainers": (),
    "podtemplates": ("template",),
    "replicationcontrollers": _TEMPLATE,
    "deployments.apps": _TEMPLATE,
    "replicasets.apps": _TEMPLATE,
    "statefulsets.apps": _TEMPLATE,
    "daemonsets.apps": _TEMPLATE,
    "jobs.batch": _TEMPLATE,
    "cronjobs.batch": ("spec", "jobTemplate", *_TEMPLATE),
    # The controllers of the kinds above can create pods from these.
    "controllerrevisions.apps": ("data", *_TEMPLATE),
}
_CONTAINERS = ("containers", "initContainers", "ephemeralContainers")
# Capabilities that a container may add under Baseline.
_HARMLESS_CAPABILITIES = (
    *("AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE"),
    *("SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"),
)
_SAFE_SYSCTLS = (
    *("kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.ip_unprivileged_port_start"),
    *("net.ipv4.tcp_syncookies", "net.ipv4.ping_group_range", "net.ipv4.ip_local_reserved_ports"),
    *("net.ipv4.tcp_keepalive_time", "net.ipv4.tcp_fin_timeout", "net.ipv4.tcp_keepalive_intvl"),
    "net.ipv4.tcp_keepalive_probes",
)
_SELINUX_TYPES = ("", "container_t", "container_init_t", "container_kvm_t", "container_engine_t")
_APPARMOR_ANNOTATION = "container.apparmor.security.beta.kubernetes.io/"
# Fields of the security context of the pod and of each container.
_CONTEXT: tuple[tuple[str, Steps, Test], ...] = (
    ("host-process", ("windowsOptions", "hostProcess"), is_true),
    ("run-as-root", ("runAsUser",), is_zero),
    ("run-as-root", ("runAsNonRoot",), is_false),
    ("selinux-options", ("seLinuxOptions", "type"), is_none_of(*_SELINUX_TYPES)),
    ("selinux-options", ("seLinuxOptions", "user"), is_none_of("")),
    ("selinux-options", ("seLinuxOptions", "role"), is_none_of("")),
    ("seccomp-unconfined", ("seccompProfile", "type"), is_one_of("Unconfined")),
    ("apparmor-unconfined", ("appArmorProfile", "type"), is_one_of("Unconfined")),
)
_CONTAINER_CONTEXT: tuple[tuple[str, Steps, Test], ...] = (
    ("privileged", ("privileged",), is_true),
    ("privilege-escalation", ("allowPrivilegeEscalation",), is_true),
    ("proc-mount", ("procMount",), is_none_of("", "Default")),
)
_PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
_HOOKS = ("postStart", "preStop")


def _is_unconfined_by_annotation(value: object) -> bool:
    if not isinstance(value, dict):
        raise Unreadable("the annotations are something else in it")
    profiles = [profile for name, profile in value.items() if name.startswith(_APPARMOR_ANNOTATION)]
    return any(
        not isinstance(profile, str)
        or (profile not in ("", "runtime/default") and not profile.startswith("localhost/"))
        for profile in profiles
    )


def _pod_rules() -> Iterator[FieldRule]:
    spec = ("spec",)
    for name, field in (("host-network", "hostNetwork"), ("host-pid", "hostPID"), ("host-ipc", "hostIPC")):
        yield FieldRule(name, (*spec, field), is_true)
    yield FieldRule("host-path", (*spec, "volumes", None, "hostPath"), is_set)
    context = (*spec, "securityContext")
    yield FieldRule("unsafe-sysctl", (*context, "sysctls", None, "name"), is_none_of(*_SAFE_SYSCTLS), names_value=True)
    yield from (FieldRule(name, (*context, *steps), test) for name, steps, test in _CONTEXT)
    yield FieldRule("apparmor-unconfined", ("metadata", "annotations"), _is_unconfined_by_annotation)
    for containers in _CONTAINERS:
        yield from _container_rules((*spec, containers, None))


def _container_rules(container: Steps) -> Iterator[FieldRule]:
    context = (*container, "securityContext")
    for name, steps, test in (*_CONTEXT, *_CONTAINER_CONTEXT):
        yield FieldRule(name, (*context, *steps), test)
    added = (*context, "capabilities", "add", None)
    harmful = is_none_of(*_HARMLESS_CAPABILITIES)
    yield FieldRule("added-capability", added, harmful, names_value=True, in_capitals=True)
    yield FieldRule("host-port", (*container, "ports", None, "hostPort"), is_not_zero)
    handlers = [(probe,) for probe in _PROBES] + [("lifecycle", hook) for hook in _HOOKS]
    for handler in handlers:
        for kind in ("httpGet", "tcpSocket"):
            yield FieldRule("probe-host", (*container, *handler, kind, "host"), is_none_of(""))


_POD_RULES = tuple(_pod_rules())
NAMES = tuple(sorted({rule.name for rule in _POD_RULES}))


def pod_security_rules() -> dict[str, tuple[FieldRule, ...]]:
    """The rules of the preset, by resource."""
    return {
        resource: tuple(replace(rule, steps=(*template, *rule.steps)) for rule in _POD_RULES)
        for resource, template in POD_TEMPLATES.items()
    }
