"""Where the uncertain data may lie: the set Xi that the adversary can choose from.

A support with coordinate structure (`Everywhere`, `Box`, `Nonnegative`) bounds each entry on its
own and is sampled exactly; `Polyhedron` and `Where` couple entries and are sampled by rejection.
Membership allows for rounding: a point may pass a bound b by 1e-9 max(1, |b|).
"""

from wdro_model.uncertainty.supports.boxes import Box, Everywhere, Nonnegative, Support
from wdro_model.uncertainty.supports.coupled import Polyhedron, Where

__all__ = ["Box", "Everywhere", "Nonnegative", "Polyhedron", "Support", "Where"]
__dir__ = __all__.copy  # what the tab key offers
