"""The study's claims from its raw data: what analysis code must get right before it judges ours."""

import re

import pandas as pd
import pytest

from motelab.study import FOLDER, Study, claims

STUDY = Study()
CLAIMS = claims(STUDY)
TABLE = pd.read_csv(FOLDER / "statistics.csv", dtype=str)
NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?")
RELATIVE = 1e-6


def half_of_last_digit(text: str) -> float:
    mantissa, _, exponent = text.partition("e")
    digits = len(mantissa.partition(".")[2])
    return 0.5 * 10.0 ** (int(exponent or 0) - digits)


def test_every_claim_is_computed() -> None:
    assert list(CLAIMS) == list(TABLE.id)
    assert (TABLE.status.str.startswith("exact")).sum() >= 20


@pytest.mark.parametrize("row", list(TABLE.itertuples()), ids=lambda row: row.id)
def test_claim(row) -> None:
    ours, theirs = CLAIMS[row.id], row.recomputed
    assert NUMBER.sub("#", ours) == NUMBER.sub("#", theirs)
    for mine, printed in zip(NUMBER.findall(ours), NUMBER.findall(theirs), strict=True):
        # What is printed with fewer digits than a millionth can only be compared to its last.
        allowed = max(RELATIVE * abs(float(printed)), half_of_last_digit(printed) * 1.000001)
        assert abs(float(mine) - float(printed)) <= allowed, f"{row.claim}: {ours}"


def rows(table: pd.DataFrame) -> pd.DataFrame:
    keys = [key for key in ("function", "platform") if key in table]
    return table.sort_values(keys).reset_index(drop=True)


#: Decimals that columns are rounded to; the others are printed with nine digits.
DECIMALS = {"mean": 6, "std": 6, "median": 6, "p95": 6, "speedup_vs_serial": 3}


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("serial_tests.csv", STUDY.serial_tests),
        ("serial.csv", STUDY.serial_table),
        ("cold_start_pod.csv", STUDY.start_table),
        ("parallel20.csv", STUDY.parallel_table),
    ],
)
def test_table(name: str, ours) -> None:
    expected = rows(pd.read_csv(FOLDER / name))
    found = rows(ours())
    shared = [column for column in expected if column in found]
    assert len(shared) >= len(expected.columns) - 1
    for column in shared:
        if expected[column].dtype.kind in "if":
            want = expected[column].astype(float)
            rounded = 0.5 * 10.0 ** -DECIMALS.get(column, 300) * 1.000001
            apart = abs(found[column].astype(float) - want)
            assert (apart <= (RELATIVE * abs(want)).clip(lower=rounded)).all(), column
        else:
            assert list(found[column]) == list(expected[column]), column
