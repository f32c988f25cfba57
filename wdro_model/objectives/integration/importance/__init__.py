"""Importance sampling: modes of the tilted density, and proposals that cover them."""
