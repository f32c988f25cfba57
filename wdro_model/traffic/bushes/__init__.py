"""User equilibria for costs that each arc has of its own flow, origin by origin, on bushes."""

from wdro_model.traffic.bushes.bush_state import Bushes, Roads
from wdro_model.traffic.bushes.power_costs import PowerCosts

__all__ = ["Bushes", "PowerCosts", "Roads"]
