"""The road network of Sioux Falls, South Dakota: 24 nodes, 76 arcs, 528 pairs with demand.

L. J. LeBlanc, E. K. Morlok and W. P. Pierskalla, "An efficient approach to solving the road network
equilibrium traffic assignment problem", Transportation Research 9(5), 1975, 309-318.
"""

from __future__ import annotations

import numpy as np

from wdro_model.traffic.network import Network

ROADS = (
    (1, 2, 25900.20064, 6),
    (1, 3, 23403.47319, 4),
    (2, 6, 4958.180928, 5),
    (3, 4, 17110.52372, 4),
    (3, 12, 23403.47319, 4),
    (4, 5, 17782.7941, 2),
    (4, 11, 4908.82673, 6),
    (5, 6, 4947.995469, 4),
    (5, 9, 10000, 5),
    (6, 8, 4898.587646, 2),
    (7, 8, 7841.81131, 3),
    (7, 18, 23403.47319, 2),
    (8, 9, 5050.193156, 10),
    (8, 16, 5045.822583, 5),
    (9, 10, 13915.78842, 3),
    (10, 11, 10000, 5),
    (10, 15, 13512.00155, 6),
    (10, 16, 4854.917717, 4),
    (10, 17, 4993.510694, 8),
    (11, 12, 4908.82673, 6),
    (11, 14, 4876.508287, 4),
    (12, 13, 25900.20064, 3),
    (13, 24, 5091.256152, 4),
    (14, 15, 5127.526119, 5),
    (14, 23, 4924.790605, 4),
    (15, 19, 14564.75315, 3),
    (15, 22, 9599.180565, 3),
    (16, 17, 5229.910063, 2),
    (16, 18, 19679.89671, 3),
    (17, 19, 4823.950831, 2),
    (18, 20, 23403.47319, 4),
    (19, 20, 5002.607563, 4),
    (20, 21, 5059.91234, 6),
    (20, 22, 5075.697193, 5),
    (21, 22, 5229.910063, 2),
    (21, 24, 4885.357564, 3),
    (22, 23, 5000, 4),
    (23, 24, 5078.508436, 2),
)
"""Both ends of a road, and in each direction its capacity and its free-flow time."""

HUNDREDS_OF_TRIPS = (
    " 0  1  1  5  2  3  5  8  5 13  5  2  5  3  5  5  4  1  3  3  1  4  3  1",
    " 1  0  1  2  1  4  2  4  2  6  2  1  3  1  1  4  2  0  1  1  0  1  0  0",
    " 1  1  0  2  1  3  1  2  1  3  3  2  1  1  1  2  1  0  0  0  0  1  1  0",
    " 5  2  2  0  5  4  4  7  7 12 14  6  6  5  5  8  5  1  2  3  2  4  5  2",
    " 2  1  1  5  0  2  2  5  8 10  5  2  2  1  2  5  2  0  1  1  1  2  1  0",
    " 3  4  3  4  2  0  4  8  4  8  4  2  2  1  2  9  5  1  2  3  1  2  1  1",
    " 5  2  1  4  2  4  0 10  6 19  5  7  4  2  5 14 10  2  4  5  2  5  2  1",
    " 8  4  2  7  5  8 10  0  8 16  8  6  6  4  6 22 14  3  7  9  4  5  3  2",
    " 5  2  1  7  8  4  6  8  0 28 14  6  6  6  9 14  9  2  4  6  3  7  5  2",
    "13  6  3 12 10  8 19 16 28  0 40 20 19 21 40 44 39  7 18 25 12 26 18  8",
    " 5  2  3 15  5  4  5  8 14 39  0 14 10 16 14 14 10  1  4  6  4 11 13  6",
    " 2  1  2  6  2  2  7  6  6 20 14  0 13  7  7  7  6  2  3  4  3  7  7  5",
    " 5  3  1  6  2  2  4  6  6 19 10 13  0  6  7  6  5  1  3  6  6 13  8  8",
    " 3  1  1  5  1  1  2  4  6 21 16  7  6  0 13  7  7  1  3  5  4 12 11  4",
    " 5  1  1  5  2  2  5  6 10 40 14  7  7 13  0 12 15  2  8 11  8 26 10  4",
    " 5  4  2  8  5  9 14 22 14 44 14  7  6  7 12  0 28  5 13 16  6 12  5  3",
    " 4  2  1  5  2  5 10 14  9 39 10  6  5  7 15 28  0  6 17 17  6 17  6  3",
    " 1  0  0  1  0  1  2  3  2  7  2  2  1  1  2  5  6  0  3  4  1  3  1  0",
    " 3  1  0  2  1  2  4  7  4 18  4  3  3  3  8 13 17  3  0 12  4 12  3  1",
    " 3  1  0  3  1  3  5  9  6 25  6  5  6  5 11 16 17  4 12  0 12 24  7  4",
    " 1  0  0  2  1  1  2  4  3 12  4  3  6  4  8  6  6  1  4 12  0 18  7  5",
    " 4  1  1  4  2  2  5  5  7 26 11  7 13 12 26 12 17  3 12 24 18  0 21 11",
    " 3  0  1  5  1  1  2  3  5 18 13  7  8 11 10  5  6  1  3  7  7 21  0  7",
    " 1  0  0  2  0  1  1  2  2  8  6  5  7  4  4  3  3  0  1  4  5 11  7  0",
)
"""The demand from each of the zones 1 to 24 (rows) to each (columns), in hundreds of vehicles."""

POSITIONS = (
    (-96.77041974, 43.61282792),
    (-96.71125063, 43.60581298),
    (-96.77430341, 43.5729616),
    (-96.74716843, 43.56365362),
    (-96.73156909, 43.56403357),
    (-96.71164389, 43.58758553),
    (-96.69342281, 43.5638436),
    (-96.71138171, 43.56232379),
    (-96.73124137, 43.54859634),
    (-96.73143801, 43.54527088),
    (-96.74684071, 43.54413068),
    (-96.78013678, 43.54394065),
    (-96.79337655, 43.49070718),
    (-96.75103549, 43.52930613),
    (-96.73150355, 43.52940117),
    (-96.71138171, 43.54674361),
    (-96.71138171, 43.54128009),
    (-96.69407825, 43.54674361),
    (-96.71131617, 43.52959125),
    (-96.71118508, 43.5153335),
    (-96.73097920, 43.51048509),
    (-96.73124137, 43.51485818),
    (-96.75090441, 43.51485818),
    (-96.74920028, 43.50316422),
)
"""Longitude and latitude of the nodes, in degrees."""


def sioux_falls() -> Network:
    """The network of Sioux Falls, with 360600 trips between its 24 nodes, which all are zones.

    Times are hundredths of an hour, flows and capacities vehicles; trips may pass every node.
    Arcs are sorted by (tail, head). On each arc b = 0.15 and power = 4. At the equilibrium
    Beckmann's objective is 4231335.287 (42.31335287 in hours and thousands of vehicles).

    Examples
    --------
    >>> import wdro_model as wdro
    >>> network = wdro.datasets.sioux_falls()
    >>> network.n_nodes, network.n_arcs, float(network.total_demand)
    (24, 76, 360600.0)
    """
    ways = [*ROADS, *((v, u, capacity, time) for u, v, capacity, time in ROADS)]
    tails, heads, capacities, times = zip(*sorted(ways))
    return Network(
        tails=np.array(tails) - 1,
        heads=np.array(heads) - 1,
        capacity=np.array(capacities),
        free_flow_time=np.array(times),
        b=np.array(0.15),
        power=np.array(4.0),
        demand=100.0 * np.array([row.split() for row in HUNDREDS_OF_TRIPS], dtype=np.float64),
        positions=np.array(POSITIONS),
        name="Sioux Falls",
    )
