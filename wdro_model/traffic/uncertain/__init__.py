"""Scenarios of a network: laws of the paper, uncertain capacity and demand, observed days."""
