"""The inner integral over samples whose blocks lie on the workers of a Dask cluster.

The mean of phi_k and its derivatives are sums over blocks. Each worker integrates over the blocks
that it holds; x and the dual variable travel to it, a few numbers come back. A worker that dies
costs the blocks that it held: Dask makes them again, elsewhere.
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
MOST_KEPT = 32
"""Blocks whose integrals a worker keeps ready."""
READY: OrderedDict[tuple[str, int], Ready] = OrderedDict()
"""On a worker: the integrals of its blocks, those used last at the end."""


class OverWorkers(Integration):
    """A strategy without draws, applied to each block where it lies."""

    def __init__(self, model: RobustModel, build: Build, client: Any) -> None:
        self._here = build(model.on_samples(np.arange(min(model.size, 2))))
        self.name, self.start = self._here.name, self._here.start
        self._client = client
        self._blocks, which = model.joint.on_workers(client)
        self._sizes = np.array([len(samples) for samples in which])
        self._starts = np.concatenate([[0], np.cumsum(self._sizes)])
        self._place = np.argsort(np.concatenate(which))
        """Where each sample is, counted through the blocks."""
        p = model.joint.probabilities
        self._weights: list[Any] = [None] * len(which)
        """The probabilities of the samples of each block, on its worker."""
        if p is not None:
            self._weights = [client.submit(np.array, p[one], pure=False) for one in which]
        recipe = dumped((without_data(model), build), model)
        self._recipe = client.submit(bytes, recipe, pure=False)

    def slice(
        self, x: Array, samples: Array, stream: Stream, shares: SampleShares | None = None
    ) -> Slice:
        """Over all samples, or over those of a batch, which are looked up in their blocks."""
        if shares is None and len(samples) == self._starts[-1]:
            return SliceOverWorkers(self, x, [Asked() for _ in self._sizes])
        places, chosen = self._place[samples], []
        owner = np.searchsorted(self._starts, places, side="right") - 1
        for b, start in enumerate(self._starts[:-1]):
            mine = np.flatnonzero(owner == b)
            own = None if shares is None else shares.subset(mine)
            chosen.append(Asked(places[mine] - start, own))
        return SliceOverWorkers(self, x, chosen)

    def ask(self, what: str, x: Array, chosen: list[Asked], dual: float) -> list[Any]:
        """The answers of all blocks that have samples, each with what its samples count."""
        blocks = zip(self._blocks, self._weights, chosen)
        futures = [
            self._client.submit(
                answer, what, self._recipe, block, weights, b, x, asked, dual, pure=False
            )
            for b, (block, weights, asked) in enumerate(blocks)
            if asked.rows is None or len(asked.rows)
        ]
        return list(self._client.gather(futures))

    def describe(self) -> str:
        return f"{self._here.describe()}, in {len(self._sizes)} blocks on the workers of a cluster"


@dataclass(frozen=True)
class Asked:
    """Which samples of a block a slice is over."""

    rows: Array | None = None
    """None for all."""
    shares: SampleShares | None = None
    """What they count in the mean; as their probabilities are for None."""


class SliceOverWorkers(Slice):
    """l -> mean_k phi_k(x, l), summed up over the blocks in their order."""

    def __init__(self, rule: OverWorkers, x: Array, chosen: list[Asked]) -> None:
        self._rule, self._x, self._chosen = rule, np.array(x), chosen

    def evaluate(self, dual: float) -> DualPoint:
        value, slope, curvature = map(float, self._mean("at", dual))
        return DualPoint(value, slope, curvature)

    def gradient(self, dual: float) -> Array:
        return self._mean("gradient", dual)

    def _mean(self, what: str, dual: float) -> Array:
        answers = self._rule.ask(what, self._x, self._chosen, dual)
        total = sum(count for count, _ in answers)
        return np.asarray(sum(count * np.asarray(found) for count, found in answers) / total)


class Ready:
    """The integrals over one block, and the slice that was asked for last."""

    def __init__(self, rule: Integration, size: int, weights: Array | None) -> None:
        self.rule, self.size, self.weights = rule, size, weights
        self._key: tuple[bytes, bytes] | None = None
        self._slice: Slice | None = None

    def slice(self, x: Array, asked: Asked) -> Slice:
        key = (x.tobytes(), b"" if asked.rows is None else asked.rows.tobytes())
        if self._slice is None or key != self._key or asked.shares is not None:
            samples = np.arange(self.size) if asked.rows is None else asked.rows
            shares = None if asked.shares is None else asked.shares.normalized()
            self._slice, self._key = self.rule.slice(x, samples, Stream(seed=0), shares), key
        return self._slice

    def count(self, asked: Asked) -> float:
        """What the samples count beside those of other blocks: their number, or probability."""
        if asked.shares is not None:
            return asked.shares.mass
        if self.weights is not None:
            return float((self.weights if asked.rows is None else self.weights[asked.rows]).sum())
        return self.size if asked.rows is None else len(asked.rows)


def answer(
    what: str,
    recipe: bytes,
    block: Array,
    weights: Array | None,
    number: int,
    x: Array,
    asked: Asked,
    dual: float,
) -> tuple[float, Any]:
    """On a worker: what the samples count, and what is asked of their mean."""
    ready = _ready(recipe, block, weights, number)
    found, count = ready.slice(x, asked), ready.count(asked)
    if what == "gradient":
        return count, found.gradient(dual)
    point = found.evaluate(dual)
    return count, (point.value, point.slope, point.curvature)


def _ready(recipe: bytes, block: Array, weights: Array | None, number: int) -> Ready:
    key = (str(hash(recipe)), number)
    found = READY.pop(key, None)
    if found is None:
        model, build = _Unpickler(io.BytesIO(recipe)).load()
        own = None if weights is None else weights / weights.sum()
        found = Ready(
            build(with_data(model, np.ascontiguousarray(block), own)), len(block), weights
        )
    READY[key] = found
    while len(READY) > MOST_KEPT:
        READY.popitem(last=False)
    return found


# ------------------------------------------------------------------ models that travel
class _Unpickler(pickle.Unpickler):
    """Reads what was left behind as None."""

    def persistent_load(self, name: str) -> None:
        return None


def dumped(given: Any, model: RobustModel) -> bytes:
    """Something that holds a model, as bytes, without the samples of its parameters."""
    held = [(p.samples, p.stored, p.probabilities) for p in model.joint.parameters]
    left = {id(part) for some in held for part in some if part is not None}

    class Light(cloudpickle.Pickler):
        def persistent_id(self, part: Any) -> str | None:
            return "samples" if id(part) in left else None

    file = io.BytesIO()
    Light(file).dump(given)
    return file.getvalue()


def without_data(model: RobustModel) -> RobustModel:
    """The model with one sample in place of all, to be sent."""
    return with_data(model, np.array(model.rows[:1]))


def with_data(model: RobustModel, rows: Array, probabilities: Array | None = None) -> RobustModel:
    """The model on other rows, its cost as it was bound to all of them."""
    joint = model.joint.with_rows(rows, probabilities)
    loss = FlatLoss(model.loss.loss, model.loss.layout, joint)
    return replace(model, loss=loss, joint=joint, memory=Memory())
