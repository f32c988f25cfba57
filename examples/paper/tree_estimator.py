"""The paper's estimator for the quadratic tree in any dimension: in law, not entry by entry.

For f = x' Xi x on R^(m x m) with c = |Xi - Zeta|^2, a draw zeta = xi_k + sigma Z around a sample is
seen only through three things. With u = x/|x| write Z = a uu' + p u' + u q' + R, where a ~ N(0, 1),
p and q are Gaussian in the complement of u, |R|^2 ~ chi^2((m - 1)^2), all independent. Then

    x' Z x = |x|^2 a,    (Z + Z') x = |x| (2 a u + p + q),    |Z|^2 = a^2 + |p|^2 + |q|^2 + |R|^2.

Here r = p + q and p - q are independent too, and |p|^2 + |q|^2 = (|r|^2 + |p - q|^2)/2: a draw
takes four numbers, and m more for the direction of r, instead of m^2.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tree_products import MovingProducts
from wdro_model.objectives.integration.inner_integral import Integration, Stream
from wdro_model.objectives.integration.sampled import SampledSlice
from wdro_model.solvers.objective import Array
from wdro_model.uncertainty.samples import SampleShares

NO_WEIGHT = 2.0**-60
"""The directions of draws that weigh less than this, of a total of 1, are not drawn."""


@dataclass(frozen=True)
class RadialDraws:
    """S draws for each of K samples: all that the weights depend on, arrays (K, S)."""

    along: Array
    """a = u' Z u."""
    across: Array
    """|p + q|^2 / 2, chi^2 with m - 1 degrees of freedom."""
    squared_norm: Array
    """|Z|^2."""

    @classmethod
    def drawn(cls, m: int, count: int, draws: int, rng: np.random.Generator) -> RadialDraws:
        along = rng.standard_normal((count, draws))
        across = rng.chisquare(m - 1, (count, draws))
        # |p - q|^2 / 2 and |R|^2 are wanted only as a sum.
        rest = rng.chisquare(m * (m - 1), (count, draws))
        return cls(along, across, along**2 + across + rest)


class TreeGaussian(Integration):
    """The paper's estimator for x' Xi x on R^(m x m): S Gaussian draws per sample, in law.

    matrices: xi_k + xi_k', (N, m, m); single precision is enough beside the Monte Carlo error.
    """

    name = "gaussian, in law"
    exact = False

    def __init__(self, matrices: Array, *, epsilon: float, sigma: float, draws: int) -> None:
        self.epsilon, self.sigma, self.draws = epsilon, sigma, draws
        self.products = MovingProducts(matrices)

    def slice(
        self, x: Array, samples: Array, stream: Stream, shares: SampleShares | None = None
    ) -> TreeSlice:
        return TreeSlice(self, x, samples, stream)

    def describe(self) -> str:
        return (
            f"Monte Carlo: {self.draws} draws from the reference Gaussian for each sample (the "
            "paper's estimator), by the law of what the loss sees of them"
        )


class TreeSlice(SampledSlice):
    """Losses and costs of the draws at one x."""

    def __init__(self, rule: TreeGaussian, x: Array, samples: Array, stream: Stream) -> None:
        self._rule = rule  # type: ignore[assignment]
        self._shares = SampleShares.full(len(samples))
        self._x, self._samples, self._sigma = x, samples, rule.sigma
        self._length = float(np.linalg.norm(x))
        self._products = rule.products.at(x, samples)
        self._rng = stream.generator(0)
        self._radial = RadialDraws.drawn(len(x), len(samples), rule.draws, self._rng)
        self._sideways: dict[tuple[int, int], Array] = {}
        observed = 0.5 * self._products @ x
        self.losses = observed[:, None] + rule.sigma * self._length**2 * self._radial.along
        self.costs = rule.sigma**2 * self._radial.squared_norm
        self.forbidden = np.zeros(self.costs.shape, dtype=bool)
        self.log_ratios = np.zeros(self.costs.shape)
        self._weighed: tuple[float, tuple[Array, Array]] | None = None

    def weights(self, dual: float) -> tuple[Array, Array]:
        if self._weighed is None or self._weighed[0] != dual:
            self._weighed = (dual, super().weights(dual))
        return self._weighed[1]

    def gradient(self, dual: float) -> Array:
        """mean_k of (xi_k + xi_k') x + sigma |x| sum_s w_ks (2 a_ks u + r_ks)."""
        weights, _ = self.weights(dual)
        needed = [(int(i), int(s)) for i, s in np.argwhere(weights > NO_WEIGHT)]
        self._draw_directions([draw for draw in needed if draw not in self._sideways])
        sideways = sum((weights[draw] * self._sideways[draw] for draw in needed), 0.0)
        forward = 2.0 * np.sum(weights * self._radial.along) / self._length
        noise = self._sigma * self._length * (forward * self._x + sideways)
        return self._products.mean(axis=0) + noise / len(weights)

    def _draw_directions(self, draws: list[tuple[int, int]]) -> None:
        """r = p + q: a direction uniform in the complement of u, of a length that is known."""
        unit = self._x / self._length
        drawn = self._rng.standard_normal((len(draws), len(unit)))
        drawn -= np.outer(drawn @ unit, unit)
        lengths = np.sqrt([2.0 * self._radial.across[draw] for draw in draws])
        drawn *= (lengths / np.linalg.norm(drawn, axis=1))[:, None]
        self._sideways.update(zip(draws, drawn))


def calibrated_dual_bound(
    edges: int, nodes: int, count: int, *, sigma: float, draws: int, rng: np.random.Generator
) -> float:
    """The paper's Algorithm 3 for trees: lambda_max = dispersion of the loss / (2 mean cost).

    The dispersion max_s f - min_s f is taken at a vertex x_k for each sample k. Whichever it is,
    |x_k|^2 = nodes - 1, so that it is sigma (nodes - 1) (max_s a_s - min_s a_s).
    """
    drawn = RadialDraws.drawn(edges, count, draws, rng)
    dispersion = sigma * (nodes - 1) * float(np.ptp(drawn.along, axis=1).mean())
    return dispersion / (2.0 * sigma**2 * float(drawn.squared_norm.mean()))
