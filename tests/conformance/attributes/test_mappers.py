"""The bundled attribute mappers keep their contract."""

from __future__ import annotations

import pytest

from ostiary.plugins.http.attributes import HttpAttributes, Modifier
from ostiary.plugins.kubernetes.attributes import KubernetesAttributes
from ostiary.plugins.kubernetes.settings import CapabilitySettings, Preset
from ostiary.testing.attributes import AttributesMapperContract


class TestKubernetesAttributes(AttributesMapperContract):
    @pytest.fixture
    def mapper(self) -> KubernetesAttributes:
        return KubernetesAttributes()


class TestKubernetesAttributesWithCapabilities(AttributesMapperContract):
    @pytest.fixture
    def mapper(self) -> KubernetesAttributes:
        return KubernetesAttributes(CapabilitySettings(preset=Preset.POD_SECURITY).rules())


class TestHttpAttributes(AttributesMapperContract):
    @pytest.fixture
    def mapper(self) -> HttpAttributes:
        return HttpAttributes()


class TestHttpAttributesWithTemplates(AttributesMapperContract):
    @pytest.fixture
    def mapper(self) -> HttpAttributes:
        modifiers = [Modifier("Watch", query="watch"), Modifier("Run", suffix="/exec")]
        return HttpAttributes(modifiers=modifiers, templates=["/{version}/{namespace}/{resource}", "/a/{resource}"])
