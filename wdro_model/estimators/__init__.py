"""Estimators with the conventions of scikit-learn: robust regression and classification.

They need scikit-learn, `pip install 'wdro_model[sklearn]'`, which is imported when the first of
them is named.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from wdro_model.errors import name_keywords_of

if TYPE_CHECKING:
    from wdro_model.estimators.linear_models import (
        RobustHingeClassifier,
        RobustLinearRegression,
        RobustLogisticRegression,
        RobustQuantileRegressor,
    )


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        import_module("sklearn")
    except ImportError as error:
        raise ImportError(
            f"{name} needs scikit-learn ({error}): pip install 'wdro_model[sklearn]'"
        ) from error
    linear_models = import_module(f"{__name__}.linear_models")
    globals().update({known: getattr(linear_models, known) for known in __all__})
    name_keywords_of([sys.modules[__name__]])
    return globals()[name]


__all__ = [
    "RobustHingeClassifier",
    "RobustLinearRegression",
    "RobustLogisticRegression",
    "RobustQuantileRegressor",
]
__dir__ = __all__.copy  # what the tab key offers
