"""The inner integral over samples whose blocks lie on the workers of a Dask cluster.

The mean of phi_k and its derivatives are sums over blocks. Each worker integrates over the blocks
that it holds: it receives x and the dual variable, and returns a few numbers. If a worker dies,
Dask makes its blocks again on another worker.
"""

from __future__ import annotations

import io
import pickle
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from wdro_model.compat import cloudpickle
from wdro_model.loss.batched import FlatLoss
from wdro_model.model import Memory, RobustModel
from wdro_model.objectives.dual import DualPoint
from wdro_model.objectives.integration.inner_integral import Integration, Slice, Stream
from wdro_model.solvers.objective import Array
from wdro_model.uncertainty.samples import SampleShares

Build = Callable[[RobustModel], Integration]
MOST_BLOCKS = 32
"""Blocks whose integrals a worker keeps in memory, at most."""
BLOCKS: OrderedDict[tuple[str, int], BlockIntegral] = OrderedDict()
"""Cache on a worker: the integrals of its blocks, the least recently used one first."""


class OverWorkers(Integration):
    """A strategy without draws, made by `build` for each block on the worker that holds it."""

    def __init__(self, model: RobustModel, build: Build, client: Any) -> None:
        self._here = build(model.on_samples(np.arange(min(model.size, 2))))
        self.name, self.start = self._here.name, self._here.start
        self._client = client
        self._blocks, samples = model.joint.on_workers(client)
        self._sizes = np.array([len(one) for one in samples])
        self._starts = np.concatenate([[0], np.cumsum(self._sizes)])
        self._place = np.argsort(np.concatenate(samples))
        """The position of each sample in the concatenation of all blocks."""
        p = model.joint.probabilities
        self._weights: list[Any] = [None] * len(samples)
        """The probabilities of the samples of each block, on its worker."""
        if p is not None:
            self._weights = [client.submit(np.array, p[one], pure=False) for one in samples]
        recipe = dumped((without_data(model), build), model)
        self._recipe = client.submit(bytes, recipe, pure=False)

    def slice(
        self, x: Array, samples: Array, stream: Stream, shares: SampleShares | None = None
    ) -> Slice:
        """The slice over all samples, or over a batch whose samples are looked up in the blocks."""
        if shares is None and len(samples) == self._starts[-1]:
            return SliceOverWorkers(self, x, [BlockSamples() for _ in self._sizes])
        places, parts = self._place[samples], []
        owner = np.searchsorted(self._starts, places, side="right") - 1
        for b, start in enumerate(self._starts[:-1]):
            mine = np.flatnonzero(owner == b)
            own = None if shares is None else shares.subset(mine)
            parts.append(BlockSamples(places[mine] - start, own))
        return SliceOverWorkers(self, x, parts)

    def mean(self, quantity: str, x: Array, parts: list[BlockSamples], dual: float) -> Array:
        """The mean over the samples of all blocks of a quantity, "point" or "gradient"."""
        blocks = zip(self._blocks, self._weights, parts)
        futures = [
            self._client.submit(
                block_mean, quantity, self._recipe, block, weights, b, x, part, dual, pure=False
            )
            for b, (block, weights, part) in enumerate(blocks)
            if part.rows is None or len(part.rows)
        ]
        means = self._client.gather(futures)
        total = sum(mass for mass, _ in means)
        return np.asarray(sum(mass * np.asarray(value) for mass, value in means) / total)

    def describe(self) -> str:
        return f"{self._here.describe()}, in {len(self._sizes)} blocks on the workers of a cluster"


@dataclass(frozen=True)
class BlockSamples:
    """The samples of a block that a slice is over."""

    rows: Array | None = None
    """Indices in the block; None for all."""
    shares: SampleShares | None = None
    """Their weights in the mean; None for their probabilities."""


class SliceOverWorkers(Slice):
    """l -> mean_k phi_k(x, l), summed over the blocks in their order."""

    def __init__(self, rule: OverWorkers, x: Array, parts: list[BlockSamples]) -> None:
        self._rule, self._x, self._parts = rule, np.array(x), parts

    def evaluate(self, dual: float) -> DualPoint:
        value, slope, curvature = self._rule.mean("point", self._x, self._parts, dual)
        return DualPoint(float(value), float(slope), float(curvature))

    def gradient(self, dual: float) -> Array:
        return self._rule.mean("gradient", self._x, self._parts, dual)


# ------------------------------------------------------------------ on a worker
class BlockIntegral:
    """The integrals over one block, with its last slice as a cache."""

    def __init__(self, rule: Integration, size: int, weights: Array | None) -> None:
        self.rule, self.size, self.weights = rule, size, weights
        self._key: tuple[bytes, bytes] | None = None
        self._slice: Slice | None = None

    def slice(self, x: Array, part: BlockSamples) -> Slice:
        """The slice over some samples; cached for the same decision and samples."""
        key = (x.tobytes(), b"" if part.rows is None else part.rows.tobytes())
        if self._slice is None or key != self._key or part.shares is not None:
            samples = np.arange(self.size) if part.rows is None else part.rows
            shares = None if part.shares is None else part.shares.normalized()
            self._slice, self._key = self.rule.slice(x, samples, Stream(seed=0), shares), key
        return self._slice

    def mass(self, part: BlockSamples) -> float:
        """The weight of some samples relative to other blocks: their number or probability."""
        if part.shares is not None:
            return part.shares.mass
        if self.weights is not None:
            return float((self.weights if part.rows is None else self.weights[part.rows]).sum())
        return self.size if part.rows is None else len(part.rows)


def block_mean(
    quantity: str,
    recipe: bytes,
    block: Array,
    weights: Array | None,
    number: int,
    x: Array,
    part: BlockSamples,
    dual: float,
) -> tuple[float, Any]:
    """The mass of some samples of a block, and the mean of a quantity over them."""
    key = (str(hash(recipe)), number)
    integral = BLOCKS.pop(key, None)
    if integral is None:
        model, build = _Unpickler(io.BytesIO(recipe)).load()
        own = None if weights is None else weights / weights.sum()
        rule = build(with_data(model, np.ascontiguousarray(block), own))
        integral = BlockIntegral(rule, len(block), weights)
    BLOCKS[key] = integral
    while len(BLOCKS) > MOST_BLOCKS:
        BLOCKS.popitem(last=False)
    inner, mass = integral.slice(x, part), integral.mass(part)
    if quantity == "gradient":
        return mass, inner.gradient(dual)
    point = inner.evaluate(dual)
    return mass, (point.value, point.slope, point.curvature)


# ------------------------------------------------------------------ models that travel
class _Unpickler(pickle.Unpickler):
    """An unpickler that puts None in the place of the samples that `dumped` left out."""

    def persistent_load(self, name: str) -> None:
        return None


def dumped(given: Any, model: RobustModel) -> bytes:
    """An object that contains a model, pickled without the samples of the parameters."""
    held = [(p.samples, p.stored, p.probabilities) for p in model.joint.parameters]
    left = {id(part) for some in held for part in some if part is not None}

    class Light(cloudpickle.Pickler):
        def persistent_id(self, part: Any) -> str | None:
            return "samples" if id(part) in left else None

    file = io.BytesIO()
    Light(file).dump(given)
    return file.getvalue()


def without_data(model: RobustModel) -> RobustModel:
    """The model with one sample in place of all, small enough to be sent to workers."""
    return with_data(model, np.array(model.rows[:1]))


def with_data(model: RobustModel, rows: Array, probabilities: Array | None = None) -> RobustModel:
    """The model on other rows; its cost stays the one bound to all samples."""
    joint = model.joint.with_rows(rows, probabilities)
    loss = FlatLoss(model.loss.loss, model.loss.layout, joint)
    return replace(model, loss=loss, joint=joint, memory=Memory())
