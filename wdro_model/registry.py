"""Registers by name: what is built in, what a user adds, what another package ships.

Each seam of the library (backends, costs, rules, counterparts, steps) has one. A package adds to it
by an entry point in the group of that register, which is loaded when it is first asked for:

    [project.entry-points."wdro_model.steps"]
    harmonic = "my_package.steps:Harmonic"
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from importlib import metadata
from typing import Any, Generic, TypeVar

from wdro_model.errors import unknown_name

Thing = TypeVar("Thing")


class Register(Generic[Thing]):
    """Things of one kind by name, each checked when it is added.

    kind: what they are, for messages. group: the entry points that add to them.
    check: refuses what cannot be one, and returns what is kept of it.
    """

    def __init__(self, kind: str, group: str, check: Callable[[str, Any], Thing]) -> None:
        self.kind, self.group, self._check = kind, group, check
        self._things: dict[str, Thing] = {}
        self._entries: dict[str, metadata.EntryPoint] | None = None

    def add(self, name: str, thing: Any, *, replace: bool = False) -> Thing:
        """Keep a thing under a name; one that is taken is refused unless `replace` is true."""
        if not isinstance(name, str) or not name:
            raise ValueError(f"the name of a {self.kind} must be a non-empty string, got {name!r}.")
        kept = self._check(name, thing)
        known = self._things.get(name, kept)
        if known is not kept and not replace:
            which = f", {known.__name__}" if isinstance(known, type) else ""
            raise ValueError(
                f"there is a {self.kind} {name!r} already{which}; choose another name or pass "
                "replace=True."
            )
        self._things[name] = kept
        return kept

    def decorator(self, name: Any, replace: bool) -> Callable[[Any], Any]:
        """`@register("name")` above a class or a function, which stays what it is."""
        if not isinstance(name, str):
            raise ValueError(
                f'a {self.kind} is registered under a name: write @register("name") above it, or '
                f'register("name", it); got {name!r}.'
            )

        def register(thing: Any) -> Any:
            self.add(name, thing, replace=replace)
            return thing

        return register

    def __getitem__(self, name: str) -> Thing:
        """The thing of a name; a package that offers it is imported now, not before."""
        if name not in self._things:
            entry = self._packaged().get(name)
            if entry is None:
                raise ValueError(unknown_name(self.kind, name, self.names()))
            thing = loaded(entry, self.kind)
            if name not in self._things:  # the module may have registered it by itself
                self.add(name, thing)
        return self._things[name]

    def __contains__(self, name: object) -> bool:
        return name in self._things or name in self._packaged()

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def names(self) -> tuple[str, ...]:
        """Registered names first, then those of packages; nothing is imported."""
        return tuple(dict.fromkeys((*self._things, *self._packaged())))

    def things(self) -> tuple[Thing, ...]:
        """All of them, in the order of their names; packages are imported."""
        return tuple(self[name] for name in self.names())

    def _packaged(self) -> dict[str, metadata.EntryPoint]:
        """The entry points of the group; installed packages are looked through once."""
        if self._entries is None:
            found = metadata.entry_points(group=self.group)
            self._entries = {entry.name: entry for entry in found}
        return self._entries


def loaded(entry: metadata.EntryPoint, kind: str) -> Any:
    """What an entry point names; an error that says which package is broken."""
    try:
        return entry.load()
    except Exception as error:
        raise ValueError(
            f"the {kind} {entry.name!r} could not be loaded from {entry.value!r}: {error}"
        ) from error


def refuse_signature(what: str, function: Any, *arguments: str) -> None:
    """A ValueError unless a function can be called with these arguments."""
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError as error:
        raise ValueError(f"{what} must take ({', '.join(arguments)}): {error}.") from None
    except ValueError:
        pass  # a function in C, whose signature is not known
