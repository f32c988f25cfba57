"""Other packages made to fit: HiGHS twice, imports at first use, bounds of variables as rows.

Both wheels ship a library called libhighs.so.1, in different versions (google/or-tools#5246). On
Linux the loader knows libraries by that name: it keeps the first one, gives it to the other wheel
as well, and that import ends with an undefined symbol. Here whoever comes second is loaded from
copies in memory in which the name is another one, so that each has the HiGHS it was built with:
highspy if OR-Tools is there already, and OR-Tools, when it is first imported, if highspy is.

from wdro_model.compat import networkx as nx
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
"""What both wheels call it."""
OF_HIGHSPY, OF_OR_TOOLS = "libhighs.py.1", "libhighs.or.1"
"""What the copies are called: as many letters, which leaves everything else in its place."""
CORE = "highspy._core"
LIBRARIES = ("ortools", ".libs")


def make_room_for_highspy() -> None:
    """Where OR-Tools is loaded already: load highspy beside it, before CVXPY looks for it."""
    if CORE not in sys.modules and the_two_meet() and is_loaded(SHARED):
        with suppress(OSError, ImportError):
            load_highspy(folder_of("highspy"))


def make_room_for_or_tools() -> None:
    """Where highspy is loaded already: have OR-Tools loaded beside it, if it is ever imported."""
    known = any(isinstance(finder, OrToolsFinder) for finder in sys.meta_path)
    if CORE in sys.modules and the_two_meet() and not known:
        sys.meta_path.insert(0, OrToolsFinder())


def the_two_meet() -> bool:
    """Are both installed, each with a library of the same name, on a system where that matters?"""
    return sys.platform == "linux" and all(
        (folder / SHARED).exists() for folder in (folder_of("highspy"), folder_of(*LIBRARIES))
    )


def folder_of(package: str, inside: str = "") -> Path:
    """Where a package is installed, without importing it; a folder that is not there if nowhere."""
    with suppress(ValueError, ImportError):
        spec = find_spec(package)
        if spec is not None and spec.submodule_search_locations:
            return Path(next(iter(spec.submodule_search_locations))) / inside
    return Path(package) / "is not installed"


def is_loaded(library: str) -> bool:
    """Does the loader have a library of this name?"""
    try:
        ctypes.CDLL(library, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except OSError:
        return False
    return True


class OrToolsFinder(MetaPathFinder):
    """Finds nothing: it loads OR-Tools' libraries when a module of it is first asked for."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.startswith("ortools."):
            with suppress(ValueError):  # another thread may have been here
                sys.meta_path.remove(self)
            with suppress(OSError, ValueError):  # then the import ends as it would have
                load_or_tools(folder_of(*LIBRARIES))
        return None


def load_or_tools(folder: Path) -> None:
    """OR-Tools' own library, bound to its own HiGHS; its modules then find it by its name."""
    (main,) = folder.glob("libortools.so*")
    if is_loaded(main.name):
        return
    # A copy has no neighbours: what it needs beside it must be there before.
    for library in sorted(folder.glob("*.so*")):
        if library.name not in (SHARED, main.name):
            ctypes.CDLL(str(library))
    for library in (folder / SHARED, main):
        ctypes.CDLL(renamed(library, OF_OR_TOOLS), mode=os.RTLD_NOW)


def load_highspy(folder: Path) -> None:
    """highspy's compiled module, bound to its own HiGHS; `import highspy` then uses it."""
    found = PathFinder.find_spec(CORE, [str(folder)])
    if found is None or found.origin is None:
        return
    ctypes.CDLL(renamed(folder / SHARED, OF_HIGHSPY), mode=os.RTLD_NOW)
    copy = renamed(Path(found.origin), OF_HIGHSPY)
    loader = ExtensionFileLoader(CORE, copy)
    spec = ModuleSpec(CORE, loader, origin=copy)
    module = module_from_spec(spec)
    loader.exec_module(module)
    module.__file__ = spec.origin = found.origin
    sys.modules[CORE] = module
    setattr(import_module("highspy"), CORE.partition(".")[2], module)


def renamed(library: Path, name: str) -> str:
    """The path of a copy, in memory, that has or asks for HiGHS by another name.

    It stays open: the loader takes two files of the same path, one after the other, for one.
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
    """Stands for a module until something of it is asked for."""

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

    It is handed the bounds of variables as rows like all others. For solvers that take such bounds
    (HiGHS, SciPy, Gurobi, SCIP...) CVXPY bounds the auxiliary variables of its atoms by interval
    arithmetic as well. There 0 * inf is NaN, and the next product makes it 0: |2 A x| with a zero
    in A and an unbounded x gets the bounds [0, 0], and the solver calls A x = 0 optimal.

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
    # CVXPY refuses its own names to other solvers, and reads names in any case.
    changes = {"BOUNDED_VARIABLES": False, "name": lambda self: kind.name(self).lower()}
    return type(kind.__name__, (kind,), changes)()
