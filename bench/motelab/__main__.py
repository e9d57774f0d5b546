"""The command line: `lab list`, `lab run`, `lab report`, `lab publish`."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import sys
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from motelab import catalog, environment
from motelab.catalog import BRIEF, PLANES, PROFILES, ROOT, TARGETS, Workload, cache_folder
from motelab.experiments import EXPERIMENTS
from motelab.experiments.base import Experiment
from motelab.papers import PAPERS, cited
from motelab.processes import Failed

# `./lab list` needs none of the packages that measure and draw.
if TYPE_CHECKING:
    from motelab.results import Stored
    from motelab.session import Lab

PUBLISHED = ROOT / "bench" / "results" / "lab"
#: The page that `lab evidence --page` writes.
EVIDENCE = ROOT / "docs" / "evidence.md"
#: Tables larger than this stay where they were measured.
PUBLISHED_BYTES_MAX = 600_000
#: Longest list of workloads, and of targets, in the name of a folder.
ONLY_CHARS_MAX, TARGETS_CHARS_MAX = 80, 48
#: Share of the machine that other programs may use before a run is warned of.
BUSY_MAX = 0.1


def name_of(
    experiment: str,
    profile: str,
    targets: list[str],
    runtime: str = "python",
    only: list[Workload] | None = None,
    repeats: int = 0,
) -> str:
    """The name of a run's folder below the folder of results; each different choice has its own
    folder."""
    parts = [experiment, profile, shortened(targets)]
    if experiment not in EXPERIMENTS or runtime != EXPERIMENTS[experiment].runtime:
        parts.append(runtime)
    if only:
        chosen = "+".join(workload.name for workload in only)
        if len(chosen) > ONLY_CHARS_MAX:
            digest = hashlib.sha256(chosen.encode()).hexdigest()[:8]
            chosen = f"{len(only)}-workloads-{digest}"
        parts += ["only", chosen]
    if repeats:
        parts.append(f"{repeats}-repeats")
    return "-".join(parts)


def shortened(targets: list[str]) -> str:
    """The names of targets, or of the first ones and how many others there are."""
    joined = "-".join(targets)
    if len(joined) <= TARGETS_CHARS_MAX:
        return joined
    digest = hashlib.sha256(joined.encode()).hexdigest()[:6]
    return f"{'-'.join(targets[:2])}-and-{len(targets) - 2}-others-{digest}"


def folder_of(lab: Lab, experiment: str) -> str:
    """The path of a run below the folder of results."""
    return name_of(
        experiment, lab.profile, lab.target_names, lab.runtime, lab.only, lab.repeats
    )


def earlier(folders: list[Path], name: str) -> float | None:
    """How many seconds the previous run of this name took."""
    for folder in folders:
        try:
            summary = json.loads((folder / name / "summary.json").read_text())
            return float(summary["seconds"])
        except (OSError, ValueError, KeyError):
            continue
    return None


def spoken(seconds: float) -> str:
    """A duration as text for people."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} h"


def estimate(folders: list[Path], names: list[str]) -> str:
    """Estimates how long runs will take, as far as earlier runs of the same kind show it."""
    known = {name: seconds for name in names if (seconds := earlier(folders, name)) is not None}
    if not known:
        return "no estimate: no run of this kind is stored yet"
    text = f"about {spoken(sum(known.values()))}, as long as before"
    if len(known) < len(names):
        text += f", and {len(names) - len(known)} of {len(names)} experiments without an estimate"
    return text


def run_one(lab: Lab, experiment: Experiment, into: Path) -> Stored:
    """Runs, stores and draws. A failed run stores its reason in place of its results."""
    from motelab import figures, results

    folder = into / folder_of(lab, experiment.name)
    head = head_of(lab, experiment)
    warn_if_busy(head["environment"])
    begun = time.monotonic()
    try:
        outcome = experiment.run(lab)
        head["seconds"] = round(time.monotonic() - begun, 1)
        head["load_after"] = [round(value, 2) for value in os.getloadavg()]
        head["described"] = lab.described()
        stored = results.write(folder, head, outcome)
        figures.save(stored, experiment.figures(stored))
    except Exception as error:
        results.write_failure(folder, head, reason(error))
        raise
    return stored


def reason(error: Exception) -> str:
    """Why a run failed. Our own errors explain themselves; for other errors the type is needed
    too."""
    return str(error) if isinstance(error, Failed) else f"{type(error).__name__}: {error}"


def warn_if_busy(machine: dict[str, Any]) -> None:
    """Warns before the run that other programs are using the machine."""
    busy = machine["busy_before"]
    if busy > BUSY_MAX:
        print(
            f"  WARNING: other programs use {busy:.0%} of the processors; the results will show "
            "them too. End these programs, or compare only ratios of alternated measurements.",
            file=sys.stderr,
            flush=True,
        )


def head_of(lab: Lab, experiment: Experiment) -> dict[str, Any]:
    """What identifies a run."""
    return {
        "experiment": experiment.name,
        "title": experiment.title,
        "paper": experiment.paper,
        "about": experiment.about,
        "profile": lab.profile,
        "repeats": lab.repeats,
        "runtime": lab.runtime,
        "targets": lab.target_names,
        "only": [workload.name for workload in lab.only or ()],
        "at": environment.now(),
        "environment": environment.record(lab.mote),
    }


def run(args: argparse.Namespace) -> int:
    """`lab run`."""
    names = list(EXPERIMENTS) if args.all else args.names
    unknown = [name for name in names if name not in EXPERIMENTS]
    if unknown or not names:
        raise Failed(f"no experiment {', '.join(unknown)}: ./lab list shows all of them")
    if args.repeats and (once := [name for name in names if not EXPERIMENTS[name].repeats]):
        raise Failed(f"{', '.join(once)}: measures once, so leave --repeats out")
    from motelab.report import lines
    from motelab.session import Lab

    only = catalog.named(args.only.split(",")) if args.only else None
    folders = {}
    for name in names:
        targets = args.target.split(",") if args.target else list(EXPERIMENTS[name].targets)
        runtime = args.runtime or EXPERIMENTS[name].runtime
        folders[name] = name_of(name, args.profile, targets, runtime, only, args.repeats)
    print(estimate([args.results, PUBLISHED], list(folders.values())), flush=True)
    failed = []
    for name in names:
        experiment = EXPERIMENTS[name]
        targets = args.target.split(",") if args.target else list(experiment.targets)
        print(f"{name} ({args.profile}, {', '.join(targets)})", flush=True)
        try:
            runtime = args.runtime or experiment.runtime
            peers = dict(args.peer or ())
            with Lab(
                args.profile, targets, args.url, only, runtime, peers, args.repeats,
                quiet=args.quiet,
            ) as lab:
                stored = run_one(lab, experiment, args.results)
        except Exception as error:
            # One experiment that cannot be run must not cost the results of the others.
            if not isinstance(error, Failed):
                traceback.print_exc()
            print(f"  FAILED: {reason(error)}", file=sys.stderr, flush=True)
            failed.append(name)
            continue
        for target, told in stored.summary["described"].items():
            print(f"  {target}: {'; '.join(text for text in told.values() if text)}", flush=True)
        for line in stored.summary["missing"]:
            print(f"  MISSING: {line}", flush=True)
        for line in lines(stored.summary["table"], stored.summary.get("unit", "s")):
            print(f"  {line}", flush=True)
        print(f"  {stored.summary['seconds']} s, in {stored.folder}", flush=True)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def listing(_: argparse.Namespace) -> int:
    """`lab list`."""
    for one in EXPERIMENTS.values():
        print(f"{one.name:26} {cited(one.paper):28} {one.title}. {one.about}")
    print()
    for paper in PAPERS.values():
        print(f"{paper.short}: {paper.full}")
    print()
    for workload in catalog.workloads().values():
        needs = f" (needs {', '.join(workload.needs)})" if workload.needs else ""
        number = str(workload.number) if workload.number else "-"
        print(f"{number:>2} {workload.name:20} {workload.title}{needs}")
    return 0


def draw(args: argparse.Namespace) -> int:
    """`lab draw`."""
    from motelab import figures, results

    for stored in results.stored(args.results):
        figures.save(stored, EXPERIMENTS[stored.experiment].figures(stored))
    return 0


def report(args: argparse.Namespace) -> int:
    """`lab report`."""
    from motelab.report import write

    print(write(args.results, args.output or args.results / "report.html"))
    return 0


def publish(args: argparse.Namespace) -> int:
    """`lab publish`: copies runs into the repository, without their largest tables."""
    for name in args.runs:
        source = args.results / name
        target = PUBLISHED / name
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        for path in sorted(source.iterdir()):
            if path.stat().st_size <= PUBLISHED_BYTES_MAX:
                shutil.copy(path, target)
            else:
                print(f"left out: {path.name} ({path.stat().st_size >> 10} KiB)")
    return 0


def evidence(args: argparse.Namespace) -> int:
    """`lab evidence`: writes the page from the stored runs, or repeats it in a short form."""
    from motelab.evidence import page
    from motelab.evidence.figures import Runs

    stored = Runs.below(PUBLISHED, PUBLISHED.parent)
    if args.page:
        EVIDENCE.write_text(page.page(stored))
        print(EVIDENCE)
        return 0
    from motelab.evidence.repeat import repeat

    return repeat(args.results / "evidence", stored, dict(args.peer or ()), args.minutes)


def peer(text: str) -> tuple[str, Path]:
    """The value of `--peer`."""
    name, _, folder = text.partition("=")
    if name not in PLANES or not folder or not Path(folder).is_dir():
        raise argparse.ArgumentTypeError(
            f"{text!r} must be NAME=FOLDER, with an existing folder and one of {', '.join(PLANES)}"
        )
    return name, Path(folder).resolve()


def add_peers(verb: argparse.ArgumentParser) -> None:
    """Adds `--peer`."""
    verb.add_argument(
        "--peer",
        type=peer,
        action="append",
        metavar="NAME=FOLDER",
        help=f"where a data plane was built: {', '.join(PLANES)}",
    )


def positive(text: str) -> int:
    """A number of times."""
    if not (text.isascii() and text.isdecimal() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"a whole number from 1 on, found {text!r}")
    return int(text)


def parser() -> argparse.ArgumentParser:
    """The arguments of the command line."""
    every = argparse.ArgumentParser(
        prog="lab", description="Repeats published comparisons of serverless platforms."
    )
    every.add_argument(
        "--results",
        type=Path,
        default=cache_folder() / "results",
        help="folder of runs [default: %(default)s]",
    )
    verbs = every.add_subparsers(required=True)
    verb = verbs.add_parser("list", help="experiments and workloads")
    verb.set_defaults(call=listing)
    verb = verbs.add_parser("run", help="run experiments, store and draw them")
    verb.add_argument("names", nargs="*", metavar="NAME")
    verb.add_argument("--all", action="store_true", help="every experiment")
    verb.add_argument("--profile", choices=(*PROFILES, BRIEF), default="smoke")
    verb.add_argument("--target", help=f"one of {', '.join(TARGETS)}; separate several with commas")
    verb.add_argument(
        "--repeats",
        type=positive,
        default=0,
        metavar="N",
        help="how often each measurement is repeated [default: as the profile says]",
    )
    verb.add_argument("--url", help="URL of the functions of openfaas or http")
    verb.add_argument("--only", help="workloads, separated with commas")
    verb.add_argument(
        "--runtime",
        choices=("python", "node", "rust", "wasm"),
        help="language of the workloads of serial, parallel-20, cold-start, overhead [default:"
        " python] and of the sweeps [default: node]",
    )
    add_peers(verb)
    verb.add_argument("-q", "--quiet", action="store_true")
    verb.set_defaults(call=run)
    verb = verbs.add_parser("draw", help="draw the figures of all runs again")
    verb.set_defaults(call=draw)
    verb = verbs.add_parser("report", help="one page with all runs")
    verb.add_argument("--output", type=Path)
    verb.set_defaults(call=report)
    verb = verbs.add_parser("evidence", help="repeat docs/evidence.md in a short form")
    verb.add_argument("--page", action="store_true", help="write the page from the stored runs")
    verb.add_argument(
        "--minutes",
        type=float,
        default=20.0,
        help="skip what would take longer altogether [default: %(default)s]",
    )
    add_peers(verb)
    verb.set_defaults(call=evidence)
    verb = verbs.add_parser("publish", help="copy runs into bench/results/lab")
    verb.add_argument("runs", nargs="+", metavar="RUN")
    verb.set_defaults(call=publish)
    return every


def main() -> int:
    """Exit status 1 when an experiment failed, 2 for wrong usage."""
    args = parser().parse_args()
    try:
        status: int = args.call(args)
    except (Failed, LookupError) as error:
        print(f"lab: {error}", file=sys.stderr)
        return 1
    return status


if __name__ == "__main__":
    sys.exit(main())
