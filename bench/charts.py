"""Draws the two charts of README.md from the stored results; standard library only.

    python3 bench/charts.py            writes docs/images/throughput.svg and cold-start.svg
    python3 bench/charts.py --check    fails if a stored chart differs from the results

Every number in a chart comes from the newest file in bench/results/ that has all rows the chart
needs, or from bench/reference/. The caption names the machine, the date and the commit.
"""

import argparse
import csv
import gzip
import json
import math
import statistics
import sys
from pathlib import Path
from xml.sax.saxutils import escape

BENCH = Path(__file__).resolve().parent
IMAGES = BENCH.parent / "docs" / "images"
PODS = BENCH / "reference" / "edge-k8s-study" / "raw" / "cold_start_pod_delay.csv.gz"

# What is compared: the title, the row of `make bench-warm`, and what the other side is.
THROUGHPUT = [
    ("Node, hello", "node 64 throughput", "Node's http"),
    ("Node, primes", "sieve 64", "Node's http"),
    ("Python, hello", "python 64 over uvicorn", "uvicorn"),
    ("Python, hello", "python 64 over granian", "granian"),
    ("Node, CoAP", "coap over npm coap 64", "npm's coap"),
]
LANGUAGES = ["Python", "Node"]

WIDTH, HEIGHT = 420, 326
STYLE = """
  .card { fill: #ffffff; stroke: #d1d9e0 } text { fill: #1f2328; font: 11px system-ui, sans-serif }
  .title { font-weight: 600; font-size: 14px } .note { fill: #59636e; font-size: 10px }
  .ours { fill: #0969da } .other { fill: #aab4bf } .range { stroke-width: 4; stroke-linecap: round }
  .ours-line { stroke: #0969da } .other-line { stroke: #aab4bf } .grid { stroke: #d1d9e0 }
  .strong { font-weight: 600 } .end { text-anchor: end } .middle { text-anchor: middle }
  .inside { fill: #ffffff }
  @media (prefers-color-scheme: dark) {
    .card { fill: #0d1117; stroke: #3d444d } text { fill: #f0f6fc } .note { fill: #9198a1 }
    .ours { fill: #58a6ff } .ours-line { stroke: #58a6ff } .other { fill: #656c76 }
    .other-line { stroke: #656c76 } .grid { stroke: #3d444d } .inside { fill: #0d1117 }
  }
"""


class Drawing:
    """An SVG document on a card that follows the reader's colour scheme."""

    def __init__(self, title: str) -> None:
        self.title, self.parts, self.height = title, [], 0
        self.text(16, 26, title, "title")

    def text(self, x: float, y: float, words: str, kind: str = "") -> None:
        self.parts.append(f'<text x="{x:g}" y="{y:g}" class="{kind}">{escape(words)}</text>')

    def bar(self, x: float, y: float, width: float, height: float, kind: str) -> None:
        size = f'width="{width:.1f}" height="{height:g}" rx="2"'
        self.parts.append(f'<rect x="{x:g}" y="{y:g}" {size} class="{kind}"/>')

    def line(self, x1: float, y1: float, x2: float, y2: float, kind: str) -> None:
        ends = f'x1="{x1:.1f}" y1="{y1:g}" x2="{x2:.1f}" y2="{y2:g}"'
        self.parts.append(f'<line {ends} class="{kind}"/>')

    def dot(self, x: float, y: float, kind: str) -> None:
        self.parts.append(f'<circle cx="{x:.1f}" cy="{y:g}" r="5" class="{kind}"/>')

    def document(self) -> str:
        size = f'viewBox="0 0 {WIDTH} {self.height}" width="{WIDTH}" height="{self.height}"'
        inner = f'width="{WIDTH - 1}" height="{self.height - 1}"'
        card = f'<rect x=".5" y=".5" {inner} rx="6" class="card"/>'
        body = "\n".join([f"<style>{STYLE}</style>", card, *self.parts])
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">'
        return f"{head}\n<title>{escape(self.title)}</title>\n{body}\n</svg>\n"


def newest(pattern: str, list_name: str, needed: list[str]) -> tuple[dict, dict, str]:
    """The newest result of this name that has all required rows: the result, its rows, and its
    date."""
    for path in sorted((BENCH / "results").glob(pattern), reverse=True):
        result = json.loads(path.read_text())
        rows = {row["name"]: row for row in result[list_name]}
        if all(name in rows for name in needed):
            return result, rows, path.stem.split("-", 1)[1][:10]
    raise SystemExit(f"charts: no bench/results/{pattern} has all of: {', '.join(needed)}")


def machine(result: dict, date: str) -> str:
    about = result["machine"]
    memory = round(about["memory_mib"] / 1024)
    return (
        f"{date}, commit {about['commit']}; virtual machine, {about['cores']} cores of an "
        f"{about['cpu']}, {memory} GiB"
    )


def throughput() -> str:
    result, rows, date = newest("warm-*.json", "rows", [row for _, row, _ in THROUGHPUT])
    drawing = Drawing("Requests per second, 64 connections")
    pairs = []
    for title, name, other in THROUGHPUT:
        row = rows[name]
        ours, theirs = (
            statistics.median(run["per_second"] for run in row["runs"][side])
            for side in (row["subject"], row["baseline"])
        )
        pairs.append((title, other, ours, theirs, row["value"]))
    most = max(max(ours, theirs) for _, _, ours, theirs, _ in pairs)
    left, full, y = 100, 258, 44
    for title, other, ours, theirs, ratio in pairs:
        drawing.text(16, y + 8, title, "strong")
        for at, (who, value, kind) in enumerate([("mote", ours, "ours"), (other, theirs, "other")]):
            width, top = full * value / most, y + 13 + 14 * at
            drawing.text(left - 6, top + 10, who, "end")
            drawing.bar(left, top + 1, width, 11, kind)
            words = f"{value:,.0f}" if kind == "other" else f"{value:,.0f}  ({ratio:.1f} x)"
            # The longest bars have no room behind them.
            if width > full * 0.72 and kind == "ours":
                drawing.parts.append(
                    f'<text x="{left + width - 5:.1f}" y="{top + 10}" '
                    f'class="inside end">{words}</text>'
                )
            else:
                drawing.text(left + width + 5, top + 10, words)
        y += 50
    drawing.text(16, y + 6, "Medians; node and load generator share the two cores.", "note")
    drawing.text(16, y + 20, machine(result, date), "note")
    drawing.height = HEIGHT
    return drawing.document()


def quantiles(values: list[float]) -> tuple[float, float, float]:
    """Tenth, fiftieth and ninetieth percentile."""
    cuts = statistics.quantiles(values, n=10, method="inclusive")
    return cuts[0], statistics.median(values), cuts[-1]


def pods(platform: str) -> list[float]:
    """Times from scheduled to ready in milliseconds, of every pod in the study."""
    with gzip.open(PODS, "rt", newline="") as file:
        rows = csv.DictReader(file)
        return [float(row["delay_s"]) * 1000 for row in rows if row["platform"] == platform]


def in_words(milliseconds: float) -> str:
    if milliseconds >= 1000:
        return f"{milliseconds / 1000:.0f} s"
    return f"{milliseconds:.1f} ms" if milliseconds < 10 else f"{milliseconds:.0f} ms"


def cold_start() -> str:
    needed = [f"{language}: cold above warm" for language in LANGUAGES]
    result, rows, date = newest("cold-*.json", "outcomes", needed)
    drawing = Drawing("First call of a function at zero")
    ways = [
        ("pool", "mote, prewarm on", "ours"),
        ("no pool", "mote, prewarm off", "ours"),
        ("crun", "a crun container", "other"),
    ]
    left, full, low, high = 150, 222, 1.0, 20_000.0

    def at(value: float) -> float:
        return left + full * math.log(value / low) / math.log(high / low)

    lines = []
    for language, name in zip(LANGUAGES, needed, strict=True):
        for key, title, kind in ways:
            row = rows[name][key]
            lines.append((language, title, kind, (row["p10_ms"], row["p50_ms"], row["p90_ms"])))
    lines.append(("Kubernetes", "a pod on K3s ¹", "other", quantiles(pods("k3s"))))
    y, before = 52, ""
    first = y - 10
    marks = []
    for group, title, kind, (p10, p50, p90) in lines:
        if group != before:
            y += 6 if before else 0
            marks.append(("text", 16, y, group, "strong"))
            y += 17
        marks.append(("text", left - 8, y + 4, title, "end"))
        marks.append(("line", at(p10), y, at(p90), y, f"range {kind}-line"))
        marks.append(("dot", at(p50), y, kind))
        marks.append(("text", at(p90) + 8, y + 4, in_words(p50), ""))
        before = group
        y += 20
    for value in (1, 10, 100, 1000, 10_000):
        drawing.line(at(value), first, at(value), y - 6, "grid")
        drawing.text(at(value), y + 7, in_words(value).replace(".0", ""), "note middle")
    for kind, *rest in marks:
        getattr(drawing, kind)(*rest)
    y += 28
    drawing.text(
        16, y, "Logarithmic. Dot: median; line: 10th to 90th percentile; 100 starts.", "note"
    )
    drawing.text(16, y + 14, machine(result, date), "note")
    drawing.text(
        16, y + 28, "¹ Other machines: container start, six servers, study of 2022", "note"
    )
    drawing.height = HEIGHT
    return drawing.document()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    check = parser.parse_args().check
    stale = 0
    for name, draw in (("throughput.svg", throughput), ("cold-start.svg", cold_start)):
        path = IMAGES / name
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(draw())
            print(f"written to docs/images/{name}")
        elif not path.exists() or path.read_text() != draw():
            print(
                f"docs/images/{name} is not what bench/results/ says: make charts", file=sys.stderr
            )
            stale += 1
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
