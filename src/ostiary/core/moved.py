"""Names that were documented at another import path keep working there, with a warning that says where they are now."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib import import_module


def names_from(module: str, *, imported_as: str) -> Callable[[str], object]:
    """The ``__getattr__`` of a module whose names are now in *module*."""

    def __getattr__(name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        value: object = getattr(import_module(module), name)
        warnings.warn(f"{imported_as} has moved: import {name} from {module}", DeprecationWarning, stacklevel=2)
        return value

    return __getattr__
