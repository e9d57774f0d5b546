# shellcheck shell=bash
# How the jobs inside of guests report: sourced by jobs.sh and user-mode.sh. Each result is one line
# that begins with ok, FAILED or SKIPPED; lines that begin with `figure` are measurements.

ok() { printf 'ok      %s\n' "$*"; }
wrong() { printf 'FAILED  %s\n' "$*"; }
skip() { printf 'SKIPPED %s\n' "$*"; }
figure() { printf 'figure  %s\n' "$*"; }
indent() { sed 's/^/        /'; }
check() { # name, command…
  local name=$1 output
  shift
  if output=$("$@" 2>&1); then ok "$name"; else
    wrong "$name"
    printf '%s\n' "$output" | tail -n 20 | indent
  fi
}
# run_test NAME COMMAND…: runs a test program and counts its tests.
run_test() {
  local name=$1 result seconds=$SECONDS
  shift
  timeout --kill-after=10 "${GUEST_TEST_SECONDS:-900}" "$@" >/tmp/test.log 2>&1
  result=$?
  grep -E '^test .* \.\.\. ok$' /tmp/test.log | sed -E "s|^test (.*) \.\.\. ok$|ok      $name: \1|"
  grep -E '^test .* \.\.\. FAILED$' /tmp/test.log | sed -E "s|^test (.*) \.\.\. FAILED$|FAILED  $name: \1|"
  grep -E '^test .* \.\.\. ignored' /tmp/test.log | sed -E "s|^test (.*) \.\.\. ignored.*$|SKIPPED $name: \1|"
  grep -oE 'SKIPPED: .*' /tmp/test.log | sed "s|^SKIPPED: |part    $name: |" | sort -u
  # The battery is a separate program, without the list of a test runner.
  grep -E '^(family|all:|in a program|control outside|layer removed)|^[a-z_ ]+ +[0-9]+ [a-z_]+' /tmp/test.log | sed "s|^|figure  $name: |"
  if ! grep -q '^test result:' /tmp/test.log; then
    if [ $result = 0 ]; then ok "$name"; else wrong "$name: exit status $result"; fi
  elif [ $result != 0 ] && ! grep -q '^test .* FAILED$' /tmp/test.log; then
    wrong "$name: exit status $result"
  fi
  [ $result = 0 ] || { grep -m 1 -A 2 panicked /tmp/test.log; tail -n 60 /tmp/test.log; } | cut -c1-300 | indent
  figure "$name: $((SECONDS - seconds)) s"
}
