"""The table: which exact counterpart applies to a model."""

from __future__ import annotations

from dataclasses import dataclass, replace

from wdro_model.errors import NoReformulationError
from wdro_model.model import Model
from wdro_model.objectives.exact.affine import AffineLoss
from wdro_model.objectives.exact.base import Entry, Extremal
from wdro_model.objectives.exact.box import BoxLoss
from wdro_model.objectives.exact.least_squares import LeastSquaresLoss
from wdro_model.objectives.exact.lipschitz import LipschitzLoss
from wdro_model.objectives.exact.max_affine import MaxAffineLoss
from wdro_model.objectives.exact.polyhedral import PolyhedralLoss
from wdro_model.objectives.exact.quadratic_form import QuadraticFormLoss
from wdro_model.objectives.programs import Program
from wdro_model.objectives.units import Scale, Units, in_units, loss_unit
from wdro_model.solvers.objective import Array, Objective

ENTRIES: tuple[Entry, ...] = (
    QuadraticFormLoss(),
    AffineLoss(),
    LipschitzLoss(),
    LeastSquaresLoss(),
    MaxAffineLoss(),
    BoxLoss(),
    PolyhedralLoss(),
)
"""The cheapest counterparts first."""


def find_entry(model: Model) -> Entry:
    """The first entry that applies; a NoReformulationError that says what was found if none."""
    reasons: list[str] = []
    for entry in ENTRIES:
        reason = entry.refusal(model)
        if reason is None:
            return entry
        if reason not in reasons:
            reasons.append(reason)
    raise NoReformulationError(
        f"no exact robust counterpart is known for this model: {'; '.join(reasons)}. "
        "What applies: method='smoothed' (any differentiable loss) or method='erm'."
    )


def has_entry(model: Model) -> bool:
    """Does some entry apply?"""
    return any(entry.refusal(model) is None for entry in ENTRIES)


@dataclass(frozen=True)
class Counterpart:
    """The entry that applies to a model, worked out in the model's own units."""

    entry: Entry
    model: Model

    @property
    def formula(self) -> str:
        return self.entry.formula

    def program(self, scale: Scale | None = None) -> Program | None:
        """The worst-case risk as a convex CVXPY program, if CVXPY sees that it is."""
        if scale is not None:
            units = in_units(self.model, scale)
            found = find_entry(units.model).program(units.model)
            return None if found is None else replace(found, unit=units.loss, scale=scale)
        units = self._units()
        found = self.entry.program(units.model)
        if found is None:
            return None
        if units.model is self.model:
            return found.measured_in(loss_unit(self.model))
        return replace(found, unit=units.loss)

    def has_objective(self) -> bool:
        """Is the worst-case risk a smooth function of the decision?"""
        return self.entry.has_objective(self.model)

    def objective(self) -> Objective | None:
        """The worst-case risk as a smooth function of the flat decision, where it is one."""
        return self.entry.objective(self.model)

    def value(self, x: Array) -> float:
        """The worst-case risk of one decision."""
        units = self._units()
        return units.loss * self.entry.value(units.model, x)

    def extremal(self, x: Array) -> Extremal:
        """A worst-case distribution of one decision."""
        units = self._units()
        found = self.entry.extremal(units.model, x)
        if units.model is self.model:
            return found
        dual = found.dual * units.loss / units.cost
        return replace(found, rows=found.rows * units.data, dual=dual)

    def _units(self) -> Units:
        """The model in its own units, where the samples are written out one by one."""
        if self.entry.writes_samples(self.model):
            units = in_units(self.model)
            if self.entry.refusal(units.model) is None:
                return units
        return Units.of(self.model)


def counterpart(model: Model) -> Counterpart:
    """The exact counterpart of a model; a NoReformulationError if none is known."""
    return Counterpart(find_entry(model), model)


def robust_value(model: Model, x: Array) -> float | None:
    """The worst-case risk of a decision over the ball; None where no formula is known."""
    return counterpart(model).value(x) if has_entry(model) else None
