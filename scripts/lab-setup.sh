#!/usr/bin/env bash
# Installs the lab's Python packages into .cache/lab-venv. With `twins` it also builds the workloads
# in Rust into .cache/lab-tools, with `store` the S3 store for the measurements (once, in some
# minutes), and with `peers` the servers of languages that the lab compares with. Quick and silent
# when nothing is missing. Usage: scripts/lab-setup.sh [twins] [store] [peers]
set -euo pipefail
cd "$(dirname "$0")/.."

S3S_FS=0.14.1 # the newest that stable Rust of its time built; 0.15 wants Rust 1.96
S3S_FS_RUST=1.92

say() { echo "lab-setup: $*" >&2; }

folder=.cache/lab-venv
if ! cmp -s bench/lab-requirements.txt "$folder/installed.txt"; then
  say "installing bench/lab-requirements.txt into $folder"
  python3 -m venv "$folder"
  "$folder/bin/pip" install --quiet --disable-pip-version-check -r bench/lab-requirements.txt
  cp bench/lab-requirements.txt "$folder/installed.txt"
fi

export PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"
tools=$PWD/.cache/lab-tools
groups="$*"
wants() { case " $groups " in *" $1 "*) ;; *) return 1 ;; esac; }

if wants twins; then
  CARGO_TARGET_DIR=$tools/twins cargo build --quiet --release --locked \
    --manifest-path workloads/rust/Cargo.toml
  mkdir -p "$tools/bin"
  cmp -s "$tools/twins/release/workload-rs" "$tools/bin/workload-rs" ||
    cp "$tools/twins/release/workload-rs" "$tools/bin/workload-rs"
  # The same program as WebAssembly, where the compiler can make it.
  if [ -d "$(rustc --print target-libdir --target wasm32-wasip1)" ]; then
    CARGO_TARGET_DIR=$tools/twins cargo build --quiet --release --locked --target wasm32-wasip1 \
      --manifest-path workloads/rust/Cargo.toml
    cmp -s "$tools/twins/wasm32-wasip1/release/workload-rs.wasm" "$tools/bin/workload-rs.wasm" ||
      cp "$tools/twins/wasm32-wasip1/release/workload-rs.wasm" "$tools/bin/workload-rs.wasm"
  fi
fi

if wants peers; then
  # Python's servers run in the environment of the workloads, whose packages they need.
  if ! cmp -s bench/requirements.txt "$folder/peers.txt"; then
    say "installing bench/requirements.txt into $folder"
    "$folder/bin/python" -m pip install --quiet --disable-pip-version-check -r bench/requirements.txt
    cp bench/requirements.txt "$folder/peers.txt"
  fi
  servers=.cache/lab-peers
  if ! command -v npm >/dev/null; then
    say "npm is missing: Deno, Bun and workerd are skipped"
  elif ! cmp -s bench/peers/package.json "$servers/package.json"; then
    say "installing Deno, Bun and workerd of bench/peers/package.json into $servers"
    mkdir -p "$servers"
    cp bench/peers/package.json "$servers/wanted.json"
    (
      cd "$servers"
      cp wanted.json package.json
      npm install --silent --no-audit --no-fund --no-package-lock >&2 || {
        rm -f package.json
        exit 1
      }
    )
    rm "$servers/wanted.json"
  fi
  for tool in go runc dockerd; do
    command -v "$tool" >/dev/null || say "$tool is not installed: the lab skips the target ${tool%d}"
  done
fi

if wants store; then
  if [ "$(cat "$tools/s3s-fs.version" 2>/dev/null)" != "$S3S_FS" ]; then
    rust=$(cargo --version | cut -d' ' -f2)
    if [ "$(printf '%s\n%s\n' "$S3S_FS_RUST" "$rust" | sort -V | head -n1)" != "$S3S_FS_RUST" ]; then
      say "s3s-fs $S3S_FS needs Rust $S3S_FS_RUST, this is $rust: workloads with objects are skipped"
      exit 0
    fi
    say "building s3s-fs $S3S_FS into $tools"
    # This uses a separate target folder, so that its dependencies do not enter the workspace's
    # build.
    CARGO_TARGET_DIR=$tools/build nice cargo install --quiet --locked --root "$tools" \
      --features binary "s3s-fs@$S3S_FS"
    rm -rf "$tools/build"
    echo "$S3S_FS" >"$tools/s3s-fs.version"
  fi
fi
