"""A registry, a store and a model in it."""

from tests.unit.training.registry.conftest import model, registry, registry_uri, store

__all__ = ["model", "registry", "registry_uri", "store"]
