"""What is known of a radius beside its value: with what confidence it says what."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from wdro_model.display.factual import brief_fields


@dataclass(frozen=True)
class Assurance:
    """The confidence of a radius, the rule that it was found by, and what the two say.

    It goes with one problem on one set of samples: `with_radius(number)` and `with_samples` give
    problems without it.
    """

    confidence: float
    """A probability over the draw of the samples, between 0 and 1."""
    rule: str
    """The name of the rule of `radius_for`."""
    guarantee: str
    """What holds with this confidence, and in which sense: a sentence."""
    proven: bool
    """Does it hold for every law and every number of samples that the sentence names?"""
    covers_law: bool
    """Is the law of the data in the ball? The worst-case risk of every decision is then a bound."""
    method: str | None = None
    """The method whose promise was found to hold, where nothing is said of other methods."""
    of: str = "expected loss"
    """What is bounded: "risk" where the objective has risk measures."""
    cost: Any = field(default=None, repr=False, compare=False)
    """The ground cost that the radius is measured in."""

    __repr__ = brief_fields

    def bound(self, method: str, value: float, robust_value: float | None) -> float | None:
        """What a solve promises of the loss, or risk, with this confidence; None if nothing.

        robust_value: the exact worst-case risk of the decision, None where it is not known.
        """
        if self.covers_law:
            return robust_value
        return value if self.method == method else None

    def sentence(self, bound: float | None, maximise: bool = False) -> str:
        """What the confidence says of a solve with that bound."""
        share = f"{self.confidence:.4g}"
        if bound is None and self.method is None and not self.covers_law:
            return self.guarantee
        if bound is None:
            return f"nothing is known with confidence {share} of this decision's {self.of}"
        side = "least" if maximise else "most"
        what = self.of.replace("loss", "value") if maximise else self.of
        sense = "at least" if self.proven else "about"
        return (
            f"with probability {sense} {share} the {what} is at {side} {bound:.6g} "
            f"(radius by rule {self.rule!r})"
        )
