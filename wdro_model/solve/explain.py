"""The text of `Problem.explain()`: the model, the plan, and the reasons for it."""

from __future__ import annotations

from typing import Any

from wdro_model.display.tables import brief, facts_table
from wdro_model.errors import UnknownToCost
from wdro_model.model import Model, RobustModel
from wdro_model.objectives import exact
from wdro_model.objectives.scales import KAPPA, default_sigma
from wdro_model.solve.certify import Solution
from wdro_model.solve.integer import choice_risk, same_choice_note
from wdro_model.solve.options import Options, choose_integration, dual_rule
from wdro_model.solve.plan import Plan
from wdro_model.solvers.features import Feature

WIDTH = 13
"""Characters of the column of the names."""
DUAL_RULES = {
    "vertex": "Frank-Wolfe steps on [0, lambda_max], lambda_max by the paper's calibration",
    "exact": "minimised exactly at each decision (mini-batches: tracked, minimised at the end)",
}


class Explanation(str):
    """The text of `explain()`, a string whose lines are the rows of a table in a notebook."""

    @property
    def rows(self) -> list[tuple[str, str]]:
        """Pairs of a name and a text; a row with an empty name continues the row before."""
        return [(line[:WIDTH].strip(), line[WIDTH:].strip()) for line in self.splitlines()]

    def _repr_html_(self) -> str:
        return facts_table(self.rows, "Explanation")

    def __repr__(self) -> str:
        rows = dict(self.rows)
        lines = f"print it to read {len(self.rows)} lines"
        return brief(self, f"{rows['method']}: {rows['minimises']}; {lines}")


def explain(model: Model, chosen: Plan, options: Options, solution: Solution | None) -> Explanation:
    """Loss, data, ball, feasible set, formula, solver, and the reasons for them."""
    rows = [*model_rows(model), *constraint_rows(model), *plan_rows(model, chosen)]
    if chosen.method == "smoothed" and isinstance(model, RobustModel) and model.radius > 0:
        rows += smoothing_rows(model, chosen, options, solution)
    # A name of the user's may have line breaks, and a line is a row.
    return Explanation("\n".join(f"{name:<{WIDTH}}{' '.join(text.split())}" for name, text in rows))


def model_rows(model: Model) -> list[tuple[str, str]]:
    """The decision, the feasible set, the data, the loss and the ball."""
    layout = model.feasible.layout
    decision = ", ".join(f"{v.name()} {shape_text(v.shape)}" for v in layout.user_variables)
    rows = [("decision", f"{decision}; {sum(v.size for v in layout.user_variables)} numbers")]
    rows += [("feasible", line) for line in model.feasible.describe()]
    if not isinstance(model, RobustModel):
        if not model.feasible.uncertain:
            rows.append(("data", "nothing is uncertain"))
    else:
        for p in model.joint.parameters:
            rows.append(("data", f"{p.name()} {shape_text(p.shape)}, support {p.support!r}"))
        size = f"N = {model.joint.size} joint samples in dimension {model.joint.dimension}"
        if model.joint.probabilities is not None:
            effective = model.shares.effective_size
            size += f", with probabilities (as many as {effective:.4g} equal ones)"
        if model.joint.left_out:
            size += f", {model.joint.left_out} more of probability 0"
        rows.append(("", size))
    own = set(model.loss.loss.parameters)
    for p in (p for p in model.parameters if p not in own):
        text = f"{p.name()} {shape_text(p.shape)}, support {p.support!r}, N = {p.count}"
        rows.append(("data", f"{text}, in constraints alone"))
    text = model.structure.describe()
    if model.assume_convex and not model.structure.convex_in_decision:
        text += "; convex in the decision by the user's word"
    rows.append(("loss", text))
    if model.tails is not None:
        text = "minimised over a threshold of its own, and judged as a CVaR"
        rows.append(("", f"{model.tails.describe()}: {text}"))
    if model.maximise:
        rows.append(("", "minus the objective, whose least expected value is maximised"))
    if isinstance(model, RobustModel) and model.has_ball:
        rows.append(("ball", model.ambiguity.describe()))
        rows.append(("cost", model.cost.describe()))
    return rows


def constraint_rows(model: Model) -> list[tuple[str, str]]:
    """The uncertain constraints, and how each is imposed."""
    rows: list[tuple[str, str]] = []
    for constraint in model.feasible.uncertain:
        first = constraint.rows[0]
        rows.append(("constraint", constraint.name))
        if not isinstance(first, RobustModel):
            rows.append(("", "nothing in it is uncertain"))
        elif not constraint.robust or first.radius == 0:
            rows.append(("", f"on the N = {first.size} samples"))
        else:
            rows.append(("", f"for every distribution with {first.ambiguity.describe()}"))
            rows.append(("", f"by {exact.counterpart(first).formula}"))
    return rows


def plan_rows(model: Model, chosen: Plan) -> list[tuple[str, str]]:
    """The objective and the solver, and the reasons for them."""
    solver: Any = chosen.solver
    uses_oracle = Feature.GRADIENTS in solver.features
    described = solver.describe(model.feasible.oracle()) if uses_oracle else solver.describe()
    rows = [("method", chosen.method), ("minimises", chosen.formula), ("solver", described)]
    if model.feasible.is_integer:
        text = "over the convex hull of the feasible points"
        if chosen.stage == "conic":
            text = "a mixed-integer program"
        elif chosen.stage == "integer" and choice_risk(model, chosen) is not None:
            text = "no branching, a search along one parameter finds the best choice"
        elif chosen.stage == "integer":
            text = "one decision, with a proven gap"
        rows.append(("", f"integer variables: {text}"))
    rows += [("because", reason) for reason in chosen.reasons]
    same = same_choice_note(model, chosen.counterpart)
    return rows if same is None else [*rows, ("integers", same)]


def smoothing_rows(
    model: RobustModel, chosen: Plan, options: Options, solution: Solution | None
) -> list[tuple[str, str]]:
    """The scales, the strategy for the inner integral, and the rule for the dual variable."""
    if options.epsilon is not None:
        epsilon = f"{options.epsilon:g} (given)"
    else:
        epsilon = f"{KAPPA:g} / (2 d) times what the adversary gains at the ERM decision"
        if solution is not None and solution.epsilon is not None:
            epsilon += f" = {solution.epsilon:.4g}"
    if options.sigma is not None:
        sigma = f"{options.sigma} (given)"
    else:
        try:
            value = default_sigma(model.cost, model.radius, model.joint)
            sigma = f"{value:.4g}" if isinstance(value, float) else "one for each coordinate"
            sigma += ", so that moves of the reference cost radius / 2 on average"
        except UnknownToCost as error:
            sigma = str(error)
    solver: Any = chosen.solver
    strategy, dual = choose_integration(model, solver, options), dual_rule(solver, options)
    how = f"{strategy.name} ({strategy.reason})"
    if strategy.name == "gaussian":
        how += f", {solver.samples} draws per sample"
    scales = [("epsilon", epsilon), ("sigma", sigma)]
    return [*scales, ("integration", how), ("dual", f"{dual}: {DUAL_RULES[dual]}")]


def shape_text(shape: tuple[int, ...]) -> str:
    return "(scalar)" if shape == () else "(" + " x ".join(map(str, shape)) + ")"
