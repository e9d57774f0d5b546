#!/usr/bin/env bash
# Builds the programs of this tree a second time, with another version number, for upgrade tests:
# mote, mote-chain and mote-upgrade report that version, also in the status of a running node.
#
# Usage: scripts/build-version.sh VERSION FOLDER
#
# The manifests are replaced only in this script's mount namespace, so that the tree stays as it is,
# and only the crates that report the version are compiled again. $PROFILE is dev if it is not set.
# Needs root.
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# = 2 ] || { sed -n '5s/^# //p' "$0" >&2; exit 2; }
[ "$(id -u)" = 0 ] || { echo "build-version: a mount namespace needs root" >&2; exit 1; }

CRATES=(mote mote-cli mote-node mote-chain mote-upgrade)
version=$1 folder=$(realpath -m "$2") profile=${PROFILE:-dev}
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
built=$target/$profile
[ "$profile" != dev ] || built=$target/debug
export PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"
build() { cargo build --offline --quiet --profile "$profile" --workspace --bins; }

if [ "${BUILD_VERSION_INSIDE:-}" != yes ]; then
  # The programs of this tree are built again afterwards: cargo has one place for both.
  BUILD_VERSION_INSIDE=yes unshare --mount --propagation private -- "$0" "$version" "$folder" || exit
  build
  echo "build-version: the programs of version $version are in $folder" >&2
  exit
fi
replaced=$(mktemp -d)
trap 'rm -rf "$replaced"' EXIT
replace() { # file, script of sed
  sed "$2" "$1" >"$replaced/file"
  mv "$replaced/file" "$replaced/$(echo "$1" | tr / _)"
  mount --bind "$replaced/$(echo "$1" | tr / _)" "$1"
}
for crate in "${CRATES[@]}"; do
  replace "$(dirname "$(grep -l "^name = \"$crate\"\$" crates/*/*/Cargo.toml)")/Cargo.toml" "s/^version\.workspace = true$/version = \"$version\"/"
done
names=$(printf '%s\n' "${CRATES[@]}" | paste -sd '|' | sed 's/|/\\|/g')
replace Cargo.lock "/^name = \"\($names\)\"$/{n;s/^version = .*/version = \"$version\"/}"
build
mkdir -p "$folder"
cp "$built/mote" "$folder/"
said=$("$folder/mote" version)
[ "$said" = "mote $version" ] || { echo "build-version: the program says: $said" >&2; exit 1; }
