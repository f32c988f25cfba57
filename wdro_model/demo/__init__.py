"""The demo: three decisions by ERM and robustly, their promises and their costs."""

from wdro_model.demo.page import demo

__all__ = ["demo"]
