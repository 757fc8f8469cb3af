"""Deprecated import path of `ostiary.registry.kubelet.config`."""

from ostiary.core.moved import names_from

__getattr__ = names_from("ostiary.registry.kubelet.config", imported_as=__name__)
