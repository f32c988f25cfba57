"""Is there Numba, to compile what NumPy cannot say?"""

from __future__ import annotations


def has_numba() -> bool:
    """Can Numba be imported? It is, where it can."""
    try:
        import numba  # noqa: F401
    except ImportError:
        return False
    return True


def refuse_without_numba(what: str, instead: str) -> None:
    """Raise ImportError where Numba is not installed."""
    if not has_numba():
        raise ImportError(
            f"{what} needs Numba, which is not installed: pip install 'wdro_model[fast]', or use "
            f"{instead}."
        )
