"""A city from pandas tables: its equilibrium, what a toll does to three classes of users, a map.

python examples/city_tables.py [picture.png]
"""

from __future__ import annotations

import sys

import numpy as np
import pandas as pd

import wdro_model as wdro


def tables() -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Links, trips and nodes: a ring road of motorways around a grid of streets."""
    side = 5
    nodes = pd.DataFrame(
        [(10 * i + j, 500.0 * i, 500.0 * j) for i in range(side) for j in range(side)],
        columns=["node_id", "x_coord", "y_coord"],
    )
    links = []
    for a in nodes.node_id:
        for b in (a + 1, a + 10):
            if b in set(nodes.node_id):
                ring = {a // 10, b // 10} in ({0}, {4}) or {a % 10, b % 10} in ({0}, {4})
                links.append((a, b, 0, 4000.0 if ring else 1200.0, 0.5 if ring else 0.75, ring))
    frame = pd.DataFrame(
        links, columns=["a_node", "b_node", "direction", "capacity", "travel_time", "motorway"]
    )
    corners = [0, 4, 40, 44, 22]
    trips = [(o, d, 2200.0) for o in corners for d in corners if o != d]
    return frame, pd.DataFrame(trips, columns=["origin", "destination", "trips"]), nodes


def main(picture: str | None = None) -> None:
    links, trips, nodes = tables()
    city = wdro.traffic.Network.from_frames(links, trips, nodes, name="a ring road")
    print(city)
    flow, _ = wdro.traffic.equilibrium(city, gap=1e-5)
    results = wdro.traffic.link_results(city, flow)
    print("\n".join(str(results).splitlines()[:6]), "\n...")
    print("\n".join(str(results).splitlines()[-2:]))

    best, _ = wdro.traffic.social_optimum(city, gap=1e-5)
    tolls = wdro.traffic.marginal_tolls(city, best)
    print(f"selfish drivers take {city.total_cost(flow) / city.total_cost(best) - 1:.2%} longer")

    charged = [
        wdro.traffic.UserClass("commuters", 0.7 * city.demand, 1.0, fixed_cost=tolls),
        wdro.traffic.UserClass("business", 0.2 * city.demand, 5.0, fixed_cost=tolls),
        wdro.traffic.UserClass("trucks", 0.04 * city.demand, 5.0, fixed_cost=2 * tolls, pce=2.5),
    ]
    result = wdro.traffic.class_equilibrium(city, charged, gap=1e-4)
    print(result)
    skims = wdro.traffic.skim(city, result.time, {"paid": tolls})
    print(
        f"from corner to corner: {skims['cost'][0, 4]:.2f} minutes, {skims['paid'][0, 4]:.2f} paid"
    )
    if picture is not None:
        named = {"no tolls": flow, "tolls": result.volume}
        wdro.traffic.plot_comparison(city, named, picture)
    assert np.isfinite(skims["cost"]).all()


if __name__ == "__main__":
    main(*sys.argv[1:2])
