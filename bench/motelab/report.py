"""One page with every run: figures, tables and tests, with the papers' numbers next to ours. The
page fetches nothing and runs no script."""

from __future__ import annotations

import base64
import html
import math
from pathlib import Path
from typing import Any

from motelab import environment, figures
from motelab.experiments import EXPERIMENTS
from motelab.figures.stated import papers
from motelab.papers import PAPERS, cited
from motelab.processes import Failed
from motelab.results import Stored, failures, stored
from motelab.study import FOLDER, Study, claims

STYLE = """
body{font:15px/1.5 sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem;color:#222}
table{border-collapse:collapse;font-size:13px;margin:.6rem 0;display:block;overflow-x:auto}
td,th{border-bottom:1px solid #ddd;padding:.15rem .4rem;text-align:right;vertical-align:bottom}
td{overflow-wrap:anywhere;min-width:2.5rem}td:first-child{min-width:8rem}
td:first-child,th:first-child{text-align:left}img{max-width:100%;height:auto;margin:.4rem 0}
.missing{color:#8a4b00}.about{color:#555}h2{border-top:2px solid #eee;padding-top:1rem}
nav a{margin-right:1rem;white-space:nowrap}details{margin:.4rem 0}
"""
#: Rows of a table on the page; the rest is in the file.
ROWS_MAX = 60


def text_of(value: Any) -> str:
    """A cell."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1e5 else f"{value:.4g}"
    return str(value)


#: Columns of times whose names do not end in their unit.
TIMES = {"mean", "median", "p95", "minimum", "maximum", "std", "low", "high", "total"}
TIMES |= {"serial_mean", "start_mean", "response_mean", "warm_mean", "hist5", "handover over HTTP"}
TIMES |= {"t1-t2", "t2-t3", "t3-t4"}
#: Units of columns that are neither times nor end in their unit.
OTHERS = {"rate": "1/s", "rate_sd": "1/s", "instance_seconds": "s", "success": "share"}
UNITS = {"_ms": "ms", "_mib": "MiB", "_s": "s"}


def heading(name: str, time_unit: str) -> str:
    """A column's name with its unit, if it has one."""
    if name in TIMES:
        return f"{name} ({time_unit})".replace("_", " ")
    if name in OTHERS:
        return f"{name} ({OTHERS[name]})".replace("_", " ")
    for suffix, unit in UNITS.items():
        if name.endswith(suffix):
            return f"{name.removesuffix(suffix)} ({unit})".replace("_", " ")
    # `inner_s_low`: a time of one side.
    first, middle, side = name.partition("_s_")
    if middle and side != "ratio":
        return f"{first} {side} (s)".replace("_", " ")
    return name.replace("_", " ")


def lines(rows: list[dict[str, Any]], time_unit: str = "s", most: int = 40) -> list[str]:
    """A table for a terminal, with units in the head."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    cells = [[heading(name, time_unit) for name in columns]]
    cells += [[text_of(row.get(name)) for name in columns] for row in rows[:most]]
    widths = [max(len(row[at]) for row in cells) for at in range(len(columns))]
    found = [
        "  ".join(
            text.ljust(width) if at == 0 else text.rjust(width)
            for at, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]
    return found if len(rows) <= most else [*found, f"{len(rows) - most} more rows in the file"]


def table(rows: list[dict[str, Any]], time_unit: str = "s") -> str:
    """A table whose columns are those of all rows together."""
    if not rows:
        return "<p>No rows.</p>"
    columns = list(dict.fromkeys(key for row in rows for key in row))
    head = "".join(f"<th>{html.escape(heading(name, time_unit))}</th>" for name in columns)
    body = "".join(
        "<tr>"
        + "".join(f"<td>{html.escape(text_of(row.get(key)))}</td>" for key in columns)
        + "</tr>"
        for row in rows[:ROWS_MAX]
    )
    more = f"<p>{len(rows) - ROWS_MAX} more in the file.</p>" if len(rows) > ROWS_MAX else ""
    return f"<table><tr>{head}</tr>{body}</table>{more}"


def tests_table(tests: dict[str, Any]) -> list[dict[str, Any]]:
    """Rank tests as rows; one row per function if there are functions."""
    if not tests:
        return []
    by_function = {"": tests} if "kruskal_wallis" in tests else tests
    rows = []
    for function, found in by_function.items():
        if not found:
            continue
        head = {"function": function} if function else {}
        groups = found["kruskal_wallis"]
        rows.append(
            {
                **head,
                "test": "Kruskal-Wallis",
                "statistic": groups["h"],
                "p": groups["p"],
                "effect": groups["effect"],
                "rejected": groups["p"] < found["alpha"],
            }
        )
        for pair, one in found["mann_whitney"].items():
            rows.append(
                {
                    **head,
                    "test": f"Mann-Whitney {pair}",
                    "statistic": one["u"],
                    "p": one["p"],
                    "effect": one["effect"],
                    "rejected": one["p"] < found["alpha"],
                }
            )
    return rows


def section(run: Stored, paths: list[Path]) -> str:
    """One run."""
    summary = run.summary
    machine = summary["environment"]
    parts = [
        f'<h2 id="{run.folder.name}">{html.escape(summary["title"])}</h2>',
        f'<p class="about">{html.escape(summary["about"])} Experiment <b>{run.experiment}</b>, '
        f"profile <b>{summary['profile']}</b>, targets {', '.join(summary['targets'])}; after "
        f"{html.escape(cited(summary['paper']))}. "
        f"{summary['at']}, {summary.get('seconds', 0)} s, {html.escape(machine['cpu'])}, "
        f"{machine['cores']} cores, {machine.get('busy_before', 0):.0%} busy before.</p>",
    ]
    parts += [f'<p class="missing">Missing: {html.escape(line)}</p>' for line in summary["missing"]]
    for path in paths:
        data = base64.b64encode(path.read_bytes()).decode()
        name = html.escape(path.stem)
        parts.append(f'<img alt="{run.experiment}: {name}" src="data:image/png;base64,{data}">')
    parts.append(table(summary["table"], summary.get("unit", "s")))
    parts += [table(summary[name]) for name in ("ratios", "first") if summary.get(name)]
    stated = papers()
    stated = stated[stated.experiment == run.experiment]
    if len(stated):
        columns = ["system", "what", "value", "unit", "paper"]
        shown = stated[columns].assign(paper=[cited(key) for key in stated.paper])
        parts += ["<h4>Stated by the papers</h4>", table(shown.to_dict("records"))]
    rows = tests_table(summary.get("tests", {}))
    if rows:
        parts.append(f"<details><summary>Rank tests</summary>{table(rows)}</details>")
    return "\n".join(parts)


def _failed(failed: list[dict[str, Any]]) -> str:
    """The failed runs with their reasons; results shown below them are from an earlier run."""
    if not failed:
        return ""
    lines = "".join(
        f"<li>{html.escape(one['experiment'])} ({one['profile']}, {one['at']}): "
        f"{html.escape(one['failed'])}</li>"
        for one in failed
    )
    return f"<h2 id='failed'>Runs that failed</h2><ul class='missing'>{lines}</ul>"


def _golden() -> str:
    """What the study claims and what its raw data say."""
    study = Study()
    found = claims(study)
    rows = [
        {
            "claim": row.claim,
            "paper": row.paper,
            "computed here": found[row.id],
            "verdict": row.status,
        }
        for row in study.table("statistics.csv").itertuples()
    ]
    return (
        "<h2 id='papers'>The papers</h2><ul>"
        + "".join(
            f"<li>{html.escape(one.short)}: {html.escape(one.full)}</li>" for one in PAPERS.values()
        )
        + "</ul><h2 id='study'>The study's statistics, from its raw data</h2>"
        f"<p class='about'>Data of {html.escape(PAPERS['000'].full)}, Apache-2.0, in "
        f"<code>bench/reference/{FOLDER.name}</code>.</p>" + table(rows)
    )


def write(folder: Path, target: Path) -> Path:
    """Redraws every run below `folder` and writes the page."""
    runs, failed = stored(folder), failures(folder)
    if not runs and not failed:
        raise Failed(f"{folder}: no runs yet; ./lab run NAME creates one")
    order = list(EXPERIMENTS)
    runs.sort(key=lambda run: (order.index(run.experiment), run.folder.name))
    sections = []
    for run in runs:
        paths = figures.save(run, EXPERIMENTS[run.experiment].figures(run))
        sections.append(section(run, paths))
    links = "".join(
        f'<a href="#{run.folder.name}">{run.experiment} ({run.summary["profile"]})</a>'
        for run in runs
    )
    page = (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>The lab of mote</title>'
        f"<style>{STYLE}</style><h1>The lab of mote</h1><p>{environment.now()}. Numbers of the "
        "papers were measured on their machines, ours on the machine of each run: compare "
        "only shapes and ratios. Runs of the profile <i>smoke</i> show only that the code "
        f"works.</p><nav>{links}<a href='#study'>the study's statistics</a></nav>"
        + _failed(failed)
        + "\n".join(sections)
        + _golden()
        + "</html>\n"
    )
    target.write_text(page)
    return target
