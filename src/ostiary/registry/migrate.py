"""Deprecated import path of `ostiary.registry.kubelet.migrate`."""

from ostiary.core.moved import names_from

__getattr__ = names_from("ostiary.registry.kubelet.migrate", imported_as=__name__)
