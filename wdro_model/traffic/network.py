"""A road network: arcs with congestion functions, zones, and the demand between them.

Travel times follow the formula of the Bureau of Public Roads,
    t_a(x) = t0_a (1 + b_a (x_a / c_a)^power_a) + fixed_a.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from wdro_model import checks
from wdro_model.compat import networkx as nx
from wdro_model.errors import unknown_name
from wdro_model.traffic.fields import arc_name, check_rule, checked_fields
from wdro_model.traffic.files.frames import (
    FrameNames,
    NetworkFrames,
    fields_from_frames,
    fields_from_graph,
    frames_of,
    graph_of,
)

Array = np.ndarray
FLOW_ROUNDING = 1e-6
"""Negative flows down to this fraction of the largest flow count as rounding errors, and as zero; a
larger number hides wrong signs, a smaller one refuses the answers of interior-point solvers."""


@dataclass(frozen=True, eq=False)
class Network:
    """A road network with demands: A arcs, n nodes, Z zones.

    Everything is checked on construction and stored as read-only copies; a number given for a
    field of arcs holds for every arc. An arc is its position in the arrays: there may be several
    between the same two nodes, but none from a node to itself.

    Nodes are counted by `nodes`; without it there are as many as tails, heads and zones mention.

    Examples
    --------
    >>> import wdro_model as wdro
    >>> network = wdro.traffic.Network(                    # two roads from 0 to 1, ten trips
    ...     tails=[0, 0], heads=[1, 1], capacity=[5.0, 10.0], free_flow_time=[1.0, 2.0],
    ...     b=0.15, power=4.0, demand=[[0.0, 10.0], [0.0, 0.0]],
    ... )
    >>> network.n_arcs, network.n_nodes, float(network.total_demand)
    (2, 2, 10.0)
    """

    tails: Array
    """(A,) the node that each arc leaves, as an index 0..n-1."""
    heads: Array
    """(A,) the node that each arc enters."""
    capacity: Array
    """(A,) c > 0: the flow at which an arc takes (1 + b) times its free-flow time."""
    free_flow_time: Array
    """(A,) t0 >= 0."""
    b: Array
    """(A,) >= 0, the congestion multiplier (alpha of the formula); 0 for constant times."""
    power: Array
    """(A,) >= 0, the exponent (beta of the formula)."""
    demand: Any
    """(Z, Z) >= 0, the trips from zone o to zone d; those within a zone are never loaded. A matrix
    of scipy.sparse stays sparse, as a `csr_array`."""
    fixed_cost: Array = 0.0  # type: ignore[assignment]
    """(A,) a generalised cost that does not depend on the flow, such as a toll."""
    zones: Array = None  # type: ignore[assignment]
    """(Z,) the node of each zone; the first Z nodes if not given."""
    through: Array = None  # type: ignore[assignment]
    """(n,) booleans: may trips pass the node? If not it can only be an end of a trip."""
    nodes: tuple[Any, ...] = None  # type: ignore[assignment]
    """The names of the nodes in the source; 1..n if not given."""
    positions: Array | None = None
    """(n, 2) coordinates; NaN where a position is not known."""
    name: str = "network"
    repairs: tuple[str, ...] = ()
    """Repairs that a reader made in the source, in words."""

    def __post_init__(self) -> None:
        for key, value in checked_fields(vars(self)).items():
            object.__setattr__(self, key, value)

    @property
    def n_arcs(self) -> int:
        return len(self.tails)

    @property
    def n_nodes(self) -> int:
        return len(self.nodes)

    @property
    def n_zones(self) -> int:
        return len(self.zones)

    @property
    def total_demand(self) -> float:
        """The trips between different zones."""
        return float(self.demand.sum() - self.demand.trace())

    @property
    def arcs(self) -> list[tuple[Any, Any]]:
        """The arcs as pairs of node names, (tail, head)."""
        return [(self.nodes[u], self.nodes[v]) for u, v in zip(self.tails, self.heads)]

    def travel_time(self, flow: ArrayLike) -> Array:
        """t(x) = t0 (1 + b (x/c)^power) + fixed cost, for flows (A,) or (..., A)."""
        load = (as_flow(flow, self) / self.capacity) ** self.power
        return self.free_flow_time * (1.0 + self.b * load) + self.fixed_cost

    def beckmann(self, flow: ArrayLike) -> float:
        """Beckmann's objective, the sum over arcs of the integral of t_a from 0 to x_a.

        sum_a t0 x (1 + b/(power + 1) (x/c)^power) + fixed x; its minimisers are the equilibria.
        """
        x = as_flow(flow, self, one=True)
        load = self.b / (self.power + 1.0) * (x / self.capacity) ** self.power
        return float(np.sum(self.free_flow_time * x * (1.0 + load) + self.fixed_cost * x))

    def total_cost(self, flow: ArrayLike) -> float:
        """Total cost of all travellers: sum_a t_a(x) x_a."""
        x = as_flow(flow, self, one=True)
        return float(self.travel_time(x) @ x)

    def normalized(self, alpha: float = 0.15) -> Network:
        """An equivalent network with b = alpha on every arc that congests: the same travel times.

        Capacities become (alpha/b)^(1/power) c. Normalize a network that folds the capacity into b
        (c = 1 and b as small as 1e-71) before you perturb b or the power.
        """
        checks.number("alpha", alpha, low=0, open=True)
        congests = (self.b > 0) & (self.power > 0)
        changed = congests & (self.b != alpha)
        capacity, b, power = self.capacity.copy(), self.b[changed], self.power[changed]
        with np.errstate(over="ignore", under="ignore"):  # logarithms: b may be 1e-71
            logarithms = np.log(capacity[changed]) + (np.log(alpha) - np.log(b)) / power
            capacity[changed] = np.exp(logarithms)
        lost = ~(np.isfinite(capacity) & (capacity > 0))
        if lost.any():
            a = int(np.argmax(lost))
            raise ValueError(
                f"{arc_name(a, self.arcs)} with b = {self.b[a]:g} and power "
                f"{self.power[a]:g} has no capacity that floating point can hold for alpha = "
                f"{alpha:g}; choose an alpha near its b, or set its b to 0."
            )
        return self.replace(capacity=capacity, b=np.where(congests, alpha, self.b))

    def scaled_demand(self, factor: float) -> Network:
        """The network with every demand multiplied by a factor >= 0."""
        return self.replace(demand=self.demand * factor)

    def replace(self, **changes: Any) -> Network:
        """A copy with some fields changed, checked like a new network.

        Examples
        --------
        >>> flooded = network.replace(capacity=0.8 * network.capacity, name="flooded")
        >>> flooded.name
        'flooded'
        """
        known = [f.name for f in fields(self)]
        for key in changes:
            if key not in known:
                raise ValueError(unknown_name("field of a network", key, known))
        return replace(self, **changes)

    def to_networkx(self) -> nx.MultiDiGraph:
        """The network as a graph whose nodes are the names; arcs keep their order and fields.

        An arc's key is its index. Nodes carry zone (the index, or None), through and pos; the graph
        carries name and demand, {(origin, destination): trips}.
        """
        return graph_of(self)

    @classmethod
    def from_networkx(
        cls,
        graph: Any,
        demand: Mapping[tuple[Any, Any], float] | None = None,
        *,
        capacity: Any = "capacity",
        free_flow_time: Any = "free_flow_time",
        b: Any = "b",
        power: Any = "power",
        fixed_cost: Any = "fixed_cost",
        zones: Any = None,
        through: Any = "through",
        positions: Any = "pos",
        name: str | None = None,
    ) -> Network:
        """A network from a directed networkx graph and the trips between its nodes.

        Parameters
        ----------
        demand
            {(origin, destination): trips}; the graph's own "demand" if not given.
        capacity, free_flow_time, b, power, fixed_cost
            The name of an edge attribute, or a number for all arcs. Edges without b, power or
            fixed_cost take 0.15, 4 and 0.
        zones
            The nodes that are zones, in order; those named by the demand if not given.
        through, positions
            Names of node attributes; nodes without "through" may be passed.

        Examples
        --------
        >>> graph = nx.DiGraph()
        >>> graph.add_edge("a", "b", capacity=5.0, free_flow_time=1.0)
        >>> network = wdro.traffic.Network.from_networkx(graph, demand={("a", "b"): 10.0})
        >>> network.arcs
        [('a', 'b')]
        """
        attributes = {
            "capacity": capacity,
            "free_flow_time": free_flow_time,
            "b": b,
            "power": power,
            "fixed_cost": fixed_cost,
        }
        return cls(
            **fields_from_graph(graph, demand, attributes, zones, through, positions),
            name=str(graph.name or "network") if name is None else name,
        )

    def to_frames(self, names: FrameNames = "gmns") -> NetworkFrames:
        """The network as pandas frames (links, demand, nodes); `from_frames` gives it back.

        Parameters
        ----------
        names
            The columns of the ends of a link: "gmns" (`from_node_id`, `to_node_id`) or
            "aequilibrae" (`a_node`, `b_node`, with `direction` 1, as its Graph takes them).
        """
        return frames_of(self, names)

    @classmethod
    def from_frames(
        cls,
        links: Any,
        demand: Any,
        nodes: Any = None,
        *,
        columns: Mapping[str, str] | None = None,
        toll_weight: float = 0.0,
        length_weight: float = 0.0,
        name: str = "network",
    ) -> Network:
        """A network from tables of links, trips and nodes: pandas frames, or dicts of columns.

        Columns are found by the names that GMNS, AequilibraE and TNTP have for them: links need
        `from_node_id`/`a_node`/`init_node`, `to_node_id`/`b_node`/`term_node`, `capacity` and
        `free_flow_time` (or `length` and `free_speed`), may have `b`/`alpha` (else 0.15),
        `power`/`beta` (else 4), `fixed_cost`, `lanes`, and `direction` (1, -1, 0 for both, with
        columns such as `capacity_ab`) or `directed`. The demand needs `origin`, `destination`
        (names of nodes; `o_zone_id`, `d_zone_id` are zones) and `trips`/`volume`/`demand`. Nodes
        need `node_id`, may have `x_coord`, `y_coord`, `zone_id` or `is_centroid`, and `through`.

        Links of capacity 0 or infinite time are closed, and left out; `repairs` tells.

        Parameters
        ----------
        columns
            {field: column} for columns with other names: tail, head, capacity, free_flow_time, b,
            power, fixed_cost, direction, directed, lanes, length, free_speed, toll; origin,
            destination, trips; node, x, y, zone, is_centroid, through.
        toll_weight, length_weight
            The fixed cost of an arc is toll_weight * toll + length_weight * length, added to the
            column `fixed_cost`.

        Examples
        --------
        >>> links = pd.DataFrame({"a_node": [1, 1], "b_node": [2, 2], "cap": [5, 9], "fft": [1, 2]})
        >>> trips = pd.DataFrame({"origin": [1], "destination": [2], "trips": [10]})
        >>> network = wdro.traffic.Network.from_frames(links, trips, columns={"capacity": "cap"})
        >>> network.arcs, network.capacity
        ([(1, 2), (1, 2)], array([5., 9.]))
        """
        fields = fields_from_frames(links, demand, nodes, columns, toll_weight, length_weight)
        return cls(**fields, name=name)

    def __reduce__(self) -> Any:
        return type(self), tuple(getattr(self, f.name) for f in fields(self))

    def __repr__(self) -> str:
        return (
            f"Network({self.name!r}: {self.n_nodes} nodes, {self.n_arcs} arcs, "
            f"{self.n_zones} zones, demand {self.total_demand:.10g})"
        )


def check_network(given: Any) -> Network:
    """Refuse anything but a network; return it."""
    if not isinstance(given, Network):
        raise ValueError(f"expected a wdro_model.traffic.Network, got {type(given).__name__}.")
    return given


def as_flow(given: Any, network: Network, one: bool = False) -> Array:
    """Flows (..., A) on the arcs, finite and >= 0; (A,) if `one`. An assignment means its flow."""
    flow = np.asarray(getattr(given, "flow", given), dtype=np.float64)
    if flow.ndim < 1 or flow.shape[-1] != network.n_arcs or (one and flow.ndim != 1):
        raise ValueError(
            f"a flow on {network!r} must have shape ({network.n_arcs},), one entry per arc, got "
            f"{flow.shape}."
        )
    least = -FLOW_ROUNDING * max(1.0, float(np.max(np.abs(flow), initial=0.0)))

    def place(*index: int) -> str:
        return f" on {arc_name(index[-1], network.arcs)}"

    rule = ("finite and nonnegative", lambda v: np.isfinite(v) & (v >= least))
    check_rule("flows", flow, rule, place)
    return np.maximum(flow, 0.0)
