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

    Of each story the test with the largest clear gain is told, and all tests with a clear loss,
    the largest first; always the mean and the tail.
    """
    gains, losses = [], []
    for name, contests in stories.items():
        better = sorted(clear(contests, +1), key=lambda found: -found[0])
        worse = sorted(clear(contests, -1), key=lambda found: found[0])
        gains += [f"{name}, {text}" for _, text in better[:1]]
        losses += [f"{name}, {', '.join(text for _, text in worse)}"] if worse else []
    return (
        f"What it gained: {listing(gains) or 'nothing that can be measured'}.",
        f"What it cost: {listing(losses) or 'nothing that can be measured'}.",
    )


def clear(contests: Sequence[Contest], sign: int) -> list[tuple[float, str]]:
    """The tests with a clear gain (or loss), its share where it is largest, and a clause."""
    found = []
    for contest in contests:
        gains = {what: contest.gain(what) for what in MEASURES}
        told = {what: gain for what, gain in gains.items() if gain.sign == sign}
        if told:
            change = "less" if sign > 0 else "more"
            parts = [f"{percent(g)} {change} in the {MEASURES[what]}" for what, g in told.items()]
            largest = sign * max(abs(gain.share) for gain in told.values())
            found.append((largest, f"{' and '.join(parts)} ({contest.test})"))
    return found


def listing(texts: Iterable[str]) -> str:
    return "; ".join(texts)
