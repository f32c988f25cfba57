"""Tell tumours apart from sixty patients, when the next ones are measured with less care.

python examples/breast_cancer.py [picture.png]

Logistic regression without a penalty, with a ridge penalty and with the worst case over a
Wasserstein ball, penalty and radius by cross-validation on the clean training data; beside them a
radius that is chosen for the noise to come. Held-out log-loss against the noise on the features,
over five splits of the data. Needs scikit-learn: pip install 'wdro_model[sklearn]'.
"""

from __future__ import annotations

import sys

import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, StratifiedShuffleSplit
from sklearn.preprocessing import StandardScaler

from wdro_model.estimators import RobustLogisticRegression

NOISE = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5)
MODELS = {
    "no penalty": LogisticRegression(C=1e6, tol=1e-6, max_iter=10_000),
    "ridge, cross-validated": GridSearchCV(
        LogisticRegression(max_iter=10_000), {"C": np.logspace(-3, 3, 7)}, scoring="neg_log_loss"
    ),
    "robust, cross-validated": RobustLogisticRegression("cv", radii=[0.003, 0.01, 0.03, 0.1, 0.3]),
    "robust, radius 0.2": RobustLogisticRegression(0.2),
}
COLOURS = dict(zip(MODELS, ("#0072b2", "#009e73", "#d55e00", "#cc79a7")))


def main(picture: str | None = None) -> None:
    X, y = load_breast_cancer(return_X_y=True)
    found: dict[str, list[list[float]]] = {name: [] for name in MODELS}
    splits = StratifiedShuffleSplit(5, train_size=60, test_size=171, random_state=0)
    for k, (train, test) in enumerate(splits.split(X, y)):
        scaler = StandardScaler().fit(X[train])
        held_out = scaler.transform(X[test])
        noise = np.random.default_rng(k).normal(size=held_out.shape)
        for name, model in MODELS.items():
            model.fit(scaler.transform(X[train]), y[train])
            seen = [model.predict_proba(held_out + level * noise) for level in NOISE]
            found[name].append([log_loss(y[test], probabilities) for probabilities in seen])
    print("held-out log-loss, by the noise on every feature in standard deviations\n")
    print(f"{'':24}" + "".join(f"{level:8.2f}" for level in NOISE))
    for name, losses in found.items():
        print(f"{name:24}" + "".join(f"{loss:8.3f}" for loss in np.mean(losses, axis=0)))
    if picture is not None:
        draw(found, picture)


def draw(found: dict[str, list[list[float]]], picture: str) -> None:
    """Log-loss against noise, every split as a thin line."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes = figure.subplots()
    for name, losses in found.items():
        colour = COLOURS[name]
        axes.plot(NOISE, np.transpose(losses), color=colour, alpha=0.25, linewidth=0.8)
        axes.plot(NOISE, np.mean(losses, axis=0), color=colour, label=name, linewidth=2)
    axes.set(xlabel="noise on the held-out features (standard deviations)", ylabel="log-loss")
    axes.set_yscale("log")
    axes.set_yticks([0.1, 0.2, 0.5, 1, 2], ["0.1", "0.2", "0.5", "1", "2"])
    axes.set_title("Sixty tumours to learn from, noisier ones to judge", loc="left")
    axes.legend(frameon=False)
    figure.savefig(picture, dpi=130)


if __name__ == "__main__":
    main(*sys.argv[1:2])
