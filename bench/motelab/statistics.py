"""Statistics of samples: rank tests, effect sizes, summaries. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

ALPHA = 0.05
#: Up to so many values in the smaller sample, and without ties, the exact distribution is used.
EXACT_MAX = 8
#: Samples drawn for an interval: its ends move by a tenth of its width from seed to seed.
DRAWS = 2000


@dataclass(frozen=True)
class RankTest:
    """Mann-Whitney U of two samples, two-sided."""

    u: float
    p: float
    #: By the normal approximation with corrections for ties and continuity, whatever was used.
    p_asymptotic: float
    method: str
    #: Rank-biserial correlation: the share of pairs in which the first sample's value is larger,
    #: less the share in which the second's is. 0 is no difference, -1 and 1 are complete.
    effect: float

    @property
    def rejected(self) -> bool:
        """Whether equal distributions are rejected."""
        return self.p < ALPHA


@dataclass(frozen=True)
class GroupTest:
    """Kruskal-Wallis H of several samples."""

    h: float
    p: float
    #: Epsilon squared: the share of the ranks' variance that the groups explain.
    effect: float

    @property
    def rejected(self) -> bool:
        """Whether equal distributions are rejected."""
        return self.p < ALPHA


@dataclass(frozen=True)
class Summary:
    """A sample in numbers; `std` divides by n - 1, and `p95` is interpolated linearly."""

    n: int
    mean: float
    median: float
    p95: float
    minimum: float
    maximum: float
    std: float
    #: 95 % of such intervals contain the mean; by Student's distribution.
    low: float
    high: float

    def as_dict(self) -> dict[str, float]:
        """The values by name, for JSON; undefined values are left out."""
        return {key: value for key, value in asdict(self).items() if math.isfinite(value)}


def _floats(values: ArrayLike) -> NDArray[np.float64]:
    return np.asarray(values, dtype=np.float64)


def mann_whitney(first: ArrayLike, second: ArrayLike) -> RankTest:
    """Mann-Whitney U of the first sample against the second."""
    x, y = _floats(first), _floats(second)
    if not len(x) or not len(y):
        raise ValueError("a rank test needs values in both samples")
    has_ties = len(np.unique(np.concatenate([x, y]))) < len(x) + len(y)
    is_exact = min(len(x), len(y)) <= EXACT_MAX and not has_ties
    normal = stats.mannwhitneyu(x, y, alternative="two-sided", method="asymptotic")
    # All values alike: nothing tells the samples apart, and the approximation divides by zero.
    p_normal = 1.0 if math.isnan(normal.pvalue) else float(normal.pvalue)
    p = p_normal
    if is_exact:
        p = float(stats.mannwhitneyu(x, y, alternative="two-sided", method="exact").pvalue)
    effect = 2.0 * float(normal.statistic) / (len(x) * len(y)) - 1.0
    method = "exact" if is_exact else "asymptotic"
    return RankTest(float(normal.statistic), p, p_normal, method, effect)


def kruskal_wallis(*samples: ArrayLike) -> GroupTest:
    """Kruskal-Wallis H, corrected for ties, with the chi-square distribution."""
    groups = [_floats(sample) for sample in samples]
    if len(groups) < 2 or not all(len(group) for group in groups):
        raise ValueError("a test of groups needs two samples with values")
    every = np.concatenate(groups)
    if np.all(every == every[0]):
        return GroupTest(0.0, 1.0, 0.0)
    h, p = stats.kruskal(*groups)
    return GroupTest(float(h), float(p), float(h) / (len(every) - 1))


def summary(values: ArrayLike) -> Summary:
    """A sample in numbers."""
    x = _floats(values)
    if not len(x):
        raise ValueError("a summary needs values")
    std = float(np.std(x, ddof=1)) if len(x) > 1 else math.nan
    mean = float(np.mean(x))
    half = float(stats.t.ppf(0.975, len(x) - 1)) * std / math.sqrt(len(x)) if len(x) > 1 else 0.0
    return Summary(
        n=len(x),
        mean=mean,
        median=float(np.median(x)),
        p95=float(np.percentile(x, 95)),
        minimum=float(np.min(x)),
        maximum=float(np.max(x)),
        std=std,
        low=mean - half,
        high=mean + half,
    )


def blocked_median(blocks: Sequence[Sequence[float]]) -> tuple[float, float, float]:
    """The median of all values and its 95 % interval, when the values of a block have more in
    common than the work. The method draws blocks and then values from each block, with the same
    seed every time, and assumes no distribution."""
    every = [_floats(block) for block in blocks if len(block)]
    if not every:
        raise ValueError("a median needs values")
    chance = np.random.default_rng(DRAWS)
    medians = []
    for _ in range(DRAWS):
        drawn = [every[at] for at in chance.integers(len(every), size=len(every))]
        medians.append(np.median(np.concatenate([chance.choice(of, len(of)) for of in drawn])))
    low, high = np.percentile(medians, [2.5, 97.5])
    return float(np.median(np.concatenate(every))), float(low), float(high)


def cdf(latencies: ArrayLike, failed: int = 0) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The share of all operations that took at most this long. Failures count as longer than any
    answer, so that the curve ends at the share of successes."""
    x = np.sort(_floats(latencies))
    offered = len(x) + failed
    return x, np.arange(1, len(x) + 1) / max(offered, 1)


def compare(samples: Mapping[str, Sequence[float]]) -> dict[str, object]:
    """The tests that the study makes on samples by name: all groups, then each pair."""
    known = {name: values for name, values in samples.items() if len(values)}
    if len(known) < 2:
        return {}
    groups = kruskal_wallis(*known.values())
    pairs = {
        f"{a} | {b}": asdict(mann_whitney(known[a], known[b])) for a, b in combinations(known, 2)
    }
    return {"kruskal_wallis": asdict(groups), "mann_whitney": pairs, "alpha": ALPHA}


def histogram5(values: ArrayLike) -> list[int]:
    """Counts in five equal bins between the smallest and the largest value."""
    counts, _ = np.histogram(_floats(values), bins=5)
    return [int(count) for count in counts]


def concurrency(intervals: Sequence[tuple[float, float]]) -> int:
    """The largest number of intervals that overlap; an interval that ends when another begins does
    not overlap it."""
    events = sorted(
        [(start, 1) for start, _ in intervals] + [(end, -1) for _, end in intervals],
    )
    running = highest = 0
    for _, change in events:
        running += change
        highest = max(highest, running)
    return highest
