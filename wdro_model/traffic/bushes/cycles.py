"""Newton steps on all bushes at once, compiled by Numba; imported only where it is asked for.

Shifts in one bush can undo those in another: of two origins that share two congested segments, one
wants to leave the first and the other the second, for the sake of costs elsewhere. Taken in turns
they exchange little in each round, as much as the slopes of the shared costs allow; taken together
they change no shared flow, and nothing holds them up.

The tree of a bush has the entry with most flow of every node. Every other entry closes a cycle with
it: flow d on the entry and its tree path, taken from the tree path to the same node. With P the
arcs of the cycles, s the slopes and g what the cycles gain, Newton's step over all of them is

    (P' diag(s) P) d = g,

found by conjugate gradients with the diagonal as preconditioner.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from wdro_model.traffic.bushes.kernels import NONE, cost_and_slope, evaluate, kernel, part

CLOSE = 1e-3
"""Of the residual of the system, where conjugate gradients end."""
FEW = 25
"""Steps of conjugate gradients before the bounds are looked at; then twice as many."""
STEEPEST, FLATTEST = 1e200, 1e-12
"""The largest slope, and the least diagonal, as a part of the largest."""
HALVINGS = 40


@kernel
def note_cycles(
    origins: Any,
    heads: Any,
    tails: Any,
    cost: Any,
    arcs: Any,
    flows: Any,
    place: Any,
    n: Any,
    pairs: Any,
    path: Any,
) -> None:
    """The cycles of the bushes, as far as there is room: tree path, then entry and its tree path.

    Entries without flow count where they are shorter.
    """
    tree, group, reach = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n)
    pairs[-1] = 0
    for i in range(origins.size):
        begin, end = place[i, 0], place[i, 0] + place[i, 1]
        group[origins[i]] = NONE
        reach[origins[i]] = 0.0
        before = origins[i]
        for k in range(begin, end):
            v = heads[arcs[k]]
            if v != before:
                before = v
                group[v], tree[v] = k, k
            elif flows[k] > flows[tree[v]]:
                tree[v] = k
            if k + 1 == end or heads[arcs[k + 1]] != v:
                a = arcs[tree[v]]
                reach[v] = reach[tails[a]] + cost[a]
        for k in range(begin, end):
            a = arcs[k]
            v = heads[a]
            if tree[v] == k or (flows[k] <= 0.0 and reach[tails[a]] + cost[a] >= reach[v]):
                continue
            row, free = pairs[-1, 0], pairs[-1, 1]
            if row + 1 >= len(pairs):
                return
            u, w, short, long = tails[a], tails[arcs[tree[v]]], 1, 1
            while u != w:
                if group[u] > group[w]:
                    u, short = tails[arcs[tree[u]]], short + 1
                else:
                    w, long = tails[arcs[tree[w]]], long + 1
            if free + long + short > path.size:
                return
            at, w = free, v
            for _ in range(long):
                path[at] = tree[w]
                w = tails[arcs[tree[w]]]
                at += 1
            pairs[row, 0], pairs[row, 1] = free, at
            path[at], u = k, tails[a]
            at += 1
            for _ in range(short - 1):
                path[at] = tree[u]
                u = tails[arcs[tree[u]]]
                at += 1
            pairs[row, 2] = at
            pairs[-1, 0], pairs[-1, 1] = row + 1, at


@part
def along(values: Any, row: Any, pairs: Any, path: Any, arcs: Any) -> Any:
    """The sum of values of arcs over the short segment of a cycle, less that over the long one."""
    total = 0.0
    for k in range(pairs[row, 0], pairs[row, 1]):
        total -= values[arcs[path[k]]]
    for k in range(pairs[row, 1], pairs[row, 2]):
        total += values[arcs[path[k]]]
    return total


@part
def spread(amounts: Any, pairs: Any, path: Any, arcs: Any, change: Any) -> None:
    """The change of the flow of each arc (A,) when cycles carry amounts."""
    change[:] = 0.0
    for row in range(pairs[-1, 0]):
        if amounts[row] != 0.0:
            for k in range(pairs[row, 0], pairs[row, 1]):
                change[arcs[path[k]]] -= amounts[row]
            for k in range(pairs[row, 1], pairs[row, 2]):
                change[arcs[path[k]]] += amounts[row]


@part
def solve(
    steps: Any,
    damping: Any,
    slope: Any,
    cost: Any,
    arcs: Any,
    pairs: Any,
    path: Any,
    diagonal: Any,
    free: Any,
    amounts: Any,
) -> Any:
    """Conjugate gradients over the cycles that are free, from the amounts there are.

    Returns how many steps that took, the most allowed where the system is not solved.
    """
    rows = pairs[-1, 0]
    left, product, toward = np.zeros(rows), np.zeros(rows), np.zeros(rows)
    change = np.empty(slope.size)
    spread(amounts, pairs, path, arcs, change)
    change *= -slope
    change -= cost
    size = 0.0
    for row in range(rows):
        if free[row]:
            left[row] = along(change, row, pairs, path, arcs)
            toward[row] = left[row] / diagonal[row]
            size += left[row] * toward[row]
    first = size
    for step in range(steps):
        if size <= CLOSE**2 * first:
            return step
        spread(toward, pairs, path, arcs, change)
        change *= slope
        bent = 0.0
        for row in range(rows):
            if free[row]:
                product[row] = along(change, row, pairs, path, arcs)
                product[row] += damping * diagonal[row] * toward[row]
                bent += toward[row] * product[row]
        if not bent > 0.0:
            return step
        length = size / bent
        before, size = size, 0.0
        for row in range(rows):
            if free[row]:
                amounts[row] += length * toward[row]
                left[row] -= length * product[row]
                size += left[row] * left[row] / diagonal[row]
        for row in range(rows):
            if free[row]:
                toward[row] = left[row] / diagonal[row] + size / before * toward[row]
    return steps


@part
def carry(sign: Any, amounts: Any, pairs: Any, path: Any, flows: Any) -> None:
    """Move amounts from the long to the short segments, whatever flows become."""
    for row in range(pairs[-1, 0]):
        if amounts[row] != 0.0:
            for k in range(pairs[row, 0], pairs[row, 1]):
                flows[path[k]] -= sign * amounts[row]
            for k in range(pairs[row, 1], pairs[row, 2]):
                flows[path[k]] += sign * amounts[row]


@part
def rate(
    way: Any, at: Any, x: Any, constant: Any, scale: Any, terms: Any, weight: Any, power: Any
) -> Any:
    """The derivative of the objective along a way, at a part of it."""
    total = 0.0
    for a in range(x.size):
        if way[a] != 0.0:
            there = max(x[a] + at * way[a], 0.0)
            total += way[a] * cost_and_slope(a, there, constant, scale, terms, weight, power)[0]
    return total


@part
def hold(amounts: Any, free: Any, before: Any, pairs: Any, path: Any, arcs: Any, flows: Any) -> Any:
    """Hold cycles at amounts that leave flows >= 0; how many there were.

    First those whose own entry would be used up, then those on a tree path that would be.
    """
    held = 0
    for row in range(pairs[-1, 0]):
        own = before[pairs[row, 1]]
        if free[row] and amounts[row] < -own:
            amounts[row], free[row] = -own, False
            held += 1
    if held > 0:
        return held
    carry(1.0, amounts, pairs, path, flows)
    for row in range(pairs[-1, 0]):
        if not free[row]:
            continue
        share = 1.0
        for k in range(pairs[row, 0], pairs[row, 2]):
            there = flows[path[k]]
            down = amounts[row] < 0.0 if k >= pairs[row, 1] else amounts[row] > 0.0
            if down and there < -1e-12 * before[k]:
                share = min(share, before[k] / (before[k] - there))
        if share < 1.0:
            amounts[row] *= share
            free[row] = False
            held += 1
    for k in range(before.size):
        flows[path[k]] = before[k]
    return held


@part
def lowest(
    most: Any,
    way: Any,
    x: Any,
    constant: Any,
    scale: Any,
    terms: Any,
    weight: Any,
    power: Any,
) -> Any:
    """The part of a way, at most `most`, where the objective is least."""
    if rate(way, most, x, constant, scale, terms, weight, power) <= 0.0:
        return most
    low, high = 0.0, most
    for _ in range(HALVINGS):
        middle = 0.5 * (low + high)
        if rate(way, middle, x, constant, scale, terms, weight, power) > 0.0:
            high = middle
        else:
            low = middle
    return low


@kernel
def stride(
    products: Any,
    damping: Any,
    constant: Any,
    scale: Any,
    terms: Any,
    weight: Any,
    power: Any,
    x: Any,
    cost: Any,
    slope: Any,
    arcs: Any,
    flows: Any,
    pairs: Any,
    path: Any,
) -> Any:
    """Newton's step of the cycles within the flows there are, as far as the objective falls.

    Returns the part of the step that was taken.
    """
    rows = pairs[-1, 0]
    if rows == 0:
        return 1.0
    diagonal, amounts, free = np.zeros(rows), np.zeros(rows), np.ones(rows, np.bool_)
    bounded = np.minimum(slope, STEEPEST)
    for row in range(rows):
        for k in range(pairs[row, 0], pairs[row, 2]):
            diagonal[row] += bounded[arcs[path[k]]]
    diagonal = np.maximum(diagonal, max(FLATTEST * diagonal.max(), 1e-300))
    before = np.empty(pairs[-1, 1])
    for k in range(before.size):
        before[k] = flows[path[k]]
    steps = FEW
    while products > 0:
        taken = solve(steps, damping, bounded, cost, arcs, pairs, path, diagonal, free, amounts)
        products -= taken + 1
        if hold(amounts, free, before, pairs, path, arcs, flows) == 0:
            if taken < steps:
                break
            steps *= 2
    carry(1.0, amounts, pairs, path, flows)
    most = 1.0
    for k in range(before.size):
        there = flows[path[k]]
        if there < 0.0:
            most = min(most, before[k] / (before[k] - there))
    way = np.empty(x.size)
    spread(amounts, pairs, path, arcs, way)
    most = lowest(most, way, x, constant, scale, terms, weight, power)
    carry(most - 1.0, amounts, pairs, path, flows)
    for k in range(before.size):
        flows[path[k]] = max(flows[path[k]], 0.0)
    for a in range(x.size):
        x[a] = max(x[a] + most * way[a], 0.0)
    evaluate(x, constant, scale, terms, weight, power, cost, slope)
    return most
