"""Importing OR-Tools beside highspy.

Both wheels ship a library called libhighs.so.1, in different versions (google/or-tools#5246). The
process keeps the first one, and OR-Tools, which refers to a function that highspy 1.15 no longer
has, cannot be loaded. It never calls that function unless HiGHS is asked for through OR-Tools:
with symbols looked up at their first call, not at import, the two live side by side.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any


def import_or_tools(module: str) -> Any:
    """The module of that name, with its symbols bound lazily where the platform has a choice."""
    if not hasattr(sys, "setdlopenflags"):
        return import_module(module)
    flags = sys.getdlopenflags()
    sys.setdlopenflags(os.RTLD_LAZY)
    try:
        return import_module(module)
    finally:
        sys.setdlopenflags(flags)
