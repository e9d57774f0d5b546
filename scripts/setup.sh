#!/usr/bin/env bash
# Installs what is missing to build, test and show mote on Debian 12 or Ubuntu; quick and silent
# when nothing is. Usage: scripts/setup.sh [build] [test] [demo] [bench] [check] [tls] [docker] [profile] [fuzz] [lint] [dist] [static] [guests] [java] [languages]   (default: build test demo)
set -euo pipefail

RUST_MIN=1.89 # the broker needs 1.89, mote itself 1.88
RUST_MIN_WASM=1.95 # what builds everything, also mote-wasm
packages=()

say() { echo "setup: $*" >&2; }
have() { command -v "$1" >/dev/null 2>&1; }
want() { packages+=("$@"); }
as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; elif have sudo; then sudo "$@"; else
    say "needs root or sudo to install: ${packages[*]}"
    exit 1
  fi
}

need_build() {
  { have cc && have make; } || want build-essential
  have pkg-config || want pkg-config
  have curl || want curl
  [ -e /etc/ssl/certs/ca-certificates.crt ] || want ca-certificates
}
need_python() {
  have python3 || want python3
  # Debian packages venv's pip separately, and other interpreters include it, so the interpreter on
  # PATH is asked.
  python3 -c 'import ensurepip, venv' 2>/dev/null || want python3-venv python3-pip
}
need_node() {
  have node || want nodejs
  have npm || want npm
}
# The tools with which scripts/dist.sh makes packages and scripts/test-dist.sh tests them.
need_dist() {
  have dpkg-deb || want dpkg
  have rpmbuild || want rpm
  # Programs for other processors are stripped, and run once.
  { have objcopy && objcopy --info | grep littleaarch64 >/dev/null; } || want binutils binutils-multiarch
  have qemu-aarch64-static || want qemu-user-static
  have python3 || want python3
  have minisign || want minisign
  have debootstrap || [ -x /usr/sbin/debootstrap ] || want debootstrap
}
# The kernel that scripts/test-kernel.sh runs as a process.
need_kernel() {
  have linux.uml || want user-mode-linux
  have slirp-fullbolt || want slirp
  have busybox || want busybox-static
  have insmod || [ -x /usr/sbin/insmod ] || want kmod
}
# What scripts/test-guests.sh emulates other machines with.
need_guests() {
  need_python
  have qemu-system-x86_64 || want qemu-system-x86
  have qemu-system-aarch64 || want qemu-system-arm
  have qemu-aarch64-static || want qemu-user-static
  have debootstrap || [ -x /usr/sbin/debootstrap ] || want debootstrap
  have mkfs.ext4 || [ -x /usr/sbin/mkfs.ext4 ] || want e2fsprogs
  have depmod || [ -x /usr/sbin/depmod ] || want kmod
  have ip || [ -x /usr/sbin/ip ] || want iproute2
  have cpio || want cpio
  have strip || want binutils
}
need_process_tools() {
  have pgrep || want procps
}
# promtool checks the metrics that the node sends to Prometheus; in Debian it is part of the
# server's package.
need_promtool() {
  have promtool || want prometheus
}
# A broker and clients for the tests of MQTT triggers. Debian installs the broker outside a user's
# PATH.
need_mosquitto() {
  { have mosquitto || [ -x /usr/sbin/mosquitto ]; } || want mosquitto
  have mosquitto_pub || want mosquitto-clients
}
# A registry, and programs that make container images, for the tests of images.
need_images() {
  have docker-registry || want docker-registry
  have skopeo || want skopeo
  have umoci || want umoci
  have busybox || want busybox-static
  have buildah || want buildah
  have zstd || want zstd
}
# The activator and the checker of unit files. The tests do not need a running systemd.
need_systemd_tools() {
  { have systemd-socket-activate && have systemd-analyze; } || want systemd
}
need_upgrade_tools() {
  have strace || want strace
  have minisign || want minisign
}
need_coap_client() {
  have coap-client || have coap-client-notls || have coap-client-openssl || have coap-client-gnutls || coap=missing
}

coap=''
venv=''
clients=''
dashboard=''
nats=''
groups=("$@")
[ $# -gt 0 ] || groups=(build test demo)
for group in "${groups[@]}"; do
  case $group in
    build) need_build ;;
    test) RUST_MIN=$RUST_MIN_WASM; need_build; need_python; need_node; have chromium || want chromium; have haproxy || want haproxy; have logrotate || want logrotate; need_process_tools; need_promtool; need_mosquitto; need_images; need_systemd_tools; need_upgrade_tools; need_coap_client; venv=wanted; clients=wanted; dashboard=wanted; nats=wanted ;;
    demo) need_python; need_node; need_mosquitto; need_coap_client ;;
    tls) have wrk || want wrk; have openssl || want openssl; have nginx || [ -x /usr/sbin/nginx ] || want nginx-light ;;
    bench) have wrk || want wrk; have cc || want gcc libc6-dev; have musl-gcc || want musl-tools; have ip || [ -x /usr/sbin/ip ] || want iproute2; [ -e /usr/include/coap3/coap.h ] || want libcoap3-dev ;;
    check) have wrk || want wrk; have hey || want hey ;;
    cold) have crun || want crun; have cc || want gcc libc6-dev ;;
    docker) { have dockerd || [ -x /usr/sbin/dockerd ]; } || want docker.io ;;
    profile) have perf || want linux-perf ;;
    fuzz) need_build; have clang || want clang ;;
    dist) RUST_MIN=$RUST_MIN_WASM; need_dist ;;
    static) need_python ;;
    guests) need_guests ;;
    kernel) need_kernel ;;
    java) have javac || want default-jdk-headless; have mvn || want maven ;;
    languages) have javac || want default-jdk-headless; have php || want php-cli; have puma || want puma ruby-sinatra ;;
    lint) RUST_MIN=$RUST_MIN_WASM; need_build; need_python; need_node; dashboard=wanted; have shellcheck || want shellcheck ;;
    *) say "unknown group $group; there are build, test, demo, bench, check, tls, cold, docker, profile, fuzz, lint, dist, static, guests, kernel, java, languages"; exit 2 ;;
  esac
done

if [ ${#packages[@]} -gt 0 ] || [ -n "$coap" ]; then
  have apt-get || { say "this machine has no apt-get; please install: ${packages[*]} ${coap:+a CoAP client}"; exit 1; }
  export DEBIAN_FRONTEND=noninteractive
  say "updating the package lists"
  as_root apt-get -o DPkg::Lock::Timeout=300 update -qq
  if [ -n "$coap" ]; then
    # The package has different names in different releases.
    for name in libcoap3-bin libcoap2-bin libcoap-bin; do
      if apt-cache show "$name" >/dev/null 2>&1; then want "$name"; break; fi
    done
  fi
  mapfile -t packages < <(printf '%s\n' "${packages[@]}" | sort -u)
  say "installing ${packages[*]}"
  as_root apt-get -o DPkg::Lock::Timeout=300 install -y -qq --no-install-recommends "${packages[@]}" >/dev/null
fi

# Other projects' clients that the tests use, in a separate folder. Tests report when it is missing.
if [ -n "$venv" ]; then
  root=$(cd "$(dirname "$0")/.." && pwd)
  folder=$root/.cache/test-venv
  if ! cmp -s "$root/tests/requirements.txt" "$folder/installed.txt"; then
    say "installing the test clients of tests/requirements.txt into .cache/test-venv"
    python3 -m venv "$folder"
    if "$folder/bin/pip" install --quiet --disable-pip-version-check -r "$root/tests/requirements.txt"; then
      cp "$root/tests/requirements.txt" "$folder/installed.txt"
    else
      say "could not install them; the tests that need them will be skipped"
    fi
  fi
fi
if [ -n "$clients" ]; then
  root=$(cd "$(dirname "$0")/.." && pwd)
  folder=$root/.cache/test-node
  if ! cmp -s "$root/tests/package.json" "$folder/installed.json"; then
    say "installing the test clients of tests/package.json into .cache/test-node"
    mkdir -p "$folder"
    cp "$root/tests/package.json" "$folder/package.json"
    if npm install --silent --no-audit --no-fund --no-package-lock --ignore-scripts --prefix "$folder" >/dev/null; then
      cp "$root/tests/package.json" "$folder/installed.json"
    else
      say "could not install them; the tests that need them will be skipped"
    fi
  fi
fi
# What builds and drives the dashboard.
if [ -n "$dashboard" ]; then
  folder=$(cd "$(dirname "$0")/.." && pwd)/dashboard
  if ! cmp -s "$folder/package-lock.json" "$folder/node_modules/installed-lock.json"; then
    say "installing the packages of dashboard/package-lock.json"
    if npm ci --silent --no-audit --no-fund --ignore-scripts --prefix "$folder" >/dev/null; then
      cp "$folder/package-lock.json" "$folder/node_modules/installed-lock.json"
    else
      say "could not install them; what needs them will be skipped"
    fi
  fi
fi
if [ -n "$nats" ]; then
  "$(dirname "$0")/nats-server.sh" >/dev/null || say "could not install nats-server; the tests that need it will be skipped"
  "$(dirname "$0")/acme-server.sh" >/dev/null || say "could not install Pebble; the tests that need it will be skipped"
fi

# The distribution's Rust is too old, so rustup's is installed, unless the existing one is new
# enough.
export PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"
rust=$(cargo --version 2>/dev/null | cut -d' ' -f2 || true)
# The demonstration can run the programs of a release.
[ "${groups[*]}" != demo ] || rust=$RUST_MIN
if [ "$(printf '%s\n%s\n' "$RUST_MIN" "${rust:-0}" | sort -V | head -n1)" != "$RUST_MIN" ]; then
  if have rustup; then
    say "updating Rust (${rust:-none} is older than $RUST_MIN)"
    rustup toolchain install stable --profile minimal --no-self-update >/dev/null
    rustup default stable >/dev/null
  else
    say "installing Rust with rustup (${rust:-none} is older than $RUST_MIN)"
    curl --proto '=https' --tlsv1.2 -fsS https://sh.rustup.rs | sh -s -- -y -q --profile minimal >/dev/null
  fi
fi
for group in "${groups[@]}"; do
  if [ "$group" = lint ] && have rustup && ! { cargo fmt --version && cargo clippy --version; } >/dev/null 2>&1; then
    say "installing rustfmt and clippy"
    rustup component add rustfmt clippy >/dev/null
  fi
  if [ "$group" = test ] && have rustup; then
    # For the functions in tests/fixtures/wasm.
    rustup target add wasm32-wasip1 wasm32-wasip2 >/dev/null 2>&1 ||
      say "could not install the targets of WebAssembly; the tests that need them will be skipped"
  fi
  if [ "$group" = fuzz ] && ! have cargo-fuzz; then
    say "installing cargo-fuzz and the nightly compiler it needs"
    rustup toolchain install nightly --profile minimal --no-self-update >/dev/null
    cargo install --quiet --locked cargo-fuzz
  fi
done
