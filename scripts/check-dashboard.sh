#!/usr/bin/env bash
# Checks the types of the dashboard, and that dashboard/dist matches a build of its sources byte for
# byte, because the program contains dashboard/dist. Run `npm run build` in dashboard/ to refresh
# it. scripts/setup.sh lint installs the tools.
set -euo pipefail
cd "$(dirname "$0")/../dashboard"

if [ ! -d node_modules ]; then
  echo "SKIPPED: dashboard: its packages are not installed, which needs npm and the internet"
  exit 0
fi
built=$(mktemp -d)
trap 'rm -rf "$built"' EXIT
npx --no-install tsc --noEmit
npx --no-install vite build --logLevel warn --outDir "$built" --emptyOutDir
diff -rq dist "$built" || {
  echo "dashboard/dist is stale; refresh it: cd dashboard && npm run build"
  exit 1
}
