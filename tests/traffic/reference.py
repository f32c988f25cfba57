"""The published networks, where they are at hand: WDRO_TNTP, or a folder beside the project."""

import os
from pathlib import Path

import pytest

from wdro_model.traffic import Network, read_tntp

FOLDER = Path(
    os.environ.get("WDRO_TNTP", Path(__file__).parents[2].parent / "shared" / "data" / "tntp")
)
PREFIXES = {
    "SiouxFalls": "SiouxFalls",
    "Anaheim": "Anaheim",
    "Braess-Example": "Braess",
    "Eastern-Massachusetts": "EMA",
}


def published_file(network: str, kind: str) -> Path:
    """The path of a file (kind: net, trips, node, flow); skips the test if it is not there."""
    path = FOLDER / network / f"{PREFIXES[network]}_{kind}.tntp"
    if not path.exists():
        pytest.skip(f"{path.name} is not at hand (set WDRO_TNTP)")
    return path


def published(network: str, nodes: bool = False) -> Network:
    """A published network."""
    files = [published_file(network, kind) for kind in ("net", "trips")]
    return read_tntp(*files, published_file(network, "node") if nodes else None)
