"""Rank tests beside textbook values, and the rules for small samples, ties and failures."""

import math

import pytest

from motelab import statistics


def test_the_small_sample_rule_chooses_the_method() -> None:
    few, more = [1.0, 2, 3, 4], [5.0, 6, 7, 8, 9]
    exact = statistics.mann_whitney(few, more)
    assert (exact.u, exact.method) == (0, "exact")
    # Two of the C(9, 4) = 126 orders are as extreme.
    assert exact.p == pytest.approx(2 / 126)
    assert exact.effect == -1
    assert statistics.mann_whitney(few, [4.0, 5, 6]).method == "asymptotic", "ties"
    assert statistics.mann_whitney(range(9), range(20, 40)).method == "asymptotic", "nine values"


def test_samples_without_any_difference() -> None:
    same = statistics.mann_whitney([2, 2, 2], [2, 2, 2, 2])
    assert (same.p, same.effect, same.rejected) == (1, 0, False)
    assert statistics.kruskal_wallis([2, 2], [2, 2]).p == 1
    with pytest.raises(ValueError, match="both samples"):
        statistics.mann_whitney([], [1])


def test_groups_follow_the_chi_square_of_their_h() -> None:
    found = statistics.kruskal_wallis([1, 2, 3], [4, 5, 6], [7, 8, 9])
    assert found.h == pytest.approx(7.2)
    assert found.p == pytest.approx(math.exp(-found.h / 2)), "two degrees of freedom"
    assert found.effect == pytest.approx(0.9)


def test_a_summary_has_the_interval_of_the_mean() -> None:
    found = statistics.summary([1, 2, 3, 4])
    assert (found.n, found.mean, found.median) == (4, 2.5, 2.5)
    assert found.std == pytest.approx(1.2909944)
    assert (found.low, found.high) == pytest.approx((0.445739743, 4.554260257))
    assert "std" not in statistics.summary([3]).as_dict()


def test_the_interval_of_a_median_sees_that_blocks_differ() -> None:
    alike = [[1.00, 1.01, 1.02, 0.99, 0.98]] * 4
    median, low, high = statistics.blocked_median(alike)
    assert median == 1.0
    assert 0.98 <= low <= 1.0 <= high <= 1.02
    # As many values as before and the same median, but luck of the block decides.
    differ = [[value + shift for value in alike[0]] for shift in (-0.1, -0.1, 0.1, 0.1)]
    _, wide_low, wide_high = statistics.blocked_median(differ)
    assert wide_high - wide_low > 4 * (high - low)
    assert statistics.blocked_median([[], [2.0]]) == (2, 2, 2)
    with pytest.raises(ValueError, match="needs values"):
        statistics.blocked_median([[]])


def test_a_distribution_ends_at_the_share_of_successes() -> None:
    x, share = statistics.cdf([3, 1, 2], failed=1)
    assert list(x) == [1, 2, 3]
    assert list(share) == [0.25, 0.5, 0.75]


@pytest.mark.parametrize(
    ("intervals", "highest"),
    [([], 0), ([(0, 1), (1, 2)], 1), ([(0, 3), (1, 2), (1.5, 4)], 3)],
)
def test_concurrency_is_a_sweep_over_starts_and_ends(intervals, highest) -> None:
    assert statistics.concurrency(intervals) == highest


def test_compare_makes_every_pair() -> None:
    found = statistics.compare({"a": [1, 2], "b": [3, 4], "c": [5.0, 6]})
    assert list(found["mann_whitney"]) == ["a | b", "a | c", "b | c"]
    assert statistics.compare({"a": [1.0], "none": []}) == {}
