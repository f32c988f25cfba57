"""Losses that see the data through a few affine forms: the other directions in closed form."""
