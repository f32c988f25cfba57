"""Files that cannot be read: the message says which file, which line, which field."""

import re

import numpy as np
import pytest

from tests.traffic.files import NET, NODES, TRIPS, read
from wdro_model.traffic import TNTPError, read_flows

END = "<END OF METADATA>\n"
ROW = "\t3\t4\t40\t1\t5\t0\t0\t60\t1\t1\t;\n"


MALFORMED = [
    ("net", ROW, "", 11, "<NUMBER OF LINKS>", "line 4 declares 5 links, the file has 4: .*cut off"),
    ("net", ROW, ROW + ROW, 13, "<NUMBER OF LINKS>", "declares 5 links, the file has 6: the count"),
    ("net", END, "", 11, "<END OF METADATA>", "no such line.*cut off, or not a"),
    ("net", "\t10\t", "\tten\t", 8, "capacity", "expected a number, got 'ten'"),
    ("net", "\t10\t", "\tnan\t", 8, "capacity", "expected a number, got 'nan'"),
    ("net", "\t10\t", "\t-10\t", 8, "capacity", "must be finite and > 0, got -10.0"),
    ("net", "\t4\t0.2\t", "\t4\t-0.2\t", 10, "b", "got -0.2"),
    ("net", "\t4\t0.2\t", "\t-4\t0.2\t", 10, "free_flow_time", "got -4.0"),
    ("net", "\t0.2\t1.5", "\t0.2\t-1", 10, "power", "got -1.0"),
    ("net", "\t4\t0.2\t", "\t\t0.2\t", 10, "free_flow_time", "expected a number, and it is empty"),
    ("net", "\t4\t0.2\t", "\t0.2\t", 10, "fields", "expected 10 fields, got 9"),
    ("net", "\t3\t2\t30", "\t3\tx\t30", 10, "term_node", "expected a number, got 'x'"),
    ("net", "\t3\t2\t30", "\t3\t2.5\t30", 10, "term_node", "expected the number of a node"),
    ("net", "\t3\t2\t30", "\t3\t5\t30", 2, "<NUMBER OF NODES>", "declares 4 nodes, .* mention 5"),
    ("net", "\t3\t2\t30", "\t3\t" + "9" * 23 + "\t30", 10, "term_node", "18 digits, got '999"),
    ("net", "\t3\t2\t30", "\t3\t" + "9" * 9000 + "\t30", 10, "term_node", "at most 18 digits"),
    ("net", "\t3\t2\t30", "\t3\t1e30\t30", 10, "term_node", "at most 18 digits, got '1e30'"),
    ("net", "LINKS> 5", "LINKS> five", 4, "<NUMBER OF LINKS>", "expected a number, got 'five'"),
    ("net", "LINKS> 5", "LINKS> 5.5", 4, "<NUMBER OF LINKS>", "a whole number, got 5.5"),
    ("net", "LINKS> 5", "LINKS> inf", 4, "<NUMBER OF LINKS>", "a finite number"),
    ("net", "ZONES> 2", "ZONES> inf", 1, "<NUMBER OF ZONES>", "a finite number, got 'inf'"),
    ("net", "NODES> 4", "NODES> 1e400", 2, "<NUMBER OF NODES>", "a finite number, got '1e400'"),
    ("net", "NODES> 4", "NODES> 1e9", 2, "<NUMBER OF NODES>", "declares 1000000000 .*mention 4"),
    ("net", "NODE> 3", "NODE> 1e999", 3, "<FIRST THRU NODE>", "a finite number"),
    ("net", "\tcapacity", "\tlength", None, "capacity", "there is no such column"),
    ("trips", "2 : 7.5", "2 : many", 6, "demand from 1 to 2", "expected a number, got 'many'"),
    ("trips", "2 : 7.5", "2 : -7.5", 6, "demand from 1 to 2", "finite and >= 0, got -7.5"),
    ("trips", "2 : 7.5", "2 : inf", 6, "demand from 1 to 2", "got inf"),
    ("trips", "2 : 7.5", "2 7.5", 6, "demand from 1", "expected 'zone : trips', got '2 7.5'"),
    ("trips", "2 : 7.5", "3 : 7.5", 6, "zone 3", "is not known: the zones are 1 to 2"),
    ("trips", "2 : 7.5", "two : 7.5", 6, "destination", "expected a number, got 'two'"),
    ("trips", "2 : 7.5", "9" * 23 + " : 7.5", 6, f"zone {'9' * 23}", "is not known"),
    ("trips", "2 : 7.5", "9" * 9000 + " : 7.5", 6, "destination", "at most 18 digits"),
    ("trips", "Origin 1", "Origin one", 5, "origin", "expected a number, got 'one'"),
    ("trips", "Origin 2", "Origin 12", 7, "zone 12", "is not known"),
    ("trips", "Origin 2", "Origin " + "9" * 23, 7, "origin", "at most 18 digits"),
    ("trips", "Origin 1\n", "", 5, "origin", "'1 : 2.0' precedes every Origin"),
    ("trips", "2 : 7.5;", "", 7, "<TOTAL OD FLOW>", "line 2 declares 9.5 trips, the file has 2.0"),
    ("trips", "FLOW> 9.5", "FLOW> 8.5", 7, "<TOTAL OD FLOW>", "declares 8.5 trips, the file has 9"),
    ("trips", "FLOW> 9.5", "FLOW> inf", 2, "<TOTAL OD FLOW>", "expected a finite number"),
    ("trips", "ZONES> 2", "ZONES> inf", 1, "<NUMBER OF ZONES>", "expected a finite number"),
    ("trips", END, "", 6, "<END OF METADATA>", "no such line"),
    ("nodes", "3\t1.5", "3", 3, "position", "expected 'node x y'"),
    ("nodes", "3\t1.5", "3\tnorth", 3, "y", "expected a number, got 'north'"),
    ("nodes", "3\t1.5", "inf\t1.5", 3, "x", "must be finite"),
    ("nodes", "\n2\t", "\ntwo\t", 3, "node", "expected a number, got 'two'"),
]


@pytest.mark.parametrize(
    ("file", "old", "new", "line", "field", "message"), MALFORMED, ids=range(len(MALFORMED))
)
def test_a_malformed_or_hostile_file(tmp_path, file, old, new, line, field, message):
    texts = {"net": NET, "trips": TRIPS, "nodes": NODES}
    assert old in texts[file]
    with pytest.raises(TNTPError, match=message) as caught:
        read(tmp_path, **(texts | {file: texts[file].replace(old, new)}))
    error = caught.value
    assert (error.line, error.field) == (line, field)
    place = f"small_{file.removesuffix('s') if file == 'nodes' else file}.tntp"
    place += "" if line is None else f", line {line}"
    assert re.search(re.escape(f"{place}, {field}: "), str(error))
    assert len(str(error)) < 1000


@pytest.mark.parametrize("length", range(0, len(NET) - 3, 7))
def test_a_net_file_that_is_cut_off_is_never_read_in_silence(tmp_path, length):
    with pytest.raises(TNTPError, match=r"small_net\.tntp"):
        read(tmp_path, net=NET[:length])


@pytest.mark.parametrize("length", range(0, TRIPS.index("7.5") + 2, 5))
def test_a_trips_file_that_is_cut_off_is_never_read_in_silence(tmp_path, length):
    with pytest.raises(TNTPError, match=r"small_trips\.tntp"):
        read(tmp_path, trips=TRIPS[:length])


def test_a_network_of_closed_links_is_refused(tmp_path):
    net = NET.partition("\t1\t3\t10")[0].replace("LINKS> 5", "LINKS> 1")
    with pytest.raises(TNTPError, match="every link is closed or a loop"):
        read(tmp_path, net=net + "\t1\t3\t0\t1\t1\t1\t1\t1\t1\t1;\n")
    with pytest.raises(TNTPError, match="links: the file has no links"):
        read(tmp_path, net=net.replace("LINKS> 1", "LINKS> 0"))


def test_a_missing_file_is_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_flows(tmp_path / "none.tntp", read(tmp_path))


FLOWS = "From \tTo \tVolume \tCost \n4 2 5 0\n1 3 1.5 0\n1 4 2 0\n3 2 3 0\n3 4 4e0 0\n"


@pytest.mark.parametrize(
    "text",
    [
        FLOWS,
        FLOWS.replace("From \tTo \tVolume \tCost \n", ""),
        "<NUMBER OF LINKS> -1\n<END OF METADATA>\n\n~\tTail\tHead\t:\tVolume\tCost\t;\n"
        + FLOWS.partition("\n")[2].replace(" ", "\t").replace("\n", " ;\n"),
        "<END OF METADATA>\nTail Head Volume Cost ;\n"
        + FLOWS.partition("\n")[2].replace("1 3 1.5", "1.0 3 : 1.5"),
        "Cost To From Flow\n0 2 4 5\n0 3 1 1.5\n0 4 1 2\n0 2 3 3\n0 4 3 4\n",
        FLOWS.replace("\n", "\r\n"),
    ],
)
def test_flows_are_matched_by_their_ends(tmp_path, text):
    path = tmp_path / "small_flow.tntp"
    path.write_bytes(text.encode())
    assert read_flows(path, read(tmp_path)).tolist() == [1.5, 2, 3, 4, 5]


def test_parallel_arcs_take_their_flows_in_turn(tmp_path):
    network = read(tmp_path, net=NET.replace("\t1\t4\t20", "\t1\t3\t20"))
    path = tmp_path / "small_flow.tntp"
    path.write_text(FLOWS.replace("1 4 2", "1 3 2"))
    np.testing.assert_array_equal(read_flows(path, network), [1.5, 2, 3, 4, 5])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("1 4 2 0\n", "", "line 5, arcs: 1 of 5 arcs have no flow: 1 -> 4"),
        ("1 4 2 0\n", "1 3 2 0\n", r"line 4, arc: .* no \(further\) arc 1 -> 3"),
        ("1 4 2", "4 1 2", "arc 4 -> 1"),
        ("1 4 2", "1 4 two", "line 4, volume: expected a number, got 'two'"),
        ("1 4 2 0", "1 4", "line 4, volume: expected from, to, volume"),
        ("1 4 2", "1 4 inf", "must be finite, got 'inf'"),
    ],
)
def test_flows_that_do_not_fit_are_refused(tmp_path, old, new, message):
    path = tmp_path / "small_flow.tntp"
    path.write_text(FLOWS.replace(old, new))
    with pytest.raises(TNTPError, match=message):
        read_flows(path, read(tmp_path))
