"""Estimators with the conventions of scikit-learn: robust regression and classification.

They need scikit-learn, `pip install 'wdro_model[sklearn]'`, which is imported when the first of
them is named.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wdro_model.estimators.classifiers import RobustHingeClassifier, RobustLogisticRegression
    from wdro_model.estimators.regressors import RobustLinearRegression, RobustQuantileRegressor

WRITTEN_IN = {
    "RobustHingeClassifier": "classifiers",
    "RobustLinearRegression": "regressors",
    "RobustLogisticRegression": "classifiers",
    "RobustQuantileRegressor": "regressors",
}


def __getattr__(name: str) -> Any:
    if name not in WRITTEN_IN:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        import_module("sklearn")
    except ImportError as error:
        raise ImportError(
            f"{name} needs scikit-learn ({error}): pip install 'wdro_model[sklearn]'"
        ) from error
    found = getattr(import_module(f"{__name__}.{WRITTEN_IN[name]}"), name)
    return globals().setdefault(name, found)  # the next time it is there


__all__ = [
    "RobustHingeClassifier",
    "RobustLinearRegression",
    "RobustLogisticRegression",
    "RobustQuantileRegressor",
]
__dir__ = __all__.copy  # what the tab key offers
