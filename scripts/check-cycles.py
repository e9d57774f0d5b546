#!/usr/bin/env python3
"""Finds import cycles between the modules of each crate: `check-cycles.py`, without arguments.

A module is a file. It imports another one where a path in its code, tests left out, leads there: a
path that begins with `crate`, `super` or `self`, with a module that the file declares, or with one
that it has imported. The modules of a cycle can only be read and changed together, so there must
be none.

Parents and children count like all others, with two rules:

- A parent that only declares and re-exports is transparent: it is in no cycle, and a path through
  it leads to the module that defines the item. Names that any other module re-exports or imports
  are followed in the same way.
- To declare a child, or to re-export its items without using them, is no import.

So a child may use the types of its parent, and may add methods to them, as long as the parent names
nothing of the child. If both need a type, it belongs in a file of its own.

`LENDING` lists the parents whose children may use them although they name their children, each with
a reason: what a child of one of them imports from it does not count. Everything else does, such as
a way from the parent through another module back to it. The script exits with 1 when it finds a
cycle, and when the list has a parent that would be in no cycle without it.
"""

import os
import re
import sys
from pathlib import Path
from typing import NamedTuple

Graph = dict[str, set[str]]
# Modules with the names that were followed in them, so that no search goes round.
Seen = frozenset[tuple[str, str]]

LENDING: dict[str, str] = {
    "cells": "`Shared` holds the peers, whose tasks need all of `Shared`",
    "cli::cli::bench": "has the measurement that its children repeat, and chooses among them",
    "cluster::agent": "starts its children, which need all of `Agent`",
    "cluster::controller": "starts its children, which need all of `Controller`",
    "platforms::nuclio": "lists the routes of its children, which need its `Dashboard`",
    "platforms::openfaas": "lists the routes of its children, which need its `Gateway`",
    "platforms::openwhisk": "lists the routes of its children, which need its `Whisk`",
    "pool::pool": "holds the parts that its children decide about",
    "project::foreign": "chooses the reader of a file, and readers need its small rules",
    "spec::manifest": "holds the sections that its children read into it",
}

COMMENT = re.compile(r"//[^\n]*")
TESTS = "#[cfg(test)]\nmod tests {"
TEST_USE = re.compile(r"#\[cfg\(test\)\]\s*(?:pub(?:\([^)]*\))? )?(?:use|mod) [^;{]*;")
NO_CODE = re.compile(r"#!?\[[^\]]*\]|\bpub\([^)]*\)")
WORD = re.compile(r"\w+")
USE = re.compile(r"^[ \t]*(pub(?:\([^)]*\))?\s+)?use\s+([\w:{},*\s]+);", re.MULTILINE)
MOD = re.compile(r"^[ \t]*(?:pub(?:\([^)]*\))?\s+)?mod\s+(\w+)\s*;", re.MULTILINE)
START = re.compile(r"(?<![\w:$.])([a-z_]\w*)(?=::)")
ROOTS = {"crate", "super", "self"}


class Import(NamedTuple):
    """A leaf of a `use`: the path, the name in this file, and whether others may use the name."""

    path: list[str]
    name: str
    is_public: bool


class Module(NamedTuple):
    """What the text of a file says: its imports, the modules that it declares, and other code."""

    imports: list[Import]
    declared: set[str]
    code: str


def modules(source: Path) -> dict[str, Path]:
    """The files below `source`, by the paths of their modules; the crate itself has the empty
    path."""
    found = {}
    for file in sorted(source.rglob("*.rs")):
        parts = list(file.relative_to(source).with_suffix("").parts)
        if parts[-1] in ("mod", "lib", "main"):
            parts.pop()
        if parts[-1:] != ["tests"] and not (parts and parts[-1].endswith("_tests")):
            found["::".join(parts)] = file
    return found


def leaves(tree: str) -> list[tuple[list[str], str]]:
    """The paths of a `use` with their names: `a::{b, c as d}` is `[a, b]` as b, `[a, c]` as d."""
    tree = tree.strip()
    before, brace, inside = tree.partition("{")
    if brace:
        prefix = [part for part in before.replace(" ", "").split("::") if part]
        every, depth, start = [], 0, 0
        inside = inside.rstrip().removesuffix("}")
        for at, sign in enumerate(f"{inside},"):
            depth += {"{": 1, "}": -1}.get(sign, 0)
            if sign == "," and depth == 0:
                if inside[start:at].strip():
                    every += [([*prefix, *path], name) for path, name in leaves(inside[start:at])]
                start = at + 1
        return [
            (path, name)
            if path[-1] != "self"
            else (path[:-1], path[-2] if name == "self" else name)
            for path, name in every
        ]
    path, _, name = tree.partition(" as ")
    parts = [part.strip() for part in path.split("::") if part.strip()]
    return [(parts, name.strip() or parts[-1])]


def parse(text: str) -> Module:
    """Reads the text of a module."""
    code = TEST_USE.sub("", COMMENT.sub("", text).split(TESTS)[0])
    imports = [
        Import(path, name, bool(use[1]))
        for use in USE.finditer(code)
        for path, name in leaves(use[2])
    ]
    declared = {found[1] for found in MOD.finditer(code)}
    return Module(imports, declared, NO_CODE.sub("", MOD.sub("", USE.sub("", code))))


def is_transparent(module: Module) -> bool:
    """Whether a module only declares and re-exports."""
    return not module.code.strip()


def defines(module: Module, name: str) -> bool:
    """Whether the code of a module has an item of this name."""
    item = rf"\b(?:fn|struct|enum|trait|type|const|static|union) {name}\b"
    return bool(re.search(item, module.code))


class Crate:
    """The modules of a crate, and where paths in them lead."""

    def __init__(self, source: Path):
        files = modules(source)
        self.modules = {
            name: parse(file.read_text(encoding="utf-8")) for name, file in files.items()
        }

    def follow(self, here: str, path: list[str], seen: Seen = frozenset()) -> str | None:
        """The module that defines what `path` means in the module `here`; `None` if it is outside
        the crate."""
        at: str | None = here
        for count, part in enumerate(path):
            assert at is not None
            if part == "crate" and count == 0:
                at = ""
            elif part == "self":
                continue
            elif part == "super":
                at = at.rpartition("::")[0]
            elif part == "*":
                return at
            elif (below := f"{at}::{part}".lstrip(":")) in self.modules:
                at = below
            else:
                return self.item(at, part, path[count + 1 :], seen, count == 0)
        return at

    def item(self, at: str, name: str, rest: list[str], seen: Seen, is_first: bool) -> str | None:
        """The module that defines the item `name` of the module `at`.

        A name that is not found is foreign if it begins a path; otherwise a macro may define it.
        """
        if (at, name) in seen:
            return at
        seen |= {(at, name)}
        module = self.modules[at]
        for one in module.imports:
            if one.name == name and one.path != [name]:
                return self.follow(at, one.path + rest, seen)
        if defines(module, name):
            return at
        for one in module.imports:
            if one.path[-1] == "*":
                target = self.follow(at, one.path[:-1], seen)
                if target is not None and target != at and self.item_in(target, name):
                    return self.item(target, name, rest, seen, False)
        return None if is_first else at

    def item_in(self, module: str, name: str) -> bool:
        """Whether a module defines an item or re-exports it."""
        found = self.modules[module]
        return defines(found, name) or any(one.name == name for one in found.imports)

    def edges(self, name: str) -> set[str]:
        """The modules that the module `name` imports."""
        module = self.modules[name]
        if is_transparent(module):
            return set()
        found = set()
        for one in module.imports:
            target = self.follow(name, one.path)
            if target is None:
                continue
            is_used = one.name != "*" and re.search(rf"\b{one.name}\b", module.code)
            if is_used or not (one.is_public and is_below(target, name)):
                found.add(target)
        local = {one.name for one in module.imports}
        for start in START.finditer(module.code):
            first = start[1]
            if first not in local | module.declared | ROOTS:
                continue
            path, at = [], start.start()
            while word := WORD.match(module.code, at):
                path.append(word[0])
                at = word.end()
                if module.code[at : at + 2] != "::":
                    break
                at += 2
            target = self.follow(name, path)
            if target is not None:
                found.add(target)
        return {to for to in found if to != name and not is_transparent(self.modules[to])}

    def graph(self, lending: set[str]) -> Graph:
        """Which module of the crate imports which, without the imports that `lending` permits."""
        return {
            name: {to for to in self.edges(name) if not (to in lending and is_below(name, to))}
            for name in self.modules
        }


def is_below(one: str, other: str) -> bool:
    """Whether a module lies below another one. Every module lies below the crate itself, which is
    `""`."""
    return one != other and (not other or one.startswith(f"{other}::"))


def reached(graph: Graph, start: str) -> set[str]:
    """Modules that `start` leads to over at least one import."""
    found: set[str] = set()
    left = [start]
    while left:
        new = graph[left.pop()] - found
        found |= new
        left += new
    return found


def cycle_of(graph: Graph, module: str) -> set[str]:
    """The modules that `module` leads to and that lead back to it."""
    return {other for other in reached(graph, module) if module in reached(graph, other)}


def cycles(graph: Graph) -> list[set[str]]:
    """Groups of modules each of which leads to all others of its group."""
    reach = {module: reached(graph, module) for module in graph}
    groups: list[set[str]] = []
    for module in graph:
        if module in reach[module] and not any(module in group for group in groups):
            groups.append({other for other in reach[module] if module in reach[other]})
    return groups


def check(crate: Path) -> list[str]:
    """What is wrong in a crate, one line each."""
    parsed = Crate(crate / "src")
    full = parsed.graph(set())
    listed = {
        module.partition("::")[2] for module in LENDING if module.partition("::")[0] == crate.name
    }
    problems = []
    for module in sorted(listed):
        shown = f"{crate.name}::{module}".removesuffix("::")
        if module not in full:
            problems.append(f"LENDING names {shown}, which does not exist")
        elif not any(is_below(other, module) for other in cycle_of(full, module)):
            problems.append(f"LENDING names {shown}, which is in no cycle with its children")
    for group in cycles(parsed.graph(listed)):
        names = ", ".join(sorted(module or "the crate itself" for module in group))
        problems.append(f"cycle of modules in {crate.name}: {names}")
    return problems


def main() -> int:
    os.chdir(Path(__file__).parent.parent)
    crates = sorted(path.parent for path in Path("crates").glob("*/*/Cargo.toml"))
    known = {crate.name for crate in crates}
    problems = [line for crate in crates for line in check(crate)]
    problems += [
        f"LENDING names {module}, whose crate does not exist"
        for module in LENDING
        if module.partition("::")[0] not in known
    ]
    print("\n".join(problems) or f"{len(crates)} crates have no cycle of modules")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
