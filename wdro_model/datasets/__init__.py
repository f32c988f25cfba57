"""Instances to try the library on, each with a training distribution and a shifted one."""

from wdro_model.datasets.quadratic_tree import QuadraticTree, TreeCosts, quadratic_tree

__all__ = ["QuadraticTree", "TreeCosts", "quadratic_tree"]
