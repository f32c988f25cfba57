"""Random models over all that the library states, judged by independent computations.

    python benchmarks random_models [--models 2000] [--seed 0] [--family NAME] [--jobs 1]
                                    [--time-limit 20] [--only-bad]

A family draws a model from a seed, solves it with the library, and judges the answer by programs,
quadrature and enumeration that are written here, from the literature, without the library. Each
model runs in a process of its own: a crash or a solve without end is an outcome like any other.
A family and a seed are enough to repeat a model:

    python benchmarks random_models --family risk --seed 17 --models 1

`families.py` lists the families; `trial.py` says what one provides; `references.py` and
`smoothing.py` are the mathematics of the judges.
"""
