"""Sentences that follow the numbers: who was better, and whose promise was kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from wdro_model.demo.contest import ERM, ROBUST, Contest, Gain

MEASURES = {"mean": "mean cost", "tail": "worst 5%"}


def percent(gain: Gain) -> str:
    """The size of a gain or loss, without its sign."""
    error = "" if gain.error != gain.error else f" ± {100 * gain.error:.1f}"
    return f"{abs(100 * gain.share):.1f}%{error}"


def moved(gain: Gain) -> str:
    """What became of a cost when the robust decision was taken in place of ERM's."""
    if gain.error != gain.error:
        return f"{'fell' if gain.share > 0 else 'rose'} by {percent(gain)} in one instance"
    if gain.sign == 0:
        return f"did not change measurably (gain {gain})"
    return f"{'fell' if gain.sign > 0 else 'rose'} by {percent(gain)}"


def verdict(contest: Contest) -> str:
    """One sentence: both costs and both promises."""
    mean, tail = contest.gain("mean"), contest.gain("tail")
    return (
        f"{contest.test[:1].upper()}{contest.test[1:]}: with the robust decision the mean cost "
        f"{moved(mean)} and the worst 5% {moved(tail)}; ERM kept its promise in "
        f"{contest.kept(ERM)} of {contest.size} instances, the robust decision in "
        f"{contest.kept(ROBUST)}."
    )


def where_it_loses(contests: Sequence[Contest]) -> str:
    """The tests on which the robust decision clearly costs more; nothing where there are none."""
    found = []
    for contest in contests:
        gains = {MEASURES[what]: contest.gain(what) for what in MEASURES}
        worse = [f"{percent(g)} more in the {what}" for what, g in gains.items() if g.sign < 0]
        if worse:
            found.append(f"{contest.test} ({', '.join(worse)})")
    return f"Where it loses: {listing(found)}." if found else ""


def gained_and_lost(stories: Mapping[str, Sequence[Contest]]) -> tuple[str, str]:
    """What robustness gained and what it cost, one sentence for each, a clause for each story.

    Of each story the largest clear gain and the largest clear loss are told.
    """
    gains, losses = [], []
    for name, contests in stories.items():
        found = [
            (contest.gain(what), what, contest.test) for contest in contests for what in MEASURES
        ]
        best = max(found, key=lambda one: one[0].share)
        worst = min(found, key=lambda one: one[0].share)
        if best[0].sign > 0:
            gains.append(clause(name, *best, "less"))
        if worst[0].sign < 0:
            losses.append(clause(name, *worst, "more"))
    return (
        f"What it gained: {listing(gains) or 'nothing that can be measured'}.",
        f"What it cost: {listing(losses) or 'nothing that can be measured'}.",
    )


def clause(name: str, gain: Gain, what: str, test: str, change: str) -> str:
    return f"{name}, {percent(gain)} {change} in the {MEASURES[what]} ({test})"


def listing(texts: Iterable[str]) -> str:
    return "; ".join(texts)
