#!/usr/bin/env bash
# Runs every check that needs no code of the project: formats, lints and types of Rust, shell,
# Python and JavaScript, cycles of modules, prose. All checks run even when one fails.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh build lint
export PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"
scripts/lab-setup.sh
tools=$PWD/.cache/lab-venv/bin

failed=()
lint() { # name, command…
  printf '== lint: %s\n' "$1"
  "${@:2}" || failed+=("$1")
}
in_folder() { (cd "$1" && shift && "$@"); }
each() { # command…, --, files…
  local command=() result=0
  while [ "$1" != -- ]; do
    command+=("$1")
    shift
  done
  shift
  for file in "$@"; do "${command[@]}" "$file" || result=1; done
  return "$result"
}

# If clippy is the compiler, as in .ci/run, the build of the tests prints what clippy finds.
clippy() {
  if [ "${RUSTC_WORKSPACE_WRAPPER:-}" != clippy-driver ]; then
    cargo clippy --quiet --workspace --all-targets -- -D warnings
    return
  fi
  local output result=0
  output=$(mktemp)
  cargo build --workspace --bins --tests 2>&1 | tee "$output"
  ! grep -qE '^(warning|error)' "$output" || result=1
  rm -f "$output"
  return $result
}

# With tokio's "test-util", every timer takes a lock. One dependency in the program is enough.
no_test_clock() {
  ! cargo tree --locked --package mote --edges normal,features --invert tokio |
    grep 'tokio feature "test-util"'
}

mapfile -t shell < <(git ls-files 'scripts/*.sh' 'demo/*.sh' 'bench/*.sh' 'deploy/*.sh' deploy/packages/deb deploy/openrc deploy/procd lab .ci/run)
mapfile -t node < <(git ls-files 'shims/*.mjs')
mapfile -t python < <(git ls-files 'scripts/*.py' 'shims/*.py')

lint "Rust, format" cargo fmt --all --check
lint "Rust, library for functions" cargo fmt --check --manifest-path shims/rust/Cargo.toml
lint "Rust, clippy" clippy
lint "Rust, features of the program" no_test_clock
lint "Rust, cycles of modules" python3 -B scripts/check-cycles.py
lint "shell" shellcheck "${shell[@]}"
lint "JavaScript, syntax" each node --check -- "${node[@]}"
lint "dashboard, types and built files" scripts/check-dashboard.sh
lint "table of the warm path" python3 -B bench/warm/table.py --check
lint "Python, bench" in_folder bench "$tools/ruff" check --quiet .
lint "Python, bench, types" in_folder bench "$tools/mypy" --no-error-summary
lint "prose" scripts/lint-prose.sh
lint "Python, scripts and shims" "$tools/ruff" check --quiet "${python[@]}"

if [ ${#failed[@]} -gt 0 ]; then
  (IFS=,; printf 'LINTS FAILED: %s\n' "${failed[*]}")
  exit 1
fi
echo "all lints passed"
