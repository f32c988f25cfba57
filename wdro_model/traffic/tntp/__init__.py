"""The files of the Transportation Networks for Research collection: networks and link flows."""

from wdro_model.traffic.tntp.link_flows import read_flows
from wdro_model.traffic.tntp.reader import read_tntp
from wdro_model.traffic.tntp.text import TNTPError
from wdro_model.traffic.tntp.writer import renumbered, write_tntp

__all__ = ["TNTPError", "read_flows", "read_tntp", "renumbered", "write_tntp"]
