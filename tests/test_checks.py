"""Argument checks return the value or a message with its name, the value and the way out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from wdro_model import checks


@pytest.mark.parametrize(
    ("check", "message"),
    [
        (lambda: checks.number("radius", "a"), "radius must be a finite number, got 'a'."),
        (lambda: checks.number("radius", True), "radius must be a finite number, got True."),
        (lambda: checks.number("gap", np.nan, low=0), "gap must be a nonnegative finite number"),
        (lambda: checks.number("gap", 0, low=0, open=True), "must be a positive finite number"),
        (lambda: checks.number("p", 0.5, low=1), "p must be a finite number >= 1, got 0.5."),
        (lambda: checks.number("p", np.inf, low=1), "p must be a finite number >= 1, got inf."),
        (lambda: checks.number("radius", 10**400), "got an integer of 401 digits."),
        (
            lambda: checks.number("quantile", 1.0, low=0, high=1, open=True, hint="0.5 is usual"),
            "quantile must be a number between 0 and 1, got 1.0; 0.5 is usual.",
        ),
        (lambda: checks.number("share", 2, low=0, high=1), "must be a number from 0 to 1, got 2."),
        (lambda: checks.whole_number("n", 2.0, low=1), "n must be an integer of at least 1, got"),
        (lambda: checks.whole_number("n", 9, low=1, high=5), "n must be an integer from 1 to 5"),
        (lambda: checks.flag("relax", 1), "relax must be True or False, got 1."),
        (lambda: checks.choice("rule", "bootstrp", ["bootstrap", "rate"]), "'bootstrap'?"),
        (lambda: checks.real_array("w", ["a"]), "w must be an array of numbers, got"),
        (lambda: checks.real_array("w", [1.0], (2,)), "w must have shape (2,), got shape (1,)."),
        (
            lambda: checks.real_array("w", [[1, np.nan]]),
            "w must be finite, got nan at index (0, 1)",
        ),
        (lambda: checks.real_array("w", [np.nan], finite=False), "w must be numbers, got nan at"),
    ],
)
def test_wrong_arguments_are_named_with_their_value(check: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError) as raised:
        check()
    assert message in str(raised.value)


def test_right_arguments_come_back_as_plain_values() -> None:
    assert type(checks.number("radius", np.float32(2), low=0)) is float
    assert type(checks.whole_number("n", np.int64(2))) is int
    assert type(checks.flag("relax", np.True_)) is bool
    assert checks.choice("rule", "rate", {"rate"}) == "rate"
    assert checks.real_array("w", [1, np.inf], finite=False).dtype == np.float64
