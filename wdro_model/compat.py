"""Workarounds for other packages: two copies of HiGHS, lazy imports, bounds as rows.

The wheels of highspy and OR-Tools contain different versions of a library libhighs.so.1
(google/or-tools#5246). The loader of Linux identifies libraries by name: it gives the one loaded
first to both wheels, and the second import fails with an undefined symbol. This module loads the
second wheel from copies in memory, in which the library has another name, so that each wheel has
its own HiGHS. The second wheel is highspy if OR-Tools is loaded already; otherwise it is OR-Tools,
when it is first imported.

Packages that are imported at first use: `from wdro_model.compat import networkx as nx`.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ExtensionFileLoader, ModuleSpec, PathFinder
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

__all__ = ["cloudpickle", "joblib", "networkx"]


SHARED = "libhighs.so.1"
"""The name of HiGHS in both wheels."""
OF_HIGHSPY, OF_OR_TOOLS = "libhighs.py.1", "libhighs.or.1"
"""The names in the copies: of the same length, so that no other byte of the file moves."""
CORE = "highspy._core"
LIBRARIES = ("ortools", ".libs")


def make_room_for_highspy() -> None:
    """If OR-Tools is loaded, load highspy with its own HiGHS, before CVXPY imports it."""
    if CORE not in sys.modules and wheels_conflict() and is_loaded(SHARED):
        with suppress(OSError, ImportError):
            load_highspy(folder_of("highspy"))


def make_room_for_or_tools() -> None:
    """If highspy is loaded, let a later import of OR-Tools load its own HiGHS."""
    known = any(isinstance(finder, OrToolsFinder) for finder in sys.meta_path)
    if CORE in sys.modules and wheels_conflict() and not known:
        sys.meta_path.insert(0, OrToolsFinder())


def wheels_conflict() -> bool:
    """True on Linux if both wheels are installed, each with a library libhighs.so.1."""
    return sys.platform == "linux" and all(
        (folder / SHARED).exists() for folder in (folder_of("highspy"), folder_of(*LIBRARIES))
    )


def folder_of(package: str, inside: str = "") -> Path:
    """The folder of a package, which is not imported; a missing folder if it is not installed."""
    with suppress(ValueError, ImportError):
        spec = find_spec(package)
        if spec is not None and spec.submodule_search_locations:
            return Path(next(iter(spec.submodule_search_locations))) / inside
    return Path(package) / "is not installed"


def is_loaded(library: str) -> bool:
    """True if the loader has a library of this name."""
    try:
        ctypes.CDLL(library, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except OSError:
        return False
    return True


class OrToolsFinder(MetaPathFinder):
    """A finder of no module: it loads OR-Tools' libraries when OR-Tools is first imported."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.startswith("ortools."):
            with suppress(ValueError):  # another thread may have removed it
                sys.meta_path.remove(self)
            with suppress(OSError, ValueError):  # the import then fails as without this finder
                load_or_tools(folder_of(*LIBRARIES))
        return None


def load_or_tools(folder: Path) -> None:
    """Load OR-Tools' library, bound to its own HiGHS; its modules then get it by name."""
    (main,) = folder.glob("libortools.so*")
    if is_loaded(main.name):
        return
    # A copy in memory has no folder: libraries that it needs must be loaded first.
    for library in sorted(folder.glob("*.so*")):
        if library.name not in (SHARED, main.name):
            ctypes.CDLL(str(library))
    for library in (folder / SHARED, main):
        ctypes.CDLL(renamed(library, OF_OR_TOOLS), mode=os.RTLD_NOW)


def load_highspy(folder: Path) -> None:
    """Load highspy's compiled module, bound to its own HiGHS; `import highspy` then uses it."""
    installed = PathFinder.find_spec(CORE, [str(folder)])
    if installed is None or installed.origin is None:
        return
    ctypes.CDLL(renamed(folder / SHARED, OF_HIGHSPY), mode=os.RTLD_NOW)
    copy = renamed(Path(installed.origin), OF_HIGHSPY)
    loader = ExtensionFileLoader(CORE, copy)
    spec = ModuleSpec(CORE, loader, origin=copy)
    module = module_from_spec(spec)
    loader.exec_module(module)
    module.__file__ = spec.origin = installed.origin
    sys.modules[CORE] = module
    setattr(import_module("highspy"), CORE.partition(".")[2], module)


def renamed(library: Path, name: str) -> str:
    """The path of a copy in memory in which the name of HiGHS is replaced.

    The copy stays open: the loader would take a later file with the same path for this one.
    """
    old, new = (b"\0" + word.encode() + b"\0" for word in (SHARED, name))
    content = library.read_bytes()
    if content.count(old) != 1:
        raise OSError(f"{library} is not bound to {SHARED} in the usual way.")
    handle = os.memfd_create(library.name)
    with open(handle, "wb", closefd=False) as file:
        file.write(content.replace(old, new))
    return f"/proc/self/fd/{handle}"


class Deferred(ModuleType):
    """A module that is imported when one of its attributes is first read."""

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self.__name__), name)


if TYPE_CHECKING:
    import cloudpickle
    import joblib
    import networkx
else:
    cloudpickle, joblib, networkx = map(Deferred, ("cloudpickle", "joblib", "networkx"))


def bounds_as_rows(problem: Any, name: str) -> Any:
    """The solver of that name, for `problem.solve(solver=...)` and `get_problem_data`.

    CVXPY then passes the bounds of variables as ordinary rows. For solvers that take such bounds
    (HiGHS, SciPy, Gurobi, SCIP...) CVXPY also bounds the auxiliary variables of its atoms, by
    interval arithmetic, which is wrong for 0 * inf: |2 A x| with a zero in A and an unbounded x
    gets the bounds [0, 0], and the solver reports A x = 0 as optimal.

    Raises CVXPY's SolverError where the solver cannot take the problem.
    """
    from cvxpy.reductions.solvers.defines import SOLVER_MAP_CONIC, SOLVER_MAP_QP
    from cvxpy.reductions.solvers.solving_chain import resolve_and_build_chain

    interfaces = [m[name] for m in (SOLVER_MAP_CONIC, SOLVER_MAP_QP) if name in m]
    if interfaces and not any(getattr(s, "BOUNDED_VARIABLES", True) for s in interfaces):
        return name
    solver = resolve_and_build_chain(problem, solver=name, ignore_dpp=True).solver
    kind: Any = type(solver)
    return _without_bounds(kind) if solver.BOUNDED_VARIABLES else name


@cache
def _without_bounds(kind: Any) -> Any:
    # CVXPY reserves the names of its solvers for them, but compares them with upper-case names.
    changes = {"BOUNDED_VARIABLES": False, "name": lambda self: kind.name(self).lower()}
    return type(kind.__name__, (kind,), changes)()
