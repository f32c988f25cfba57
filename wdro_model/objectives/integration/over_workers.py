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
from dataclasses import replace
from typing import Any

import numpy as np

from wdro_model.deferred import cloudpickle
from wdro_model.loss.batched import FlatLoss
from wdro_model.model import Memory, RobustModel
from wdro_model.objectives.dual import DualPoint
from wdro_model.objectives.integration.inner_integral import Integration, Slice, Stream
from wdro_model.solvers.objective import Array

Build = Callable[[RobustModel], Integration]
MOST_KEPT = 32
"""Blocks whose integrals a worker keeps ready."""
READY: OrderedDict[tuple[str, int], Ready] = OrderedDict()
"""On a worker: the integrals of its blocks, those used last at the end."""


class OverWorkers(Integration):
    """A strategy without draws, applied to each block where it lies."""

    def __init__(self, model: RobustModel, build: Build, client: Any) -> None:
        self._here = build(model.on_samples(np.arange(min(model.size, 2))))
        self.name, self.exact, self.begins = self._here.name, True, self._here.begins
        self._client = client
        self._blocks, self._sizes = model.joint.on_workers(client)
        self._starts = np.concatenate([[0], np.cumsum(self._sizes)])
        recipe = dumped((without_data(model), build), model)
        self._recipe = client.submit(bytes, recipe, pure=False)

    def slice(self, x: Array, samples: Array, stream: Stream) -> Slice:
        """Over all samples, or over those of a batch, which are looked up in their blocks."""
        chosen: list[Array | None] = [None] * len(self._sizes)
        if len(samples) != self._starts[-1]:
            owner = np.searchsorted(self._starts, samples, side="right") - 1
            chosen = [samples[owner == b] - self._starts[b] for b in range(len(self._sizes))]
        return SliceOverWorkers(self, x, chosen)

    def ask(self, what: str, x: Array, chosen: list[Array | None], dual: float) -> list[Any]:
        """The answers of all blocks that have samples, each with its number of samples."""
        futures = [
            self._client.submit(answer, what, self._recipe, block, b, x, rows, dual, pure=False)
            for b, (block, rows) in enumerate(zip(self._blocks, chosen))
            if rows is None or len(rows)
        ]
        return list(self._client.gather(futures))

    def describe(self) -> str:
        return f"{self._here.describe()}, in {len(self._sizes)} blocks on the workers of a cluster"


class SliceOverWorkers:
    """l -> mean_k phi_k(x, l), summed up over the blocks in their order."""

    def __init__(self, rule: OverWorkers, x: Array, chosen: list[Array | None]) -> None:
        self._rule, self._x, self._chosen = rule, np.array(x), chosen

    def at(self, dual: float) -> DualPoint:
        return DualPoint(*map(float, self._mean("at", dual)))

    def gradient(self, dual: float) -> Array:
        return self._mean("gradient", dual)

    def diagnostics(self, dual: float) -> None:
        return None

    def _mean(self, what: str, dual: float) -> Array:
        answers = self._rule.ask(what, self._x, self._chosen, dual)
        total = sum(count for count, _ in answers)
        return np.asarray(sum(count * np.asarray(found) for count, found in answers) / total)


class Ready:
    """The integrals over one block, and the slice that was asked for last."""

    def __init__(self, rule: Integration, size: int) -> None:
        self.rule, self.size = rule, size
        self._key: tuple[bytes, bytes] | None = None
        self._slice: Slice | None = None

    def slice(self, x: Array, rows: Array | None) -> Slice:
        key = (x.tobytes(), b"" if rows is None else rows.tobytes())
        if self._slice is None or key != self._key:
            samples = np.arange(self.size) if rows is None else rows
            self._slice, self._key = self.rule.slice(x, samples, Stream(seed=0)), key
        return self._slice


def answer(
    what: str, recipe: bytes, block: Array, number: int, x: Array, rows: Array | None, dual: float
) -> tuple[int, Any]:
    """On a worker: the number of samples, and what is asked of their mean."""
    ready = _ready(recipe, block, number)
    found = ready.slice(x, rows)
    count = ready.size if rows is None else len(rows)
    if what == "gradient":
        return count, found.gradient(dual)
    point = found.at(dual)
    return count, (point.value, point.slope, point.curvature)


def _ready(recipe: bytes, block: Array, number: int) -> Ready:
    key = (str(hash(recipe)), number)
    found = READY.pop(key, None)
    if found is None:
        model, build = _Unpickler(io.BytesIO(recipe)).load()
        found = Ready(build(with_data(model, np.ascontiguousarray(block))), len(block))
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
    held = [(p.samples, p.stored) for p in model.joint.parameters]
    left = {id(part) for pair in held for part in pair if part is not None}

    class Light(cloudpickle.Pickler):
        def persistent_id(self, part: Any) -> str | None:
            return "samples" if id(part) in left else None

    file = io.BytesIO()
    Light(file).dump(given)
    return file.getvalue()


def without_data(model: RobustModel) -> RobustModel:
    """The model with one sample in place of all, to be sent."""
    return with_data(model, np.array(model.rows[:1]))


def with_data(model: RobustModel, rows: Array) -> RobustModel:
    """The model on other rows, its cost as it was bound to all of them."""
    joint = model.joint.with_rows(rows)
    loss = FlatLoss(model.loss.loss, model.loss.layout, joint)
    return replace(model, loss=loss, joint=joint, memory=Memory())
