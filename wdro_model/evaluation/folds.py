"""Which samples a decision is fitted on and which judge it: k-fold, hold-out, or given splits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np

from wdro_model.uncertainty.scenarios import as_rows


@dataclass(frozen=True, eq=False)
class Fold:
    """Samples to fit on and samples to judge on."""

    train: np.ndarray
    """Indices (n,)."""
    test: np.ndarray
    """Indices (m,), none of them in `train`."""

    def __repr__(self) -> str:
        return f"Fold({len(self.train)} to fit on, {len(self.test)} to judge)"


def k_fold(size: int, count: int, seed: int = 0) -> tuple[Fold, ...]:
    """`count` folds of nearly equal size, shuffled by the seed; each sample judges once."""
    if size < count:
        way_out = (
            f"use folds={size} (leave one out), or test= with scenarios of their own"
            if size > 1
            else "give test= with scenarios of their own"
        )
        raise ValueError(
            f"folds={count} needs at least {count} samples, there are {size}; {way_out}."
        )
    parts = np.array_split(np.random.default_rng(seed).permutation(size), count)
    everyone = np.arange(size)
    return tuple(Fold(np.setdiff1d(everyone, part), np.sort(part)) for part in parts)


def hold_out(size: int, share: float, seed: int = 0) -> tuple[Fold, ...]:
    """One fold, in which a share of the samples, drawn by the seed, judges."""
    if isinstance(share, bool) or not isinstance(share, Real) or not 0 < float(share) < 1:
        raise ValueError(f"holdout must be a share between 0 and 1, got {share!r}; write 0.3.")
    if size < 2:
        raise ValueError(
            f"a hold-out needs at least 2 samples, there is {size}; give test= with scenarios of "
            "their own."
        )
    count = min(size - 1, max(1, round(float(share) * size)))
    order = np.random.default_rng(seed).permutation(size)
    return (Fold(np.sort(order[count:]), np.sort(order[:count])),)


def as_folds(folds: Any, size: int, holdout: float | None = None, seed: int = 0) -> list[Fold]:
    """The folds of `size` samples that a user asks for.

    folds: a number (1 goes with a hold-out share), an object with scikit-learn's `split(X)`, or
        pairs of indices (train, test).
    """
    number = isinstance(folds, Integral) and not isinstance(folds, bool | np.bool_)
    if holdout is not None and not (number and folds == 1):
        raise ValueError(f"holdout={holdout!r} goes with folds=1, got folds={folds!r}.")
    if number and folds >= 1:
        count = int(folds)
        if count == 1 and holdout is None:
            raise ValueError(
                "folds=1 leaves nothing to judge on; give holdout=0.3 for the share of the samples "
                "that judges, folds=5 for cross-validation, or test= with scenarios of their own."
            )
        if holdout is not None:
            return list(hold_out(size, holdout, seed))
        return list(k_fold(size, count, seed))
    if hasattr(folds, "split") and not isinstance(folds, str):
        folds = folds.split(np.zeros((size, 1)))
    if number or isinstance(folds, str | bytes) or not isinstance(folds, Iterable):
        raise ValueError(
            f"folds must be a positive integer, an object with split(X), or pairs of indices "
            f"(train, test); got {folds!r}."
        )
    found = [_as_fold(pair, k, size) for k, pair in enumerate(folds)]
    if not found:
        raise ValueError("folds is empty; give at least one pair of indices (train, test).")
    return found


def _as_fold(pair: Any, position: int, size: int) -> Fold:
    """A checked fold from a Fold or a pair of indices."""
    parts = (pair.train, pair.test) if isinstance(pair, Fold) else pair
    if not isinstance(parts, Iterable) or len(listed := list(parts)) != 2:
        raise ValueError(
            f"fold {position} must be a pair of indices (train, test), got {pair!r}; for a number "
            "of folds write folds=5."
        )
    train = as_rows(listed[0], size, f"training samples of fold {position}")
    test = as_rows(listed[1], size, f"test samples of fold {position}")
    common = np.intersect1d(train, test)
    if common.size:
        raise ValueError(
            f"fold {position} fits and judges on the same sample {int(common[0])}; a sample that "
            "was fitted on is no judge: take it out of one of the two."
        )
    return Fold(train, test)
