#!/usr/bin/env python3
"""Finds import cycles between the modules of each crate: `check-cycles.py`, without arguments.

A module is a file. It imports another one where a path in its code, tests left out, begins with
`crate`, `super` or `self` and leads there. Paths between a module and those below it do not
count: a file that declares modules puts them together and lends them its types. The modules of a
cycle can only be read and changed together, so there must be none: the script exits with 1 when it
finds one.
"""

import os
import re
import sys
from pathlib import Path

Graph = dict[str, set[str]]

COMMENT = re.compile(r"//[^\n]*")
TESTS = "#[cfg(test)]\nmod tests {"
WORD = re.compile(r"\w+")
PATH_START = re.compile(r"(?<![\w:$])(?:crate|super|self)(?=::)")


def modules(source: Path) -> dict[str, Path]:
    """Each file below `source` by the path of its module; that of the crate itself is empty."""
    found = {}
    for file in sorted(source.rglob("*.rs")):
        parts = list(file.relative_to(source).with_suffix("").parts)
        if parts[-1] in ("mod", "lib", "main"):
            parts.pop()
        if parts[-1:] != ["tests"] and not (parts and parts[-1].endswith("_tests")):
            found["::".join(parts)] = file
    return found


def paths(code: str, start: int) -> tuple[list[list[str]], int]:
    """The paths that the text from `start` on stands for, and where they end.

    `a::{b, c::d}` is two of them, `[a, b]` and `[a, c, d]`.
    """
    if code[start : start + 1] != "{":
        word = WORD.match(code, start)
        if not word:
            return [[]], start + 1 if code[start : start + 1] == "*" else start
        if code[word.end() : word.end() + 2] != "::":
            return [[word[0]]], word.end()
        rest, end = paths(code, word.end() + 2)
        return [[word[0], *path] for path in rest], end
    every, at = [], start + 1
    while at < len(code) and code[at] != "}":
        if code[at] in ", \n\t":
            at += 1
            continue
        some, after = paths(code, at)
        every += some
        # Skips `as NAME` and anything else that follows a path in a list.
        while after < len(code) and code[after] not in ",}":
            after += 1
        at = after
    return every, at + 1


def imports(module: str, code: str, known: dict[str, Path]) -> set[str]:
    """Modules of the crate that `code`, the text of `module`, leads to."""
    here = module.split("::") if module else []
    found = set()
    for start in PATH_START.finditer(code):
        for path in paths(code, start.start())[0]:
            base, path = ([], path[1:]) if path[0] == "crate" else (list(here), path)
            while path and path[0] in ("super", "self"):
                if path.pop(0) == "super" and base:
                    base.pop()
            whole = base + path
            names = ("::".join(whole[:count]) for count in range(len(whole), 0, -1))
            target = next((name for name in names if name in known), "")
            if target and not is_unit(module, target):
                found.add(target)
    return found


def is_unit(one: str, other: str) -> bool:
    """Whether one of two modules is the other or lies below it."""
    return one == other or one.startswith(f"{other}::") or other.startswith(f"{one}::")


def graph_of(source: Path) -> Graph:
    """Which module of a crate imports which."""
    known = modules(source)
    graph = {}
    for module, file in known.items():
        code = COMMENT.sub("", file.read_text(encoding="utf-8"))
        graph[module] = imports(module, code.split(TESTS)[0], known)
    return graph


def reached(graph: Graph, start: str) -> set[str]:
    """Modules that `start` leads to over one import or more."""
    found: set[str] = set()
    left = [start]
    while left:
        new = graph[left.pop()] - found
        found |= new
        left += new
    return found


def cycles(graph: Graph) -> list[set[str]]:
    """Groups of modules each of which leads to all others of its group."""
    reach = {module: reached(graph, module) for module in graph}
    groups: list[set[str]] = []
    for module in graph:
        if module in reach[module] and not any(module in group for group in groups):
            groups.append({other for other in reach[module] if module in reach[other]})
    return groups


def main() -> int:
    os.chdir(Path(__file__).parent.parent)
    crates = sorted(path.parent for path in Path("crates").glob("*/*/Cargo.toml"))
    found = 0
    for crate in crates:
        for group in cycles(graph_of(crate / "src")):
            found += 1
            print(f"cycle of modules in {crate.name}: {', '.join(sorted(group))}")
    if not found:
        print(f"{len(crates)} crates have no cycle of modules")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
