#!/usr/bin/env bash
# Runs the sandbox tests and a part of the end-to-end tests as an ordinary user, once without
# control groups and once with the user's own. Needs root to create that user for the run; without
# root, `make test` already runs as an ordinary user.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ "$(id -u)" != 0 ]; then
  echo "SKIPPED: tests as an ordinary user: the other suites already run as one"
  exit 0
fi
# Tests that do not depend on the user are left to the run as root.
sandbox=(escape images instances)
nodes=(first_light deploys faults egress secrets management rollout scale_to_zero worker_death installation)
# The executables of a crate's tests, from the build of the whole workspace.
binaries() { # crate, test…
  cargo test --workspace --tests --no-run --message-format=json 2>/dev/null | python3 -B -c '
import json, sys
crate, *tests = sys.argv[1:]
for built in map(json.loads, filter(lambda line: line.startswith("{"), sys.stdin)):
    if built.get("executable") and built["target"]["kind"] == ["test"]:
        folder = built["manifest_path"].split("/")[-2]
        if folder == crate and built["target"]["name"] in tests:
            print(built["executable"])
' "$@"
}

folder=$(mktemp -d "${TMPDIR:-/tmp}/mote-as-user.XXXXXX")
trap 'rm -rf "$folder"' EXIT
chmod 755 "$folder"
mkdir "$folder/sandbox"
bin=${MOTE_BIN:-target/debug/mote}
cp "$bin" "$folder/mote"
export MOTE_BIN=$folder/mote
mapfile -t built < <(binaries sandbox "${sandbox[@]}")
cp "${built[@]}" "$folder/sandbox/"
mapfile -t built < <(binaries tests e2e)
cp "${built[@]}" "$folder/e2e"
if ! scripts/as-user.sh "$folder/look" test -r "$PWD/tests/Cargo.toml"; then
  echo "SKIPPED: tests as an ordinary user: $PWD cannot be read by others, and has the fixtures"
  exit 0
fi

failed=()
for mode in "" --delegate; do
  for test in "$folder"/sandbox/* "${nodes[@]}"; do
    command=("$test")
    [ -x "$test" ] || command=("$folder/e2e" "$test::")
    printf '\n-- as an ordinary user%s: %s\n' "${mode:+, delegated cgroups}" "${test##*/}"
    # shellcheck disable=SC2086 # no word for no mode
    scripts/as-user.sh $mode "$folder/user$mode" "${command[@]}" || failed+=("${test##*/}$mode")
  done
done
[ ${#failed[@]} -eq 0 ] || { printf 'FAILED: %s\n' "${failed[*]}"; exit 1; }
