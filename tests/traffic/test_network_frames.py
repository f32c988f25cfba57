"""Networks as tables: pandas frames and GMNS folders, there and back, and what is wrong in them."""

import builtins
import random
from contextlib import suppress

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.traffic.files import assert_same
from tests.traffic.networks import networks
from wdro_model.traffic import GMNSError, Network, equilibrium, read_gmns, write_gmns

WORDS = ("north", "Süd, Tor 3", '5" road', "1", "x y", "-")


@pytest.mark.parametrize("names", ["gmns", "aequilibrae"])
@settings(max_examples=40, deadline=None)
@given(network=networks(), words=st.booleans())
def test_frames_there_and_back_are_the_same_network(names, network, words):
    if words:
        network = network.replace(nodes=WORDS[: network.n_nodes])
    frames = network.to_frames(names)
    assert_same(Network.from_frames(*frames), network)
    shuffled = frames.links.sample(frac=1, random_state=0).sort_values("link_id")
    assert_same(Network.from_frames(shuffled, *frames[1:]), network)


@settings(max_examples=40, deadline=None)
@given(network=networks(), words=st.booleans())
def test_a_gmns_folder_there_and_back_is_the_same_network(tmp_path_factory, network, words):
    if words:
        network = network.replace(nodes=WORDS[: network.n_nodes])
    folder = tmp_path_factory.mktemp("gmns")
    write_gmns(network, folder / "city")
    back = read_gmns(folder / "city")
    assert_same(back, network)
    assert back.name == "city"
    assert back.repairs == ()


def test_frames_by_way_of_csv(tmp_path):
    """As planners keep them: the frames saved and loaded with pandas."""
    network = next_network()
    back = []
    for name, frame in zip(("links", "demand", "nodes"), network.to_frames()):
        frame.to_csv(tmp_path / name, index=False)
        back.append(pd.read_csv(tmp_path / name))
    assert_same(Network.from_frames(*back), network)


def next_network():
    return Network(
        tails=[0, 2, 1],
        heads=[1, 1, 2],
        capacity=[1.5, 0.1, 1 / 3],
        free_flow_time=[0.1, 0.0, 2.0],
        b=[0.15, 0.2, 0.0],
        power=[4.0, 1.5, 0.0],
        demand=[[0.0, 0.3], [1e-3, 0.0]],
        fixed_cost=[0.0, 0.25, 0.0],
        zones=[2, 0],
        through=np.array([True, True, False]),
        positions=[[0.1, 0.2], [np.nan, np.nan], [3.0, 4.0]],
    )


# ------------------------------------------------------------------ the names of others
def test_links_of_aequilibrae_in_both_directions():
    links = pd.DataFrame(
        {
            "link_id": [7, 8, 9],
            "a_node": [1, 2, 3],
            "b_node": [2, 3, 1],
            "direction": [0, 1, -1],
            "capacity_ab": [10.0, 20.0, np.nan],
            "capacity_ba": [11.0, np.nan, 31.0],
            "travel_time_ab": [1.0, 2.0, 9.0],
            "travel_time_ba": [1.5, 9.0, 3.0],
        }
    )
    links = links.fillna(1.0)
    demand = {"origin": [1, 3], "destination": [3, 1], "trips": [4, 5]}
    network = Network.from_frames(links, demand)
    assert network.arcs == [(1, 2), (2, 1), (2, 3), (1, 3)]
    assert network.capacity.tolist() == [10, 11, 20, 31]
    assert network.free_flow_time.tolist() == [1, 1.5, 2, 3]
    assert network.b.tolist() == [0.15] * 4
    assert network.power.tolist() == [4] * 4
    assert [network.nodes[z] for z in network.zones] == [1, 3]
    np.testing.assert_array_equal(network.demand, [[0, 4], [5, 0]])


def write_folder(tmp_path, **files):
    texts = {
        "link": "link_id,from_node_id,to_node_id,directed,length,free_speed,lanes,capacity,toll\n"
        "1,10,20,1,5,50,2,1000,0.5\n2,20,30,0,3,60,1,800,0\n",
        "node": "node_id,x_coord,y_coord,zone_id\n10,0,0,1\n20,1,0,\n30,1,1,2\n",
        "demand": "o_zone_id,d_zone_id,volume\n1,2,100\n2,2,7\n",
    }
    for name, text in (texts | files).items():
        if text is not None:
            (tmp_path / f"{name}.csv").write_bytes(text.encode())
    return tmp_path


def test_a_gmns_folder_of_others(tmp_path):
    network = read_gmns(write_folder(tmp_path), toll_weight=10, length_weight=1)
    assert network.nodes == (10, 20, 30)
    assert network.arcs == [(10, 20), (20, 30), (30, 20)]
    assert network.capacity.tolist() == [2000, 800, 800]
    assert network.free_flow_time.tolist() == [6, 3, 3]
    assert network.fixed_cost.tolist() == [10, 3, 3]
    assert [network.nodes[z] for z in network.zones] == [10, 30]
    np.testing.assert_array_equal(network.demand, [[0, 100], [0, 7]])
    assert network.repairs == (
        "free-flow times are 60 * length / free_speed, minutes of speeds per hour",
    )
    assert equilibrium(network).flow[0] == pytest.approx(100)


def test_zones_that_are_shared_or_below_zero_are_none(tmp_path):
    node = "node_id,zone_id\n10,1\n20,0\n30,2\n40,0\n50,-1\n"
    network = read_gmns(write_folder(tmp_path, node=node))
    assert [network.nodes[z] for z in network.zones] == [10, 30]
    assert "zone 0 has several nodes and no demand: no zone" in network.repairs
    with pytest.raises(GMNSError, match=r"node.csv, line 3, zone_id: zone 1 has 2 nodes"):
        read_gmns(write_folder(tmp_path, node=node.replace("20,0", "20,1")))


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("link", "1000", "many", "link.csv, line 2, capacity: expected a number, got 'many'"),
        ("link", "1000", "nan", "line 2, capacity: expected a number, got 'nan'"),
        ("link", "1000", "-3", "line 2, capacity: must be finite and > 0, got -6.0"),
        ("link", "1000", "1e400", "line 2, capacity: must be finite"),
        ("link", "1000", "", "line 2, capacity: expected a number, and it is empty"),
        ("link", ",50,", ",0,", "line 2, free_speed: must be finite and > 0"),
        ("link", "2,20,30,0", "2,20,30,perhaps", "line 3, directed: expected true or false"),
        ("link", "2,20,30,0", "2,20,99,0", "line 3, to_node_id: the node 99 is not known"),
        ("link", "2,20,30,0", "2,20," + "9" * 23 + ",0", "is not known"),
        ("link", "2,20,30,0", "2,,30,0", "line 3, from_node_id: is empty"),
        ("link", ",0.5\n", "\n", "line 2, fields: expected 9 fields, got 8"),
        ("link", "capacity", "cap", "capacity: there is no such column"),
        ("link", "link_id", "capacity", "line 1, header: names the column 'capacity' twice"),
        ("link", "1,10,20,1,5,50,2,1000,0.5\n2,20,30,0,3,60,1,800,0\n", "", "none that trips"),
        ("node", "20,1,0,", "10,1,0,", "line 3, node_id: the node 10 is listed twice"),
        ("node", "20,1,0,", "20,inf,0,", "line 3, x_coord: must be finite"),
        ("demand", "1,2,100", "1,5,100", "line 2, d_zone_id: the zone 5 is not known"),
        ("demand", "1,2,100", "1,2,-1", "line 2, volume: must be finite and >= 0, got -1.0"),
        ("demand", "1,2,100", "1,2,inf", "must be finite and >= 0, got inf"),
    ],
)
def test_a_malformed_gmns_folder(tmp_path, file, old, new, message):
    folder = write_folder(tmp_path)
    path = folder / f"{file}.csv"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(GMNSError, match=message):
        read_gmns(folder)


@pytest.mark.parametrize("file", ["link", "node", "demand"])
def test_a_missing_or_empty_gmns_file(tmp_path, file):
    path = write_folder(tmp_path) / f"{file}.csv"
    path.write_text("")
    with pytest.raises(GMNSError, match=f"{file}.csv, line 1, header: the file is empty"):
        read_gmns(tmp_path)
    path.unlink()
    with pytest.raises(GMNSError, match=f"{file}.csv, file: is missing; there is "):
        read_gmns(tmp_path)
    with pytest.raises(FileNotFoundError, match="is not a folder"):
        read_gmns(tmp_path / "nowhere")


def test_spoiled_folders_give_a_network_or_the_readers_own_error(tmp_path):
    """Files with bytes changed, removed and repeated, and hostile numbers put in."""
    chance = random.Random(0)
    spoils = ["inf", "1e400", "-1", "9" * 23, "nan", "", '"', ",", "\n", "\x00", "1e9", "0x", "é"]
    for round_ in range(300):
        write_folder(tmp_path)
        path = tmp_path / f"{chance.choice(['link', 'node', 'demand'])}.csv"
        text = path.read_text()
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(len(text) + 1)
            cut = chance.choice([0, 0, 1, 5, 40])
            text = text[:at] + chance.choice(spoils) + text[at + cut :]
        path.write_bytes(text.encode("latin-1" if round_ % 7 == 0 else "utf-8"))
        with suppress(GMNSError):
            assert read_gmns(tmp_path).n_arcs >= 1


def test_names_that_a_file_would_change_are_refused(tmp_path):
    network = next_network()
    for nodes in (("1", "2", "3"), (1, "b", "c"), ((0, 0), (0, 1), (1, 1)), ("a", " b", "c")):
        with pytest.raises(ValueError, match="renumbered"):
            write_gmns(network.replace(nodes=nodes), tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"links": {"capacity": [1.0, "x", 1.0]}}, "links, row 1, capacity: expected a number"),
        (
            {"links": {"capacity": np.array([1.0, 2j, 1.0])}},
            "links, row 0, capacity: expected a nu",
        ),
        ({"demand": {"origin": [1, 9]}}, "demand, row 1, origin: the node 9 is not known"),
        ({"demand": {"origin": [1, "3"]}}, r"the node '3' is not known \(there is 3, of another"),
        ({"columns": {"capazity": "c"}}, "unknown field of columns= 'capazity'.*'capacity'"),
        ({"columns": {"capacity": "kapa"}}, "unknown column of links for capacity 'kapa'"),
        ({"links": 3}, "links must be a pandas DataFrame or a dict of columns, got int"),
    ],
)
def test_frames_that_do_not_fit_are_refused(change, message):
    links, demand, nodes = (frame.to_dict("list") for frame in next_network().to_frames())
    given = {"links": links, "demand": demand, "nodes": nodes, "columns": None}
    for key, value in change.items():
        both = isinstance(given[key], dict) and isinstance(value, dict)
        given[key] = given[key] | value if both else value
    with pytest.raises(ValueError, match=message):
        Network.from_frames(
            given["links"], given["demand"], given["nodes"], columns=given["columns"]
        )
    with pytest.raises(ValueError, match="names of columns 'tntp'"):
        next_network().to_frames("tntp")


def test_a_column_that_is_there_twice_is_refused_by_its_name():
    links, demand, nodes = next_network().to_frames()
    twice = pd.concat([links, links[["capacity"]]], axis=1)
    with pytest.raises(ValueError, match="links has more than one column 'capacity'"):
        Network.from_frames(twice, demand, nodes)


def test_without_pandas_the_frames_say_what_to_install(monkeypatch):
    network, real = next_network(), builtins.__import__
    columns = [frame.to_dict("list") for frame in network.to_frames()]

    def without(name, *rest, **options):
        if name.split(".")[0] == "pandas":
            raise ImportError(name)
        return real(name, *rest, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    assert_same(Network.from_frames(*columns), network)  # dicts of columns need none
    with pytest.raises(ImportError, match=r"to_frames.* needs pandas: pip install pandas"):
        network.to_frames()
