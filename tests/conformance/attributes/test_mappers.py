"""The bundled attribute mappers keep their contract."""

from __future__ import annotations

import pytest

from ostiary_gateway.providers.http import HttpAttributes, Modifier
from ostiary_gateway.providers.kubernetes.attributes import CapabilitySettings, KubernetesAttributes, Preset
from ostiary_gateway.testing.attributes import AttributesMapperContract


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
