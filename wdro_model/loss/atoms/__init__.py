"""Atoms: one file for each family, with the facts of its atoms."""

from wdro_model.loss.atoms import elementwise, linear, products, quadratic, reductions  # noqa: F401
from wdro_model.loss.atoms.cvxpy_classes import Atom
from wdro_model.loss.atoms.facts import AtomFacts, declare, facts_of, rule

__all__ = ["Atom", "AtomFacts", "declare", "facts_of", "rule"]
