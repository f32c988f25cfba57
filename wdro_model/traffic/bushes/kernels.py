"""Algorithm B of Dial (2006), compiled by Numba; imported only where it is asked for.

The trips of an origin use a *bush*: links without a cycle that reach every node. A bush lists its
entries (link, flow) by the heads of the links, in an order of the nodes in which every link leads
forwards; one pass along the list finds the least and the largest cost of each node. With L the
least cost of a node within the bush and U the largest,

    plant    makes bushes of shortest path trees,
    improve  drops links without flow, and adds links (u, v) with D(u) + t < L(v) and U(u) < U(v), D
             being the least costs in the whole network: along all links U grows, so there is no
             cycle, and where U = L this admits every shorter path,
    balance  shifts flow from the longest used to the shortest segment that lead to a node, until
             their costs are equal: a Newton step, or a root search where that goes too far.

Every shift lowers Beckmann's objective, so that flows are feasible and no worse at any time. Nodes
that may not be passed are reached and not left. Link costs are those of `PowerCosts`.

Kernels share one argument, `data` (`BushData` in `state`): roads (`Roads`), demand (`Demand`), the
costs of the links, their state `links` (flow, cost, slope), and the entries of all `bushes`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np

from wdro_model.traffic.flows.shortest_trees import compiled, new_search, search_by_heap

NONE = -1
NEGLIGIBLE_SHARE = 1e-15
"""Flows below this part of the flow that leaves the origin are rounding errors, and become zero."""
OVERSHOT = -0.25
"""A step is cut where the difference of costs after it is below this part of the difference before;
nearer to zero, shifts are more exact and slower."""
MOST_CUTS = 30
"""The most steps of the root search in one shift."""
LABEL_ROUNDING = 1e-15
"""Relative improvement of a distance below which a label correction ends."""
PATH_TOLERANCE = 1e-12
"""The part of a demand that may be missing on its paths."""

part = numba.njit(nogil=True)


class Bush(NamedTuple):
    """The entries of one bush: links and flows (K,)."""

    source: Any
    links: Any
    flows: Any


@part
def get_bush(i: Any, data: Any) -> Bush:
    """The bush of origin i."""
    size, bushes = data.bushes.size[i], data.bushes
    return Bush(data.demand.origins[i], bushes.links[i, :size], bushes.flows[i, :size])


@part
def cost_and_slope(a: Any, x: Any, costs: Any) -> Any:
    """The cost of link a at flow x and its derivative, which is infinite at 0 for powers < 1."""
    constant, weight, p = costs.constant[a], costs.weight[a], costs.power[a]
    if weight == 0.0:
        return constant, 0.0
    if x <= 0.0:
        slope = weight * costs.scale[a] if p == 1.0 else np.inf if p < 1.0 else 0.0
        return constant, slope
    r = x * costs.scale[a]
    below = weight * (r * r * r if p == 4.0 else 1.0 if p == 1.0 else r ** (p - 1.0))
    return constant + below * r, p * below * costs.scale[a]


@part
def add_flow(a: Any, amount: Any, costs: Any, links: Any) -> None:
    """Change the flow of a link, its cost and its slope."""
    links.flow[a] = max(links.flow[a] + amount, 0.0)
    links.cost[a], links.slope[a] = cost_and_slope(a, links.flow[a], costs)


@part
def add_demand(i: Any, demand: Any, need: Any) -> Any:
    """Add the demand of the destinations of origin i to `need` (n,); returns the total."""
    total = 0.0
    for pair in range(demand.starts[i], demand.starts[i + 1]):
        need[demand.destinations[pair]] += demand.quantities[pair]
        total += demand.quantities[pair]
    return total


@compiled
def evaluate(costs: Any, links: Any) -> None:
    """Write the costs and slopes of all links at their flows."""
    for a in range(links.flow.size):
        links.cost[a], links.slope[a] = cost_and_slope(a, links.flow[a], costs)


@compiled
def plant(first: Any, last: Any, data: Any) -> None:
    """Make shortest path trees of the origins from first to last, loaded one after the other.

    Each origin finds the costs that the origins before it have left.
    """
    roads, links, bushes = data.roads, data.links, data.bushes
    n = roads.through.size
    search, need, nothing = new_search(n), np.zeros(n), np.zeros(n)
    for i in range(first, last):
        source = data.demand.origins[i]
        count = np.int64(search_by_heap(source, np.uint32(0), roads, links.cost, nothing, search))
        add_demand(i, data.demand, need)
        for k in range(count - 1, 0, -1):
            v = search.order[k]
            a = search.came_by[v]
            bushes.links[i, k - 1] = a
            bushes.flows[i, k - 1] = need[v]
            need[roads.tails[a]] += need[v]
            need[v] = 0.0
        need[source] = 0.0
        bushes.size[i] = count - 1
        for k in range(count - 1):
            if bushes.flows[i, k] > 0.0:
                add_flow(bushes.links[i, k], bushes.flows[i, k], data.costs, links)


# ------------------------------------------------------------------ balance
class Labels(NamedTuple):
    """The least and largest costs L and U of each node in a bush, and their last entries, all (n,).

    first: the first entry of a node, which grows along the order of the bush.
    """

    low: Any
    high: Any
    nearest: Any
    farthest: Any
    first: Any


@part
def label_nodes(bush: Bush, roads: Any, cost: Any, labels: Labels) -> None:
    """Find L over all entries of a bush and U over the used ones."""
    low, high, nearest, farthest, first = labels
    low[bush.source] = high[bush.source] = 0.0
    first[bush.source] = NONE
    before = bush.source
    for k in range(bush.links.size):
        a = bush.links[k]
        u, v = roads.tails[a], roads.heads[a]
        reach = low[u] + cost[a]
        if v != before:
            before = v
            first[v] = k
            low[v], nearest[v] = reach, k
            high[v], farthest[v] = -1.0, NONE
        elif reach < low[v]:
            low[v], nearest[v] = reach, k
        if bush.flows[k] > 0.0:
            reach = high[u] + cost[a]
            if reach > high[v]:
                high[v], farthest[v] = reach, k


@compiled
def balance(first: Any, last: Any, tolerance: Any, data: Any) -> Any:
    """Shift flow to shorter segments in the bushes from first to last; returns the shifts made.

    Differences of costs up to the tolerance are left.
    """
    n, shifts = data.roads.through.size, 0
    nodes, low, high = np.empty((5, n), np.int64), np.empty(n), np.empty(n)
    labels = Labels(low, high, nodes[0], nodes[1], nodes[2])
    for i in range(first, last):
        bush = get_bush(i, data)
        label_nodes(bush, data.roads, data.links.cost, labels)
        k = bush.links.size - 1
        while k >= 0:
            v = data.roads.heads[bush.links[k]]
            start = labels.first[v]
            is_only = start == k
            k = start - 1
            if is_only or labels.farthest[v] == NONE or labels.farthest[v] == labels.nearest[v]:
                continue
            if labels.high[v] - labels.low[v] <= tolerance:
                continue
            longs, shorts = trace_segments(v, data.roads, bush, labels, nodes[3], nodes[4])
            if longs > 0:
                shifts += shift(nodes[3, :longs], nodes[4, :shorts], tolerance, bush, data)
    return shifts


@part
def trace_segments(
    v: Any, roads: Any, bush: Bush, labels: Labels, long: Any, short: Any
) -> tuple[int, int]:
    """Write the longest and the shortest segment to v, back to the node where they part.

    Returns their numbers of entries, 0 where the long one ends in a node without flow.
    """
    long[0], short[0] = labels.farthest[v], labels.nearest[v]
    longs, shorts = 1, 1
    u, w = roads.tails[bush.links[short[0]]], roads.tails[bush.links[long[0]]]
    while u != w:
        if labels.first[u] > labels.first[w]:
            short[shorts] = labels.nearest[u]
            u = roads.tails[bush.links[short[shorts]]]
            shorts += 1
        elif labels.farthest[w] != NONE:
            long[longs] = labels.farthest[w]
            w = roads.tails[bush.links[long[longs]]]
            longs += 1
        else:
            return 0, 0
    return longs, shorts


@part
def shift(long: Any, short: Any, tolerance: Any, bush: Bush, data: Any) -> Any:
    """Move flow from the long to the short segment until they cost the same; 1 if any moved.

    The first step is Newton's; after one that was too long comes the regula falsi (Illinois)
    between no step and that one.
    """
    limit, gain, curve = np.inf, 0.0, 0.0
    for e in long:
        limit = min(limit, bush.flows[e])
        gain += data.links.cost[bush.links[e]]
        curve += data.links.slope[bush.links[e]]
    for e in short:
        gain -= data.links.cost[bush.links[e]]
        curve += data.links.slope[bush.links[e]]
    if limit <= 0.0 or gain <= tolerance:
        return 0
    step, done = limit, 0.0
    if curve > 0.0 and curve < np.inf:
        step = min(limit, gain / curve)
    near, near_gain, far, far_gain = 0.0, gain, 0.0, 0.0
    for attempt in range(MOST_CUTS):
        if attempt > 0:
            step = (near * far_gain - far * near_gain) / (far_gain - near_gain)
        left = move_flow(done - step, long, bush, data.costs, data.links)
        left -= move_flow(step - done, short, bush, data.costs, data.links)
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
    return 1


@part
def move_flow(amount: Any, segment: Any, bush: Bush, costs: Any, links: Any) -> Any:
    """Add an amount to the flows of the entries of a segment; returns its cost after that."""
    total = 0.0
    for e in segment:
        bush.flows[e] = max(bush.flows[e] + amount, 0.0)
        add_flow(bush.links[e], amount, costs, links)
        total += links.cost[bush.links[e]]
    return total


# ------------------------------------------------------------------ improve
class Scratch(NamedTuple):
    """Room for `improve`: by node (n,), for the entries of the new bush (M,), and a queue of nodes.

    low, high, true: L, U and D; nearest, own: the entry of L, and the first entry of a node;
    via: the last link of the shortest path in the network; order, rank: the nodes in the order of
    the bush, and their positions; need: flow that a node still has to receive; slot, following:
    linked lists of entries by node.
    """

    low: Any
    high: Any
    true: Any
    need: Any
    nearest: Any
    own: Any
    rank: Any
    slot: Any
    via: Any
    order: Any
    queue: Any
    waiting: Any
    links: Any
    flows: Any
    following: Any


@part
def new_scratch(n: Any, m: Any) -> Scratch:
    """Room for n nodes and m links."""
    costs, places, nodes = np.empty((3, n)), np.empty((3, n), np.int64), np.empty((3, n), np.uint32)
    costs[0] = np.inf
    slot, waiting = np.empty(n + 1, np.int64), np.zeros(n, np.bool_)
    links, flows, following = np.empty(m, np.uint32), np.empty(m), np.empty(m, np.int64)
    return Scratch(
        *(costs[0], costs[1], costs[2], np.zeros(n)),
        *(places[0], places[1], places[2], slot),
        *(nodes[0], nodes[1], nodes[2], waiting),
        *(links, flows, following),
    )


@compiled
def improve(first: Any, last: Any, data: Any, total: Any, least: Any) -> None:
    """Exchange links of the bushes from first to last, for others that make paths shorter.

    Adds the flows to `total` (M,), balanced at every node, and writes the cost of the trips of each
    origin on shortest paths into `least` (O,).
    """
    roads, demand, cost = data.roads, data.demand, data.links.cost
    room = new_scratch(roads.through.size, roads.heads.size)
    for i in range(first, last):
        bush = get_bush(i, data)
        find_shortest_in_bush(bush, roads, cost, room)
        meet_demand(i, bush, roads, demand, room)
        count, size = keep_useful_entries(bush, roads, cost, room)
        find_shortest_in_network(bush.source, count, roads, cost, room)
        least[i] = 0.0
        for pair in range(demand.starts[i], demand.starts[i + 1]):
            least[i] += demand.quantities[pair] * room.true[demand.destinations[pair]]
        size, forwards = add_shortcuts(count, size, roads, room)
        if not forwards:
            sort_nodes(bush.source, count, size, roads, room)
        store_by_head(i, count, size, roads, room, data.bushes)
        for k in range(size):
            total[room.links[k]] += room.flows[k]
        for k in range(count):
            room.low[room.order[k]] = np.inf


@part
def find_shortest_in_bush(bush: Bush, roads: Any, cost: Any, room: Scratch) -> None:
    """Find L and its entries, along the order of the bush."""
    room.low[bush.source] = 0.0
    before = bush.source
    for k in range(bush.links.size):
        a = bush.links[k]
        v = roads.heads[a]
        reach = room.low[roads.tails[a]] + cost[a]
        if v != before or reach < room.low[v]:
            before = v
            room.low[v], room.nearest[v] = reach, k


@part
def meet_demand(i: Any, bush: Bush, roads: Any, demand: Any, room: Scratch) -> None:
    """Scale the flows into each node to its need, from the last node to the first."""
    need, links, flows = room.need, bush.links, bush.flows
    sent = add_demand(i, demand, need)
    k = links.size - 1
    while k >= 0:
        v = roads.heads[links[k]]
        stop, arriving = k, 0.0
        while k >= 0 and roads.heads[links[k]] == v:
            if flows[k] <= NEGLIGIBLE_SHARE * sent:
                flows[k] = 0.0
            arriving += flows[k]
            k -= 1
        if arriving > 0.0:
            factor = need[v] / arriving
            for e in range(k + 1, stop + 1):
                flows[e] *= factor
        else:
            flows[room.nearest[v]] = need[v]
        for e in range(k + 1, stop + 1):
            need[roads.tails[links[e]]] += flows[e]
        need[v] = 0.0
    need[bush.source] = 0.0


@part
def keep_useful_entries(bush: Bush, roads: Any, cost: Any, room: Scratch) -> tuple[int, int]:
    """Copy the entries that are used or shortest, and find U over these.

    Returns the numbers of nodes and of entries.
    """
    high, source = room.high, bush.source
    high[source], room.rank[source], room.order[0] = 0.0, 0, source
    size, count, before = 0, 1, source
    for k in range(bush.links.size):
        a = bush.links[k]
        v = roads.heads[a]
        if bush.flows[k] <= 0.0 and room.nearest[v] != k:
            continue
        room.links[size], room.flows[size] = a, bush.flows[k]
        size += 1
        reach = high[roads.tails[a]] + cost[a]
        if v != before:
            before = v
            room.rank[v], room.own[v] = count, size - 1
            room.order[count] = v
            count += 1
            high[v] = reach
        elif reach > high[v]:
            high[v] = reach
    return count, size


@part
def find_shortest_in_network(source: Any, count: Any, roads: Any, cost: Any, room: Scratch) -> None:
    """Find D and its last links, by label correction from L.

    Nodes are scanned in the order of the bush, and again where their label has fallen since.
    """
    n, queue, waiting = room.true.size, room.queue, room.waiting
    for k in range(count):
        room.true[room.order[k]] = room.low[room.order[k]]
    head, tail, scanned, queued = 0, 0, 0, 0
    while scanned < count or queued > 0:
        if scanned < count:
            u = room.order[scanned]
            scanned += 1
        else:
            u = queue[head]
            head = head + 1 if head + 1 < n else 0
            queued -= 1
            waiting[u] = False
        if not roads.through[u] and u != source:
            continue
        for a in range(roads.indptr[u], roads.indptr[u + 1]):
            v = roads.heads[a]
            reach = room.true[u] + cost[a]
            if reach >= room.true[v] * (1.0 - LABEL_ROUNDING):
                continue
            room.true[v] = reach
            room.via[v] = a
            if room.rank[v] < scanned and not waiting[v]:
                waiting[v] = True
                queue[tail] = v
                tail = tail + 1 if tail + 1 < n else 0
                queued += 1


@part
def add_shortcuts(count: Any, size: Any, roads: Any, room: Scratch) -> tuple[int, bool]:
    """Add the last link of each shorter path; a node without flow takes it instead of its own.

    Returns the number of entries, and whether all still lead forwards in the order of the nodes.
    """
    known, forwards = size, True
    for k in range(1, count):
        v = room.order[k]
        a = room.via[v]
        if not (room.true[v] < room.low[v] and room.high[roads.tails[a]] < room.high[v]):
            continue
        e = room.own[v]
        while e < known and room.links[e] != a and roads.heads[room.links[e]] == v:
            e += 1
        if e < known and room.links[e] == a:
            continue
        if room.flows[room.own[v]] > 0.0:
            room.links[size], room.flows[size] = a, 0.0
            size += 1
        else:
            room.links[room.own[v]] = a
        forwards = forwards and room.rank[roads.tails[a]] < room.rank[v]
    return size, forwards


@part
def sort_nodes(source: Any, count: Any, size: Any, roads: Any, room: Scratch) -> None:
    """Write an order of the nodes in which all entries lead forwards (Kahn) into rank and order.

    Until a node has its place, its rank is the number of entries from nodes without one.
    """
    rank, slot, order, queue = room.rank, room.slot, room.order, room.queue
    for k in range(count):
        rank[order[k]] = 0
        slot[order[k]] = NONE
    for e in range(size):
        a = room.links[e]
        rank[roads.heads[a]] += 1
        room.following[e] = slot[roads.tails[a]]
        slot[roads.tails[a]] = e
    queue[0] = source
    head, tail = 0, 1
    while head < tail:
        u = queue[head]
        order[head] = u
        head += 1
        e = slot[u]
        while e != NONE:
            v = roads.heads[room.links[e]]
            rank[v] -= 1
            if rank[v] == 0:
                queue[tail] = v
                tail += 1
            e = room.following[e]
    for k in range(count):
        rank[order[k]] = k


@part
def store_by_head(i: Any, count: Any, size: Any, roads: Any, room: Scratch, bushes: Any) -> None:
    """Write the entries into the bush of origin i, by the rank of their heads."""
    slot = room.slot
    slot[: count + 1] = 0
    for e in range(size):
        slot[room.rank[roads.heads[room.links[e]]] + 1] += 1
    for k in range(count):
        slot[k + 1] += slot[k]
    for e in range(size):
        rank = room.rank[roads.heads[room.links[e]]]
        k = slot[rank]
        slot[rank] = k + 1
        bushes.links[i, k] = room.links[e]
        bushes.flows[i, k] = room.flows[e]
    bushes.size[i] = size


# ------------------------------------------------------------------ paths
@compiled
def peel_paths(i: Any, data: Any) -> Any:
    """The paths of origin i: pairs, amounts, and the links of all paths with -1 after each.

    Each path follows the link with most flow from a destination back to the origin, and its flow is
    taken off.
    """
    roads, demand, bush = data.roads, data.demand, get_bush(i, data)
    entries, flows = bush.links, bush.flows.copy()
    n, source = roads.through.size, bush.source
    begin, end = np.zeros(n, np.int64), np.zeros(n, np.int64)
    for k in range(entries.size):
        v = roads.heads[entries[k]]
        if end[v] == 0:
            begin[v] = k
        end[v] = k + 1
    pairs, amounts, paths = [0], [0.0], [NONE]
    way = np.empty(n, np.int64)
    for pair in range(demand.starts[i], demand.starts[i + 1]):
        quantity, before = demand.quantities[pair], len(pairs)
        left = quantity
        while left > PATH_TOLERANCE * quantity:
            amount, steps, v = left, 0, demand.destinations[pair]
            while v != source:
                best = begin[v]
                for k in range(begin[v] + 1, end[v]):
                    if flows[k] > flows[best]:
                        best = k
                way[steps] = best
                steps += 1
                amount = min(amount, flows[best])
                v = roads.tails[entries[best]]
            if amount <= PATH_TOLERANCE * quantity:
                if len(pairs) > before:
                    break
                amount = left  # rounding has used up what there was
            for k in way[:steps][::-1]:
                flows[k] = max(flows[k] - amount, 0.0)
                paths.append(np.int64(entries[k]))  # type: ignore[arg-type]
            paths.append(NONE)
            pairs.append(pair)
            amounts.append(amount)
            left -= amount
        total = 0.0
        for k in range(before, len(pairs)):
            total += amounts[k]
        for k in range(before, len(pairs)):
            amounts[k] *= quantity / total
    return np.array(pairs[1:]), np.array(amounts[1:]), np.array(paths[1:])
