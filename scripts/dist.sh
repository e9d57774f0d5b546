#!/usr/bin/env bash
# Builds the packages of a release into target/dist: for each target an archive with an installer, a
# Debian package, an RPM, the symbols of the programs and a list of the crates in them (CycloneDX);
# for all of them, what they were made from and the SHA-256 sums.
#
# Usage: scripts/dist.sh [--programs DIR] [--version VERSION] [--archive-only] [TARGET…]
#   --programs DIR     packs the programs of this folder instead of building them; needs one TARGET
#   --version VERSION  the version of these programs, if it is not that of this tree
#   --archive-only     makes only the archives with the installer, for tests of upgrades
#   TARGET             as Rust names it; the default is all of them (scripts/dist.sh --list)
#
# The engine for WebAssembly is an optional package (mote-wasm) for the processors for which it can
# compile. With --programs, it is packed if the folder has it.
#
# x86_64-unknown-linux-gnu uses the C library of the system. The others need nothing of the system
# but the kernel (scripts/static.sh). x86-64 has both; its Debian package and RPM use the C library.
#
# The same commit makes the same bytes in every folder and at every time: paths are replaced in the
# programs, all times are that of the commit (or $SOURCE_DATE_EPOCH), and all files have fixed owners
# and a fixed order. $DIST is the folder of the results. $MOTE_SIGNING_KEY names a secret key of
# minisign, with which the sums are signed.
set -euo pipefail
cd "$(dirname "$0")/.."

PROGRAMS=(mote)
WASM=mote-wasm # the program and the package
DYNAMIC=x86_64-unknown-linux-gnu
mapfile -t TARGETS < <(echo $DYNAMIC && scripts/static.sh --list)
KERNEL_MIN=5.12 # README.md, "Machines"
OUT=$(realpath -m "${DIST:-target/dist}")
VERSION=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
bin='' given=no archive_only=no targets=()

say() { echo "dist: $*" >&2; }
fail() {
  say "$*"
  exit 1
}

while [ $# -gt 0 ]; do
  case $1 in
    --programs)
      [ $# -ge 2 ] || fail "--programs needs the folder of the programs"
      bin=$(realpath -m "$2") given=yes
      shift
      ;;
    --version)
      [ $# -ge 2 ] || fail "--version needs the version of the programs"
      VERSION=$2
      shift
      ;;
    --archive-only) archive_only=yes ;;
    --list) printf '%s\n' "${TARGETS[@]}" && exit 0 ;;
    -*) sed -n '6,10s/^# \{0,1\}//p' "$0" >&2 && exit 2 ;;
    *) targets+=("$1") ;;
  esac
  shift
done
[ -z "$bin" ] || [ ${#targets[@]} -gt 0 ] || targets=("$DYNAMIC")
[ ${#targets[@]} -gt 0 ] || targets=("${TARGETS[@]}")
[ -z "$bin" ] || [ ${#targets[@]} = 1 ] || fail "--programs has the programs of one target: name one"
for target in "${targets[@]}"; do
  printf '%s\n' "${TARGETS[@]}" | grep -qxF "$target" || fail "there are no packages for $target; there are for: ${TARGETS[*]}"
done
[ -z "${MOTE_SIGNING_KEY:-}" ] || [ -r "$MOTE_SIGNING_KEY" ] ||
  fail "MOTE_SIGNING_KEY names $MOTE_SIGNING_KEY, which cannot be read"

scripts/setup.sh build dist
export PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"
export LC_ALL=C TZ=UTC
umask 022

commit=${MOTE_COMMIT:-$(git rev-parse HEAD 2>/dev/null)} || fail "this folder is not a clone: set MOTE_COMMIT and SOURCE_DATE_EPOCH"
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export MOTE_COMMIT=$commit
modified=false
if [ -n "$(git status --porcelain 2>/dev/null)" ]; then
  modified=true
  say "the working tree differs from the commit, so that these packages are not those of $commit"
fi

# The programs of a target, for which the build has a separate folder.
programs_of() {
  if [ "$1" = $DYNAMIC ]; then echo "target/dist-build/dynamic/$1/release"; else echo "target/dist-build/static/$1/release"; fi
}
# build TARGET…: compiles the program for these targets. The targets are either $DYNAMIC or static
# ones. The packages contain stripped programs. The symbols are removed from the programs below.
build() {
  local cargo_home=${CARGO_HOME:-$HOME/.cargo} separator=$'\x1f'
  export CARGO_TARGET_DIR=$PWD/target/dist-build CARGO_PROFILE_RELEASE_STRIP=none CARGO_INCREMENTAL=0
  # With this setting, the compiler's allocator takes large pages and gives none back, which costs
  # memory and saves time.
  export MALLOC_CONF=${MALLOC_CONF-thp:always,metadata_thp:always,dirty_decay_ms:-1,muzzy_decay_ms:-1}
  if [ "$1" != $DYNAMIC ]; then
    scripts/static.sh --wasm "$@"
    return
  fi
  CARGO_TARGET_DIR=$CARGO_TARGET_DIR/dynamic
  export CARGO_ENCODED_RUSTFLAGS=--remap-path-prefix=$cargo_home=/cargo$separator--remap-path-prefix=$PWD=/mote
  export CFLAGS="-ffile-prefix-map=$cargo_home=/cargo -ffile-prefix-map=$PWD=/mote"
  unset RUSTFLAGS
  cargo build --bins --locked --release --target $DYNAMIC -p mote -p $WASM
}
# build_all: the programs that use the C library are compiled next to the static ones.
build_all() {
  local kind running=0 statics=()
  for target in "${targets[@]}"; do
    [ "$target" = $DYNAMIC ] || statics+=("$target")
  done
  # Each build is a process group, which ends as a whole with this script (stop_builds).
  set -m
  # The tools that all targets need are installed once.
  scripts/static.sh --prepare
  say "compiling for ${targets[*]}"
  for kind in dynamic static; do
    if [ $kind = dynamic ]; then
      [[ " ${targets[*]} " == *" $DYNAMIC "* ]] || continue
      set -- $DYNAMIC
    else
      [ ${#statics[@]} -gt 0 ] || continue
      set -- "${statics[@]}"
    fi
    { build "$@" >"$work/build-$kind.log" 2>&1 || { tail -n 30 "$work/build-$kind.log" >&2 && exit 1; }; } &
    running=$((running + 1))
  done
  for (( ; running > 0; running--)); do
    wait -n || fail "a build failed; its last lines are above"
  done
  set +m
}

# Only a folder that this script made is emptied.
if [ -d "$OUT" ] && [ -n "$(ls -A "$OUT")" ]; then
  [ -e "$OUT/mote-$VERSION-provenance.json" ] || [ -e "$OUT/SHA256SUMS" ] ||
    fail "$OUT has files that are not packages: empty it, or set DIST to another folder"
  rm -rf "$OUT"
fi
mkdir -p "$OUT"
work=$(mktemp -d)
stop_builds() {
  local group
  for group in $(jobs -p); do kill -- "-$group" 2>/dev/null || true; done
}
trap 'stop_builds; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

# --- The parts of a package ---------------------------------------------------------------------

# describe: sets the names that the tools use for the processor of $target.
describe() {
  DEB_ARCH='' BITS=64 LIBC=musl
  case $target in
    x86_64-*-gnu) MACHINE=x86_64 DEB_ARCH=amd64 RPM_ARCH=x86_64 ELF_MACHINE=62 LIBC=gnu ;;
    x86_64-*) MACHINE=x86_64 RPM_ARCH=x86_64 ELF_MACHINE=62 ;;
    aarch64-*) MACHINE=aarch64 DEB_ARCH=arm64 RPM_ARCH=aarch64 ELF_MACHINE=183 ;;
    armv7-*) MACHINE=armv7l DEB_ARCH=armhf RPM_ARCH=armv7hl ELF_MACHINE=40 BITS=32 ;;
    riscv64gc-*) MACHINE=riscv64 DEB_ARCH=riscv64 RPM_ARCH=riscv64 ELF_MACHINE=243 ;;
  esac
  NAME=mote-$VERSION-$MACHINE-linux-$LIBC
}
# runs PROGRAM…: runs a program of $target, with QEMU if it is for another processor.
runs() {
  "$@" 2>/dev/null || "qemu-$(case $MACHINE in armv7l) echo arm ;; *) echo "$MACHINE" ;; esac)-static" "$@"
}

set_times() { find "$1" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +; }
archive() { # folder below $work, file
  set_times "$work/$1"
  tar --create --directory "$work" --sort=name --format=gnu --owner=0 --group=0 --numeric-owner \
    --mtime="@$SOURCE_DATE_EPOCH" "$1" | gzip --no-name --best >"$2"
}
sign() { # file
  minisign -S -s "$MOTE_SIGNING_KEY" -m "$1" -t "mote $VERSION" -c "signature of mote" >/dev/null ||
    fail "minisign could not sign with $MOTE_SIGNING_KEY"
}

# make_root: the files, as the packages install them, in $root, and the symbols.
make_root() {
  root=$work/$target/root
  local symbols=$work/$NAME-symbols completions=$work/completions program whole shell
  mkdir -p "$root"/usr/bin "$root"/etc/mote "$root"/usr/lib/systemd/system "$symbols" "$completions" \
    "$root"/usr/share/{bash-completion/completions,zsh/site-functions,fish/vendor_completions.d,man/man1}
  for program in "${PROGRAMS[@]}"; do
    # zig writes the path of its own folder into the debug information of the C library. Static
    # programs have no other debug information, so their symbols are only the names of functions.
    whole=$bin/$program
    [ $LIBC = gnu ] || { whole=$work/$target/whole && objcopy --strip-debug "$bin/$program" "$whole"; }
    objcopy --only-keep-debug "$whole" "$symbols/$program.debug"
    objcopy --strip-all "$bin/$program" "$root/usr/bin/$program"
    # gdb finds the symbols by this name and checks them by their checksum.
    (cd "$symbols" && objcopy --add-gnu-debuglink="$program.debug" "$root/usr/bin/$program")
    chmod 755 "$root/usr/bin/$program"
    chmod 644 "$symbols/$program.debug"
  done
  runs "$root/usr/bin/mote" version >"$work/$target/version" || fail "$bin/mote does not run"
  grep -qF "$VERSION" "$work/$target/version" || fail "$bin/mote is another version: $(head -n 1 "$work/$target/version")"
  # The completions are the same for all processors, and this machine can run the programs of the
  # first target.
  [ -s "$completions/fish" ] || for shell in bash zsh fish; do
    runs "$root/usr/bin/mote" completion $shell >"$completions/$shell"
  done
  cp "$completions/bash" "$root/usr/share/bash-completion/completions/mote"
  cp "$completions/zsh" "$root/usr/share/zsh/site-functions/_mote"
  cp "$completions/fish" "$root/usr/share/fish/vendor_completions.d/mote.fish"
  cp docs/man/*.1 "$root/usr/share/man/man1/"
  gzip --no-name --best "$root"/usr/share/man/man1/*.1
  install -D -m 644 docs/reference/mote.schema.json "$root/usr/share/mote/mote.schema.json"
  install -D -m 644 -t "$root/usr/share/mote/types" shims/python/mote.pyi shims/node/mote.d.ts
  install -m 644 deploy/systemd/mote*.service deploy/systemd/mote*.socket "$root/usr/lib/systemd/system/"
  install -m 644 deploy/packages/mote-node.toml "$root/etc/mote/mote-node.toml"
  # The newest version of the C library whose symbols the programs use. Static programs use none.
  glibc=$(for program in "${PROGRAMS[@]}"; do objdump -T "$root/usr/bin/$program" 2>/dev/null; done |
    grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -n 1) || true
  glibc=${glibc#GLIBC_}
  [ -z "$glibc" ] || [ $LIBC = gnu ] || fail "$bin has programs that need a C library"
}

pack_archive() {
  local tree=$work/$NAME
  mkdir -p "$tree/share/mote/systemd" "$tree/services"
  cp -a "$root/usr/bin" "$tree/bin"
  cp -a "$root/usr/share/." "$tree/share/"
  mkdir -p "$tree/share/doc/mote"
  install -m 644 deploy/packages/mote-node.toml LICENSE "$tree/share/doc/mote/"
  install -m 644 LICENSE "$tree/LICENSE"
  install -m 644 deploy/systemd/mote.service "$tree/services/systemd"
  install -m 644 deploy/systemd/mote*.socket "$tree/share/mote/systemd/"
  install -m 755 deploy/openrc/mote "$tree/services/openrc"
  install -m 755 deploy/procd/mote "$tree/services/procd"
  install -m 755 deploy/packages/install.sh "$tree/install.sh"
  install -m 755 deploy/packages/uninstall.sh "$tree/share/mote/uninstall.sh"
  printf 'version=%s\narchitecture=%s\nbits=%s\nkernel=%s\nglibc=%s\n' "$VERSION" "$MACHINE" "$BITS" "$KERNEL_MIN" "$glibc" >"$tree/requirements"
  (cd "$tree" && find . -type f ! -name SHA256SUMS -printf '%P\n' | sort | xargs -d '\n' sha256sum >"$work/$target/sums" && mv "$work/$target/sums" SHA256SUMS)
  [ -z "${MOTE_SIGNING_KEY:-}" ] || sign "$tree/SHA256SUMS"
  archive "$NAME" "$OUT/$NAME.tar.gz"
  [ $archive_only = yes ] || archive "$NAME-symbols" "$OUT/$NAME-symbols.tar.gz"
}

pack_deb() {
  local deb=$work/$target/deb
  mkdir -p "$deb/DEBIAN" "$deb/usr/share/doc/mote"
  cp -a "$root/." "$deb/"
  install -m 644 LICENSE "$deb/usr/share/doc/mote/copyright"
  install -m 755 deploy/packages/deb/* "$deb/DEBIAN/"
  echo /etc/mote/mote-node.toml >"$deb/DEBIAN/conffiles"
  (cd "$deb" && find usr -type f | sort | xargs -d '\n' md5sum >DEBIAN/md5sums)
  cat >"$deb/DEBIAN/control" <<TXT
Package: mote
Version: $VERSION
Architecture: $DEB_ARCH
Maintainer: The authors of mote <mote@example.invalid>
Installed-Size: $(du -k --apparent-size --summarize "$root" | cut -f1)
${glibc:+Depends: libc6 (>= $glibc), libgcc-s1
}Recommends: python3, ca-certificates, e2fsprogs
Suggests: nodejs
Section: admin
Priority: optional
Homepage: https://example.invalid/mote
Description: function platform for the edge
 mote runs functions in sandboxes on one Linux machine: on HTTP and CoAP requests,
 MQTT messages and schedules. It needs no container engine and no cluster.
TXT
  set_times "$deb"
  dpkg-deb --root-owner-group -Zxz -z8 --build "$deb" "$OUT/mote_${VERSION}_$DEB_ARCH.deb" >/dev/null
}

# pack_wasm: the packages with the engine for WebAssembly, if it was built for $target.
pack_wasm() {
  [ -x "$bin/$WASM" ] || return 0
  local files=$work/$target/wasm name=${NAME/#mote-/$WASM-} deb=$work/$target/wasm-deb rpm=$work/$target/wasm-rpm
  mkdir -p "$files/usr/bin" "$work/$name/bin"
  objcopy --strip-all "$bin/$WASM" "$files/usr/bin/$WASM"
  chmod 755 "$files/usr/bin/$WASM"
  runs "$files/usr/bin/$WASM" --version | grep -qF "\"$VERSION\"" || fail "$bin/$WASM is another version"
  install -m 755 "$files/usr/bin/$WASM" "$work/$name/bin/"
  install -m 644 LICENSE "$work/$name/"
  archive "$name" "$OUT/$name.tar.gz"
  python3 -B scripts/sbom.py "$target" "$SOURCE_DATE_EPOCH" $WASM >"$OUT/$name-sbom.cdx.json"
  [ -n "$DEB_ARCH" ] || return 0
  mkdir -p "$deb/DEBIAN"
  cp -a "$files/." "$deb/"
  install -D -m 644 LICENSE "$deb/usr/share/doc/$WASM/copyright"
  (cd "$deb" && find usr -type f | sort | xargs -d '\n' md5sum >DEBIAN/md5sums)
  cat >"$deb/DEBIAN/control" <<TXT
Package: $WASM
Version: $VERSION
Architecture: $DEB_ARCH
Maintainer: The authors of mote <mote@example.invalid>
Installed-Size: $(du -k --apparent-size --summarize "$files" | cut -f1)
Depends: mote (= $VERSION)${glibc:+, libc6 (>= $glibc), libgcc-s1}
Section: admin
Priority: optional
Homepage: https://example.invalid/mote
Description: WebAssembly functions for mote
 With this package, a node of mote compiles and runs WebAssembly functions:
 components for wasi:http and programs of WASI.
TXT
  set_times "$deb"
  dpkg-deb --root-owner-group -Zxz -z8 --build "$deb" "$OUT/${WASM}_${VERSION}_$DEB_ARCH.deb" >/dev/null
  mkdir -p "$rpm"
  install -D -m 644 LICENSE "$files/usr/share/licenses/$WASM/LICENSE"
  set_times "$files"
  rpmbuild -bb --quiet --target "$RPM_ARCH" \
    --define "_topdir $rpm" --define "_tmppath $rpm" --define "_rpmdir $rpm" \
    --define "mote_version $VERSION" --define "mote_files $files" \
    --define "_buildhost mote" --define "use_source_date_epoch_as_buildtime 1" \
    --define "clamp_mtime_to_source_date_epoch 1" \
    deploy/packages/$WASM.spec >"$rpm/log" 2>&1 || { cat "$rpm/log" >&2; fail "rpmbuild failed"; }
  cp "$rpm/$RPM_ARCH/$WASM-$VERSION-1.$RPM_ARCH.rpm" "$OUT/"
}

pack_rpm() {
  local rpm=$work/$target/rpm
  mkdir -p "$rpm"
  install -D -m 644 LICENSE "$root/usr/share/licenses/mote/LICENSE"
  set_times "$root"
  rpmbuild -bb --quiet --target "$RPM_ARCH" \
    --define "_topdir $rpm" --define "_tmppath $rpm" --define "_rpmdir $rpm" \
    --define "mote_version $VERSION" --define "mote_files $root" \
    --define "_buildhost mote" --define "use_source_date_epoch_as_buildtime 1" \
    --define "clamp_mtime_to_source_date_epoch 1" \
    deploy/packages/mote.spec >"$rpm/log" 2>&1 || { cat "$rpm/log" >&2; fail "rpmbuild failed"; }
  cp "$rpm/$RPM_ARCH/mote-$VERSION-1.$RPM_ARCH.rpm" "$OUT/"
}

# pack: all packages of $target.
pack() {
  local bin=$bin
  describe
  [ $given = yes ] || bin=$(programs_of "$target")
  for program in "${PROGRAMS[@]}"; do
    [ -x "$bin/$program" ] || fail "$bin has no program $program"
    [ "$(od -An -tu1 -j18 -N1 "$bin/$program" | tr -d ' ')" = "$ELF_MACHINE" ] ||
      fail "$bin/$program is not a program for $MACHINE"
  done
  make_root
  pack_archive
  if [ -n "$DEB_ARCH" ] && [ $archive_only = no ]; then
    pack_deb
    pack_rpm
  fi
  [ $archive_only = yes ] || python3 -B scripts/sbom.py "$target" "$SOURCE_DATE_EPOCH" mote >"$OUT/$NAME-sbom.cdx.json"
  [ $archive_only = yes ] || pack_wasm
  rm -rf "${work:?}/$target" "${work:?}/$NAME"*
}

[ $given = yes ] || build_all
# The first target writes the files that the others take from it. The others are compressed in
# parallel.
set -m
target=${targets[0]}
pack
packing=()
packed() { # waits for the oldest one
  wait "${packing[0]}" || fail "a target could not be packed"
  packing=("${packing[@]:1}")
}
for target in "${targets[@]:1}"; do
  [ ${#packing[@]} -lt "$(nproc)" ] || packed
  pack &
  packing+=($!)
done
while [ ${#packing[@]} -gt 0 ]; do packed; done
set +m

# --- What the packages were made from, and the sums ---------------------------------------------

[ $archive_only = yes ] || python3 -B - "$OUT/mote-$VERSION-provenance.json" <<TXT
import json, sys
with open(sys.argv[1], "w") as file:
    json.dump({
        "commit": "$commit",
        "modified": "$modified" == "true",
        "version": "$VERSION",
        "targets": "${targets[*]}".split(),
        "rustc": "$(rustc --version)",
        "cargo": "$(cargo --version)",
        "date": "$(date --utc --date="@$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)",
        "source_date_epoch": $SOURCE_DATE_EPOCH,
        "zig": "$(scripts/static.sh --zig)",
        "kernel_min": "$KERNEL_MIN",
    }, file, indent=1)
    file.write("\n")
TXT
(cd "$OUT" && sha256sum -- * >"$work/sums" && mv "$work/sums" SHA256SUMS)
if [ -n "${MOTE_SIGNING_KEY:-}" ]; then
  sign "$OUT/SHA256SUMS"
  say "signed with $MOTE_SIGNING_KEY"
else
  say "UNSIGNED: set MOTE_SIGNING_KEY to a secret key of minisign to sign the sums"
fi
(cd "$OUT" && du --apparent-size --bytes -- * | awk '{ printf "%12d  %s\n", $1, $2 }')
say "the packages are in $OUT"
