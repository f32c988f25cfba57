"""Facts of atoms that were added by a user: what is not so is refused, by name."""

from __future__ import annotations

import cvxpy as cp
import pytest

import wdro_model as wdro


@pytest.mark.parametrize("taken", [cp.max, cp.min, cp.norm1, cp.abs, cp.log_sum_exp])
def test_a_rule_of_the_library_is_not_replaced_unasked(taken):
    with pytest.raises(ValueError, match=rf"{taken.__name__}' has a rule already.*replace=True"):
        wdro.register_rule(taken)(lambda atom, v: (v, lambda g: g))
