"""Selections from crossed families of cases in which every pair of values still occurs."""

from itertools import combinations


def pairwise(cases):
    """Some of the cases, tuples of names: each pair of values of two axes that occurs in any case
    occurs in one of these. Greedy: the next case has the most pairs that are new."""
    pairs = {case: set(combinations(enumerate(case), 2)) for case in map(tuple, cases)}
    left, chosen = set().union(*pairs.values()), []
    while left:
        best = max(pairs, key=lambda case: len(pairs[case] & left))
        chosen.append(best)
        left -= pairs[best]
    return chosen
