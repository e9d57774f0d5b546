#!/usr/bin/env bash
# Builds the documentation as one site with a search field: target/book/index.html.
# mdBook is built once into .cache/docs-tools. Usage: scripts/docs.sh [--serve] (on 127.0.0.1:3000)
set -euo pipefail
cd "$(dirname "$0")/.."
MDBOOK=0.5.4

scripts/setup.sh build
export PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"
tools=$PWD/.cache/docs-tools
if [ "$(cat "$tools/mdbook.version" 2>/dev/null)" != "$MDBOOK" ]; then
  echo "docs: building mdBook $MDBOOK into .cache/docs-tools (some minutes, once)" >&2
  CARGO_TARGET_DIR=$tools/build nice cargo install --quiet --locked --root "$tools" \
    --no-default-features --features search,serve "mdbook@$MDBOOK"
  rm -rf "$tools/build"
  echo "$MDBOOK" >"$tools/mdbook.version"
fi

# Pages are at the top of the repository and in docs/, and their links use these paths. For this
# reason the site is built from a copy that has only the pages, in the same folders.
target=$PWD/target
target=${CARGO_TARGET_DIR:-$target}
stage=$target/book-source
rm -rf "$stage"
mkdir -p "$stage/src"
cp docs/book.toml "$stage/"
cp -- *.md LICENSE "$stage/src/"
cp -r docs "$stage/src/"
mkdir "$stage/src/bench"
cp bench/README.md "$stage/src/bench/"
rm "$stage/src/docs/SUMMARY.md" "$stage/src/docs/book.toml"
# Paths in the table of contents begin at the top of the repository.
sed -E -e 's|\]\(([^.)][^)]*)\)|](docs/\1)|' -e 's|\]\(\.\./|](|' docs/SUMMARY.md >"$stage/src/SUMMARY.md"

if [ "${1:-}" = --serve ]; then
  exec "$tools/bin/mdbook" serve --hostname 127.0.0.1 --dest-dir "$target/book" "$stage"
fi
"$tools/bin/mdbook" build --dest-dir "$target/book" "$stage"
python3 -B scripts/check-site.py "$target/book"
echo "written to $target/book/index.html"
