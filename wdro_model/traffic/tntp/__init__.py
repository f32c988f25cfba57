"""The files of the Transportation Networks for Research collection: networks and link flows."""

from wdro_model.traffic.tntp.files import TNTPError
from wdro_model.traffic.tntp.reader import read_tntp
from wdro_model.traffic.tntp.writer import read_flows, renumbered, write_tntp

__all__ = ["TNTPError", "read_flows", "read_tntp", "renumbered", "write_tntp"]
