"""F at a fixed decision in several dimensions, by particles that cool down to the tilted law.

An independent reference: nothing of the library is used, and nothing is differentiated. Particles
drawn from the reference measure are led to exp((f - l c)/eps) through temperatures (sequential
Monte Carlo with random walks); others climb by random steps from all over the support. A mixture
of Student laws is fitted to where they end, and draws from it give the integral.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import gammaln, logsumexp, ndtr, ndtri

WALKS = 5
KEPT = 0.4
"""Share of the particles that stays effective from one temperature to the next."""
FREEDOM = 5.0
DEFENCE = 0.1
CLIMBERS, MODES = 256, 24


@dataclass(frozen=True)
class Integral:
    """log E exp((f - l c)/eps) of one sample, its error, and moments of the cost."""

    log_mean: float
    error: float
    cost: float
    spread: float


@dataclass(frozen=True)
class Annealed:
    """The smoothed objective at one decision, as a function of the dual alone."""

    loss: Callable[[np.ndarray], np.ndarray]
    cost: Callable[[np.ndarray], np.ndarray]
    """Of moves (B, d)."""
    samples: np.ndarray
    epsilon: float
    sigma: np.ndarray
    radius: float
    lower: float = -np.inf
    upper: float = np.inf
    inside: Callable[[np.ndarray], np.ndarray] | None = None
    particles: int = 1024
    draws: int = 2**16
    seed: int = 0

    def minimum(self, dual: float, rounds: int = 8) -> tuple[float, float, float]:
        """min over l of F by Newton steps from a guess, its error, and the minimiser."""
        best = (np.inf, 0.0, dual)
        dual = max(dual, 1e-8)
        for _ in range(rounds):
            value, error, slope, curvature = self.at(dual)
            gain = 0.5 * slope**2 / max(curvature, 1e-300)
            if value < best[0]:
                best = (value, error, dual)
            cost = self.radius - slope
            step = dual * (np.sqrt(max(cost, 1e-300) / self.radius) - 1)
            newton = -slope / max(curvature, 1e-300)
            if gain <= 0.5 * error or (dual < 1e-7 and slope > 0):
                return value - (gain if dual > 1e-7 else 0.0), error, dual
            step = newton if abs(newton) < 0.5 * dual else np.clip(step, -0.9 * dual, 3 * dual)
            dual = max(dual + step, 1e-8)
        return best

    def at(self, dual: float) -> tuple[float, float, float, float]:
        """F, its standard error, and its derivatives in the dual."""
        found = [self.one(k, dual) for k in range(len(self.samples))]
        size = len(found)
        value = dual * self.radius + self.epsilon * np.mean([one.log_mean for one in found])
        error = self.epsilon * np.sqrt(sum(one.error**2 for one in found)) / size
        slope = self.radius - np.mean([one.cost for one in found])
        curvature = np.mean([one.spread for one in found]) / self.epsilon
        return value, error, slope, curvature

    def one(self, k: int, dual: float) -> Integral:
        """The integral of one sample."""
        rng = np.random.default_rng([self.seed, k])
        row, d = self.samples[k], self.samples.shape[1]
        sigma = np.broadcast_to(self.sigma, (d,))
        low, high = ndtr((self.lower - row) / sigma), ndtr((self.upper - row) / sigma)

        def allowed(moves: np.ndarray) -> np.ndarray:
            good = np.all((row + moves >= self.lower) & (row + moves <= self.upper), axis=1)
            return good if self.inside is None else good & self.inside(row + moves)

        def base(count: int) -> tuple[np.ndarray, float]:
            """Draws of the reference on the support, and its log mass within the box."""
            got: list[np.ndarray] = []
            tried = kept = 0
            while kept < count:
                u = low + (high - low) * rng.random((count, d))
                moves = sigma * ndtri(np.clip(u, 1e-300, 1 - 1e-16))
                if self.inside is not None:
                    moves = moves[self.inside(row + moves)]
                got.append(moves)
                tried, kept = tried + count, kept + len(moves)
            return np.concatenate(got)[:count], float(np.log(kept / tried))

        def gain(moves: np.ndarray) -> np.ndarray:
            out = np.full(len(moves), -np.inf)
            good = allowed(moves)
            at = moves[good]
            out[good] = (self.loss(row + at) - dual * self.cost(at)) / self.epsilon
            return out

        moves, _ = base(self.particles)
        cooled = self._anneal(moves, gain, sigma, rng)
        places = self._climb(k, gain, base, sigma, rng)
        parts = [fitted(cooled, rng), fitted(places, rng)]
        centers, roots, shares = (np.concatenate(arrays) for arrays in zip(*parts))
        shares = 0.5 * shares
        for count in (self.draws // 4, self.draws // 4, self.draws):
            found, shares = self._weighed(
                count, (centers, roots, shares), base, gain, sigma, np.log(high - low).sum(), rng
            )
        return found

    def _weighed(self, count, law, base, gain, sigma, box, rng):
        """The integral by draws of a mixture, and the shares that fit them better."""
        centers, roots, shares = law
        d = centers.shape[1]
        defended, log_mass = base(int(DEFENCE * count) if self.inside is None else count)
        own = count - int(DEFENCE * count)
        which = rng.choice(len(shares), own, p=shares)
        scale = np.sqrt(FREEDOM / rng.chisquare(FREEDOM, own))
        g = rng.standard_normal((own, d)) * scale[:, None]
        proposed = centers[which] + np.einsum("mij,mj->mi", roots[which], g)
        every = np.concatenate([proposed, defended[: int(DEFENCE * count)]])
        log_base = (-0.5 * (every / sigma) ** 2 - np.log(sigma * np.sqrt(2 * np.pi))).sum(axis=1)
        log_base -= box + log_mass
        student = log_student(every, centers, roots) + np.log(shares)
        log_q = np.logaddexp(
            np.log(1 - DEFENCE) + logsumexp(student, axis=1), np.log(DEFENCE) + log_base
        )
        logs = gain(every) + log_base - log_q
        top = logs.max()
        w = np.exp(logs - top)
        mean = w.mean()
        error = float(np.std(w) / mean / np.sqrt(count))
        if self.inside is not None:
            error = float(np.hypot(error, np.sqrt((1 / np.exp(log_mass) - 1) / count)))
        shares_w = w / w.sum()
        costs = self.cost(every)
        expected = float(shares_w @ costs)
        found = float(top + np.log(mean))
        claims = np.exp(student - logsumexp(student, axis=1)[:, None])
        new = 0.9 * shares_w @ claims + 0.1 / len(shares)
        spread = float(shares_w @ (costs - expected) ** 2)
        return Integral(found, error, expected, spread), new / new.sum()

    def _climb(self, k, gain, base, sigma, rng) -> np.ndarray:
        """Points around the modes that random steps uphill reach from everywhere."""
        row, d = self.samples[k], self.samples.shape[1]
        near, _ = base(CLIMBERS // 2)
        far = 40 * sigma * rng.uniform(-1, 1, (CLIMBERS // 2, d))
        if np.isfinite(self.upper):
            share = rng.random(far.shape)
            ends = rng.random(far.shape) < 0.5
            share = np.where(ends, np.round(share), share)
            far = self.lower - row + share * (self.upper - self.lower)
        elif self.inside is not None:
            far = -row + rng.uniform(-1, 1, far.shape)
        moves = np.concatenate([near, far])

        def height(y: np.ndarray) -> np.ndarray:
            return gain(y) - 0.5 * ((y / sigma) ** 2).sum(axis=1)

        values = height(moves)
        inside = np.isfinite(values)
        moves, values = moves[inside], values[inside]
        size = len(moves)
        length = np.full(size, 1.0)
        for _ in range(300):
            some = rng.random((size, d)) < rng.choice([0.3, 0.6, 1.0], size)[:, None]
            trial = moves + some * (length[:, None] * sigma * rng.standard_normal((size, d)))
            trial = np.clip(trial, self.lower - row, self.upper - row)
            found = height(trial)
            better = found > values
            moves[better], values[better] = trial[better], found[better]
            length = np.clip(length * np.where(better, 1.7, 0.85), 1e-4, 30.0)
        # One of each, then walks at the temperature itself around it.
        kept: list[int] = []
        for i in np.argsort(-values):
            apart = [np.linalg.norm((moves[i] - moves[j]) / sigma) for j in kept]
            if values[i] > values.max() - 40 and (not apart or min(apart) > 0.05):
                kept.append(int(i))
            if len(kept) == MODES:
                break
        moves, values = np.repeat(moves[kept], 64, axis=0), np.repeat(values[kept], 64)
        length = np.full(len(moves), 0.3)
        for _ in range(150):
            some = rng.random(moves.shape) < 0.6
            trial = moves + some * (length[:, None] * sigma * rng.standard_normal(moves.shape))
            found = height(trial)
            yes = np.log(rng.random(len(moves))) < found - values
            moves[yes], values[yes] = trial[yes], found[yes]
            length = np.clip(length * np.where(yes, 1.2, 0.93), 1e-4, 10.0)
        return moves

    def _anneal(self, moves, gain, sigma, rng) -> np.ndarray:
        """The particles at temperature 1."""
        size, d = moves.shape
        gains, beta = gain(moves), 0.0
        while beta < 1.0:
            step = self._step(gains, 1.0 - beta)
            logs = step * gains
            beta = min(beta + step, 1.0)
            w = np.exp(logs - logs.max())
            edges = np.cumsum(w / w.sum())
            picks = np.searchsorted(edges, (np.arange(size) + rng.random()) / size)
            picks = np.minimum(picks, size - 1)
            moves, gains = moves[picks], gains[picks]
            for turn in range(WALKS):
                # Differences of particles know the shape of the law (Ter Braak's walk).
                first, second = rng.integers(size, size=(2, size))
                some = rng.random((size, d)) < rng.choice([0.3, 0.6, 1.0], size)[:, None]
                length = 2.4 / np.sqrt(2 * np.maximum(some.sum(axis=1), 1))
                length = (
                    length * np.exp(rng.uniform(-2.5, 0.3, size)) if turn % 3 else np.ones(size)
                )
                jump = some * (moves[first] - moves[second])
                jump += 1e-4 * sigma * rng.standard_normal((size, d))
                trial = moves + length[:, None] * jump
                found = gain(trial)
                change = beta * (found - gains)
                change -= 0.5 * ((trial / sigma) ** 2 - (moves / sigma) ** 2).sum(axis=1)
                yes = np.log(rng.random(size)) < change
                moves[yes], gains[yes] = trial[yes], found[yes]
        return moves

    def _step(self, gains: np.ndarray, most: float) -> float:
        """The largest step in the temperature that keeps enough of the particles."""
        low, high = 0.0, most
        gains = gains - gains.max()
        for turn in range(30):
            middle = most if turn == 0 else 0.5 * (low + high)
            w = np.exp(middle * gains)
            if w.sum() ** 2 / (w @ w) >= KEPT * len(gains):
                low = middle
            else:
                high = middle
            if low == most or high - low < 0.05 * low:
                break
        return max(low, 1e-9 * most)


def fitted(points, rng, count: int = 12) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Centers, roots of covariances and shares of clusters of the points."""
    size, d = points.shape
    scale = points.std(axis=0) + 1e-300
    z = points / scale
    centers = z[rng.integers(size)][None]
    for _ in range(count - 1):
        far = ((z[:, None] - centers) ** 2).sum(axis=2).min(axis=1)
        if far.sum() <= 0:
            break
        centers = np.concatenate([centers, z[rng.choice(size, p=far / far.sum())][None]])
    for _ in range(15):
        label = ((z[:, None] - centers) ** 2).sum(axis=2).argmin(axis=1)
        centers = np.stack(
            [z[label == j].mean(axis=0) if np.any(label == j) else c for j, c in enumerate(centers)]
        )
    kept = [j for j in range(len(centers)) if np.sum(label == j) > 4 * d]
    if not kept:
        kept, label = [0], np.zeros(size, dtype=int)
    whole = np.cov(points.T) / len(kept) ** (2 / d)
    roots, shares, places = [], [], []
    for j in kept:
        mine = points[label == j]
        shape = 1.4 * np.cov(mine.T) + 0.05 * whole + 1e-14 * np.diag(scale**2)
        roots.append(np.linalg.cholesky(shape))
        shares.append(len(mine))
        places.append(mine.mean(axis=0))
    weight = np.array(shares, dtype=float)
    return np.array(places), np.array(roots), weight / weight.sum()


def log_student(points, centers, roots) -> np.ndarray:
    """Log densities (B, J) of the components."""
    d = points.shape[1]
    out = []
    for center, root in zip(centers, roots):
        z = np.linalg.solve(root, (points - center).T)
        square = (z**2).sum(axis=0)
        norm = gammaln((FREEDOM + d) / 2) - gammaln(FREEDOM / 2) - d / 2 * np.log(FREEDOM * np.pi)
        norm -= np.log(np.diag(root)).sum()
        out.append(norm - (FREEDOM + d) / 2 * np.log1p(square / FREEDOM))
    return np.stack(out, axis=1)
