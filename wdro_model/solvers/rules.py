"""What a run is made of: one rule for each part of the loop, and its limits."""

from __future__ import annotations

from dataclasses import dataclass

from wdro_model.solvers.directions import DirectionRule
from wdro_model.solvers.dual import DualRule
from wdro_model.solvers.gradients import GradientRule
from wdro_model.solvers.steps import StepRule


@dataclass(frozen=True)
class Rules:
    """One choice for each part of the loop."""

    direction: DirectionRule
    step: StepRule
    gradient: GradientRule
    dual: DualRule

    def __post_init__(self) -> None:
        if self.direction.needs_line_search and not self.step.needs_line:
            raise ValueError(
                f"{self.direction} needs a step rule that looks along the line, got {self.step}; "
                "use step='line_search' or 'adaptive', or direction='plain'."
            )
        if self.step.needs_line and not self.gradient.certified:
            raise ValueError(
                f"{self.step} needs full gradients, got {self.gradient}; use an open-loop step."
            )


@dataclass(frozen=True)
class Limits:
    """When to stop."""

    iterations: int
    gap: float
    """Relative Frank-Wolfe gap, gap / max(|value|, tiny); checked where the gap is certified."""
    seconds: float | None = None
