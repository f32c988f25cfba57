"""The facts of atoms, and the register of the classes that state them.

For each family of atoms one class states what the library knows about it: its values and pullbacks
on a batch, its degree, its slopes, its affine pieces... The class overrides methods of `AtomFacts`,
whose own answers mean "not known", and is declared for the classes of the atoms:

    @declare(MyAtom)                                # y = sin(v), entry by entry
    class Sine(AtomFacts):
        is_entrywise = True

        def rule(self, atom, v):
            return np.sin(v), lambda g: g * np.cos(v)

Facts that it does not override are inherited from the base classes of the atom. `rule` declares the
rule alone, as a function:

    @rule(MyAtom)
    def _(atom, v):
        return np.sin(v), lambda g: g * np.cos(v)

Another package offers facts by an entry point in the group `wdro_model.rules`, named after the
atom's class; its module is imported when a loss contains such an atom and it has no rule:

    [project.entry-points."wdro_model.rules"]
    MyAtom = "my_package.atoms"
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from typing import Any, TypeVar

import cvxpy as cp
import numpy as np
from cvxpy.atoms.atom import Atom

from wdro_model.errors import MissingRuleError
from wdro_model.registry import loaded

Kernel = Callable[..., tuple[Any, ...]]
"""Values of the operands -> the atom's value, then one pullback per operand."""

Adjoints = Sequence[Callable[[Any], Any]]
"""For each argument: adjoint of the atom -> adjoint of the argument, both CVXPY expressions."""

Function = TypeVar("Function", bound=Callable[..., Any])
Family = TypeVar("Family", bound="type[AtomFacts]")


class NoPieces(Exception):
    """An expression is not a maximum of affine pieces, or has too many of them.

    Examples
    --------
    >>> class HardFacts(wdro.loss.AtomFacts):
    ...     def pieces(self, atom, sign, at):
    ...         raise wdro.loss.NoPieces
    """


@dataclass(frozen=True)
class Operand:
    """An operand before it has a value: its expression, and whether it carries the batch axis."""

    expression: Any
    batched: bool

    @property
    def shape(self) -> tuple[int, ...]:
        return self.expression.shape

    @property
    def ndim(self) -> int:
        return len(self.expression.shape)


Operands = tuple[Operand, ...]


class AtomFacts:
    """The facts of a family of atoms; the answers of this base class mean "not known".

    Examples
    --------
    >>> from cvxpy.atoms.elementwise.elementwise import Elementwise
    >>> class Cubed(Elementwise):
    ...     def numeric(self, values): return values[0] ** 3
    ...     def sign_from_args(self): return False, False
    ...     def is_atom_convex(self): return False
    ...     def is_atom_concave(self): return False
    ...     def is_incr(self, idx): return True
    ...     def is_decr(self, idx): return False
    ...     def _grad(self, values): raise NotImplementedError
    >>> @wdro.loss.declare(Cubed)
    ... class CubedFacts(wdro.loss.AtomFacts):
    ...     is_entrywise = True
    ...     def rule(self, atom, v):
    ...         return v**3, lambda g: 3 * g * v**2
    ...     def degree(self, atom, degrees):
    ...         return 3 * degrees[0]
    >>> price = wdro.UncertainParameter(2, samples=[[1.0, 2.0]])
    >>> wdro.loss.degree(cp.sum(Cubed(price)), [price])
    3.0
    """

    is_entrywise = False
    """True if it is a function of each entry of its arguments, broadcast to its shape."""
    is_homogeneous = False
    """True if h(t a) = t h(a) for t > 0."""

    # -------------------------------------------------------------- values and gradients
    def rule(self, atom: Any, *values: Any) -> tuple[Any, ...]:
        """The atom's value on a batch, then one pullback per operand.

        A pullback turns the gradient of a number in the atom into its gradient in the operand. A
        value has the shape of its expression, preceded by the batch axis if the expression depends
        on an uncertain parameter. Operands of entrywise atoms have the atom's shape. Where an
        operand has no batch axis and its gradient has one, the gradient is summed over it.
        """
        raise missing_rule(atom)

    def kernel(self, atom: Any, operands: Operands) -> Kernel:
        """The rule of one atom, prepared once when the loss is built.

        Work that depends on shapes alone belongs here, and the refusal of an option by a
        MissingRuleError.
        """
        if type(self).rule is AtomFacts.rule:
            raise missing_rule(atom)
        return partial(self.rule, atom)

    def reads(self, atom: Any) -> list[Any]:
        """The expressions that the atom is a function of, its arguments first."""
        return list(atom.args)

    def operands(self, atom: Any) -> list[Any]:
        """Arguments of `rule`: by default what the atom reads; an atom may declare cheaper ones."""
        if (declared := getattr(atom, "operands", None)) is not None:
            return list(declared)
        read = self.reads(atom)
        if self.is_entrywise:
            for k, argument in enumerate(atom.args):
                if argument.shape == atom.shape:
                    continue
                try:
                    read[k] = cp.broadcast_to(argument, atom.shape)
                except ValueError:
                    raise ValueError(
                        f"the atom {type(atom).__name__!r} is declared as is_entrywise, but has "
                        f"the shape {atom.shape} and an argument of shape {argument.shape}; leave "
                        "the fact out."
                    ) from None
        return read

    def domain(self, atom: Any) -> list[tuple[Any, float]]:
        """(argument, limit) for each argument that must be nonnegative.

        limit is that of the atom as the argument goes to 0: inf, -inf, NaN for one of the two, and
        0 if it is finite. The default is CVXPY's own domain, with finite limits.
        """
        limits = [c for c in atom._domain() if isinstance(c, cp.constraints.Inequality)]
        return [
            (upper if lower.is_zero() else upper - lower, 0.0)
            for lower, upper in (c.args for c in limits)
        ]

    # -------------------------------------------------------------- as a function of the data
    def degree(self, atom: Any, degrees: Sequence[float]) -> float:
        """Polynomial degree in the data, from those of what it reads, of which one is nonzero."""
        return math.inf

    def adjoints(self, atom: Any) -> Adjoints:
        """The reverse pass of an atom of degree one, in the arguments that depend on the data."""
        raise ValueError(
            f"the slope of '{brief(atom)}' in the data is not known; write a product with "
            "cp.multiply or @ on vectors and matrices, and of an atom of your own declare the fact "
            f"adjoints(atom) of {type(atom).__name__!r}, or a degree of math.inf."
        )

    def constant_part(self, atom: Any, parts: Sequence[Any | None]) -> Any | None:
        """The atom of the constant parts, for an atom of degree one; None stands for zero."""
        if all(part is None for part in parts):
            return None
        filled = [
            cp.Constant(np.zeros(argument.shape)) if part is None else part
            for argument, part in zip(atom.args, parts)
        ]
        return atom.copy(filled)

    def rebuild(self, atom: Any, reads: Sequence[Any]) -> Any:
        """The same function of other expressions, one for each that the atom reads."""
        return atom.copy(list(reads[: len(atom.args)]))

    def dependence(self, atom: Any, seen: Any) -> Any | None:
        """The data that each entry depends on: a pattern, from the patterns seen(argument).

        None if each entry may depend on all data of the operands.
        """
        if self.is_entrywise:
            return sum(seen.spread(a, atom.size) for a in self.operands(atom))
        return None

    # -------------------------------------------------------------- parts
    def terms(self, atom: Any, split: Any) -> list[Any] | None:
        """Expressions whose entries add up to those of the atom; None for the atom alone.

        split(argument) gives the terms of an argument.
        """
        return None

    def pieces(self, atom: Any, sign: int, at: Any) -> list[Any]:
        """Affine expressions whose maximum is sign * the entry `at` of the atom, an `AtomEntry`."""
        raise NoPieces

    def factor(self, atom: Any, number: Callable[[Any], float | None]) -> Any | None:
        """(c, e) with atom = c e; number(argument) is the value of a factor, None for others."""
        return None

    def square(self, atom: Any) -> tuple[Any, Any] | None:
        """(u, t) with atom = sum(u^2) / t, a scalar."""
        return None

    def same_number(self, atom: Any) -> Any | None:
        """The argument, if the atom has the same single entry."""
        return None

    # -------------------------------------------------------------- rewritten
    def times(self, atom: Any, factor: float, push: Callable[[Any, float], Any]) -> Any:
        """factor * atom for a factor > 0; push(argument, factor) gives a scaled argument."""
        if self.is_homogeneous:
            return atom.copy([push(argument, factor) for argument in atom.args])
        return factor * atom

    def far(self, atom: Any, arguments: list[Any]) -> Any | None:
        """The piecewise affine function of the arguments that it approaches; None if none."""
        return None


_TABLE: dict[type, AtomFacts] = {cp.Expression: AtomFacts()}
_NEAREST: dict[type, AtomFacts] = {}
_RULED: set[type] = set()
"""Classes of atoms with a rule of their own, which is not replaced by mistake."""


def facts_of(expression: Any) -> AtomFacts:
    """The facts of an expression, by the nearest class in its method resolution order."""
    return _facts_of_class(type(expression))


def _facts_of_class(cls: type) -> AtomFacts:
    facts = _NEAREST.get(cls)
    if facts is None:
        facts = _NEAREST[cls] = next(_TABLE[base] for base in cls.__mro__ if base in _TABLE)
    return facts


def declare(*atoms: type) -> Callable[[Family], Family]:
    """Declare a class of facts for classes of atoms; their subclasses inherit the facts.

    Examples
    --------
    >>> class MyNorm(cp.norm1):
    ...     pass
    >>> @wdro.loss.declare(MyNorm)
    ... class MyNormFacts(wdro.loss.AtomFacts):
    ...     is_homogeneous = True
    """
    _check_classes(atoms)

    def register(family: Family) -> Family:
        if not (isinstance(family, type) and issubclass(family, AtomFacts)):
            raise TypeError(f"declare takes a subclass of AtomFacts, got {family!r}.")
        _check_names(family)
        for atom in atoms:
            known = _facts_of_class(atom)
            if not isinstance(known, family):
                known = type(family.__name__, (family, type(known)), _plain_rule(family))()
            # A family of the library has the rule of its bases, if it has none of its own.
            ruled = type(known) if family.__module__.startswith("wdro_model.") else family
            if ruled.rule is not AtomFacts.rule or ruled.kernel is not AtomFacts.kernel:
                _RULED.add(atom)
            _TABLE[atom] = known
        _NEAREST.clear()
        return family

    return register


def _plain_rule(family: type[AtomFacts]) -> dict[str, Any]:
    """The attribute that lets a family's own `rule` override a `kernel` of the atom's bases."""
    for cls in family.__mro__[: family.__mro__.index(AtomFacts)]:
        if "kernel" in vars(cls):
            break
        if "rule" in vars(cls):
            return {"kernel": AtomFacts.kernel}
    return {}


def rule(
    *atoms: type, prepared: bool = False, replace: bool = False
) -> Callable[[Function], Function]:
    """Register how CVXPY atoms are evaluated on a batch; subclasses inherit it.

    The function is `AtomFacts.rule` without self: (atom, value of each operand) -> (the atom's
    value, one pullback per operand).

    Parameters
    ----------
    prepared
        True if the function is `AtomFacts.kernel`: (atom, operands) -> a function of the values.
    replace
        True to replace the rule of an atom that has one of its own.

    Examples
    --------
    >>> @wdro.register_rule(cp.normNuc)
    ... def nuclear_norm(atom, v):                       # v: (B, m, n), or (m, n) without data
    ...     left, values, right = np.linalg.svd(v, full_matrices=False)
    ...     return values.sum(axis=-1), lambda g: np.asarray(g)[..., None, None] * (left @ right)
    >>> z = cp.Variable((2, 2))
    >>> picture = wdro.UncertainParameter((2, 2), samples=[[[1.0, 0.0], [0.0, 1.0]]])
    >>> problem = wdro.Problem(cp.Minimize(cp.normNuc(picture - z)), [cp.abs(z) <= 0.5])
    >>> round(problem.solve(), 2)
    1.0
    """
    _check_classes(atoms)

    def register(function: Function) -> Function:
        _check_signature(function, prepared)
        taken = [atom.__name__ for atom in atoms if atom in _RULED]
        if taken and not replace:
            raise ValueError(
                f"the atom {taken[0]!r} has a rule already; pass replace=True to give it another."
            )
        body: dict[str, Any] = {"kernel" if prepared else "rule": staticmethod(function)}
        body["__module__"] = getattr(function, "__module__", None) or "__main__"
        declare(*atoms)(type("Rule", (AtomFacts,), body))
        return function

    return register


def prepare(atom: Any, operands: Operands) -> Kernel:
    """The kernel of an atom; entry points of other packages are loaded where it has none."""
    try:
        return facts_of(atom).kernel(atom, operands)
    except MissingRuleError:
        names = {cls.__name__ for cls in type(atom).__mro__}
        entries = [e for e in metadata.entry_points(group="wdro_model.rules") if e.name in names]
        if not entries:
            raise
        for entry in entries:
            loaded(entry, "rule of")
        return facts_of(atom).kernel(atom, operands)


def _check_classes(atoms: Sequence[Any]) -> None:
    if not atoms:
        raise TypeError("a rule needs the class of an atom: write @rule(MyAtom).")
    for atom in atoms:
        if not (isinstance(atom, type) and issubclass(atom, Atom)):
            raise TypeError(
                f"a rule needs atom classes, subclasses of {Atom.__module__}.Atom, got {atom!r}; "
                "for the atom of a CVXPY function pass type(expression)."
            )


def _check_names(family: type) -> None:
    """Refuse a fact that does not exist, and one that is no method, or no True or False."""
    for name, fact in vars(family).items():
        if name.startswith("_"):
            continue
        if not hasattr(AtomFacts, name):
            known = ", ".join(n for n in vars(AtomFacts) if not n.startswith("_"))
            raise TypeError(
                f"{family.__name__} declares {name!r}, which is no fact of an atom; the facts are "
                f"{known}. Start the names of helpers with an underscore."
            )
        if isinstance(getattr(AtomFacts, name), bool):
            if not isinstance(fact, bool):
                raise TypeError(f"the fact {name} is True or False, got {fact!r}.")
        elif not callable(fact) and not isinstance(fact, (staticmethod, classmethod)):
            arguments = ", ".join(inspect.signature(getattr(AtomFacts, name)).parameters)
            raise TypeError(f"the fact {name} is a method ({arguments}), got {fact!r}.")


def _check_signature(function: Any, prepared: bool) -> None:
    needed = (
        "(atom, operands) -> kernel"
        if prepared
        else "(atom, value of each operand) -> (value, pullback for each operand)"
    )
    if not callable(function):
        raise TypeError(f"a rule is a function {needed}, got {function!r}.")
    try:
        signature = inspect.signature(function)
    except ValueError:
        return  # a compiled function may have no signature
    for count in (2,) if prepared else range(2, 10):
        with suppress(TypeError):
            signature.bind(*[None] * count)
            return
    name = getattr(function, "__name__", repr(function))
    raise TypeError(f"a rule is a function {needed}, got {name}{signature}.")


def hidden_parameters(atom: Any) -> list[Any]:
    """Parameters that are an option of the atom itself, such as the threshold of huber."""
    if type(atom).parameters is Atom.parameters:
        return []
    reached = {p.id for read in facts_of(atom).reads(atom) for p in read.parameters()}
    return [p for p in atom.parameters() if p.id not in reached]


def missing_rule(atom: Any, why: str = "") -> MissingRuleError:
    """The error for an atom, or an option of it, that no rule covers."""
    name = type(atom).__name__
    return MissingRuleError(
        f"the atom {name!r} in '{brief(atom)}' has no batched rule{why}. Rewrite the loss with "
        f"other atoms, register a rule with @wdro_model.register_rule({name}), or give the loss as "
        "a wdro_model.CallableLoss."
    )


def brief(expression: Any, width: int = 80) -> str:
    """The expression in CVXPY's notation, shortened to fit a message."""
    text = " ".join(str(expression).split())
    return text if len(text) <= width else text[: width - 3] + "..."
