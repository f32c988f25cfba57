"""User equilibria for costs that each arc has of its own flow, origin by origin, on bushes."""

from wdro_model.traffic.bushes.state import Bushes, PowerCosts

__all__ = ["Bushes", "PowerCosts"]
