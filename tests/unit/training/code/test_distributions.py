"""Which distribution an installed module is of: as importlib says, without a look at each of its files."""

from __future__ import annotations

import importlib.metadata

from training.code.carried import distributions_with


def test_modules_are_of_the_distributions_that_importlib_names() -> None:
    named = {top: sorted(set(names)) for top, names in importlib.metadata.packages_distributions().items()}
    assert {top: distributions_with(top) for top in named} == named
    assert {"numpy", "yaml", "sklearn", "xgboost", "six"} <= named.keys()
    assert distributions_with("no_such_module") == []
