"""The reference reads docstrings that are completed at import from the imported classes."""

from __future__ import annotations

import inspect
from pkgutil import resolve_name
from typing import Any

import griffe


class CompletedDocstrings(griffe.Extension):
    """Take the docstrings of estimators, which share a part, from the classes themselves."""

    def on_class_instance(self, *, cls: griffe.Class, **_: Any) -> None:
        if cls.docstring is not None and cls.path.startswith("wdro_model.estimators."):
            cls.docstring.value = inspect.getdoc(resolve_name(cls.path)) or cls.docstring.value
