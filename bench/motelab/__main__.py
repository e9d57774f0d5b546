"""The command line: `lab list`, `lab run`, `lab report`, `lab publish`."""

from __future__ import annotations

import argparse
import shutil
import sys
import time
import traceback
from pathlib import Path

from motelab import catalog, environment, figures, results
from motelab.catalog import PROFILES, ROOT
from motelab.experiments import EXPERIMENTS
from motelab.experiments.base import Experiment
from motelab.papers import PAPERS, cited
from motelab.processes import Failed
from motelab.session import TARGETS, Lab, cache_folder

PUBLISHED = ROOT / "bench" / "results" / "lab"
#: Tables larger than this stay where they were measured.
PUBLISHED_BYTES_MAX = 600_000


def folder_of(lab: Lab, experiment: str) -> str:
    """Where a run lies below the folder of results."""
    parts = [experiment, lab.profile, *lab.target_names]
    return "-".join(parts if lab.runtime == "python" else [*parts, lab.runtime])


def run_one(lab: Lab, experiment: Experiment, into: Path) -> results.Stored:
    """Runs, stores and draws. A run that fails leaves its reason where its results would lie."""
    folder = into / folder_of(lab, experiment.name)
    head = head_of(lab, experiment)
    begun = time.monotonic()
    try:
        outcome = experiment.run(lab)
        head["seconds"] = round(time.monotonic() - begun, 1)
        stored = results.write(folder, head, outcome)
        figures.save(stored, experiment.figures(stored))
    except Exception as error:
        results.write_failure(folder, head, reason(error))
        raise
    return stored


def reason(error: Exception) -> str:
    """Why a run failed: our own errors speak for themselves, of others the type is needed too."""
    return str(error) if isinstance(error, Failed) else f"{type(error).__name__}: {error}"


def head_of(lab: Lab, experiment: Experiment) -> dict[str, object]:
    """What identifies a run."""
    return {
        "experiment": experiment.name,
        "title": experiment.title,
        "paper": experiment.paper,
        "about": experiment.about,
        "profile": lab.profile,
        "runtime": lab.runtime,
        "targets": lab.target_names,
        "at": environment.now(),
        "environment": environment.record(lab.mote),
    }


def run(args: argparse.Namespace) -> int:
    """`lab run`."""
    names = list(EXPERIMENTS) if args.all else args.names
    unknown = [name for name in names if name not in EXPERIMENTS]
    if unknown or not names:
        raise Failed(f"no experiment {', '.join(unknown)}: ./lab list shows all of them")
    only = catalog.named(args.only.split(",")) if args.only else None
    failed = []
    for name in names:
        experiment = EXPERIMENTS[name]
        targets = args.target.split(",") if args.target else list(experiment.targets)
        print(f"{name} ({args.profile}, {', '.join(targets)})", flush=True)
        try:
            with Lab(args.profile, targets, args.url, only, args.runtime, quiet=args.quiet) as lab:
                stored = run_one(lab, experiment, args.results)
        except Exception as error:
            # One experiment that cannot be run must not cost the results of the others.
            if not isinstance(error, Failed):
                traceback.print_exc()
            print(f"  FAILED: {reason(error)}", file=sys.stderr, flush=True)
            failed.append(name)
            continue
        for line in stored.summary["missing"]:
            print(f"  MISSING: {line}", flush=True)
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


def parser() -> argparse.ArgumentParser:
    """What can be asked."""
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
    verb.add_argument("--profile", choices=PROFILES, default="smoke")
    verb.add_argument("--target", help=f"one of {', '.join(TARGETS)}; separate several with commas")
    verb.add_argument("--url", help="URL of the functions of openfaas or http")
    verb.add_argument("--only", help="workloads, separated with commas")
    verb.add_argument(
        "--runtime",
        choices=("python", "rust"),
        default="python",
        help="language of the workloads of serial, parallel-20, cold-start and overhead",
    )
    verb.add_argument("-q", "--quiet", action="store_true")
    verb.set_defaults(call=run)
    verb = verbs.add_parser("draw", help="draw the figures of all runs again")
    verb.set_defaults(call=draw)
    verb = verbs.add_parser("report", help="one page with all runs")
    verb.add_argument("--output", type=Path)
    verb.set_defaults(call=report)
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
