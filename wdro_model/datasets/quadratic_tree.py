"""Quadratic spanning trees with uncertain interaction costs: min x' Xi x over trees x.

The instances of Villuendas, Besançon and Malick: a connected random graph with n nodes and m edges
and, on pairs of its edges, a base cost mu uniform on [0, 1]^(m x m) and a mask M of Bernoulli(0.7)
entries (the others are missing interactions). A scenario is
    Xi = A / |A|_F,   A = M * (mu + noise C),   C standard normal, entry by entry.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from wdro_model import checks
from wdro_model.compat import networkx as nx
from wdro_model.display.tables import brief_fields
from wdro_model.traffic.days import check_seed
from wdro_model.uncertainty.joint import LazySamples

CONNECTION_TRIES = 50
"""Uniform random graphs to try before a spanning tree is built in."""

UNMASKED = 0.7
"""The probability that an interaction is not masked."""


@dataclass(frozen=True, eq=False)
class TreeCosts:
    """A distribution of cost matrices on pairs of edges.

    Parameters
    ----------
    base
        mu, (m, m).
    mask
        M, (m, m) booleans.
    noise
        Standard deviation of an entry around mu.
    nonnegative
        Clip the entries of A at zero before normalising, so that the scenarios lie in the
        nonnegative orthant; the noise makes some of them negative otherwise.

    Examples
    --------
    >>> costs = wdro.datasets.quadratic_tree(nodes=6, edges=9, seed=0).training
    >>> costs.sample(20, seed=1).shape
    (20, 9, 9)
    """

    base: np.ndarray
    mask: np.ndarray
    noise: float = 0.1
    nonnegative: bool = True

    __repr__ = brief_fields

    def __post_init__(self) -> None:
        base, mask = np.asarray(self.base, dtype=np.float64), np.asarray(self.mask)
        if base.ndim != 2 or base.shape[0] != base.shape[1] or mask.shape != base.shape:
            raise ValueError(
                f"base and mask must be square matrices of one shape, got {base.shape} and "
                f"{mask.shape}."
            )
        object.__setattr__(self, "base", base)
        object.__setattr__(self, "mask", mask.astype(bool))
        object.__setattr__(self, "noise", checks.number("noise", self.noise, low=0))
        if not np.any(self.mean_direction):
            raise ValueError("every cost is masked or zero; keep at least one positive entry.")

    @property
    def mean_direction(self) -> np.ndarray:
        """The scenario without noise: M * mu over its Frobenius norm."""
        return _normalized(self.mask * self.base, self.nonnegative)

    def sample(self, count: int, seed: int | None = None) -> np.ndarray:
        """Scenarios (count, m, m); scenario k depends on (seed, k) alone."""
        return self.lazy(count, seed)[:]

    def lazy(self, count: int, seed: int | None = None) -> LazySamples:
        """The scenarios of `sample`, bit for bit, but generated when they are read."""
        entropy = np.random.SeedSequence(check_seed(seed)).entropy
        return LazySamples(_Draw(self, entropy), count, self.base.shape)


@dataclass(frozen=True)
class _Draw:
    """Scenario k of a distribution, by a generator of its own."""

    costs: TreeCosts
    entropy: Any

    def __call__(self, k: int) -> np.ndarray:
        sequence = np.random.SeedSequence(self.entropy, spawn_key=(k,))
        matrix = np.random.default_rng(sequence).standard_normal(self.costs.base.shape)
        matrix *= self.costs.noise
        matrix += self.costs.base
        matrix *= self.costs.mask
        return _normalized(matrix, self.costs.nonnegative)


@dataclass(frozen=True, eq=False)
class QuadraticTree:
    """An instance: the graph whose spanning trees are chosen, and the costs to train on.

    Row and column e of a scenario belong to edge e of `list(graph.edges)`.

    Examples
    --------
    >>> instance = wdro.datasets.quadratic_tree(nodes=6, edges=9, seed=0)
    >>> instance.graph.number_of_edges(), instance.nominal.shape
    (9, (9, 9))
    """

    graph: nx.Graph
    training: TreeCosts

    @property
    def nominal(self) -> np.ndarray:
        """The cost matrix (m, m) without noise, normalised."""
        return self.training.mean_direction

    def shifted(
        self,
        seed: int | None = None,
        noise: float = 0.3,
        base_shift: float = 0.5,
        mask_shift: float = 0.5,
        complement: bool = False,
    ) -> TreeCosts:
        """A distribution to test on: another base cost, another mask and more noise.

        Parameters
        ----------
        base_shift
            In [0, 1]; the base cost becomes (1 - s) mu + s mu' for an independent mu'.
        mask_shift
            In [0, 1]; the chance that an entry of the mask is drawn anew.
        complement
            Complement the entries of the mask that are not drawn anew? With mask_shift=0, only the
            interactions that are missing in the training costs then cost something.
        """
        weight = checks.number("base_shift", base_shift, low=0, high=1)
        renewed = checks.number("mask_shift", mask_shift, low=0, high=1)
        shape = self.training.base.shape
        rng = np.random.default_rng(check_seed(seed))
        base = (1 - weight) * self.training.base + weight * rng.random(shape)
        old_mask = ~self.training.mask if complement else self.training.mask
        mask = np.where(rng.random(shape) < renewed, rng.random(shape) < UNMASKED, old_mask)
        return TreeCosts(base, mask, noise, self.training.nonnegative)


def quadratic_tree(
    nodes: int = 50,
    edges: int = 331,
    seed: int | None = None,
    *,
    noise: float = 0.1,
    nonnegative: bool = True,
) -> QuadraticTree:
    """A random instance with `nodes` nodes and `edges` edges.

    The graph is uniform among the connected ones, found by drawing until one is connected. Where
    that is improbable (few edges) it is a uniform spanning tree with uniform edges added.

    Examples
    --------
    >>> instance = wdro.datasets.quadratic_tree(nodes=6, edges=9, seed=0)
    >>> wdro.sets.SpanningTree(instance.graph).dimension
    9
    """
    checks.whole_number("nodes", nodes, low=2)
    checks.whole_number("edges", edges)
    most = nodes * (nodes - 1) // 2
    if not nodes - 1 <= edges <= most:
        raise ValueError(
            f"a connected graph on {nodes} nodes has between {nodes - 1} and {most} edges, got "
            f"edges={edges}."
        )
    rng = np.random.default_rng(check_seed(seed))
    graph = _connected_graph(int(nodes), int(edges), rng)
    base = rng.random((edges, edges))
    mask = rng.random((edges, edges)) < UNMASKED
    mask[0, 0] |= not mask.any()
    return QuadraticTree(graph, TreeCosts(base, mask, noise, nonnegative))


def _connected_graph(nodes: int, edges: int, rng: np.random.Generator) -> nx.Graph:
    pairs = np.column_stack(np.triu_indices(nodes, k=1))
    for _ in range(CONNECTION_TRIES):
        graph = _graph(nodes, pairs[rng.choice(len(pairs), edges, replace=False, shuffle=False)])
        if nx.is_connected(graph):
            return graph
    tree = nx.random_labeled_tree(nodes, seed=int(rng.integers(2**31)))
    chosen = {tuple(sorted(edge)) for edge in tree.edges}
    others = np.array([pair for pair in map(tuple, pairs.tolist()) if pair not in chosen])
    added = rng.choice(len(others), edges - len(chosen), replace=False)
    return _graph(nodes, [*chosen, *others[added].tolist()])


def _graph(nodes: int, edges: Any) -> nx.Graph:
    """The graph with its nodes and edges in lexicographic order."""
    graph = nx.Graph()
    graph.add_nodes_from(range(nodes))
    graph.add_edges_from(sorted((int(u), int(v)) for u, v in edges))
    return graph


def _normalized(matrix: np.ndarray, nonnegative: bool) -> np.ndarray:
    """The matrix over its Frobenius norm, clipped at zero first if asked; changes it in place."""
    if nonnegative:
        np.maximum(matrix, 0.0, out=matrix)
    norm = np.linalg.norm(matrix)
    return matrix if norm == 0 else np.divide(matrix, norm, out=matrix)
