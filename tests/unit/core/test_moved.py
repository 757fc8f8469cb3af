"""Import paths that a page of the documentation named once."""

from __future__ import annotations

from importlib import import_module

import pytest

MOVED = {
    "ostiary.registry.config": ("ostiary.registry.kubelet.config", "load"),
    "ostiary.registry.image_match": ("ostiary.registry.matching.image_match", "why_not"),
    "ostiary.registry.migrate": ("ostiary.registry.kubelet.migrate", "migrate"),
    "ostiary.registry.watch": ("ostiary.registry.kubelet.watch", "Watch"),
}


@pytest.mark.parametrize("old", MOVED)
def test_a_documented_import_path_that_moved_still_works_and_says_where_its_names_are(old: str) -> None:
    new, name = MOVED[old]
    with pytest.warns(DeprecationWarning, match=f"import {name} from {new}"):
        value = getattr(import_module(old), name)
    assert value is getattr(import_module(new), name)


@pytest.mark.parametrize("old", MOVED)
def test_a_name_that_never_was_there_is_an_attribute_error(old: str) -> None:
    with pytest.raises(AttributeError):
        _ = import_module(old).no_such_name
