#!/usr/bin/env bash
# Builds programs that need no C library and no loader of the system (musl, linked statically), for
# this processor and for others: target/static/TARGET/PROFILE/.
#
# Usage: scripts/static.sh [--profile NAME] [--check] [--wasm] [TARGET…]
#        scripts/static.sh --test-programs TARGET ARGUMENT…
#        scripts/static.sh --prepare
#   --profile NAME   the profile of cargo; the default is release
#   --check          compile without linking, which shows in minutes what does not fit a target
#   --wasm           builds mote-wasm too, where it can compile
#   --test-programs  builds the test programs that the arguments of cargo name, with the profile of
#                    tests, and prints cargo's messages about them (JSON)
#   --prepare        installs what builds need, and builds nothing
#   TARGET           as Rust names it; the default is all of them (scripts/static.sh --list)
#
# zig is the C compiler and the linker for all targets (packages ziglang and cargo-zigbuild of PyPI).
# The standard library of Rust is compiled with the programs, from the sources that belong to the
# compiler: those of rustup where they are installed or can be, or else Debian's package rust-src. It
# has no reader of debug information (backtraces), because these programs have none.
set -euo pipefail
cd "$(dirname "$0")/.."

TARGETS=(x86_64-unknown-linux-musl aarch64-unknown-linux-musl armv7-unknown-linux-musleabihf
  riscv64gc-unknown-linux-musl)
ZIG=0.17.1 ZIGBUILD=0.24.1

say() { echo "static: $*" >&2; }
fail() {
  say "$*"
  exit 1
}
profile=release verb=build wasm=no targets=() arguments=()
while [ $# -gt 0 ]; do
  case $1 in
    --profile) profile=${2:?--profile needs a name} && shift ;;
    --check) verb=check ;;
    --wasm) wasm=yes ;;
    --test-programs)
      verb=test profile=dev targets=("${2:?--test-programs needs a target}")
      arguments=("${@:3}")
      break
      ;;
    --prepare) verb=prepare ;;
    --list) printf '%s\n' "${TARGETS[@]}" && exit 0 ;;
    --zig) echo "$ZIG" && exit 0 ;;
    -*) sed -n '5,16s/^# \{0,1\}//p' "$0" >&2 && exit 2 ;;
    *) targets+=("$1") ;;
  esac
  shift
done
[ ${#targets[@]} -gt 0 ] || targets=("${TARGETS[@]}")
for target in "${targets[@]}"; do
  printf '%s\n' "${TARGETS[@]}" | grep -qxF "$target" || fail "there is no target $target; there are: ${TARGETS[*]}"
done

scripts/setup.sh build static
export PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"
cache=$PWD/.cache/static
mkdir -p "$cache"

# --- zig ----------------------------------------------------------------------------------------

venv=$cache/zig-$ZIG-$ZIGBUILD
if [ ! -x "$venv/bin/cargo-zigbuild" ]; then
  rm -rf "$venv"
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check "ziglang==$ZIG" "cargo-zigbuild==$ZIGBUILD"
fi
CARGO_ZIGBUILD_ZIG_PATH=$(echo "$venv"/lib/python3*/site-packages/ziglang/zig)
export CARGO_ZIGBUILD_ZIG_PATH CARGO_ZIGBUILD_CACHE_DIR=$cache/zigbuild ZIG_GLOBAL_CACHE_DIR=$cache/zig-cache

# --- The compiler together with the sources of its standard library -------------------------------

# apt_of SUITE: makes a configuration of apt that knows only one suite of Debian, in a separate
# folder.
apt_of() {
  local mirror
  mirror=$(scripts/debian-mirror.sh)
  [ -n "$mirror" ] || fail "apt knows no archive of Debian: install the sources with: rustup component add rust-src"
  mkdir -p "$cache/apt/lists/partial" "$cache/apt/cache/archives/partial"
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $1 main" >"$cache/apt/sources.list"
  apt_options=(-o "Dir::Etc::sourcelist=$cache/apt/sources.list" -o Dir::Etc::sourceparts=/dev/null
    -o "Dir::State::lists=$cache/apt/lists" -o "Dir::Cache=$cache/apt/cache" -o APT::Sandbox::User=root)
  apt-get -qq "${apt_options[@]}" update
}

version=$(rustc -vV | sed -n 's/^release: //p')
sysroot=$(rustc --print sysroot)
toolchain=$sysroot
if [ ! -e "$sysroot/lib/rustlib/src/rust/library/Cargo.lock" ] &&
  ! { command -v rustup >/dev/null && rustup component add rust-src >/dev/null 2>&1; }; then
  toolchain=$cache/rust-$version
  if [ ! -e "$toolchain/complete" ]; then
    say "taking the sources of Rust $version from Debian"
    command -v apt-get >/dev/null || fail "this system has no apt-get: install the sources with: rustup component add rust-src"
    rm -rf "$toolchain" "$cache"/*.deb
    for suite in trixie-backports sid; do
      apt_of "$suite"
      package=$(apt-cache "${apt_options[@]}" madison rust-src | awk '{ print $3 }' | grep "^$version+" | head -n1) || true
      [ -z "$package" ] || break
    done
    [ -n "$package" ] ||
      fail "Debian has no sources of Rust $version: install them with: rustup component add rust-src"
    (cd "$cache" && apt-get -qq "${apt_options[@]}" download "rust-src=$package")
    dpkg-deb -x "$cache"/rust-src_*.deb "$cache/rust-src"
    # The compiler looks for the sources in its own folder, which does not belong to this script.
    mkdir -p "$toolchain"
    cp -al "$sysroot/." "$toolchain/" 2>/dev/null || cp -a "$sysroot/." "$toolchain/"
    mkdir -p "$toolchain/lib/rustlib/src/rust"
    mv "$cache/rust-src/usr/src/rustc-$version/library" "$toolchain/lib/rustlib/src/rust/library"
    rm -rf "$cache/rust-src" "$cache"/rust-src_*.deb
    echo "Debian's rust-src $package" >"$toolchain/complete"
  fi
fi

[ $verb != prepare ] || exit 0

# --- The programs -------------------------------------------------------------------------------

cargo_home=${CARGO_HOME:-$HOME/.cargo} separator=$'\x1f'
export RUSTC=$toolchain/bin/rustc CARGO=$toolchain/bin/cargo RUSTC_BOOTSTRAP=1
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target}/static CARGO_INCREMENTAL=0
# zig provides the files with which a program starts and ends, and is told to make programs that the
# kernel loads at random addresses. On RISC-V, the compiler links the C library dynamically unless
# it is told not to. Paths of this machine do not become part of the programs.
flags=(-Ctarget-feature=+crt-static -Clink-self-contained=no -Clink-arg=-pie "--remap-path-prefix=$cargo_home=/cargo" "--remap-path-prefix=$toolchain=/rustup"
  "--remap-path-prefix=$PWD=/mote")
CARGO_ENCODED_RUSTFLAGS=$(printf "%s$separator" "${flags[@]}")
export CARGO_ENCODED_RUSTFLAGS=${CARGO_ENCODED_RUSTFLAGS%"$separator"}
# C code that contains its build time gets the time of the commit.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 0)}
export SOURCE_DATE_EPOCH
export CFLAGS="-ffile-prefix-map=$cargo_home=/cargo -ffile-prefix-map=$PWD=/mote"
unset RUSTFLAGS
if [ $verb = test ]; then
  exec "$venv/bin/cargo-zigbuild" test --locked --no-run --message-format=json --target "${targets[0]}" \
    -Zbuild-std=std,panic_unwind,test "${arguments[@]}"
fi
[ $verb = check ] || verb=zigbuild
# The engine for WebAssembly compiles for 64-bit processors only, so a run for all targets leaves it
# out, and a second run follows for those.
build() { # PACKAGE TARGET…
  local of_targets
  mapfile -t of_targets < <(printf -- '--target\n%s\n' "${@:2}")
  "$venv/bin/cargo-zigbuild" $verb --bins --locked --profile "$profile" "${of_targets[@]}" \
    -Zbuild-std=std,panic_unwind -Zbuild-std-features=panic-unwind -p "$1"
}
# One run of cargo builds all targets. Code that runs on this machine (build scripts, derives) is
# then compiled only once. While one target is linked, which uses one core for minutes, another is
# compiled.
build mote "${targets[@]}"
of_wasm=()
for target in "${targets[@]}"; do
  [ $wasm = no ] || [[ $target = armv7* ]] || of_wasm+=("$target")
done
[ ${#of_wasm[@]} = 0 ] || build mote-wasm "${of_wasm[@]}"
