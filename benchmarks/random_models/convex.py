"""Families whose losses are maxima of affine pieces, judged by conic programs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import cvxpy as cp
import numpy as np

import wdro_model as wdro
from random_models.drawing import (
    Setting,
    Term,
    Units,
    draw_affine,
    draw_constraints,
    draw_setting,
    draw_term,
    violation,
    zero_piece,
)
from random_models.references import (
    Bound,
    Cost,
    Pieces,
    attained_by_moves,
    confirmed_worst_case,
    least_worst_case,
    maximum,
    transport_cost,
    with_radius,
    worst_case_at,
)
from random_models.trial import Answer, NoReferenceError, Trial, compare_values, read_answer

RELATIVE = 1e-5
"""How far an exact value may be from the judge's, relative to the model's scale."""
FEASIBLE = 2e-6
"""By how much a decision may violate a constraint of order one."""


@dataclass(frozen=True)
class Reference:
    """The judge's optimum of a model, in units of one."""

    pieces: Pieces
    setting: Setting
    constraints: Any
    own: int
    bounds: tuple[Bound, ...] = ()
    sign: float = 1.0

    def least(self) -> tuple[float, np.ndarray] | None:
        """The optimum and its decision, confirmed by moves at that decision."""
        ball = self.setting.ball
        found = least_worst_case(self.pieces, ball, self.constraints, self.bounds, own=self.own)
        if found is not None:
            moved = attained_by_moves(self.pieces, ball, found[1])
            if abs(moved - found[0]) > RELATIVE * max(1.0, abs(found[0])):
                raise NoReferenceError(f"optimum {found[0]:.9g}, by moves {moved:.9g}")
        return found

    def judge(self, answer: Answer) -> list[str]:
        """Hold value, decision and gap against the optimum."""
        found = self.least()
        if found is None:
            return [f"infeasible by the judge, value {answer.value:.6g}, status {answer.status}"]
        loss = self.setting.units.loss
        optimum = found[0]
        value = self.sign * answer.value / loss
        tolerance = RELATIVE * max(1.0, abs(optimum))
        gap = 0.0 if answer.gap is None else max(answer.gap, 0.0) / loss
        if not np.isfinite(value):
            return [f"value {answer.value}"] if answer.is_optimal else []
        wrong = []
        if value < optimum - tolerance:
            wrong.append(f"value {value:.8g} is below the optimum {optimum:.8g}")
        if answer.lower_bound is not None:
            bound = self.sign * answer.lower_bound / loss
            if bound > optimum + tolerance:
                wrong.append(f"bound {bound:.8g} is above the optimum {optimum:.8g}")
        if answer.is_optimal and value > optimum + tolerance + gap:
            wrong.append(f"value {value:.8g} is above the optimum {optimum:.8g} (gap {gap:.1g})")
        if answer.is_optimal and gap > 1e-3 * max(1.0, abs(optimum)):
            wrong.append(f"optimal with a gap of {gap:.3g}")
        if answer.decision is None:
            return wrong
        x = answer.decision
        excess = violation(self.constraints, x)
        if not excess <= FEASIBLE * max(1.0, float(np.abs(x).max())):
            return [*wrong, f"the decision violates a constraint by {excess:.3g}"]
        attained, y = worst_case_at(self.pieces, self.setting.ball, x)
        if abs(attained - value) > tolerance + (0.0 if answer.is_optimal else gap):
            moved = attained_by_moves(self.pieces, self.setting.ball, y)
            if abs(moved - attained) <= tolerance:
                wrong.append(f"value {value:.8g}, worst case of its decision {attained:.8g}")
            else:
                raise NoReferenceError(f"W(x) {attained:.9g}, by moves {moved:.9g}")
        for bound in self.bounds:
            reached, _ = worst_case_at(bound.pieces, self.setting.ball, answer.decision)
            if reached > bound.limit + 10 * FEASIBLE * max(1.0, abs(bound.limit)):
                wrong.append(f"a constraint reaches {reached:.8g}, limit {bound.limit:.8g}")
        return wrong


def read_decision(x: Any, setting: Setting) -> np.ndarray | None:
    """The decision in units of one."""
    return None if x.value is None else np.atleast_1d(x.value) / setting.units.decision


def draw_size(rng: np.random.Generator) -> tuple[int, int]:
    """Numbers of decisions and of data."""
    n = int(rng.integers(1, 5))
    return n, n if rng.random() < 0.5 else int(rng.integers(1, 4))


# --- exact ---------------------------------------------------------------------------------------


def newsvendor(rng: np.random.Generator, d: int) -> tuple[Pieces, Any]:
    """A sum of newsvendors, coordinate by coordinate: pieces, and the expression's writer."""
    over, under = rng.uniform(0.2, 2.0, size=d), rng.uniform(0.5, 5.0, size=d)
    total = None
    for i in range(d):
        unit = np.zeros(d)
        unit[i] = 1.0
        first = Pieces(
            np.zeros(1), over[i] * unit[None], -over[i] * unit[None], np.zeros((1, d, d))
        )
        second = Pieces(
            np.zeros(1), -under[i] * unit[None], under[i] * unit[None], np.zeros((1, d, d))
        )
        part = maximum(first, second)
        total = part if total is None else total + part

    def write(x: Any, z: Any, units: Units) -> Any:
        a, b = x / units.decision, z / units.data
        terms = cp.maximum(cp.multiply(over, a - b), cp.multiply(under, b - a))
        return units.loss * cp.sum(terms)

    return total, write


def draw_exact(rng: np.random.Generator) -> Trial:
    """One loss, one ball, CVXPY constraints."""
    special = rng.random()
    if special < 0.25:
        return draw_smooth_exact(rng)
    n, d = draw_size(rng)
    if special < 0.4:
        n = d = min(d, 3)
    setting = draw_setting(rng, d)
    constraints, where = draw_constraints(rng, n)
    x, z = cp.Variable(n, name="x"), setting.parameter()
    if special < 0.4:
        pieces, write = newsvendor(rng, d)
        loss, kind = write(x, z, setting.units), "newsvendor"
    else:
        term = draw_term(rng, n, d)
        pieces, loss, kind = term.pieces, setting.write_term(term, x, z), term.kind
    problem = wdro.Problem(
        cp.Minimize(loss), constraints(x / setting.units.decision), setting.write_ball()
    )

    def solve(limit: float) -> Answer:
        problem.solve(time_limit=limit)
        return read_answer(problem, read_decision(x, setting))

    reference = Reference(pieces, setting, constraints, n)
    return Trial(f"{kind}, n={n} in {where}, {setting.text}", solve, reference.judge)


def draw_smooth_exact(rng: np.random.Generator) -> Trial:
    """Least squares with squared costs; logistic and Huber losses with norms; on R^d."""
    n, d = draw_size(rng)
    setting = draw_setting(rng, d, supports=("R^d",))
    ball, units = setting.ball, setting.units
    if ball.cost.is_norm:
        kind, units = str(rng.choice(["logistic", "huber"])), Units(data=units.data)
    else:
        kind, units = "least squares", Units(data=units.data, loss=units.loss)
    setting = replace(setting, units=units)
    units = setting.units
    form = draw_affine(rng, n, d)
    constraints, where = draw_constraints(rng, n)
    x, z = cp.Variable(n, name="x"), setting.parameter()
    root = np.sqrt(units.loss)
    inner = replace(setting, units=Units(units.data, root)).write_pieces(form, x, z)[0]
    loss = {
        "logistic": cp.logistic(inner),
        "huber": cp.huber(inner, 0.7),
        "least squares": cp.square(inner),
    }[kind]
    problem = wdro.Problem(cp.Minimize(loss), constraints(x), setting.write_ball())

    def solve(limit: float) -> Answer:
        problem.solve(time_limit=limit)
        return read_answer(problem, read_decision(x, setting))

    p = ball.probabilities

    def value_at(y: np.ndarray) -> float:
        a, b = form.at(y)
        inside = a[0] + ball.samples @ b[0]
        if kind == "least squares":
            return (np.sqrt(p @ inside**2) + np.sqrt(ball.radius) * ball.cost.dual_norm(b[0])) ** 2
        if kind == "logistic":
            mean, slope = p @ np.logaddexp(0, inside), 1.0
        else:
            size = np.abs(inside)
            mean = p @ np.where(size <= 0.7, inside**2, 1.4 * size - 0.49)
            slope = 1.4
        return float(mean + ball.radius * slope * ball.cost.dual_norm(b[0]))

    def optimum() -> float:
        y = cp.Variable(n)
        b = form.b0[0] + form.B[0] @ y
        inside = form.a0[0] + form.A[0] @ y + ball.samples @ b
        if kind == "least squares":
            error = cp.norm(cp.multiply(np.sqrt(p), inside), 2)
            objective = error + np.sqrt(ball.radius) * cp.norm(ball.cost.root().T @ b, 2)
        else:
            term = cp.logistic(inside) if kind == "logistic" else cp.huber(inside, 0.7)
            steep = 1.0 if kind == "logistic" else 1.4
            length = cp.norm(cp.multiply(1.0 / ball.cost.weights, b), ball.cost.dual_p)
            objective = p @ term + ball.radius * steep * length
        program = cp.Problem(cp.Minimize(objective), constraints(y))
        program.solve(solver="CLARABEL")
        if program.status != "optimal":
            raise NoReferenceError(str(program.status))
        return value_at(y.value)

    def judge(answer: Answer) -> list[str]:
        best = optimum()
        value, scale = answer.value / units.loss, max(1.0, abs(best))
        gap = 0.0 if answer.gap is None else max(answer.gap, 0.0) / units.loss
        wrong = []
        if value < best - RELATIVE * scale:
            wrong.append(f"value {value:.8g} is below the optimum {best:.8g}")
        if answer.is_optimal and value > best + RELATIVE * scale + gap:
            wrong.append(f"value {value:.8g} is above the optimum {best:.8g}, gap {gap:.1g}")
        if answer.decision is not None:
            excess = violation(constraints, answer.decision)
            if excess > FEASIBLE * max(1.0, float(np.abs(answer.decision).max())):
                wrong.append(f"the decision violates a constraint by {excess:.3g}")
            own = value_at(answer.decision)
            wrong += compare_values("value at its decision", value, own, RELATIVE * scale)
        return wrong

    return Trial(f"{kind}, n={n} in {where}, {setting.text}", solve, judge)


# --- risk ----------------------------------------------------------------------------------------


def draw_risk(rng: np.random.Generator) -> Trial:
    """Sums of means and CVaRs, minimised, or rewards maximised."""
    n, d = draw_size(rng)
    setting = draw_setting(rng, d, most_samples=6)
    constraints, where = draw_constraints(rng, n)
    x, z = cp.Variable(n, name="x"), setting.parameter()
    tails = int(rng.integers(1, 3))
    total = zero_piece(n, d).extended(tails)
    loss: Any = 0.0
    words = []
    if rng.random() < 0.5:
        term = draw_term(rng, n, d)
        total = total + term.pieces.extended(tails)
        loss = loss + setting.write_term(term, x, z)
        words.append(term.kind)
    for k in range(tails):
        kinds = ["affine", "affine", "absolute", "positive"]
        term = draw_term(rng, n, d, str(rng.choice(kinds)))
        level = float(rng.choice([0.0, 0.2, 0.5, 0.8, 0.9, 0.95]))
        factor = 1.0 if rng.random() < 0.5 else float(rng.uniform(0.1, 3.0))
        total = total + term.pieces.extended(tails).tail(n + k, level) * factor
        loss = loss + factor * wdro.cvar(setting.write_term(term, x, z), level)
        words.append(f"{factor:.2g} cvar({term.kind}, {level})")
    maximise = bool(rng.random() < 0.3)
    goal = cp.Maximize(-loss) if maximise else cp.Minimize(loss)
    rows = constraints(x / setting.units.decision)
    problem = wdro.Problem(goal, rows, setting.write_ball())

    def solve(limit: float) -> Answer:
        problem.solve(time_limit=limit)
        return read_answer(problem, read_decision(x, setting))

    reference = Reference(total, setting, constraints, n, sign=-1.0 if maximise else 1.0)
    text = ("max -" if maximise else "") + " + ".join(words)
    return Trial(f"{text}, n={n} in {where}, {setting.text}", solve, reference.judge)


# --- uncertain constraints -----------------------------------------------------------------------


def draw_bound(
    rng: np.random.Generator, n: int, d: int, thresholds: int, position: int
) -> tuple[Term, Pieces, float | None]:
    """A term, its pieces with a threshold of their own, and the level (None: expectation)."""
    term = draw_term(rng, n, d, str(rng.choice(["affine", "affine", "maximum", "absolute"])))
    pieces = term.pieces.extended(thresholds)
    if rng.random() < 0.4:
        return term, pieces, None
    level = float(rng.choice([0.3, 0.5, 0.8, 0.9]))
    return term, pieces.tail(position, level), level


def draw_constrained(rng: np.random.Generator) -> Trial:
    """Uncertain constraints on expectation or CVaR: feasible, or infeasible, by a margin."""
    n, d = draw_size(rng)
    setting = draw_setting(rng, d, most_samples=6)
    constraints, where = draw_constraints(rng, n)
    x, z = cp.Variable(n, name="x"), setting.parameter()
    loss = setting.units.loss
    goal = draw_term(rng, n, d, str(rng.choice(["affine", "maximum"])))
    term, pieces, level = draw_bound(rng, n, d, 1, n)
    least = least_worst_case(pieces, setting.ball, constraints, own=n)
    if least is None:
        raise NoReferenceError("the certain constraints came out infeasible")
    size = max(1.0, abs(least[0]))
    margin = float(10.0 ** rng.uniform(-3, 0)) * size
    infeasible = bool(rng.random() < 0.4)
    limit = least[0] + (-margin if infeasible else margin)
    written = setting.write_term(term, x, z)
    measure = wdro.expectation(written) if level is None else wdro.cvar(written, level)
    rows = [*constraints(x / setting.units.decision), measure <= loss * limit]
    objective = cp.Minimize(setting.write_term(goal, x, z))
    problem = wdro.Problem(objective, rows, setting.write_ball())

    def solve(allowed: float) -> Answer:
        problem.solve(time_limit=allowed)
        return read_answer(problem, read_decision(x, setting))

    reference = Reference(goal.pieces.extended(1), setting, constraints, n, (Bound(pieces, limit),))
    name = "expectation" if level is None else f"cvar {level}"
    state = f"{'in' if infeasible else ''}feasible by {margin:.2g}"
    text = f"min {goal.kind}, {name} of {term.kind} <= b, {state}, n={n} in {where}"
    expected = wdro.errors.InfeasibleError if infeasible else None
    return Trial(f"{text}, {setting.text}", solve, reference.judge, expected)


# --- probabilities -------------------------------------------------------------------------------


def worst_probability(g: Pieces, setting: Setting, x: np.ndarray) -> float:
    """The largest probability of g > 0 in the ball, by the cheapest moves into the event.

    The adversary moves fractions of samples to the nearest point where g >= 0, the cheapest first.
    """
    ball = setting.ball
    a, b = g.at(x)
    prices = np.zeros(len(ball.samples))
    for k, xi in enumerate(ball.samples):
        if g.values(x, xi[None])[0] > 1e-9:
            continue
        best = np.inf
        for j in range(g.count):
            z = cp.Variable(ball.samples.shape[1])
            rows = [a[j] + b[j] @ z >= 0]
            if ball.C is not None:
                rows.append(ball.C @ z <= ball.h)
            if ball.cost.is_norm:
                price = cp.norm(cp.multiply(ball.cost.weights, z - xi), ball.cost.p)
            else:
                price = cp.sum_squares(np.linalg.inv(ball.cost.root()) @ (z - xi))
            program = cp.Problem(cp.Minimize(price), rows)
            program.solve(solver="CLARABEL")
            if program.status == "optimal":
                best = min(best, max(float(program.value), 0.0))
        prices[k] = best
    left, total = ball.radius, 0.0
    for k in np.argsort(prices):
        if not np.isfinite(prices[k]):
            break
        share = ball.probabilities[k]
        if prices[k] > 0:
            share = min(share, left / prices[k])
        total += share
        left -= share * prices[k]
    return total


def draw_probability(rng: np.random.Generator) -> Trial:
    """probability(g <= 0) >= level: the safe program's optimum, and a decision that keeps it."""
    n, d = draw_size(rng)
    setting = draw_setting(rng, d, most_samples=8, units=Units())
    setting = replace(setting, ball=with_radius(setting.ball, min(setting.ball.radius, 1.0)))
    constraints, where = draw_constraints(rng, n)
    x, z = cp.Variable(n, name="x"), setting.parameter()
    goal = draw_term(rng, n, d, "affine")
    term = draw_term(rng, n, d, str(rng.choice(["affine", "maximum"])))
    level = float(rng.choice([0.5, 0.7, 0.8, 0.9, 0.95]))
    tail = term.pieces.extended(1).tail(n, level)
    least = least_worst_case(tail, setting.ball, constraints, own=n)
    if least is None:
        raise NoReferenceError("the certain constraints came out infeasible")
    shift = least[0] + float(10.0 ** rng.uniform(-2, 0)) * max(1.0, abs(least[0]))
    g = replace(term.pieces, a0=term.pieces.a0 - shift)
    promise = wdro.probability(setting.write_term(term, x, z) <= shift) >= level
    objective = cp.Minimize(setting.write_term(goal, x, z))
    problem = wdro.Problem(objective, [*constraints(x), promise], setting.write_ball())

    def solve(limit: float) -> Answer:
        problem.solve(time_limit=limit)
        return read_answer(problem, read_decision(x, setting))

    safe = replace(tail, a0=g.extended(1).tail(n, level).a0)
    reference = Reference(goal.pieces.extended(1), setting, constraints, n, (Bound(safe, 0.0),))

    def judge(answer: Answer) -> list[str]:
        wrong = reference.judge(answer)
        if answer.decision is not None and answer.is_optimal:
            inside = replace(g, a0=g.a0 - 1e-5)
            broken = worst_probability(inside, setting, answer.decision)
            if broken > 1 - level + 1e-4:
                wrong.append(f"broken with probability {broken:.6f}, allowed {1 - level:.6f}")
        return wrong

    text = f"min affine, probability({term.kind} <= b) >= {level}, n={n} in {where}"
    return Trial(f"{text}, {setting.text}", solve, judge)


# --- solving again -------------------------------------------------------------------------------


def draw_again(rng: np.random.Generator) -> Trial:
    """A chain of twins: other radii, other samples, another parameter; each against its optimum."""
    n, d = draw_size(rng)
    setting = draw_setting(rng, d, most_samples=6)
    constraints, where = draw_constraints(rng, n)
    x, z = cp.Variable(n, name="x"), setting.parameter()
    term = draw_term(rng, n, d)
    pieces = term.pieces
    level = None
    written = setting.write_term(term, x, z)
    if rng.random() < 0.4:
        level = float(rng.choice([0.5, 0.8]))
        pieces = pieces.extended(1).tail(n, level)
        written = wdro.cvar(written, level)
    shift = cp.Parameter(value=0.0, name="shift")
    height = float(rng.normal())
    decision, loss = setting.units.decision, setting.units.loss
    rows = [*constraints(x / decision), x[0] / decision <= 6 + shift]
    objective = cp.Minimize(written + loss * height * shift)
    problem = wdro.Problem(objective, rows, setting.write_ball())
    steps: list[tuple[str, Any]] = []
    for _ in range(int(rng.integers(2, 5))):
        kind = str(rng.choice(["radius", "samples", "parameter"]))
        if kind == "radius":
            steps.append((kind, float(10.0 ** rng.uniform(-4, 1))))
        elif kind == "samples":
            rows_of = rng.integers(len(setting.ball.samples), size=len(setting.ball.samples))
            mixed = 0.5 * (setting.ball.samples + setting.ball.samples[rows_of])
            steps.append((kind, mixed))
        else:
            steps.append((kind, float(rng.uniform(-0.5, 0.5))))

    def solve(limit: float) -> Answer:
        twin, answers = problem, []
        problem.solve(time_limit=limit)
        answers.append(read_answer(problem, read_decision(x, setting)))
        for kind, what in steps:
            if kind == "radius":
                twin = twin.with_radius(setting.write_radius(what))
            elif kind == "samples":
                twin = twin.with_samples(setting.units.data * what)
            else:
                shift.value = what
            twin.solve(time_limit=limit)
            answers.append(read_answer(twin, read_decision(x, setting)))
        last = answers[-1]
        return replace(last, more={"answers": answers})

    def judge(answer: Answer) -> list[str]:
        wrong: dict[bool, list[str]] = {True: [], False: []}
        at, ball = 0.0, setting.ball
        history: list[tuple[str, Any]] = [("first", None), *steps]
        for (kind, what), one in zip(history, answer.more["answers"]):
            if kind == "radius":
                ball = with_radius(ball, what)
            elif kind == "samples":
                ball = replace(ball, samples=what)
                if setting.weighted:
                    uniform = np.full(len(what), 1.0 / len(what))
                    ball = replace(ball, probabilities=uniform)
            elif kind == "parameter":
                at = what

            def allowed(u: Any, top: float = 6 + at) -> list[Any]:
                return [*constraints(u), u[0] <= top]

            now = replace(setting, ball=ball)
            reference = Reference(pieces, now, allowed, n)
            shifted = replace(
                one,
                value=one.value - loss * height * at,
                lower_bound=None
                if one.lower_bound is None
                else one.lower_bound - loss * height * at,
            )
            for complaint in reference.judge(shifted):
                wrong[one.is_optimal].append(f"after {kind} ({one.status}): {complaint}")
        return wrong[True] or wrong[False]

    text = f"{term.kind}{'' if level is None else f' cvar {level}'}"
    chain = ", ".join(kind for kind, _ in steps)
    return Trial(
        f"{text} then {chain}, n={n} in {where}, {setting.text}",
        solve,
        judge,
        solves=len(steps) + 1,
    )


# --- aggregation ---------------------------------------------------------------------------------


def draw_aggregated(rng: np.random.Generator) -> Trial:
    """Thousands of samples with duplicates and outliers, against a linear program."""
    n = d = int(rng.integers(2, 6))
    N = 2000 if rng.random() < 0.7 else 5500
    samples = rng.normal(size=(N, d)) * rng.uniform(0.2, 2.0, size=d) + rng.normal(size=d)
    kind = str(rng.choice(["plain", "duplicates", "outliers"]))
    if kind == "duplicates":
        samples = samples[rng.integers(20, size=N)]
    outlier = 0.0
    if kind == "outliers":
        outlier = float(10.0 ** rng.uniform(1, 5))
        samples[rng.integers(N, size=3)] *= outlier
    p = [1, 2, np.inf][int(rng.integers(3))]
    radius = float(10.0 ** rng.uniform(-4, 0))
    level = float(rng.choice([0.5, 0.9, 0.95]))
    loss_kind = str(rng.choice(["cvar", "absolute", "newsvendor"]))
    x = cp.Variable(n, name="x")
    z = wdro.UncertainParameter(d, name="z", samples=samples)
    rows = [cp.sum(x) == 1, x >= 0]
    under = float(rng.uniform(1, 5))
    if loss_kind == "cvar":
        loss = wdro.cvar(-z @ x, level)
    elif loss_kind == "absolute":
        loss = cp.abs(z @ x - 1)
    else:
        loss = cp.maximum(z @ x - 1, under * (1 - z @ x))
    ball = wdro.WassersteinBall(radius, wdro.costs.Norm(p))
    problem = wdro.Problem(cp.Minimize(loss), rows, ball)
    asked = rng.random() < 0.6
    cost = Cost(p=p, weights=np.ones(d))

    def solve(limit: float) -> Answer:
        solver = wdro.solvers.Aggregation() if asked else None
        problem.solve(time_limit=limit, solver=solver)
        return read_answer(problem, x.value)

    steep = {"cvar": 1 / (1 - level), "absolute": 1.0, "newsvendor": max(1.0, under)}[loss_kind]

    def value_at(u: np.ndarray) -> float:
        inside = samples @ u
        if loss_kind == "cvar":
            ordered = np.sort(-inside)[::-1]
            count = (1 - level) * N
            whole = int(np.floor(count + 1e-9))
            mean = ordered[:whole].sum()
            if whole < N:
                mean += (count - whole) * ordered[whole]
            mean /= count
        elif loss_kind == "absolute":
            mean = np.mean(np.abs(inside - 1))
        else:
            mean = np.mean(np.maximum(inside - 1, under * (1 - inside)))
        return float(mean + radius * steep * cost.dual_norm(u))

    def optimum() -> float:
        u, t = cp.Variable(n), cp.Variable()
        inside = samples @ u
        if loss_kind == "cvar":
            mean = t + cp.sum(cp.pos(-inside - t)) / ((1 - level) * N)
        elif loss_kind == "absolute":
            mean = cp.sum(cp.abs(inside - 1)) / N
        else:
            mean = cp.sum(cp.maximum(inside - 1, under * (1 - inside))) / N
        goal = mean + radius * steep * cp.norm(u, cost.dual_p)
        program = cp.Problem(cp.Minimize(goal), [cp.sum(u) == 1, u >= 0])
        program.solve(solver="CLARABEL" if p == 2 else "HIGHS")
        if program.status != "optimal":
            raise NoReferenceError(str(program.status))
        point = np.clip(u.value, 0, None)
        return min(float(program.value), value_at(point / point.sum()))

    def judge(answer: Answer) -> list[str]:
        if answer.decision is None:
            return ["no decision"]
        own = value_at(answer.decision)
        best = optimum()
        scale = max(1.0, abs(best))
        gap = 0.0 if answer.gap is None else max(answer.gap, 0.0)
        wrong = compare_values("value at its decision", answer.value, own, RELATIVE * scale)
        if answer.is_optimal and own > best + RELATIVE * scale + gap:
            wrong.append(f"its decision costs {own:.8g}, the best {best:.8g}, gap {gap:.1g}")
        if answer.lower_bound is not None and answer.lower_bound > best + RELATIVE * scale:
            wrong.append(f"bound {answer.lower_bound:.8g} is above {best:.8g}")
        excess = max(abs(answer.decision.sum() - 1), -answer.decision.min())
        if excess > FEASIBLE:
            wrong.append(f"the decision violates a constraint by {excess:.3g}")
        return wrong

    text = f"{loss_kind}, N={N} {kind} {outlier:.2g}, d={d}, Norm({p}) radius {radius:.3g}"
    return Trial(text + (", Aggregation" if asked else ""), solve, judge)


# --- the adversary's distribution ----------------------------------------------------------------


def draw_adversary(rng: np.random.Generator) -> Trial:
    """worst_case() attains the value, within the radius and inside the support."""
    n, d = draw_size(rng)
    setting = draw_setting(rng, d, most_samples=5)
    constraints, where = draw_constraints(rng, n)
    x, z = cp.Variable(n, name="x"), setting.parameter()
    term = draw_term(rng, n, d)
    problem = wdro.Problem(
        cp.Minimize(setting.write_term(term, x, z)),
        constraints(x / setting.units.decision),
        setting.write_ball(),
    )

    def solve(limit: float) -> Answer:
        problem.solve(time_limit=limit)
        worst = problem.worst_case()
        return read_answer(
            problem,
            read_decision(x, setting),
            scenarios=np.asarray(worst.scenarios[z], dtype=float),
            weights=np.asarray(worst.weights, dtype=float),
            expected=float(worst.expected_loss),
            said=str(worst),
        )

    reference = Reference(term.pieces, setting, constraints, n)

    def judge(answer: Answer) -> list[str]:
        wrong = reference.judge(answer)
        if not answer.is_optimal or answer.decision is None:
            return wrong
        ball, units = setting.ball, setting.units
        scenarios = answer.more["scenarios"].reshape(-1, d) / units.data
        weights = answer.more["weights"]
        if abs(weights.sum() - 1) > 1e-6 or weights.min() < -1e-9:
            return [*wrong, f"weights add up to {weights.sum():.8g}"]
        keep = weights > 1e-12
        scenarios, weights = scenarios[keep], np.clip(weights[keep], 0, None)
        spread = max(1.0, float(np.abs(scenarios).max()))
        if not ball.contains(scenarios, 1e-5 * spread):
            wrong.append("a scenario outside the support")
        reached = float(weights @ term.pieces.values(answer.decision, scenarios))
        true = confirmed_worst_case(term.pieces, ball, answer.decision, 1e-5)
        said = answer.more["expected"] / units.loss
        scale = max(
            1.0,
            abs(true),
            abs(
                true - float(ball.probabilities @ term.pieces.values(answer.decision, ball.samples))
            ),
        )
        wrong += compare_values("expected loss said", said, reached, 1e-4 * scale)
        spent = transport_cost(ball.cost, ball.samples, ball.probabilities, scenarios, weights)
        if spent > ball.radius * (1 + 1e-4) + 1e-6:
            wrong.append(f"transport cost {spent:.8g}, radius {ball.radius:.8g}")
        if reached < true - 1e-4 * scale and "short" not in answer.more["said"]:
            wrong.append(f"attains {reached:.8g} of {true:.8g}; it says: {answer.more['said']}")
        return wrong

    return Trial(f"{term.kind}, n={n} in {where}, {setting.text}", solve, judge)
