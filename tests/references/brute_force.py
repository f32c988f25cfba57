"""Worst-case risks by brute force: linear programs over all plans of transport to a grid."""

import itertools

import cvxpy as cp
import numpy as np


def corner_grid(samples, lower, upper):
    """For each sample the points whose coordinates are its own, or at a bound.

    The gain of a loss that is convex in the data, less a multiple of a weighted l1 norm, is convex
    on each orthant around a sample: its maximum over a box is at one of these.
    """
    return [
        np.array(list(itertools.product(*({s, a, b} for s, a, b in zip(sample, lower, upper)))))
        for sample in np.atleast_2d(samples)
    ]


def worst_case_risk(samples, grids, cost, radius, terms, plain=None, probabilities=None):
    """sup over the ball of E[plain] + sum of weight * CVaR_level(loss).

    terms: triples (weight, level, loss), plain and losses being functions of rows (B, d).
    The CVaR of a distribution p is the largest sum q @ loss over 0 <= q <= p / (1 - level) that
    sum to one: the supremum over plans and all q is one linear program.
    """
    size = len(samples)
    p = np.full(size, 1 / size) if probabilities is None else np.asarray(probabilities)
    points = np.concatenate(grids)
    source = np.repeat(np.arange(size), [len(grid) for grid in grids])
    plan = cp.Variable(len(points), nonneg=True)
    shares = (source[None] == np.arange(size)[:, None]).astype(float)
    constraints = [shares @ plan == p, cost(samples[source], points) @ plan <= radius]
    value = 0.0 if plain is None else plain(points) @ plan
    for weight, level, loss in terms:
        tail = cp.Variable(len(points), nonneg=True)
        constraints += [tail * (1 - level) <= plan, cp.sum(tail) == 1]
        value = value + weight * (loss(points) @ tail)
    problem = cp.Problem(cp.Maximize(value), constraints)
    return float(problem.solve(solver=cp.HIGHS))


def cvar(losses, level, weights=None):
    """The mean of the worst share 1 - level of some losses, as a linear program."""
    losses = np.asarray(losses)
    tail = cp.Variable(len(losses), nonneg=True)
    shares = 1 / len(losses) if weights is None else weights
    limits = [tail * (1 - level) <= shares, cp.sum(tail) == 1]
    return float(cp.Problem(cp.Maximize(losses @ tail), limits).solve(solver=cp.HIGHS))
