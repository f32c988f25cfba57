"""Losses affine in some parameters given the others: closed form over the first of them."""
