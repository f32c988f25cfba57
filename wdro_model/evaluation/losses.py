"""Losses of a decision on scenarios, block by block."""

from __future__ import annotations

from typing import Any

import numpy as np

from wdro_model.model import Model, RobustModel
from wdro_model.uncertainty.scenarios import scenario_batches

BATCH_ENTRIES = 2**24
"""Numbers of scenario data that are held at once (128 MiB)."""


def losses_at(model: Model, x: np.ndarray, scenarios: Any = None) -> np.ndarray:
    """The objective as the user wrote it at each scenario.

    scenarios: {parameter: array}, an array, or the samples for None.
    """
    if not isinstance(model, RobustModel):
        return model.sign * np.array(model.loss.values(x, model.rows))
    size = max(1, BATCH_ENTRIES // max(1, model.joint.dimension))
    blocks = (
        model.joint.blocks(size)
        if scenarios is None
        else scenario_batches(model.joint, scenarios, size, reuse=True)
    )
    return np.concatenate([model.sign * np.array(model.loss.values(x, rows)) for rows in blocks])
