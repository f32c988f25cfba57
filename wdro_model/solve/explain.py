"""The text of `Problem.explain()`: what will be solved, how, and why."""

from __future__ import annotations

from wdro_model.display.tables import brief, facts_table
from wdro_model.errors import UnknownToCost
from wdro_model.model import Model, RobustModel
from wdro_model.objectives import exact
from wdro_model.objectives.scales import KAPPA, default_sigma
from wdro_model.solve.certify import Solution
from wdro_model.solve.integer import choice_risk, same_choice_note
from wdro_model.solve.options import FirstOrder, Options, choose_integration, dual_rule
from wdro_model.solve.plan import Plan
from wdro_model.solvers import BranchAndBound, Conic

NAME = 13
"""Characters of the column of the names."""


class Explanation(str):
    """The text of `explain()`, a string whose lines are the rows of a table in a notebook."""

    @property
    def rows(self) -> list[tuple[str, str]]:
        """Pairs of a name and a text; an empty name goes on with the one before."""
        return [(line[:NAME].strip(), line[NAME:].strip()) for line in self.splitlines()]

    def _repr_html_(self) -> str:
        return facts_table(self.rows, "Explanation")

    def __repr__(self) -> str:
        found = dict(self.rows)
        return brief(
            self,
            f"{found['method']}: {found['minimises']}; print it to read {len(self.rows)} lines",
        )


def explain(model: Model, chosen: Plan, options: Options, solution: Solution | None) -> Explanation:
    """Loss, data, ball, feasible set, formula, solver, and the reasons for them."""
    rows = [*model_rows(model), *constraint_rows(model), *plan_rows(model, chosen)]
    if chosen.method == "smoothed" and isinstance(model, RobustModel) and model.radius > 0:
        rows += smoothing_rows(model, chosen, options, solution)
    # A name of the user's may have line breaks, and a line is a row.
    return Explanation("\n".join(f"{name:<{NAME}}{' '.join(text.split())}" for name, text in rows))


def model_rows(model: Model) -> list[tuple[str, str]]:
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
    rows.append(("loss", loss_text(model)))
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
    """Each uncertain constraint and how it is imposed, for people."""
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


def loss_text(model: Model) -> str:
    """What the loss is in the decision and in the data."""
    text = model.structure.describe()
    if model.assume_convex and not model.structure.convex_in_decision:
        text += "; convex in the decision by the user's word"
    return text


def plan_rows(model: Model, chosen: Plan) -> list[tuple[str, str]]:
    rows = [("method", chosen.method), ("minimises", chosen.formula)]
    if isinstance(chosen.solver, Conic | BranchAndBound):
        rows.append(("solver", chosen.solver.describe()))
    else:
        rows.append(("solver", chosen.solver.describe(model.feasible.oracle())))
    if model.feasible.is_integer:
        rows.append(("", f"integer variables: {integer_text(model, chosen)}"))
    rows += [("because", reason) for reason in chosen.reasons]
    idle = same_choice_note(model, chosen.counterpart)
    return rows if idle is None else [*rows, ("integers", idle)]


def integer_text(model: Model, chosen: Plan) -> str:
    """What becomes of integer variables."""
    if isinstance(chosen.solver, Conic):
        return "a mixed-integer program"
    if not isinstance(chosen.solver, BranchAndBound):
        return "over the convex hull of the feasible points"
    if choice_risk(model, chosen) is not None:
        return "no branching, a search along one parameter finds the best choice"
    return "one decision, with a proven gap"


def smoothing_rows(
    model: RobustModel, chosen: Plan, options: Options, solution: Solution | None
) -> list[tuple[str, str]]:
    solved = solution if solution is not None and solution.epsilon is not None else None
    if options.epsilon is not None:
        epsilon = f"{options.epsilon:g} (given)"
    else:
        epsilon = f"{KAPPA:g} / (2 d) times what the adversary gains at the ERM decision"
        epsilon += f" = {solved.epsilon:.4g}" if solved is not None else ""
    sigma = f"{options.sigma} (given)" if options.sigma is not None else _default_sigma(model)
    assert isinstance(chosen.solver, FirstOrder)
    strategy = choose_integration(model, chosen.solver, options)
    dual = dual_rule(chosen.solver, options)
    meaning = {
        "vertex": "Frank-Wolfe steps on [0, lambda_max], lambda_max by the paper's calibration",
        "exact": "minimised exactly at each decision (mini-batches: tracked, minimised at the end)",
    }
    how = f"{strategy.name} ({strategy.reason})"
    if strategy.name == "gaussian":
        how += f", {chosen.solver.samples} draws per sample"
    return [
        ("epsilon", epsilon),
        ("sigma", sigma),
        ("integration", how),
        ("dual", f"{dual}: {meaning[dual]}"),
    ]


def _default_sigma(model: RobustModel) -> str:
    """The standard deviation of the reference where none is given."""
    try:
        value = default_sigma(model.cost, model.radius, model.joint)
    except UnknownToCost as error:
        return str(error)
    number = f"{value:.4g}" if isinstance(value, float) else "one for each coordinate"
    return f"{number}, so that moves of the reference cost radius / 2 on average"


def shape_text(shape: tuple[int, ...]) -> str:
    return "(scalar)" if shape == () else "(" + " x ".join(map(str, shape)) + ")"
