"""Modules of the product do not import one another in a circle. Imports inside of functions count, those for type checking do not."""

from __future__ import annotations

from typing import Final

import grimp

PACKAGES: Final = ("training", "nightshift", "devstack", "tools")


def circles_of(graph: grimp.ImportGraph) -> frozenset[frozenset[str]]:
    """Return the groups of modules of which each one reaches each other one."""
    found = set()
    for module in graph.modules:
        both = graph.find_upstream_modules(module) & graph.find_downstream_modules(module)
        found.add(frozenset({module, *both}))
    return frozenset(circle for circle in found if len(circle) > 1)


def test_no_circle_of_imports() -> None:
    graph = grimp.build_graph(*PACKAGES, exclude_type_checking_imports=True, cache_dir=None)

    assert circles_of(graph) == frozenset()


def test_modules_that_reach_one_another_are_one_circle() -> None:
    graph = grimp.ImportGraph()
    graph.add_import(importer="a", imported="b")
    graph.add_import(importer="b", imported="c")
    graph.add_import(importer="c", imported="a")
    graph.add_import(importer="a", imported="d")

    assert circles_of(graph) == {frozenset({"a", "b", "c"})}
