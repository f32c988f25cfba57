"""Losses that are sums of terms in separate coordinates of the data: one integral for each."""
