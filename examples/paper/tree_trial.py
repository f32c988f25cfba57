"""One instance of the quadratic tree: data, decisions of all methods, losses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import cvxpy as cp
import numpy as np

from decisions import Decision
from tree_methods import METHODS, TreeModel
from wdro_model.datasets import QuadraticTree, quadratic_tree
from wdro_model.loss import quadratic_form
from wdro_model.problem import Problem
from wdro_model.sets import In, SpanningTree
from wdro_model.uncertainty import UncertainParameter, WassersteinBall
from wdro_model.uncertainty.joint import LazySamples


@dataclass(frozen=True)
class Shift:
    """How far a test distribution lies from the training one; see `QuadraticTree.shifted`."""

    base: float
    """The share of an independent base cost."""
    mask: float
    """The chance that an entry of the mask is drawn anew."""
    noise: float
    complement: bool = False
    """Are the entries of the mask that are not drawn anew those that were missing?"""


SHIFTS = {
    "half shifted": Shift(base=0.5, mask=0.5, noise=0.3),
    "independent": Shift(base=1.0, mask=1.0, noise=0.3),
    "complement": Shift(base=0.0, mask=0.0, noise=0.3, complement=True),
}
"""The paper modifies base cost and mask and enlarges the variance, and does not say how far."""
SEEDS = 8
"""Of an instance: three, and one for each test set."""


@dataclass(frozen=True)
class TreeSettings:
    """What the paper fixes for its trees, and what it leaves open (count, tests, sigma)."""

    nodes: int = 50
    count: int = 100
    """Training scenarios N."""
    tests: int = 100
    """Test scenarios of each set."""
    radius: float = 10.0
    epsilon: float = 1e-4
    """Temperature; the reference has sigma^2 = radius / (2 m^2)."""
    draws: int = 10
    batch_size: int = 10
    iterations: int = 5000
    gap: float = 1e-4
    """Relative gap of ERM, exact and smoothed."""
    nonnegative: bool = True
    """Are the costs clipped at zero?"""
    shifts: Mapping[str, Shift] = field(default_factory=lambda: dict(SHIFTS))


def run_tree(
    settings: TreeSettings,
    edges: int,
    seeds: Iterable[int],
    methods: Iterable[str],
    others: Callable[[TreeModel, QuadraticTree, LazySamples], list[Decision]] | None = None,
) -> dict[str, Any]:
    """The record of an instance: {"methods": {name: decision with its losses}}.

    seeds: of the instance, the training data, the methods, and the test data.
    others: further decisions, from the model, the instance and the training scenarios.
    """
    first, training_seed, method_seed, *test_seeds = seeds
    if len(test_seeds) < len(settings.shifts):
        raise ValueError(
            f"{len(settings.shifts)} test sets need a seed each, got {len(test_seeds)}; give "
            f"{3 + len(settings.shifts)} seeds in all."
        )
    instance = quadratic_tree(settings.nodes, edges, first, nonnegative=settings.nonnegative)
    training = instance.training.lazy(settings.count, training_seed)
    model = tree_model(settings, instance, training, method_seed)
    decisions = [METHODS[name](model) for name in methods]
    if others is not None:
        decisions += others(model, instance, training)
    points = np.stack([decision.x for decision in decisions])
    losses = {"training": quadratic_losses(points, training)}
    del model  # its matrices are the largest thing in memory
    for seed, (name, shift) in zip(test_seeds, settings.shifts.items()):
        shifted = instance.shifted(seed, shift.noise, shift.base, shift.mask, shift.complement)
        losses[name] = quadratic_losses(points, shifted.lazy(settings.tests, seed + 1))
    return {
        "methods": {
            decision.method: decision.record({name: all_[k] for name, all_ in losses.items()})
            for k, decision in enumerate(decisions)
        }
    }


def tree_model(
    settings: TreeSettings, instance: QuadraticTree, training: LazySamples, seed: int
) -> TreeModel:
    """The model; for the paper's estimator the scenarios are kept, in single precision."""
    tree = SpanningTree(instance.graph)
    x = cp.Variable(tree.dimension, name="x")
    costs = UncertainParameter((tree.dimension, tree.dimension), name="costs", samples=training)
    problem = Problem(
        cp.Minimize(quadratic_form(x, costs)),
        [In(x, tree)],
        ambiguity=WassersteinBall(settings.radius),
    )
    matrices = np.empty(training.shape, dtype=np.float32)
    for k, block in enumerate(training.batches(1, reuse=True)):
        np.add(block[0], block[0].T, out=matrices[k], casting="same_kind")
    return TreeModel(
        problem,
        tree,
        matrices,
        epsilon=settings.epsilon,
        draws=settings.draws,
        batch_size=settings.batch_size,
        iterations=settings.iterations,
        gap=settings.gap,
        seed=seed,
    )


def quadratic_losses(points: np.ndarray, scenarios: LazySamples) -> np.ndarray:
    """x' Xi x for each of the points (K, m) and each scenario, (K, N)."""
    blocks = scenarios.batches(1, reuse=True)
    return np.stack([np.einsum("ki,ki->k", points @ block[0], points) for block in blocks], axis=1)


def seeds_of(*key: int) -> list[int]:
    """Seeds that depend on the key alone: for the instance, the data, methods and tests."""
    state = np.random.SeedSequence(key).generate_state(SEEDS)
    return [int(seed) for seed in state]
