"""A loss h(x, u) of a few affine forms u of the data: the forms and the outer function.

A form such as y * (x @ z) with a frozen label y has the slope y_k x at sample k: one for each value
of the label. Where no frozen data multiplies the moving data, all samples are one group.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from wdro_model.loss.batched import Stacked
from wdro_model.loss.polynomial import AffineForms, affine_forms, degree
from wdro_model.loss.structure import convexity_in_data, pieces
from wdro_model.model import RobustModel
from wdro_model.objectives.integration.frame import as_slice
from wdro_model.objectives.integration.lines import Exponent
from wdro_model.objectives.integration.low_rank.table import compact
from wdro_model.solvers.objective import Array
from wdro_model.uncertainty.joint import JointSamples
from wdro_model.uncertainty.supports import Everywhere

MOST_FORMS = 64
"""Scalar forms that are followed."""
MOST_PIECES = 64
"""Affine pieces of h that are integrated one by one."""


@dataclass(frozen=True)
class FormStructure:
    """A loss h(x, u(x, xi)): its forms u, the outer function h, and their properties."""

    forms: AffineForms
    inner: Stacked
    """u, of rows of the data."""
    outer: Stacked
    """h, of rows (u, frozen data that h contains)."""
    pieces: Stacked | None
    constants: Array
    """Coordinates of the frozen data that h contains."""
    keys: Array | None
    """Coordinates of the frozen data on which the slopes of the forms depend; None for none."""
    common_pieces: bool
    """True if the pieces have the same slopes for all samples."""
    curvature: str
    """Of h in u: "convex", "concave" or "unknown"."""
    quadratic: bool


def form_structure(model: RobustModel) -> FormStructure | None:
    """The forms of a model's loss; None if there are none or too many."""
    joint, frozen = model.joint, model.cost.frozen
    held = tuple(p for p, where in joint.slices.items() if frozen[where].all())
    moving = tuple(p for p in joint.parameters if not any(p is q for q in held))
    forms = affine_forms(model.expression, moving)
    if forms is None or forms.count > MOST_FORMS:
        return None
    columns, stop = {}, 0
    seen = {p.id for p in forms.outer.parameters()}
    inside = [p for p in held if p.id in seen]
    for leaf in (*forms.placeholders, *inside):
        columns[leaf] = slice(stop, stop + leaf.size)
        stop += leaf.size
    common = all(degree(form.expression, joint.parameters) <= 1 for form in forms.forms)
    seen = {p.id for form in forms.forms for p in form.expression.parameters()}
    factors = [p for p in held if p.id in seen]
    layout = model.loss.layout
    affine = pieces(forms.outer, forms.placeholders, MOST_PIECES)
    return FormStructure(
        forms=forms,
        inner=Stacked([form.expression for form in forms.forms], layout, joint.slices),
        outer=Stacked([forms.outer], layout, columns),
        pieces=None if affine is None else Stacked(affine, layout, columns),
        constants=coordinates(joint, inside),
        keys=None if common else coordinates(joint, factors),
        common_pieces=affine is None or all(degree(p, columns) <= 1 for p in affine),
        curvature=convexity_in_data(forms.outer, forms.placeholders),
        quadratic=degree(forms.outer, forms.placeholders) <= 2,
    )


def coordinates(joint: JointSamples, parameters: Iterable[Any]) -> Array:
    """The coordinates of some parameters."""
    slices = (joint.slices[p] for p in parameters)
    return np.concatenate([np.zeros(0, dtype=int), *(np.arange(s.start, s.stop) for s in slices)])


def generic_rank(model: RobustModel, structure: FormStructure) -> int:
    """The rank of the forms' slopes at decisions in general position."""
    free, rng, rank = ~model.cost.frozen, np.random.default_rng(0), 0
    rows = model.joint.matrix[:: max(1, model.joint.size // 3)][:3]
    for _ in range(2):
        x = rng.uniform(0.5, 1.5, model.loss.dimension)
        with np.errstate(all="ignore"):
            slopes = structure.inner.jacobians(x, rows)[..., free]
        if not np.isfinite(slopes).all():
            return min(structure.forms.count, int(free.sum()))
        rank = max(rank, compact(slopes).shape[-1])
    return rank


def low_rank_refusal(model: RobustModel) -> str | None:
    """The reason why the strategy does not apply; None if it does."""
    if model.expression is None:
        return "the loss is a callable: how it sees the data is not known"
    if not model.cost.is_quadratic:
        return "the ground cost is not quadratic"
    if not everywhere(model):
        return "the support is not all of R^d"
    structure = form_structure(model)
    if structure is None:
        return f"the loss does not see the data through at most {MOST_FORMS} affine forms"
    rank = generic_rank(model, structure)
    if rank > 2 and not structure.quadratic:
        return f"the loss sees the data in {rank} directions, and quadrature fills a plane"
    return None


def everywhere(model: RobustModel) -> bool:
    """True if the data that moves at all may go anywhere."""
    frozen = model.cost.frozen
    for parameter, where in model.joint.slices.items():
        if isinstance(parameter.support, Everywhere) or frozen[where].all():
            continue
        box = parameter.support.bounds(parameter.shape)
        if box is None or not all(np.isinf(np.ravel(side)[~frozen[where]]).all() for side in box):
            return False
    return True


# ------------------------------
# Samples whose forms have the same slopes in the data


CHUNK_ENTRIES = 2**24
"""Entries of the slopes that exist at once."""


@dataclass(frozen=True)
class Grouped:
    """Some samples, and the group of each."""

    samples: Array
    """(K,)"""
    member: Array
    """The group of each sample, (K,)."""
    rows: Array
    """A scenario of each group, (G, d)."""

    def total(self, values: Array) -> Array:
        """Sums over each group of values (K, ...): (G, ...)."""
        sums = np.zeros((len(self.rows), *values.shape[1:]))
        np.add.at(sums, self.member, values)
        return sums

    def weighted(self, weights: Array, matrix: Array) -> Array:
        """sum_k weights_kj xi_k over each group, (G, q, d), from the samples' matrix."""
        rows = matrix[as_slice(self.samples)]
        if len(self.rows) == 1:
            return (weights.T @ rows)[None]
        size, count = weights.shape
        where = (self.member[:, None] * count + np.arange(count)).ravel()
        entries = (weights.ravel(), (where, np.repeat(np.arange(size), count)))
        products = sp.csr_array(entries, (len(self.rows) * count, size)) @ rows
        return products.reshape(len(self.rows), count, -1)


class Groups:
    """The groups of all samples, by the values of some coordinates (None: one group).

    count: the number of forms, for the size of their slopes; chunk: samples in a part at most.
    """

    def __init__(self, joint: JointSamples, keys: Array | None, count: int, chunk: int) -> None:
        self._joint, self._step = joint, chunk
        self._group = np.zeros(joint.size, dtype=int)
        self._rows = joint.mean[None]
        if keys is not None:
            values = joint.matrix[:, keys]
            one = values.shape[1] == 1  # far faster than rows are
            values, axis = (values.ravel(), None) if one else (values, 0)
            _, first, group = np.unique(values, True, True, axis=axis)
            self._group, self._rows = np.reshape(group, -1), joint.matrix[first]
            own = max(1, (1 + count) * joint.dimension)
            if len(first) * own > CHUNK_ENTRIES:
                self._step = max(1, min(chunk, CHUNK_ENTRIES // own))

    @property
    def number(self) -> int:
        """The number of groups."""
        return len(self._rows)

    def chunks(self, samples: Array) -> list[Array]:
        """The samples in parts that fit into memory."""
        starts = range(0, len(samples), self._step)
        return [samples[i : i + self._step] for i in starts]

    def group_samples(self, samples: Array) -> Grouped:
        """The groups of some samples, those without any left out."""
        own = self._group[samples]
        present = np.flatnonzero(np.bincount(own, minlength=self.number))
        return Grouped(samples, np.searchsorted(present, own), self._rows[present])


# ------------------------------
# The outer function h(x, u)/eps of a loss at one decision, on the forms u of several samples


@dataclass(frozen=True)
class Outer:
    """h/eps for K samples: constants of a sample (frozen data in h) stay beside its forms."""

    structure: FormStructure
    x: Array
    epsilon: float
    constants: Array
    """(K, f); f = 0 where h sees no frozen data."""

    def __call__(self, owner: Array, u: Array) -> Array:
        """h/eps at forms u (M, q) of the samples owner (M,)."""
        with np.errstate(all="ignore"):
            return self.structure.outer(self.x, self._rows(owner, u))[:, 0] / self.epsilon

    def with_slopes(self, owner: Array, u: Array) -> tuple[Array, Array]:
        """h/eps (M,) and its gradients (M, q) in u."""
        function = self.structure.outer
        with np.errstate(all="ignore"):
            values = function(self.x, self._rows(owner, u))[:, 0] / self.epsilon
            slopes = function.in_data(np.full((len(u), 1), 1.0 / self.epsilon))
            return values, slopes[:, : u.shape[1]]

    def gradients(
        self, owner: Array, u: Array, weights: Array, counts: Array | None = None
    ) -> tuple[Array, Array]:
        """The gradient in x of sum(counts * weights * h), and weights * h_u (M, q)."""
        function = self.structure.outer
        function(self.x, self._rows(owner, u))
        in_data = function.in_data(weights[:, None])[:, : u.shape[1]]
        seeds = weights if counts is None else weights * counts
        return function.in_decision(seeds[:, None]), in_data

    def pieces(self, u: Array) -> tuple[Array, Array]:
        """Values (K, P) at the forms of the samples and slopes (K or 1, P, q) of the pieces/eps."""
        pieces = self.structure.pieces
        assert pieces is not None
        rows = self._rows(np.arange(len(u)), u)
        values = pieces(self.x, rows)
        if self.structure.common_pieces:
            slopes = pieces.jacobian(self.x, rows[0])[None]
        else:
            slopes = pieces.jacobians(self.x, rows)
        return values / self.epsilon, slopes[..., : u.shape[1]] / self.epsilon

    def parabolas(self, u: Array, L: Array) -> tuple[Array, Array, Array]:
        """A quadratic h/eps at u + L t as c + b't + t'At/2: c (K,), b (K, r), A (K, r, r)."""
        size, rank = len(u), L.shape[-1]
        owner = np.arange(size)
        L = np.broadcast_to(L, (size, *L.shape[1:]))
        c, at_rest = self.with_slopes(owner, u)
        # Differences over steps of the size of u: those over L cancel for a small eps.
        length, far = np.linalg.norm(L, axis=1), 1 + np.linalg.norm(u, axis=1)[:, None]
        step = np.divide(far, length, where=length > 0, out=np.ones_like(length))
        A = np.empty((size, rank, rank))
        for i in range(rank):
            _, moved = self.with_slopes(owner, u + step[:, i, None] * L[:, :, i])
            A[:, i] = np.einsum("kq,kqr->kr", moved - at_rest, L) / step[:, i, None]
        return c, np.einsum("kq,kqr->kr", at_rest, L), A

    def line_exponent(self, base: Array, direction: Array, sample: Array | None = None) -> Exponent:
        """H(owner, t) = h(base + direction t)/eps, direction (K or 1, q)."""
        common = len(direction) == 1

        def exponent(owner: Array, t: Array) -> Array:
            moves = direction[0] if common else direction[owner]
            points = base[owner] + moves * t[:, None]
            return self(owner if sample is None else sample[owner], points)

        return exponent

    def _rows(self, owner: Array, u: Array) -> Array:
        if not self.constants.shape[1]:
            return u
        return np.concatenate([u, self.constants[owner]], axis=1)
