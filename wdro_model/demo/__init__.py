"""The demo: three decisions, what ERM believed of them, and what happened."""

from wdro_model.demo.page import demo

__all__ = ["demo"]
