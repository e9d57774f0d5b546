#!/usr/bin/env bash
# Shows that a clone works on a newly installed machine: a minimal Debian in a folder of its own,
# with git, make and curl, in which `make demo` and `make test` run as root.
#
# Usage: scripts/prove-fresh.sh [--host-rust] [--host-target] [--keep] [demo] [test] [COMMAND...]
#   --host-rust    use this machine's Rust toolchain (read-only) and a copy of its downloaded
#                  crates, where rustup's own host cannot be reached
#   --host-target  begin with a copy of this machine's target folder: shorter, proves less
#   --keep         leave the folder for a look
# Without a target both demo and test are run. SUITE (bookworm), MIRROR and TMPDIR can be set.
#
# Needs root and debootstrap. Package clients have the configuration of this machine: proxies,
# certificates, pip.conf, npmrc. Processes share this machine's process ids and control groups, so
# nodes that run outside are not mistaken for leftovers.
set -euo pipefail
cd "$(dirname "$0")/.."

SUITE=${SUITE:-bookworm}
START=$SECONDS
rust=fresh target=fresh keep=no jobs=()
for word in "$@"; do
  case $word in
    --host-rust) rust=host ;;
    --host-target) target=host ;;
    --keep) keep=yes ;;
    demo | test | test-long | build | lint) jobs+=("$word") ;;
    *) echo "prove-fresh: unknown word $word" >&2; exit 2 ;;
  esac
done
[ ${#jobs[@]} -gt 0 ] || jobs=(demo test)

say() { printf '\n## %4d s  %s\n' $((SECONDS - START)) "$*"; }
[ "$(id -u)" = 0 ] || { echo "prove-fresh: needs root" >&2; exit 1; }
command -v debootstrap >/dev/null || { echo "prove-fresh: needs debootstrap: apt-get install debootstrap" >&2; exit 1; }

# Every mount below this point disappears with the namespace, whatever happens.
if [ "${PROVE_FRESH_INSIDE:-}" != yes ]; then
  PROVE_FRESH_INSIDE=yes exec unshare --mount --propagation private -- "$0" "$@"
fi

MIRROR=${MIRROR:-$(scripts/debian-mirror.sh)}
MIRROR=${MIRROR:-http://deb.debian.org/debian}

base=$(mktemp -d "${TMPDIR:-/var/tmp}/mote-fresh.XXXXXX")
root=$base/root
# shellcheck disable=SC2317 # called by the trap
clean() {
  if [ "$keep" = yes ]; then
    echo "kept: $root"
  else
    umount -R -l "$root" 2>/dev/null || true
    # If one of this machine's folders were still mounted, the removal would follow the mount.
    if grep -qF " $base" /proc/self/mountinfo; then echo "kept, something is mounted there: $base" >&2; return; fi
    rm -rf --one-file-system "$base"
  fi
}
trap clean EXIT

say "a minimal Debian $SUITE"
debootstrap --variant=minbase --include=ca-certificates "$SUITE" "$root" "$MIRROR" >"$base/debootstrap.log" 2>&1 ||
  { tail -n 20 "$base/debootstrap.log" >&2; exit 1; }
mount --rbind "$root" "$root"

say "package clients as on this machine"
apt-config dump Acquire >"$root/etc/apt/apt.conf.d/90host"
cp /etc/resolv.conf "$root/etc/resolv.conf"
cp /etc/hosts "$root/etc/hosts"
for file in /etc/pip.conf /etc/npmrc "$HOME/.npmrc" "$HOME/.config/pip/pip.conf"; do
  # The user is root inside, whatever the user is outside.
  inside=${file/#"$HOME"/\/root}
  [ ! -e "$file" ] || install -D -m 600 "$file" "$root$inside"
done
chmod 644 "$root"/etc/pip.conf "$root"/etc/npmrc 2>/dev/null || true
if [ -d /usr/local/share/ca-certificates ]; then
  cp -a /usr/local/share/ca-certificates/. "$root/usr/local/share/ca-certificates/"
fi
cp --dereference /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
environment=()
while IFS='=' read -r name value; do
  # A path of this machine has no meaning inside.
  [[ $value != /* || -e $root$value ]] || continue
  case $name in
    PIP_* | npm_config_* | NPM_CONFIG_* | *_PROXY | *_proxy | SSL_CERT_* | REQUESTS_CA_BUNDLE | \
      CURL_CA_BUNDLE | NODE_EXTRA_CA_CERTS | GIT_SSL_CAINFO | CARGO_HTTP_* | CARGO_NET_* | \
      CARGO_REGISTRIES_* | CARGO_SOURCE_* | RUSTUP_DIST_SERVER | RUSTUP_UPDATE_ROOT)
      environment+=("$name=$value")
      ;;
  esac
done < <(env)

if [ "$rust" = host ]; then
  say "NOTE: Rust is this machine's own ($(cargo --version)); installing it is not proven here"
  mkdir -p "$root/root/.rustup" "$root/root/.cargo"
  mount --bind "${RUSTUP_HOME:-$HOME/.rustup}" "$root/root/.rustup"
  mount -o remount,bind,ro "$root/root/.rustup"
  for name in bin registry config.toml; do
    from=${CARGO_HOME:-$HOME/.cargo}/$name
    [ ! -e "$from" ] || cp -a "$from" "$root/root/.cargo/"
  done
fi

say "clone"
mkdir -p "$root/src"
git clone --quiet --no-hardlinks "$PWD" "$root/src/mote"
if [ "$target" = host ]; then
  say "NOTE: the build begins with this machine's target folder"
  mkdir -p "$root/src/mote/target"
  for profile in release quick debug; do
    from=${CARGO_TARGET_DIR:-target}/$profile
    [ ! -d "$from" ] || cp -a "$from" "$root/src/mote/target/"
  done
fi

# Uses a separate root instead of chroot, because the kernel refuses user namespaces to chrooted
# processes.
mkdir -p "$root/old"
for name in proc sys dev; do mount --rbind "/$name" "$root/$name"; done
inside() {
  # shellcheck disable=SC2016 # expanded by the inner shell
  unshare --mount --propagation private -- bash -c '
    cd "$1" && shift && pivot_root . old && umount -l /old && cd /src/mote && exec "$@"
  ' bash "$root" env -i HOME=/root USER=root TERM=dumb LC_ALL=C.UTF-8 \
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "${environment[@]}" "$@" </dev/null
}

say "git, make, curl and nothing else"
# shellcheck disable=SC2016 # expanded by the inner shell
inside sh -c 'apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends git make curl >/dev/null 2>&1
  git --version; make --version | head -n1; for name in cc python3 node cargo coap-client; do command -v $name || echo "no $name"; done'

failed=0
report=()
for job in "${jobs[@]}"; do
  say "make $job"
  since=$SECONDS
  if inside make "$job"; then verdict=passed; else verdict=FAILED failed=1; fi
  report+=("$(printf '%-6s make %-9s %5d s' "$verdict" "$job" $((SECONDS - since)))")
done
say "result (Debian $SUITE, Rust: $rust, target: $target)"
inside sh -c 'python3 --version; node --version' || true
printf '%s\n' "${report[@]}"
exit "$failed"
