"""One line of the result: a value, the bar it is compared with, and the values behind it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Outcome:
    """`bar` is None for a row without a bar; `detail` is copied unchanged into the result file."""

    name: str
    value: float
    unit: str
    bar: float | None = None
    at_least: bool = False
    detail: dict[str, Any] = field(default_factory=dict)

    @property
    def met(self) -> bool | None:
        if self.bar is None:
            return None
        return self.value >= self.bar if self.at_least else self.value <= self.bar

    def line(self) -> str:
        text = f"{self.name:34} {self.value:9.3f} {self.unit:6}"
        if self.bar is None:
            return text
        sign = ">=" if self.at_least else "<="
        return f"{text} bar {sign} {self.bar:<6g} {'met' if self.met else 'MISSED'}"

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name, "value": self.value, "unit": self.unit, "bar": self.bar,
            "at_least": self.at_least, "met": self.met, **self.detail,
        }


def exit_status(outcomes: list[Outcome]) -> int:
    """1 if a bar was missed, otherwise 0."""
    return int(any(outcome.met is False for outcome in outcomes))
