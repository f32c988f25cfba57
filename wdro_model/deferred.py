"""Packages that take long to import and that most programs never use: imported at their first use.

from wdro_model.deferred import networkx as nx
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any


class Deferred(ModuleType):
    """Stands for a module until something of it is asked for."""

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self.__name__), name)


if TYPE_CHECKING:
    import cloudpickle
    import joblib
    import networkx
else:
    cloudpickle, joblib, networkx = map(Deferred, ("cloudpickle", "joblib", "networkx"))

__all__ = ["cloudpickle", "joblib", "networkx"]
