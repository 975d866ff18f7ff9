"""What the numbers say, in plain words. Every sentence is computed, so it is as true as they are."""

from __future__ import annotations

from ductwork.report.aggregate import Group, Stat, Variant

# Points of forgetting up to which a method is said to keep what it learned, and from which it is said to forget.
KEEPS, FORGETS = 3.0, 10.0
_SAME = 0.05


def sentence(group: Group) -> str:
    """One reading of a group: the best method, how far it is ahead, and what the other one forgot."""
    finished = [v for v in group.variants if v.last is not None]
    ranked = [v for v in finished if v.competes] or finished
    if not ranked:
        return f"No run on {group.stream} is finished yet, so there is nothing to compare."
    best = ranked[0]
    start = f"After the last domain {best.label} is right on {_number(best.last)}\u00a0% of all test images"
    other = _reference(ranked)
    if other is None:
        return f"{start}{_own(best, ', and ')}.{_bound(finished, best)}"
    text = start + ", " + _distance(best, other) + _forgot(other) + _own(best, "; ")
    about = "" if other.method == "duct" else _about_duct(ranked)
    return f"{text}.{about}{_caution(best, other)}{_bound(finished, best)}"


def verdict(variant: Variant) -> tuple[str, str]:
    """A word for the table and its kind (for colour): does the method forget?"""
    stat = _forgetting(variant)
    if not variant.competes:
        return "upper bound", ""
    if stat is None or variant.last is None:
        return "", ""
    trains = [run.result.price for run in variant.done if run.result.price.parameters]
    suffix = ", never trains" if trains and all(p.trainable_parameters == 0 for p in trains) else ""
    if stat.mean <= KEEPS:
        return f"keeps{suffix}", "good"
    if stat.mean < FORGETS:
        return f"loses some{suffix}", "fair"
    return f"forgets{suffix}", "poor"


def _bound(finished: list[Variant], best: Variant) -> str:
    """What training on everything at once reaches, which is no method's competitor."""
    bound = next((v for v in finished if not v.competes and v is not best), None)
    if bound is None:
        return ""
    return f" Training on all domains at once, the upper bound, reaches {_number(bound.last)}\u00a0%."


def _reference(ranked: list[Variant]) -> Variant | None:
    """Fine-tuning is what everybody would do: compare with it, or else with the runner-up."""
    best, rest = ranked[0], [v for v in ranked[1:] if v.method != ranked[0].method]
    plain = [v for v in rest if v.method == "finetune"]
    return next(iter(plain or rest or [v for v in ranked[1:] if v is not best]), None)


def _distance(best: Variant, other: Variant) -> str:
    assert best.last is not None
    assert other.last is not None
    gap = best.last.mean - other.last.mean
    if gap < _SAME:
        return f"no more than {other.label}"
    return f"{gap:.1f} points more than {other.label}"


def _forgot(other: Variant) -> str:
    stat = _forgetting(other)
    if stat is None:
        return ""
    if abs(stat.mean) < _SAME:
        return ", which forgot nothing"
    if stat.mean < 0:
        return f", which gained {-stat.mean:.1f} points on earlier domains"
    return f", which forgot {stat.mean:.1f} points of what it once knew"


def _own(best: Variant, joint: str) -> str:
    stat = _forgetting(best)
    if stat is None:
        return ""
    alone = joint != "; "
    who = "it" if alone else f"{best.label} itself"
    if abs(stat.mean) < _SAME:
        return f"{joint}{who} forgot nothing"
    if stat.mean < 0:
        return f"{joint}{who} gained {-stat.mean:.1f} points on earlier domains"
    return f"{joint}{who} forgot {stat.mean:.1f}" + (" points of what it once knew" if alone else "")


def _about_duct(ranked: list[Variant]) -> str:
    """When duct takes part and is not the best, say so."""
    best = ranked[0]
    mine = next((v for v in ranked if v.method == "duct"), None)
    if mine is None or best.method == "duct" or mine.last is None or best.last is None:
        return ""
    behind = best.last.mean - mine.last.mean
    if behind < _SAME:
        return f" {mine.label} is level with it."
    stat = _forgetting(mine)
    forgot = f" and forgot {stat.mean:.1f}" if stat is not None else ""
    return f" {mine.label} ends {behind:.1f} points behind it{forgot}."


def _caution(best: Variant, other: Variant) -> str:
    assert best.last is not None
    assert other.last is not None
    if min(best.last.n, other.last.n) < 2 or best.last.mean - other.last.mean > best.last.std + other.last.std:
        return ""
    return f" The lead over {other.label} is within the spread between runs."


def _forgetting(variant: Variant) -> Stat | None:
    """Unknown after a single domain, for there was nothing yet to forget."""
    longest = max((len(run.result.stages) for run in variant.done), default=0)
    return variant.forgetting if longest > 1 else None


def _number(stat: Stat | None) -> str:
    return "NA" if stat is None else f"{stat.mean:.1f}"
