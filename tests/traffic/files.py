"""A small network as TNTP text, to be spoiled by the tests."""

from wdro_model.traffic import Network, read_tntp

NET = """<NUMBER OF ZONES> 2
<NUMBER OF NODES> 4
<FIRST THRU NODE> 3
<NUMBER OF LINKS> 5
<END OF METADATA>

~\tinit_node\tterm_node\tcapacity\tlength\tfree_flow_time\tb\tpower\tspeed\ttoll\tlink_type\t;
\t1\t3\t10\t1.5\t2\t0.15\t4\t60\t0.25\t1\t;
\t1\t4\t20\t2.5\t3\t0.15\t4\t60\t0\t1\t;
\t3\t2\t30\t1\t4\t0.2\t1.5\t60\t0\t1\t;
\t3\t4\t40\t1\t5\t0\t0\t60\t1\t1\t;
\t4\t2\t50\t1\t6\t0.15\t4\t60\t0\t1\t;
"""
TRIPS = """<NUMBER OF ZONES> 2
<TOTAL OD FLOW> 9.5
<END OF METADATA>

Origin 1
    1 : 2.0;    2 : 7.5;
Origin 2
"""
NODES = "Node\tX\tY\t;\n1\t0\t1\t;\n2\t3\t1.5\t;\n3\t1\t2\t;\n4\t-1e-2\t0\t;\n"

FIELDS = (
    "tails",
    "heads",
    "capacity",
    "free_flow_time",
    "b",
    "power",
    "demand",
    "fixed_cost",
    "zones",
    "through",
)


def read(tmp_path, net: str = NET, trips: str = TRIPS, nodes: str | None = None, **weights):
    """The network in the given texts, by way of files small_net.tntp and so on."""
    paths = []
    for kind, text in (("net", net), ("trips", trips), ("node", nodes)):
        paths.append(None if text is None else tmp_path / f"small_{kind}.tntp")
        if text is not None:
            paths[-1].write_bytes(text.encode())
    return read_tntp(*paths, **weights)


def assert_same(first: Network, second: Network) -> None:
    """Equal to the last bit, but for the name and the repairs."""
    for field in FIELDS:
        ours, theirs = getattr(first, field), getattr(second, field)
        assert ours.dtype == theirs.dtype, field
        assert ours.shape == theirs.shape, field
        assert (ours == theirs).all(), field
    assert first.nodes == second.nodes
    assert (first.positions is None) == (second.positions is None)
    if first.positions is not None:
        assert first.positions.tobytes() == second.positions.tobytes()
