"""What the study of Kubernetes distributions for the edge claims, computed from its raw data.

The data and their licence are in `reference/edge-k8s-study`. `claims()` gives every row of
`statistics.csv` in the words of that file; tests compare the two. The module is pure except for
reading the files.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from motelab.statistics import histogram5, kruskal_wallis, mann_whitney

FOLDER = Path(__file__).resolve().parent.parent / "reference" / "edge-k8s-study"
PLATFORMS = ["kubespray", "k3s", "microk8s"]
NAMES = {"kubespray": "Kubespray", "k3s": "K3s", "microk8s": "MicroK8s"}
PARALLEL = 20
#: Functions that hold the interpreter's lock while they compute.
INTERPRETER_BOUND = ["float-operation", "chameleon", "pyaes", "gzip-compression"]


class Study:
    """The raw measurements and what follows from them."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self.folder = folder

    def table(self, name: str) -> Any:
        """A table of the folder."""
        return pd.read_csv(self.folder / name)

    @cached_property
    def starts(self) -> Any:
        """Container starts in seconds."""
        return self.table("raw/cold_start_pod_delay.csv.gz")

    @cached_property
    def cold(self) -> Any:
        """Responses of the same runs."""
        return self.table("raw/cold_start_response.csv.gz")

    @cached_property
    def serial(self) -> Any:
        """Responses, one after the other."""
        return self.table("raw/serial_response.csv.gz")

    @cached_property
    def parallel(self) -> Any:
        """Responses of 20 requests at once."""
        return self.table("raw/parallel20_response.csv.gz")

    @cached_property
    def hpa(self) -> Any:
        """Aggregates of the scaling tests; their raw rows are not in the reference."""
        return self.table("hpa_response.csv")

    @property
    def functions(self) -> list[str]:
        """The fourteen."""
        return sorted(self.serial.function.unique())

    def delays(self, platform: str) -> Any:
        """Container starts of one platform, all functions."""
        return self.starts[self.starts.platform == platform].delay_s

    def serial_of(self, function: str, platform: str) -> Any:
        """Serial responses."""
        rows = self.serial
        return rows[(rows.function == function) & (rows.platform == platform)].response_s

    def parallel_of(self, function: str, platform: str) -> Any:
        """Parallel responses."""
        rows = self.parallel
        return rows[(rows.function == function) & (rows.platform == platform)].response_s

    def serial_tests(self) -> Any:
        """One row per function, as `serial_tests.csv` has them."""
        rows = []
        for function in self.functions:
            samples = {name: self.serial_of(function, name) for name in PLATFORMS}
            groups = kruskal_wallis(*samples.values())
            pair = mann_whitney(samples["k3s"], samples["microk8s"])
            is_k3s = samples["k3s"].mean() < samples["microk8s"].mean()
            rows.append(
                {
                    "function": function,
                    **{f"n_{name}": len(values) for name, values in samples.items()},
                    "kw_H": groups.h,
                    "kw_p": groups.p,
                    "kw_reject": int(groups.rejected),
                    "mwu_U": pair.u,
                    "mwu_p": pair.p,
                    "mwu_p_asymptotic": pair.p_asymptotic,
                    "mwu_method": pair.method,
                    "mwu_reject": int(pair.rejected),
                    "faster_by_mean": "k3s" if is_k3s else "microk8s",
                }
            )
        return pd.DataFrame(rows)

    def parallel_table(self) -> Any:
        """One row per function and platform, as `parallel20.csv` has them."""
        rows = []
        for function in self.functions:
            for platform in PLATFORMS:
                values = self.parallel_of(function, platform)
                total = values.max()
                mean = self.serial_of(function, platform).mean()
                rows.append(
                    {
                        "function": function,
                        "platform": platform,
                        "n": len(values),
                        "total": total,
                        "mean": values.mean(),
                        "median": values.median(),
                        "min": values.min(),
                        "hist5": "|".join(str(count) for count in histogram5(values)),
                        "speedup_vs_serial": PARALLEL * mean / total,
                    }
                )
        return pd.DataFrame(rows)

    def serial_table(self) -> Any:
        """One row per function and platform, as `serial.csv` has them."""
        return _summaries(self.serial, "response_s").rename(columns={"n": "count"})

    def start_table(self) -> Any:
        """One row per function and platform, as `cold_start_pod.csv` has them."""
        return _summaries(self.starts, "delay_s")


def _summaries(rows: Any, column: str) -> Any:
    grouped = rows.groupby(["function", "platform"])[column]
    return grouped.agg(
        n="count",
        mean="mean",
        median="median",
        p95=lambda values: values.quantile(0.95),
        min="min",
        max="max",
        std="std",
    ).reset_index()


def claims(study: Study) -> dict[str, str]:
    """Every row of `statistics.csv`: its id and what we compute, in that file's words."""
    makers: list[Callable[[Study], dict[str, str]]] = [
        _cold_starts,
        _cold_start_tests,
        _serial,
        _dd,
        _parallel,
        _hpa,
        _replicas,
        _native,
    ]
    found: dict[str, str] = {}
    for maker in makers:
        found |= maker(study)
    return dict(sorted(found.items()))


def _cold_starts(study: Study) -> dict[str, str]:
    counts = [len(study.delays(name)) for name in PLATFORMS]
    means = {name: study.delays(name).mean() for name in PLATFORMS}
    medians = " / ".join(f"{study.delays(name).median():.0f}" for name in PLATFORMS)
    slower = means["kubespray"]
    outliers = sorted(int(value) for value in study.delays("k3s") if value > 17)
    others = " / ".join(str(study.delays(name).max()) for name in ("kubespray", "microk8s"))
    cold = study.cold.groupby("platform").response_s
    ends = " / ".join(f"{name} {cold.mean()[name]:.4f}" for name in PLATFORMS)
    return {
        "G01": f"{counts[0]} / {sum(counts)}",
        **{f"G0{at + 2}": f"{means[name]:.6f}" for at, name in enumerate(PLATFORMS)},
        "G07": f"{_change(slower, means['k3s'])} vs K3s; {_change(slower, means['microk8s'])}"
        " vs MicroK8s",
        "G08": medians,
        "G09": f"{len(outliers)} value(s): {outliers}; others max {others}",
        "G11": ends,
    }


def _change(now: float, before: float) -> str:
    return f"{(now / before - 1) * 100:+.2f}%"


def _cold_start_tests(study: Study) -> dict[str, str]:
    groups = kruskal_wallis(*(study.delays(name) for name in PLATFORMS))
    pair = mann_whitney(study.delays("k3s"), study.delays("microk8s"))
    rows = study.cold
    responses = mann_whitney(
        rows[rows.platform == "k3s"].response_s, rows[rows.platform == "microk8s"].response_s
    )
    return {
        "G05": f"U={pair.u} p={pair.p:.14f}",
        "G06": f"H={groups.h:.6f} p={groups.p:.6e}",
        "G10": f"U={responses.u} p={responses.p:.6f}",
    }


def _serial(study: Study) -> dict[str, str]:
    tests = study.serial_tests()
    near = int((abs(tests.n_k3s - tests.n_microk8s) <= 1).sum())
    is_most = (tests.n_kubespray > tests.n_k3s) & (tests.n_kubespray > tests.n_microk8s)
    most = ", ".join(tests[is_most].function)
    kept = ", ".join(tests[tests.kw_reject == 0].function)
    alike = ", ".join(tests[tests.mwu_reject == 0].function)
    rejected = tests[tests.mwu_reject == 1]
    better = [int((rejected.faster_by_mean == name).sum()) for name in ("k3s", "microk8s")]
    every = len(tests)
    return {
        "G12": f"{near} of {every}",
        "G13": most,
        "G14": f"{int(tests.kw_reject.sum())} of {every} (not {kept})",
        "G15": f"{len(rejected)} of {every} (not {alike})",
        "G16": f"{better[0]} / {better[1]}",
    }


def _dd(study: Study) -> dict[str, str]:
    values = {name: study.serial_of("dd", name) for name in PLATFORMS}
    ours = values["kubespray"]

    def both(change: Callable[[Any], str]) -> str:
        return f"{change(values['k3s'])} vs K3s; {change(values['microk8s'])} vs MicroK8s"

    return {
        "G17": both(lambda other: _change(len(ours), len(other))),
        "G18": both(lambda other: _change(ours.mean(), other.mean())),
    }


def _parallel(study: Study) -> dict[str, str]:
    table = study.parallel_table()
    totals = table.pivot(index="function", columns="platform", values="total")[PLATFORMS]
    fastest = totals.idxmin(axis=1).value_counts()
    alike = table[table.hist5 == "4|4|4|4|4"]
    on_k3s = sorted(alike[alike.platform == "k3s"].function)
    chosen = table[table.function.isin(on_k3s)]
    found = len(alike[alike.function.isin(on_k3s)])
    exceptions = chosen[chosen.hist5 != "4|4|4|4|4"]
    left_out = ", ".join(
        f"{row.function} on {NAMES[row.platform]}" for row in exceptions.itertuples()
    )
    bound = table[table.function.isin(INTERPRETER_BOUND)].speedup_vs_serial
    means = study.serial_table().pivot(index="function", columns="platform", values="mean")
    slowest = all(
        (of.loc[name].idxmax() == "kubespray")
        for name in ("matmul", "linpack")
        for of in (means, totals)
    )
    return {
        "G19": " / ".join(str(int(fastest.get(name, 0))) for name in PLATFORMS),
        "G20": f"{len(on_k3s)} of {len(on_k3s)} on K3s; {found} of {len(chosen)} over all three"
        f" (not {left_out})",
        "G21": "speed-up over serial of interpreter-bound functions"
        f" ({', '.join(INTERPRETER_BOUND)}) {bound.min():.2f}..{bound.max():.2f} (< 1)",
        "G22": str(slowest),
    }


def _hpa(study: Study) -> dict[str, str]:
    found = {}
    for claim, test in (("G23", "ramp2"), ("G24", "down2"), ("G25", "varied")):
        rows = study.hpa[study.hpa.test == test]
        sums = {
            name: (of["mean"] * of.n).sum() / of.n.sum()
            for name in PLATFORMS
            for of in [rows[rows.platform == name]]
        }
        means = rows.pivot(index="concurrency", columns="platform", values="mean")[PLATFORMS]
        both = means.dropna()
        slowest = int((both.idxmax(axis=1) == "kubespray").sum())
        fastest = int((both.idxmin(axis=1) == "microk8s").sum())
        shown = " / ".join(f"{sums[name]:.4f}" for name in PLATFORMS)
        found[claim] = (
            f"request-weighted mean {shown} s; Kubespray slowest at {slowest} of {len(both)}"
            f" levels; MicroK8s fastest at {fastest}"
        )
    return found


def _replicas(study: Study) -> dict[str, str]:
    table = study.table("hpa_replicas_ramp4.csv").pivot(
        index="load", columns="platform", values="replicas"
    )
    differs = table[table.k3s != table.microk8s]
    at = [int(load) for load in differs.index]
    values = differs.iloc[0]
    follows = next(
        int(load)
        for load, row in table[table.index > at[-1]].iterrows()
        if row.k3s >= values.microk8s
    )
    lags = table[(table.kubespray < table.k3s) & (table.kubespray < table.microk8s)]
    leads = table[(table.kubespray > table.k3s) & (table.kubespray > table.microk8s)]
    return {
        "G26": f"at load {at}: MicroK8s {values.microk8s:.0f} and K3s {values.k3s:.0f};"
        f" K3s follows at {follows}",
        "G27": f"loads {[int(load) for load in lags.index]} / {[int(x) for x in leads.index]}",
    }


def _native(study: Study) -> dict[str, str]:
    rows = study.table("native_binary_scaling.csv")
    peak = int(rows.replicas.max())
    reached = int(rows[rows.replicas == peak].t_s.iloc[0])
    ups = rows[(rows.t_s > 0) & (rows.t_s <= reached)]
    looks = sorted(ups.t_s.unique())
    step, every = len(ups[ups.t_s == looks[0]]), int(looks[1] - looks[0])
    return {
        "G28": f"{int(rows.replicas.min())} to {peak} replicas in {reached} s; first at"
        f" {int(looks[0])} s; +{step} every {every} s"
    }
