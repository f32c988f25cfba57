"""Networks for tests: random ones for properties, and one with a known answer."""

import numpy as np
from hypothesis import strategies as st

from wdro_model.traffic import Network

POSITIVE = st.floats(1e-8, 1e9, allow_subnormal=False)
NONNEGATIVE = st.just(0.0) | st.floats(1e-80, 1e9, allow_subnormal=False)


@st.composite
def networks(draw, numbered=False):
    """Networks with parallel arcs, isolated nodes, any zones; fit for TNTP if `numbered`."""
    n = draw(st.integers(2, 6))
    node = st.integers(0, n - 1)
    pairs = draw(st.lists(st.tuples(node, node), min_size=1, max_size=9))
    pairs = [(u, v if v != u else (v + 1) % n) for u, v in pairs]
    zone_count = draw(st.integers(0, n))
    zones = list(range(n)) if numbered else draw(st.permutations(range(n)))
    blocked = draw(st.integers(0, zone_count)) if numbered else 0
    through = [i >= blocked for i in range(n)]
    if not numbered:
        through = draw(st.lists(st.booleans(), min_size=n, max_size=n))
    per_arc = {"min_size": len(pairs), "max_size": len(pairs)}
    entries = st.lists(NONNEGATIVE, min_size=zone_count**2, max_size=zone_count**2)
    coordinates = st.lists(st.floats(-1e6, 1e6), min_size=2 * n, max_size=2 * n)
    positions = draw(st.none() | coordinates)
    return Network(
        tails=[u for u, _ in pairs],
        heads=[v for _, v in pairs],
        capacity=draw(st.lists(POSITIVE, **per_arc)),
        free_flow_time=draw(st.lists(NONNEGATIVE, **per_arc)),
        b=draw(st.lists(NONNEGATIVE, **per_arc)),
        power=draw(st.lists(st.just(0.0) | st.floats(0.5, 17), **per_arc)),
        demand=np.reshape(draw(entries), (zone_count, zone_count)),
        fixed_cost=draw(st.lists(NONNEGATIVE, **per_arc)),
        zones=np.array(zones[:zone_count], dtype=np.int64),
        through=np.array(through, dtype=bool),
        nodes=tuple(range(1, n + 1)),
        positions=None if positions is None else np.reshape(positions, (n, 2)),
        name="random",
    )


def braess():
    """Times 10 x, 50 + x and 10 + x; six trips from node 1 to node 2."""
    return Network(
        tails=[0, 0, 2, 2, 3],
        heads=[2, 3, 1, 3, 1],
        capacity=1.0,
        free_flow_time=[1e-8, 50, 50, 10, 1e-8],
        b=[1e9, 0.02, 0.02, 0.1, 1e9],
        power=1.0,
        demand=[[0, 6], [0, 0]],
    )
