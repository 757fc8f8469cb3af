"""Deprecated import path of `ostiary.registry.matching.image_match`."""

from ostiary.core.moved import names_from

__getattr__ = names_from("ostiary.registry.matching.image_match", imported_as=__name__)
