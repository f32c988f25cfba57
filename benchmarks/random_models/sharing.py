"""Twins that are solved in threads, against the optimum of each radius."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import cvxpy as cp
import numpy as np

import wdro_model as wdro
from random_models.convex import RELATIVE, Reference, draw_size, read_decision
from random_models.drawing import Units, draw_constraints, draw_setting, draw_term
from random_models.references import with_radius
from random_models.trial import Answer, Trial, read_answer

SOLVES = 24
"""How many solves go through the threads; fewer would miss most collisions."""


def draw_threads(rng: np.random.Generator) -> Trial:
    """One solve, then twins of other radii by two to four threads."""
    n, d = draw_size(rng)
    setting = draw_setting(rng, d, most_samples=6, units=Units())
    constraints, where = draw_constraints(rng, n)
    x, z = cp.Variable(n, name="x"), setting.parameter()
    term = draw_term(rng, n, d)
    loss, pieces = setting.write_term(term, x, z), term.pieces
    if rng.random() < 0.4:
        level = float(rng.choice([0.5, 0.8]))
        loss, pieces = wdro.cvar(loss, level), pieces.extended(1).tail(n, level)
    problem = wdro.Problem(cp.Minimize(loss), constraints(x), setting.write_ball())
    few = 10.0 ** rng.uniform(-3, 0.5, size=6)
    radii = np.tile(few, SOLVES // len(few))
    workers = int(rng.integers(2, 5))

    def solve(limit: float) -> Answer:
        problem.solve(time_limit=limit)
        first = read_answer(problem, read_decision(x, setting))

        def solve_twin(radius: float) -> Answer:
            twin = problem.with_radius(float(radius))
            twin.solve(time_limit=limit)
            [decision] = [twin.solution.decision[v] for v in twin.variables()]
            return read_answer(twin, np.atleast_1d(decision))

        with ThreadPoolExecutor(workers) as pool:
            twins = list(pool.map(solve_twin, radii))
        return replace(first, more={"answers": twins})

    def judge(answer: Answer) -> list[str]:
        wrong: list[str] = []
        references = {}
        for radius in few:
            ball = with_radius(setting.ball, float(radius))
            one = Reference(pieces, replace(setting, ball=ball), constraints, n)
            found = one.least()
            references[radius] = one, None if found is None else found[0]
        bad = 0
        for radius, twin in zip(radii, answer.more["answers"]):
            _, optimum = references[radius]
            far = abs(twin.value - optimum)
            if twin.is_optimal and far > RELATIVE * max(1.0, abs(optimum)) + (twin.gap or 0.0):
                bad += 1
                shown = f"radius {radius:.3g}: {twin.value:.8g}, optimum {optimum:.8g}"
        if bad:
            wrong.append(f"{bad} of {len(radii)} values wrong, the last at {shown}")
        return wrong

    text = f"{term.kind}, {workers} threads, n={n} in {where}, {setting.text}"
    return Trial(text, solve, judge, solves=SOLVES + 1)
