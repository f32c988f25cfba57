"""Algorithm B of Dial (2006), compiled by Numba; imported only where it is asked for.

The trips of an origin use a *bush*: arcs without a cycle that reach every node. It is stored as a
list of entries (arc, flow), grouped by the head of the arc, the heads in an order in which every
arc leads forwards; one pass along the list finds the least and the largest cost of each node. With
L the least cost of a node within the bush and U the largest,

    plant    makes bushes of shortest path trees,
    improve  drops arcs without flow, and adds arcs (u, v) with D(u) + t < L(v) and U(u) < U(v), D
             being the least costs in the whole network: along all arcs U grows, so there is no
             cycle, and where U = L this admits every shorter path,
    balance  shifts flow from the longest used to the shortest segment that lead to a node, until
             their costs are equal: a Newton step, or a root search where that goes too far.

Every shift lowers Beckmann's objective, so that flows are feasible and no worse at any time. Nodes
that may not be passed are reached and not gone on from. The cost of arc a with flow x is

    t(x) = constant_a + sum over its terms k of weight_k (x scale_a)^power_k.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from wdro_model.traffic.flows.numba_kernel import search_by_heap

NONE = -1
NEGLIGIBLE = 1e-15
"""Flows below this part of what leaves the origin are rounding."""
OVERSHOT = -0.25
"""A step is cut where the difference of costs after it is below this part of that before."""
TRIES = 30

part = numba.njit(nogil=True)


def kernel(function: Any) -> Any:
    """The function as machine code, kept on disk where there is a place for it."""
    try:
        return numba.njit(nogil=True, cache=True)(function)
    except RuntimeError:
        # Neither the folder of this file nor the user's cache folder can be written.
        return numba.njit(nogil=True)(function)


@part
def cost_and_slope(
    a: Any, x: Any, constant: Any, scale: Any, terms: Any, weight: Any, power: Any
) -> Any:
    """t(x) and its derivative, which is infinite at 0 for powers below 1."""
    cost, slope = constant[a], 0.0
    first, last = terms[a], terms[a + 1]
    if x <= 0.0:
        for k in range(first, last):
            if power[k] == 1.0:
                slope += weight[k] * scale[a]
            elif power[k] < 1.0:
                slope = np.inf
        return cost, slope
    r = x * scale[a]
    if last - first == 1:
        p = power[first]
        below = r * r * r if p == 4.0 else 1.0 if p == 1.0 else r ** (p - 1.0)
        below *= weight[first]
        return cost + below * r, p * below * scale[a]
    log_r = np.log(r)
    for k in range(first, last):
        below = weight[k] * np.exp((power[k] - 1.0) * log_r)
        cost += below * r
        slope += power[k] * below * scale[a]
    return cost, slope


@kernel
def evaluate(
    x: Any,
    constant: Any,
    scale: Any,
    terms: Any,
    weight: Any,
    power: Any,
    cost: Any,
    slope: Any,
) -> None:
    """Costs and slopes of all arcs."""
    for a in range(x.size):
        cost[a], slope[a] = cost_and_slope(a, x[a], constant, scale, terms, weight, power)


# ------------------------------------------------------------------ room for bushes
@part
def store(i: Any, size: Any, arcs: Any, flows: Any, entry: Any, flow: Any, place: Any) -> Any:
    """Put the bush of origin i into the pool; False if there is no room.

    place (O + 1, 3): where a bush begins, its size, its room; the last row: where the pool is free.
    """
    if size > place[i, 2]:
        room = size + size // 4 + 8
        free = place[-1, 0]
        if free + room > arcs.size:
            return False
        place[i, 0], place[i, 2] = free, room
        place[-1, 0] = free + room
    place[i, 1] = size
    begin = place[i, 0]
    for k in range(size):
        arcs[begin + k] = entry[k]
        flows[begin + k] = flow[k]
    return True


@kernel
def plant(
    first: Any,
    last: Any,
    origins: Any,
    starts: Any,
    ends: Any,
    quantities: Any,
    indptr: Any,
    heads: Any,
    tails: Any,
    through: Any,
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
    place: Any,
) -> Any:
    """Shortest path trees of the origins from first to last, loaded one after the other.

    Each origin finds the costs that those before it have left. Returns the origin that the pool has
    no room for, or last.
    """
    n = through.size
    key, item = np.empty(n), np.empty(n, np.uint32)
    where, came_by = np.empty(n, np.uint32), np.empty(n, np.uint32)
    order, need, nothing = np.empty(n, np.uint32), np.zeros(n), np.zeros(n)
    entry, flow = np.empty(n, np.uint32), np.empty(n)
    for i in range(first, last):
        source = origins[i]
        count = np.int64(
            search_by_heap(
                source,
                np.uint32(0),
                indptr,
                heads,
                through,
                cost,
                nothing,
                key,
                item,
                where,
                came_by,
                order,
            )
        )
        for pair in range(starts[i], starts[i + 1]):
            need[ends[pair]] += quantities[pair]
        for k in range(count - 1, 0, -1):
            v = order[k]
            entry[k - 1] = came_by[v]
            flow[k - 1] = need[v]
            need[tails[came_by[v]]] += need[v]
            need[v] = 0.0
        need[source] = 0.0
        if not store(i, count - 1, arcs, flows, entry, flow, place):
            return i
        for k in range(count - 1):
            if flow[k] > 0.0:
                a = entry[k]
                x[a] += flow[k]
                cost[a], slope[a] = cost_and_slope(a, x[a], constant, scale, terms, weight, power)
    return last


# ------------------------------------------------------------------ flow from long to short
@part
def label(
    source: Any,
    begin: Any,
    end: Any,
    tails: Any,
    heads: Any,
    cost: Any,
    arcs: Any,
    flows: Any,
    low: Any,
    high: Any,
    nearest: Any,
    farthest: Any,
    group: Any,
) -> None:
    """L and U over used arcs, the entries on those paths, and where the group of a node begins."""
    low[source] = high[source] = 0.0
    group[source] = NONE
    before = source
    for k in range(begin, end):
        a = arcs[k]
        u, v = tails[a], heads[a]
        reach = low[u] + cost[a]
        if v != before:
            before = v
            group[v] = k
            low[v], nearest[v] = reach, k
            high[v], farthest[v] = -1.0, NONE
        elif reach < low[v]:
            low[v], nearest[v] = reach, k
        if flows[k] > 0.0:
            reach = high[u] + cost[a]
            if reach > high[v]:
                high[v], farthest[v] = reach, k


@part
def move(
    amount: Any,
    path: Any,
    size: Any,
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
) -> Any:
    """Add an amount to the flows of the entries of a path; its cost after that."""
    total = 0.0
    for k in range(size):
        e = path[k]
        a = arcs[e]
        flows[e] = max(flows[e] + amount, 0.0)
        x[a] = max(x[a] + amount, 0.0)
        cost[a], slope[a] = cost_and_slope(a, x[a], constant, scale, terms, weight, power)
        total += cost[a]
    return total


@part
def shift(
    gain: Any,
    curve: Any,
    limit: Any,
    long: Any,
    longs: Any,
    short: Any,
    shorts: Any,
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
) -> None:
    """Move flow from a long segment to a short one until the gain is used up, at most the limit."""
    step, done = limit, 0.0
    if curve > 0.0 and curve < np.inf:
        step = min(limit, gain / curve)
    near, near_gain, far, far_gain = 0.0, gain, 0.0, 0.0
    for attempt in range(TRIES):
        if attempt > 0:
            # Regula falsi (Illinois) between no step and one that was too long.
            step = (near * far_gain - far * near_gain) / (far_gain - near_gain)
        left = move(
            done - step,
            long,
            longs,
            constant,
            scale,
            terms,
            weight,
            power,
            x,
            cost,
            slope,
            arcs,
            flows,
        ) - move(
            step - done,
            short,
            shorts,
            constant,
            scale,
            terms,
            weight,
            power,
            x,
            cost,
            slope,
            arcs,
            flows,
        )
        done = step
        if left >= OVERSHOT * gain and (attempt == 0 or left <= -OVERSHOT * gain):
            break
        if left < 0.0:
            if attempt > 0:
                near_gain *= 0.5
            far, far_gain = step, left
        else:
            far_gain *= 0.5
            near, near_gain = step, left


@kernel
def balance(
    first: Any,
    last: Any,
    tolerance: Any,
    origins: Any,
    heads: Any,
    tails: Any,
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
    place: Any,
    n: Any,
    pairs: Any,
    path: Any,
) -> None:
    """Shift flow to shorter segments in the bushes from first to last.

    Differences of costs up to the tolerance are left. Pairs of segments are noted, as far as there
    is room: the entries of the long one in path from pairs[k, 0] on, those of the short one from
    pairs[k, 1] to pairs[k, 2]. The last row of `pairs` has how many there are, and where `path` is
    free.
    """
    low, high = np.empty(n), np.empty(n)
    nearest, farthest = np.empty(n, np.int64), np.empty(n, np.int64)
    group = np.empty(n, np.int64)
    long, short = np.empty(n, np.uint32), np.empty(n, np.uint32)
    for i in range(first, last):
        begin, end = place[i, 0], place[i, 0] + place[i, 1]
        label(
            origins[i],
            begin,
            end,
            tails,
            heads,
            cost,
            arcs,
            flows,
            low,
            high,
            nearest,
            farthest,
            group,
        )
        k = end - 1
        while k >= begin:
            v = heads[arcs[k]]
            start = group[v]
            alone = start == k
            k = start - 1
            if alone or farthest[v] == NONE or farthest[v] == nearest[v]:
                continue
            if high[v] - low[v] <= tolerance:
                continue
            # Both paths back to the node where they part.
            shorts, longs = 1, 1
            short[0], long[0] = nearest[v], farthest[v]
            a, b = arcs[nearest[v]], arcs[farthest[v]]
            u, w = tails[a], tails[b]
            limit = flows[farthest[v]]
            gain, curve = cost[b] - cost[a], slope[a] + slope[b]
            while u != w and limit > 0.0:
                if group[u] > group[w]:
                    e = nearest[u]
                    a = arcs[e]
                    short[shorts] = e
                    shorts += 1
                    u = tails[a]
                    gain -= cost[a]
                    curve += slope[a]
                elif farthest[w] != NONE:
                    e = farthest[w]
                    b = arcs[e]
                    long[longs] = e
                    longs += 1
                    w = tails[b]
                    limit = min(limit, flows[e])
                    gain += cost[b]
                    curve += slope[b]
                else:
                    limit = 0.0
            if limit <= 0.0 or gain <= tolerance:
                continue
            shift(
                gain,
                curve,
                limit,
                long,
                longs,
                short,
                shorts,
                constant,
                scale,
                terms,
                weight,
                power,
                x,
                cost,
                slope,
                arcs,
                flows,
            )
            row, free = pairs[-1, 0], pairs[-1, 1]
            if row + 1 < len(pairs) and free + longs + shorts <= path.size:
                path[free : free + longs] = long[:longs]
                path[free + longs : free + longs + shorts] = short[:shorts]
                pairs[row, 0] = free
                pairs[row, 1] = free + longs
                pairs[row, 2] = free + longs + shorts
                pairs[-1, 0] = row + 1
                pairs[-1, 1] = free + longs + shorts


@kernel
def repeat(
    rounds: Any,
    tolerance: Any,
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
    """Shift flow within the pairs of segments that were noted, either way, some rounds at most.

    Returns how many shifts there were.
    """
    shifts = 0
    for _ in range(rounds):
        before = shifts
        for row in range(pairs[-1, 0]):
            long = path[pairs[row, 0] : pairs[row, 1]]
            short = path[pairs[row, 1] : pairs[row, 2]]
            gain = 0.0
            for e in long:
                gain += cost[arcs[e]]
            for e in short:
                gain -= cost[arcs[e]]
            if abs(gain) <= tolerance:
                continue
            if gain < 0.0:
                long, short = short, long
                gain = -gain
            limit, curve = np.inf, 0.0
            for e in long:
                limit = min(limit, flows[e])
                curve += slope[arcs[e]]
            if limit <= 0.0:
                continue
            for e in short:
                curve += slope[arcs[e]]
            shifts += 1
            shift(
                gain,
                curve,
                limit,
                long,
                long.size,
                short,
                short.size,
                constant,
                scale,
                terms,
                weight,
                power,
                x,
                cost,
                slope,
                arcs,
                flows,
            )
        if shifts == before:
            break
    return shifts


# ------------------------------------------------------------------ other arcs
@kernel
def improve(
    first: Any,
    last: Any,
    origins: Any,
    starts: Any,
    ends: Any,
    quantities: Any,
    indptr: Any,
    heads: Any,
    tails: Any,
    through: Any,
    cost: Any,
    arcs: Any,
    flows: Any,
    place: Any,
    total: Any,
    least: Any,
) -> Any:
    """Exchange arcs of the bushes from first to last, for others that make paths shorter.

    Adds the flows to `total` (A,), balanced at every node, and writes what the trips of an origin
    would spend on shortest paths into `least` (O,). Returns the origin that the pool has no room
    for, or last.
    """
    n, m = through.size, heads.size
    low, high, true = np.empty(n), np.empty(n), np.empty(n)
    nearest, rank = np.empty(n, np.int64), np.empty(n, np.int64)
    own, via = np.empty(n, np.int64), np.empty(n, np.uint32)
    need = np.zeros(n)
    order = np.empty(n, np.uint32)
    queue, waiting = np.empty(n, np.uint32), np.zeros(n, np.bool_)
    entry, flow = np.empty(m, np.uint32), np.empty(m)
    sorted_entry, sorted_flow = np.empty(m, np.uint32), np.empty(m)
    slot, following = np.empty(n + 1, np.int64), np.empty(m, np.int64)
    low[:] = np.inf
    for i in range(first, last):
        source = origins[i]
        begin, end = place[i, 0], place[i, 0] + place[i, 1]
        # L, along the order of the bush.
        low[source] = 0.0
        before = source
        for k in range(begin, end):
            a = arcs[k]
            v = heads[a]
            reach = low[tails[a]] + cost[a]
            if v != before:
                before = v
                low[v], nearest[v] = reach, k
            elif reach < low[v]:
                low[v], nearest[v] = reach, k
        # Flows balanced at each node, from the last to the first.
        sent = 0.0
        for pair in range(starts[i], starts[i + 1]):
            need[ends[pair]] += quantities[pair]
            sent += quantities[pair]
        k = end - 1
        while k >= begin:
            v = heads[arcs[k]]
            stop, arriving = k, 0.0
            while k >= begin and heads[arcs[k]] == v:
                if flows[k] <= NEGLIGIBLE * sent:
                    flows[k] = 0.0
                arriving += flows[k]
                k -= 1
            if arriving > 0.0:
                factor = need[v] / arriving
                for e in range(k + 1, stop + 1):
                    flows[e] *= factor
            else:
                flows[nearest[v]] = need[v]
            for e in range(k + 1, stop + 1):
                need[tails[arcs[e]]] += flows[e]
            need[v] = 0.0
        need[source] = 0.0
        # Arcs that are used or shortest stay; U over these.
        high[source], rank[source], order[0] = 0.0, 0, source
        size, count, before = 0, 1, source
        for k in range(begin, end):
            a = arcs[k]
            v = heads[a]
            if flows[k] <= 0.0 and nearest[v] != k:
                continue
            entry[size], flow[size] = a, flows[k]
            size += 1
            reach = high[tails[a]] + cost[a]
            if v != before:
                before = v
                rank[v], own[v] = count, size - 1
                order[count] = v
                count += 1
                high[v] = reach
            elif reach > high[v]:
                high[v] = reach
        # D, from L by label correction.
        for k in range(count):
            true[order[k]] = low[order[k]]
        head, tail, queued = 0, 0, 0
        for k in range(count):
            u = order[k]
            if not through[u] and u != source:
                continue
            for a in range(indptr[u], indptr[u + 1]):
                v = heads[a]
                reach = true[u] + cost[a]
                if reach < true[v] * (1.0 - 1e-15):
                    true[v] = reach
                    via[v] = a
                    # A node later in the order is met by this loop.
                    if rank[v] <= k and not waiting[v]:
                        waiting[v] = True
                        queue[tail] = v
                        tail = tail + 1 if tail + 1 < n else 0
                        queued += 1
        while queued > 0:
            u = queue[head]
            head = head + 1 if head + 1 < n else 0
            queued -= 1
            waiting[u] = False
            if not through[u] and u != source:
                continue
            for a in range(indptr[u], indptr[u + 1]):
                v = heads[a]
                reach = true[u] + cost[a]
                if reach < true[v] * (1.0 - 1e-15):
                    true[v] = reach
                    via[v] = a
                    if not waiting[v]:
                        waiting[v] = True
                        queue[tail] = v
                        tail = tail + 1 if tail + 1 < n else 0
                        queued += 1
        spent = 0.0
        for pair in range(starts[i], starts[i + 1]):
            spent += quantities[pair] * true[ends[pair]]
        least[i] = spent
        # The last arc of each shorter path; a node without flow takes it instead of its own.
        kept, forwards = size, True
        for k in range(1, count):
            v = order[k]
            if true[v] >= low[v] or high[tails[via[v]]] >= high[v]:
                continue
            a, e = via[v], own[v]
            while e < kept and entry[e] != a and heads[entry[e]] == v:
                e += 1
            if e < kept and entry[e] == a:
                continue
            if flow[own[v]] > 0.0:
                entry[size], flow[size] = a, 0.0
                size += 1
            else:
                entry[own[v]] = a
            forwards = forwards and rank[tails[a]] < rank[v]
        if not forwards:
            arrange(source, count, size, entry, heads, tails, rank, order, slot, following, queue)
        if size > kept or not forwards:
            group_by_head(count, size, entry, flow, heads, rank, slot, sorted_entry, sorted_flow)
            stored = store(i, size, arcs, flows, sorted_entry, sorted_flow, place)
        else:
            stored = store(i, size, arcs, flows, entry, flow, place)
        for k in range(count):
            low[order[k]] = np.inf
        if not stored:
            return i
        for k in range(size):
            total[entry[k]] += flow[k]
    return last


@part
def arrange(
    source: Any,
    count: Any,
    size: Any,
    entry: Any,
    heads: Any,
    tails: Any,
    rank: Any,
    order: Any,
    slot: Any,
    following: Any,
    queue: Any,
) -> None:
    """An order of the nodes in which all entries lead forwards (Kahn), in rank and order.

    Until a node has its place, its rank is the number of its entries that are still open.
    """
    for k in range(count):
        rank[order[k]] = 0
        slot[order[k]] = NONE
    for e in range(size):
        a = entry[e]
        rank[heads[a]] += 1
        following[e] = slot[tails[a]]
        slot[tails[a]] = e
    queue[0] = source
    tail = 1
    head = 0
    while head < tail:
        u = queue[head]
        order[head] = u
        head += 1
        e = slot[u]
        while e != NONE:
            v = heads[entry[e]]
            rank[v] -= 1
            if rank[v] == 0:
                queue[tail] = v
                tail += 1
            e = following[e]
    for k in range(count):
        rank[order[k]] = k


@part
def group_by_head(
    count: Any,
    size: Any,
    entry: Any,
    flow: Any,
    heads: Any,
    rank: Any,
    slot: Any,
    sorted_entry: Any,
    sorted_flow: Any,
) -> None:
    """The entries by the rank of their heads."""
    slot[: count + 1] = 0
    for e in range(size):
        slot[rank[heads[entry[e]]] + 1] += 1
    for k in range(count):
        slot[k + 1] += slot[k]
    for e in range(size):
        r = rank[heads[entry[e]]]
        k = slot[r]
        slot[r] = k + 1
        sorted_entry[k] = entry[e]
        sorted_flow[k] = flow[e]


# ------------------------------------------------------------------ paths
@part
def longer(array: Any, size: Any) -> Any:
    """A copy with room for as many more."""
    copied = np.empty(2 * array.size + size, array.dtype)
    copied[: array.size] = array
    return copied


@kernel
def peel(
    source: Any,
    first: Any,
    last: Any,
    ends: Any,
    quantities: Any,
    heads: Any,
    tails: Any,
    arcs: Any,
    flows: Any,
    n: Any,
) -> Any:
    """The paths of one origin: pairs, amounts, where the arcs of each begin, and the arcs.

    From each destination back along the arc with most flow, and that flow taken off.
    """
    begin, end = np.zeros(n, np.int64), np.zeros(n, np.int64)
    for k in range(arcs.size):
        v = heads[arcs[k]]
        if end[v] == 0:
            begin[v] = k
        end[v] = k + 1
    pairs, amounts = np.empty(last - first + 8, np.int64), np.empty(last - first + 8)
    cuts = np.zeros(last - first + 9, np.int64)
    path, found = np.empty(16 * (last - first) + 8, np.uint32), 0
    way = np.empty(n, np.int64)
    for pair in range(first, last):
        left, before = quantities[pair], found
        while left > 1e-12 * quantities[pair]:
            amount, steps, v = left, 0, ends[pair]
            while v != source:
                best = begin[v]
                for k in range(begin[v] + 1, end[v]):
                    if flows[k] > flows[best]:
                        best = k
                way[steps] = best
                steps += 1
                amount = min(amount, flows[best])
                v = tails[arcs[best]]
            if amount <= 1e-12 * quantities[pair]:
                if found > before:
                    break
                amount = left  # rounding has used up what there was
            if found == pairs.size:
                pairs, amounts = longer(pairs, 0), longer(amounts, 0)
                cuts = longer(cuts, 0)
            if cuts[found] + steps > path.size:
                path = longer(path, steps)
            for k in range(steps):
                flows[way[k]] = max(flows[way[k]] - amount, 0.0)
                path[cuts[found] + steps - 1 - k] = arcs[way[k]]
            pairs[found], amounts[found] = pair, amount
            cuts[found + 1] = cuts[found] + steps
            found += 1
            left -= amount
        total = 0.0
        for k in range(before, found):
            total += amounts[k]
        for k in range(before, found):
            amounts[k] *= quantities[pair] / total
    return pairs[:found], amounts[:found], cuts[: found + 1], path[: cuts[found]]
