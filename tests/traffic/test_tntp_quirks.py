"""What published TNTP files get away with: each oddity is read, and repairs are told."""

import gzip
import io
import zipfile

import numpy as np
import pytest

from tests.traffic.files import NET, NODES, TRIPS, assert_same, read
from wdro_model.traffic import Network, read_tntp


@pytest.fixture
def plain(tmp_path):
    """The network as it is meant."""
    return read(tmp_path)


def test_a_plain_file(plain):
    assert plain.repairs == ()
    assert plain.name == "small"
    assert plain.arcs == [(1, 3), (1, 4), (3, 2), (3, 4), (4, 2)]
    assert plain.capacity.tolist() == [10, 20, 30, 40, 50]
    assert plain.free_flow_time.tolist() == [2, 3, 4, 5, 6]
    assert plain.b.tolist() == [0.15, 0.15, 0.2, 0, 0.15]
    assert plain.power.tolist() == [4, 4, 1.5, 0, 4]
    assert plain.demand.tolist() == [[2.0, 7.5], [0.0, 0.0]]
    assert plain.total_demand == 7.5
    assert plain.through.tolist() == [False, False, True, True]
    assert plain.fixed_cost.tolist() == [0] * 5


def test_toll_and_length_count_by_their_weights(tmp_path):
    network = read(tmp_path, toll_weight=2.0, length_weight=0.1)
    expected = 2.0 * np.array([0.25, 0, 0, 1, 0]) + 0.1 * np.array([1.5, 2.5, 1, 1, 1])
    np.testing.assert_allclose(network.fixed_cost, expected, rtol=1e-15)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("<NUMBER OF ZONES> 2\n", "  <NUMBER OF ZONES>  2\t\t\t\n"),
        ("<NUMBER OF LINKS> 5\n", "<number of  links>\t5.0 ; links\n"),
        ("<NUMBER OF LINKS> 5\n", "<NUMBER OF LINKS> 5\n\n~ a comment\n<SCENARIO> base, 2010\n"),
        (
            "<END OF METADATA>",
            "<ORIGINAL HEADER>~\tInit node\tTerm node\tCapacity\t;\n<END OF METADATA>",
        ),
        ("<END OF METADATA>", "<END OF METADATA>\t\t\t"),
        ("<END OF METADATA>", "<END OF METADATA> ~ a comment"),
        ("<NUMBER OF ZONES> 2\n", "\ufeff<NUMBER OF ZONES> 2\n"),
        ("\t;\n", ";\n"),
        ("\t;\n", "\t;  \n"),
        ("\t;\n", "\n"),
        ("\t;\n", "\t; see the report\n"),
        ("\n\t1\t", "\n1\t"),
        ("\n", "\r\n"),
        ("\t10\t", "\t1.0e+001\t"),
        ("\t40\t1\t5\t0\t0\t", "\t4.000E+01\t1\t5\t0.000E+00\t0.\t"),
        ("\t1\t3\t", "\t1.0\t3.0\t"),
        ("\t3\t4\t40", "~ a comment between links\n\n\t3\t4\t40"),
    ],
)
def test_spelling_does_not_matter(tmp_path, plain, old, new):
    assert old in NET
    network = read(tmp_path, net=NET.replace(old, new))
    assert_same(network, plain)
    assert network.repairs == ()


def test_blanks_separate_fields_and_the_last_line_may_lack_its_end(tmp_path, plain):
    head, rows = NET.split("link_type\t;\n")
    assert_same(read(tmp_path, net=head + "link_type\t;\n" + rows.replace("\t", "   ")), plain)
    assert_same(read(tmp_path, net=NET.rstrip("\t;\n"), trips=TRIPS.rstrip("\n")), plain)


def test_text_after_the_end_of_metadata_is_left_out_and_told(tmp_path, plain):
    network = read(tmp_path, net=NET.replace("METADATA>", "METADATA> Terrassa 2011"))
    assert_same(network, plain)
    assert len(network.repairs) == 1
    assert "left out 'Terrassa 2011'" in network.repairs[0]


def test_a_missing_first_thru_node_is_the_first(tmp_path, plain):
    network = read(tmp_path, net=NET.replace("<FIRST THRU NODE> 3\n", ""))
    assert_same(network, plain.replace(through=np.ones(4, dtype=bool)))
    assert "<FIRST THRU NODE> is not given; every node may be passed" in network.repairs[0]


@pytest.mark.parametrize("count", ["", "-1"])
@pytest.mark.parametrize("key", ["ZONES", "NODES", "LINKS"])
def test_counts_may_be_unknown(tmp_path, plain, key, count):
    value = {"ZONES": 2, "NODES": 4, "LINKS": 5}[key]
    network = read(tmp_path, net=NET.replace(f"OF {key}> {value}", f"OF {key}> {count}"))
    assert_same(network, plain)
    assert f"<NUMBER OF {key}>" in network.repairs[0]


def test_counts_of_zones_may_disagree(tmp_path, plain):
    trips = TRIPS.replace("<NUMBER OF ZONES> 2", "<NUMBER OF ZONES> 3")
    network = read(tmp_path, trips=trips)
    assert network.n_zones == 3
    assert network.demand[:2, :2].tolist() == plain.demand.tolist()
    assert "<NUMBER OF ZONES> is 2 in the net file and 3 in the trips file" in network.repairs[0]


def test_the_header_may_name_fewer_columns_than_there_are(tmp_path, plain):
    for missing in ("\tlink_type", "\tlength", "\tspeed"):
        network = read(tmp_path, net=NET.replace(missing, ""), toll_weight=1.0)
        assert_same(network, plain.replace(fixed_cost=[0.25, 0, 0, 1, 0]))
        assert "the header names 9 of 10 columns" in network.repairs[0]


def test_the_header_may_be_in_words_with_units_or_without_a_mark(tmp_path, plain):
    words = "~ \tInit node \tTerm node \tCapacity (veh/h)\tLength (ft)\tFree Flow Time (min)\tB\t"
    words += "Power\tSpeed limit\tToll\tType\t;"
    header = next(line for line in NET.splitlines() if line.startswith("~"))
    for text in (words, header.removeprefix("~")):
        network = read(tmp_path, net=NET.replace(header, text))
        assert_same(network, plain)
        assert network.repairs == ()


def test_no_header_is_the_standard_order(tmp_path, plain):
    header = next(line for line in NET.splitlines() if line.startswith("~"))
    network = read(tmp_path, net=NET.replace(header, "~ links of a small town"))
    assert_same(network, plain)
    assert "have no header; took the columns in the standard order" in network.repairs[0]


def test_columns_go_by_their_names(tmp_path, plain):
    """Capacity and free-flow time exchanged; columns 9 and 10 are not toll and type."""
    lines = NET.replace("\ttoll\tlink_type", "\tcritical_speed\tlanes").splitlines()
    swapped = []
    for line in lines:
        cells = line.split("\t")
        if len(cells) > 9:
            cells[3], cells[5] = cells[5], cells[3]
        swapped.append("\t".join(cells))
    network = read(tmp_path, net="\n".join(swapped))
    assert_same(network, plain)
    with pytest.raises(ValueError, match="toll: there is no such column"):
        read(tmp_path, net="\n".join(swapped), toll_weight=1.0)


def test_an_unknown_name_of_a_column_goes_by_its_position(tmp_path, plain):
    network = read(tmp_path, net=NET.replace("\tfree_flow_time", "\tt0"))
    assert_same(network, plain)
    assert "does not name free_flow_time; took column 5" in network.repairs[0]


def test_an_empty_field_between_tabs_does_not_shift_the_others(tmp_path, plain):
    for old, new in (("4\t60\t0.25\t1\t;", "4\t\t0.25\t1\t;"), ("4\t60\t0.25\t1\t;", "4\t\t\t1;")):
        network = read(tmp_path, net=NET.replace(old, new), toll_weight=1.0)
        toll = 0.25 if "0.25" in new else 0.0
        assert_same(network, plain.replace(fixed_cost=[toll, 0, 0, 1, 0]))


def test_a_link_of_capacity_zero_is_closed(tmp_path, plain):
    network = read(tmp_path, net=NET.replace("\t3\t4\t40\t1\t5\t", "\t3\t4\t0\t1\t\t"))
    keep = [0, 1, 2, 4]
    assert network.arcs == [plain.arcs[a] for a in keep]
    assert network.capacity.tolist() == plain.capacity[keep].tolist()
    assert network.n_nodes == 4
    assert "removed 1 links, closed (capacity 0" in network.repairs[0]
    assert "lines 11" in network.repairs[0]


def test_a_link_of_infinite_time_is_closed_and_a_loop_removed(tmp_path, plain):
    net = NET.replace("\t3\t4\t40\t1\t5\t", "\t3\t4\t40\t1\tinf\t").replace("\t4\t2\t", "\t4\t4\t")
    network = read(tmp_path, net=net)
    assert network.arcs == plain.arcs[:3]
    assert "closed" in network.repairs[0]
    assert "from a node to itself: lines 12" in network.repairs[1]


def test_parallel_links_are_kept_apart(tmp_path):
    network = read(tmp_path, net=NET.replace("\t1\t4\t20", "\t1\t3\t20"))
    assert network.arcs[:2] == [(1, 3), (1, 3)]
    assert network.capacity[:2].tolist() == [10, 20]


def test_isolated_nodes_are_kept(tmp_path, plain):
    network = read(tmp_path, net=NET.replace("OF NODES> 4", "OF NODES> 6"))
    assert network.nodes == (1, 2, 3, 4, 5, 6)
    assert network.arcs == plain.arcs
    assert network.repairs == ()


def test_numbers_of_nodes_may_be_names(tmp_path):
    """Zones are then those that the trips name, and the first thru node may not apply."""
    names = {1: 2146237932, 2: 73469, 3: 1000000, 4: 75674}
    lines = []
    for line in NET.splitlines():
        cells = line.split("\t")
        if len(cells) > 9 and cells[1].isdigit():
            cells[1:3] = [str(names[int(cell)]) for cell in cells[1:3]]
        lines.append("\t".join(cells))
    trips = TRIPS.replace("Origin 1", "Origin 2146237932").replace("Origin 2\n", "Origin\t73469\n")
    trips = trips.replace("    1 :", " 2146237932 :").replace("    2 :", "\t73469 :")
    network = read(tmp_path, net="\n".join(lines), trips=trips)
    assert network.nodes == (73469, 75674, 1000000, 2146237932)
    assert [network.nodes[z] for z in network.zones] == [73469, 2146237932]
    assert network.demand.tolist() == [[0.0, 0.0], [7.5, 2.0]]
    assert network.arcs[0] == (2146237932, 1000000)
    text = "\n".join(network.repairs)
    assert "nodes are not numbered 1 to 4" in text
    assert "zones are not numbered 1 to 2" in text
    blocked = read(
        tmp_path,
        net="\n".join(lines).replace("THRU NODE> 3", "THRU NODE> 75674"),
        trips=trips,
    )
    assert blocked.through.tolist() == [False, True, True, True]
    ignored = read(
        tmp_path,
        net="\n".join(lines).replace("THRU NODE> 3", "THRU NODE> 80000"),
        trips=trips,
    )
    assert ignored.through.all()
    assert "<FIRST THRU NODE> 80000 would block nodes that are no zones" in ignored.repairs[-1]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Origin 1", "Origin \t1 "),
        ("Origin 1", "Origin            1"),
        ("Origin 1", "\n\n\norigin 1\n\n"),
        ("Origin 1", "~ a comment\nOrigin 1 ~ another\n~ third: 3;"),
        ("1 : 2.0;    2 : 7.5;", "1 :2.0 ;\n\n2\t:\t7.5\t;"),
        ("1 : 2.0;    2 : 7.5;", "1:2.0;2:7.5"),
        ("1 : 2.0;    2 : 7.5;", "1 : 2.00000e+000; 2.0 : 7.5;"),
        ("Origin 1\n", "Origin 1 "),
        ("Origin 2\n", ""),
        ("Origin 2\n", "Origin 2\n 1 : 0.0; 2 : 0.0;"),
        ("<TOTAL OD FLOW> 9.5", "<TOTAL OD FLOW> 9.50003"),
        ("<TOTAL OD FLOW> 9.5\n", ""),
        ("\n", "\r\n"),
    ],
)
def test_spelling_of_trips_does_not_matter(tmp_path, plain, old, new):
    assert old in TRIPS
    network = read(tmp_path, trips=TRIPS.replace(old, new))
    assert_same(network, plain)
    assert network.repairs == ()


def test_demands_listed_twice_are_added_and_told(tmp_path):
    trips = TRIPS.replace("2 : 7.5;", "2 : 7.0; 2 : 0.5;")
    network = read(tmp_path, trips=trips)
    assert network.demand[0, 1] == 7.5
    assert "listed twice, such as that from 1 to 2" in network.repairs[0]


@pytest.mark.parametrize(
    "text",
    [
        NODES,
        NODES.replace("Node\tX\tY\t;", "node x y"),
        NODES.replace("Node\tX\tY\t;", "NodeID\tXcoord\tYcoord"),
        NODES.partition("\n")[2],
        NODES.replace("\t", "\t\t"),
        NODES.replace("\t;", ""),
        "<END OF METADATA>\n~\tNode\tX\tY\n" + NODES.partition("\n")[2],
    ],
)
def test_node_files_in_all_their_forms(tmp_path, text):
    network = read(tmp_path, nodes=text)
    assert network.positions.tolist() == [[0, 1], [3, 1.5], [1, 2], [-0.01, 0]]
    assert network.repairs == ()


def test_positions_that_do_not_match_are_told(tmp_path):
    network = read(tmp_path, nodes=NODES.replace("\n4\t", "\n9\t"))
    assert np.isnan(network.positions[3]).all()
    assert "1 positions of unknown nodes" in network.repairs[0]
    assert "1 nodes have no position" in network.repairs[1]


def test_files_may_be_packed_or_open(tmp_path, plain):
    packed = tmp_path / "small_net.tntp.gz"
    packed.write_bytes(gzip.compress(NET.encode()))
    archive = tmp_path / "trips.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("small_trips.tntp", TRIPS)
    assert_same(read_tntp(packed, archive), plain)
    assert read_tntp(str(packed), str(archive)).name == "small"
    opened = read_tntp(io.StringIO(NET), io.BytesIO(TRIPS.encode()))
    assert_same(opened, plain)
    assert opened.name == "network"
    with zipfile.ZipFile(archive, "a") as file:
        file.writestr("other.tntp", TRIPS)
    with pytest.raises(ValueError, match=r"holds 2 files, not one: small_trips.tntp, other.tntp"):
        read_tntp(packed, archive)
    with pytest.raises(ValueError, match="expected a path or an open text file, got int"):
        read_tntp(3, archive)


def test_latin_letters_are_read(tmp_path, plain):
    for kind, text in (("net", NET.replace("<END", "<ORIGINAL HEADER> Fläche\n<END")),):
        path = tmp_path / f"small_{kind}.tntp"
        path.write_bytes(text.encode("latin-1"))
    network = read_tntp(tmp_path / "small_net.tntp", io.StringIO(TRIPS))
    assert isinstance(network, Network)
    assert_same(network, plain)
