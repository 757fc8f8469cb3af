"""Deprecated import path of `ostiary.registry.kubelet.watch`."""

from ostiary.core.moved import names_from

__getattr__ = names_from("ostiary.registry.kubelet.watch", imported_as=__name__)
