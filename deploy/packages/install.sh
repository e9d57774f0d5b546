#!/bin/sh
# Installs mote from the folder in which this script is, an unpacked archive of a release.
#
# Usage: install.sh [--prefix DIR] [--no-service] [--public-key FILE]
#        install.sh --uninstall [--prefix DIR] [--purge]
#   --prefix DIR       where the files go; the default is /usr/local
#   --no-service       install no service of systemd, OpenRC or procd
#   --public-key FILE  check the signature of SHA256SUMS with this public key of minisign, and keep
#                      the key: mote upgrade then accepts only archives that are signed with it
#   --uninstall        remove what was installed, as PREFIX/share/mote/uninstall.sh does
# mote upgrade adds --upgrade, when it has checked the signature: nothing is started or restarted.
#
# Everything that can be wrong is checked before the first change. Each file is written under a
# temporary name and then renamed. DIR/share/mote/receipt names every file and folder before it is
# made, so that after an interruption a second run completes the installation, and uninstall.sh
# removes it.
set -eu
export LC_ALL=C

prefix=/usr/local
service=yes
key=
uninstall=no
upgrade=no
kept_key=no
purge=

say() { printf 'install: %s\n' "$*"; }
fail() {
  printf 'install: error: %s\n' "$1" >&2
  [ -z "${2:-}" ] || printf 'install: %s\n' "$2" >&2
  exit 1
}
usage() {
  sed -n '4,10s/^# \{0,1\}//p' "$0"
}
# owner_problem PATH: why somebody else could change what is installed there; nothing if nobody can.
# Only the owner, root, members of its group and, if it is not sticky, everybody can replace what is in
# it. Debian gives /usr/local to the group staff, which usually has no members.
owner_problem() {
  [ -e "$1" ] || return 0
  if [ -d "$1" ]; then set -- "$1" "$1/."; else set -- "$1" "$1"; fi
  # shellcheck disable=SC2012 # POSIX has no stat
  ls -ldn "$2" | awk -v path="$1" -v me="$(id -u)" '
  function member(group,   line, user, names, count, id, found) {
    while ((getline line < "/etc/passwd") > 0) {
      split(line, user, ":"); id[user[1]] = user[3]
      if (user[4] == group && user[3] != 0 && user[3] != me) found = user[1]
    }
    while (found == "" && (getline line < "/etc/group") > 0) {
      split(line, user, ":")
      if (user[3] != group) continue
      count = split(user[4], names, ",")
      for (i = 1; i <= count; i++) if (names[i] != "" && id[names[i]] != "0" && id[names[i]] != me) found = names[i]
    }
    return found
  }
  {
    if ($3 != 0 && $3 != me) printf "%s belongs to the user with the number %s, who could change what is installed", path, $3
    else if (substr($1, 9, 1) == "w" && tolower(substr($1, 10, 1)) != "t") printf "everybody may write to %s, and could change what is installed", path
    else if (substr($1, 6, 1) == "w" && $4 != 0 && tolower(substr($1, 10, 1)) != "t" && (who = member($4)) != "") printf "%s, a member of its group, may write to %s, and could change what is installed", who, path
  }'
}
# named_outside RECEIPT: a path in it that this script does not write, because it is not below the prefix.
named_outside() {
  awk -v prefix="$prefix/" '
    $1 == "file" { path = substr($0, 71); inside = index(path, prefix) == 1 }
    $1 == "file" && (path == "/etc/systemd/system/mote.service" || path == "/etc/init.d/mote") { inside = 1 }
    $1 == "dir" { path = substr($0, 5); inside = index(path "/", prefix) == 1 || index(prefix, path "/") == 1 }
    $1 == "file" || $1 == "dir" { if (!inside || path ~ /\/\.\.(\/|$)/) { print path; exit } }' "$1"
}
value() { # flag, number of words, value
  if [ "$2" -lt 2 ] || [ -z "$3" ]; then fail "$1 needs a value" "Run install.sh --help for its flags."; fi
}

while [ $# -gt 0 ]; do
  case $1 in
    --prefix) value "$1" $# "${2:-}" && prefix=$2 && shift ;;
    --prefix=*) prefix=${1#*=} ;;
    --public-key) value "$1" $# "${2:-}" && key=$2 && shift ;;
    --public-key=*) key=${1#*=} ;;
    --no-service) service=no ;;
    --uninstall) uninstall=yes ;;
    --upgrade) upgrade=yes ;;
    --purge) purge=--purge ;;
    -h | --help) usage && exit 0 ;;
    *) fail "$1 is not a flag of install.sh" "Run install.sh --help for its flags." ;;
  esac
  shift
done
[ -z "$purge" ] || [ $uninstall = yes ] || fail "--purge needs --uninstall" "It removes the data of the node, which an installation must not do."
case $prefix in
  /*) ;;
  *) fail "--prefix $prefix is not an absolute path" "Give a path that begins with a slash." ;;
esac
case $prefix in
  *'
'* | */../* | */..) fail "--prefix contains a line break or .." "Give a plain path." ;;
esac
while [ "$prefix" != / ] && [ "${prefix%/}" != "$prefix" ]; do prefix=${prefix%/}; done
[ "$prefix" != / ] || fail "--prefix / would mix mote with the files of the system" "Use /usr/local or a folder of its own."

from=$(cd "$(dirname "$0")" && pwd)
if [ $uninstall = yes ]; then
  # shellcheck disable=SC2086 # empty, or one word
  exec sh "$from/share/mote/uninstall.sh" --prefix "$prefix" $purge
fi
state=$prefix/share/mote
receipt=$state/receipt

# `mote upgrade` and the other script change the same files; it holds this lock when it runs this script.
if [ $upgrade = no ] && [ -d "$state" ] && command -v flock >/dev/null 2>&1; then
  exec 9<"$state"
  flock -n 9 || fail "another installation, removal or upgrade of $prefix is running" "Wait until it has ended."
fi

# --- What can be wrong, before the first change -------------------------------------------------

for file in requirements SHA256SUMS; do
  [ -r "$from/$file" ] ||
    fail "$from is not an unpacked archive of mote: it has no file $file" "Unpack the archive again and run the install.sh that is in it."
done
required() { sed -n "s/^$1=//p" "$from/requirements"; }
for tool in sha256sum sed awk df uname mv cp mktemp; do
  command -v "$tool" >/dev/null 2>&1 || fail "this system has no $tool" "Install the program $tool and run install.sh again."
done

if [ -n "$key" ]; then
  [ -r "$key" ] || fail "the public key $key cannot be read" "Name the file with the public key of the release."
fi
# A key that this installation trusts is not given up by leaving out --public-key.
if [ -z "$key" ] && [ $upgrade = no ] && [ -f "$state/public-key" ]; then
  key=$state/public-key kept_key=yes
  say "checking the signature with the trusted key $key"
fi
if [ -n "$key" ] && [ $upgrade = no ]; then
  command -v minisign >/dev/null 2>&1 ||
    fail "the signature cannot be checked, because minisign is not installed" "Install the package minisign, or check the archive elsewhere."
  advice="This archive is unsigned. Download a signed one, or leave out --public-key."
  [ $kept_key = no ] || advice="This installation trusts $key. Download a signed archive, or remove that file to install without a check."
  [ -r "$from/SHA256SUMS.minisig" ] || fail "the archive has no signature (SHA256SUMS.minisig)" "$advice"
  minisign -V -q -p "$key" -m "$from/SHA256SUMS" -x "$from/SHA256SUMS.minisig" >/dev/null 2>&1 ||
    fail "the signature of $from/SHA256SUMS does not belong to the key $key" "Do not use this archive. Download it again, and check that the key is that of the release."
fi

if grep -qvE '^[0-9a-f]{64}  [A-Za-z0-9_][A-Za-z0-9._/-]*$' "$from/SHA256SUMS" ||
  ! grep -q '  requirements$' "$from/SHA256SUMS" || ! grep -q '  bin/mote$' "$from/SHA256SUMS"; then
  fail "the file SHA256SUMS of the archive is damaged" "Download the archive again and unpack it into an empty folder."
fi
bad=$(cd "$from" && sha256sum -c SHA256SUMS 2>/dev/null | sed -n 's/: FAILED.*//p' | head -n 1)
[ -z "$bad" ] ||
  fail "the file $bad is damaged or missing: it does not match SHA256SUMS" "Download the archive again and unpack it into an empty folder."

machine=$(uname -m)
[ "$(uname -s)" = Linux ] || fail "mote runs on Linux, and this system is $(uname -s)" "Use a machine with Linux."
bits=$(getconf LONG_BIT 2>/dev/null || required bits)
case $machine in
  # A processor of 64 bits also runs a system of 32 bits.
  aarch64 | armv8l) [ "$bits" = 64 ] || machine=armv7l ;;
esac
[ "$machine" = "$(required architecture)" ] ||
  fail "this archive is for $(required architecture), and this machine is $machine" "Download the archive for $machine."
[ "$bits" = "$(required bits)" ] ||
  fail "the programs of this system are for $bits bits, although its kernel is for 64" "Install a 64-bit system; mote has no 32-bit archive for $machine."

# older VERSION THAN: whether a version of dotted numbers is older than another.
older() {
  awk -v one="$1" -v two="$2" 'BEGIN {
    split(one, a, "."); split(two, b, ".")
    for (i = 1; i <= 3; i++) { if (a[i] + 0 < b[i] + 0) exit 0; if (a[i] + 0 > b[i] + 0) exit 1 }
    exit 1
  }'
}
kernel=$(uname -r)
older "$kernel" "$(required kernel)" &&
  fail "the kernel $kernel is too old: mote needs Linux $(required kernel) or newer" "Update the kernel or the distribution."
glibc=$(required glibc)
libc=$(getconf GNU_LIBC_VERSION 2>/dev/null | sed -n 's/^glibc //p')
[ -z "$glibc" ] || [ -n "$libc" ] || libc=$(ldd --version 2>/dev/null | sed -n '1s/^ldd (.*) \([0-9.]*\)$/\1/p')
[ -z "$glibc" ] || [ -n "$libc" ] ||
  fail "this system has no GNU C library, which these programs need" "Use the archive whose name ends in linux-musl.tar.gz, which needs none."
[ -z "$glibc" ] || ! older "$libc" "$glibc" ||
  fail "the C library glibc $libc is too old: these programs need $glibc or newer" "Use the archive whose name ends in linux-musl.tar.gz, which needs none."

if command -v dpkg-query >/dev/null 2>&1 &&
  [ "$(dpkg-query --show --showformat='${db:Status-Status}' mote 2>/dev/null)" = installed ]; then
  fail "mote is already installed by the Debian package mote" "Remove it first (apt remove mote), or update the package instead."
fi
if command -v rpm >/dev/null 2>&1 && rpm --query --quiet mote 2>/dev/null; then
  fail "mote is already installed by the RPM package mote" "Remove it first (rpm --erase mote), or update the package instead."
fi

if [ $service = yes ] && [ "$(id -u)" != 0 ]; then
  fail "a service can be installed by root only" "Run install.sh with sudo, or add --no-service and a --prefix in which you may write, such as $HOME/.local."
fi
# What keeps services on this machine, and the file in which it finds one.
if [ $service = yes ]; then
  if [ -d /run/systemd/system ]; then
    service=systemd UNIT=/etc/systemd/system/mote.service
  elif [ -d /run/openrc ] && command -v openrc-run >/dev/null 2>&1; then
    service=openrc UNIT=/etc/init.d/mote
  elif [ -x /sbin/procd ] && [ -r /etc/rc.common ]; then
    service=procd UNIT=/etc/init.d/mote
  else
    say "neither systemd nor OpenRC nor procd runs here, so that no service is installed"
    service=no
  fi
fi

# The files of the archive that are installed, as "SHA-256  PATH", by the path below the prefix.
listed() { sed -n 's/^\([0-9a-f]\{64\}\)  \(\(bin\|share\)\/.*\)$/\1  \2/p' "$from/SHA256SUMS"; }
# The nearest folder of a path that exists.
nearest() {
  folder=$1
  while [ ! -e "$folder" ]; do folder=$(dirname "$folder"); done
  printf '%s\n' "$folder"
}
existing=$(nearest "$prefix")
{
  printf '%s\n' "$existing"
  [ $service = no ] || dirname "$UNIT"
  { listed; echo "- share/mote/receipt"; } | while read -r _ path; do
    folder=$(nearest "$(dirname "$prefix/$path")")
    # Whoever owns a folder above it can replace it.
    while printf '%s\n' "$folder" && [ "$folder" != "$existing" ] && [ "$folder" != / ]; do folder=$(dirname "$folder"); done
  done
} | awk '!seen[$0]++' | while IFS= read -r folder; do
  [ -d "$folder" ] || fail "$folder is not a folder" "Choose another --prefix."
  problem=$(owner_problem "$folder")
  [ -z "$problem" ] || fail "$problem" "Run install.sh as that user, or choose a --prefix in which only root and you may write."
  # A file is made, because a file system can be read-only although the permissions allow to write.
  rm -f "$folder"/.mote-install.?????? # left by an installation that was killed
  probe=$(mktemp "$folder/.mote-install.XXXXXX" 2>/dev/null) || {
    [ "$(id -u)" = 0 ] || fail "you may not write to $folder" "Run install.sh with sudo, or choose a --prefix in which you may write."
    fail "$folder cannot be written to; it may be full or on a read-only file system" "Choose another --prefix."
  }
  rm -f "$probe"
done || exit 1
unit_text() { sed "s|/usr/bin/mote|$(printf '%s' "$prefix" | sed 's/[|\\&]/\\&/g')/bin/mote|" "$from/services/$service"; }
case $prefix in
  *[\ \"\'%\$\\]*) [ $service = no ] || fail "the path $prefix cannot be written into a service file" "Use a --prefix without spaces, quotes, % and \$." ;;
esac
if [ -e "$receipt" ] && { ! head -n 1 "$receipt" | grep -qE '^mote .* (in)?complete$' ||
  grep -qvE '^(mote .*|file [0-9a-f]{64} /.*|dir /.*|service (mote\.service|openrc|procd))$' "$receipt"; }; then
  fail "$receipt of the earlier installation is damaged" "Restore it, or remove it and the files of mote below $prefix yourself."
fi
problem=$(owner_problem "$receipt")
[ -z "$problem" ] || fail "$problem" "Remove the file, or choose another --prefix."
outside=$([ ! -e "$receipt" ] || named_outside "$receipt")
[ -z "$outside" ] ||
  fail "$receipt of the earlier installation is damaged: it names $outside, which is not below $prefix" "Restore it, or remove it and the files of mote below $prefix yourself."
sum_of() { sha256sum <"$1" | cut -d' ' -f1; }
named() { [ -f "$receipt" ] && awk -v path="$1" '$1 == "file" && substr($0, 71) == path { found = 1 } END { exit !found }' "$receipt"; }
foreign() {
  { [ -e "$1" ] || [ -L "$1" ]; } && ! named "$1" &&
    fail "$1 exists and was not installed by this script" "Remove or rename it, or choose another --prefix."
  return 0
}
listed | while read -r _ path; do foreign "$prefix/$path"; done || exit 1
[ $service = no ] || foreign "$UNIT"

needed=$(listed | while read -r _ path; do wc -c <"$from/$path"; done | awk '{ sum += int(($1 + 4095) / 4096) * 4 } END { print sum + 1024 }')
free=$(df -P -k "$existing" | awk 'NR == 2 { print $4 }')
[ "$free" -ge "$needed" ] ||
  fail "$existing has $free KiB free, and the installation needs $needed KiB" "Free some space, or choose a --prefix on another file system."

# --- Installation -------------------------------------------------------------------------------

umask 022
# Folders that do not exist yet are written into the receipt, so that they are removed with it.
new_folders() { # path of a folder
  folder=$1
  while [ ! -d "$folder" ]; do
    printf 'dir %s\n' "$folder"
    folder=$(dirname "$folder")
  done
}
plan() {
  listed | while read -r sum path; do printf 'file %s %s\n' "$sum" "$prefix/$path"; done
  [ -z "$key" ] || printf 'file %s %s\n' "$(sum_of "$key")" "$trusted"
  [ $service = no ] || printf 'file %s %s\n' "$(unit_text | sha256sum | cut -d' ' -f1)" "$UNIT"
  case $service in no) ;; systemd) echo 'service mote.service' ;; *) echo "service $service" ;; esac
}
folders() {
  new_folders "$state"
  listed | while read -r _ path; do new_folders "$(dirname "$prefix/$path")"; done
}
was=$(cat "$receipt" 2>/dev/null) || was=
# The trusted key of this installation stays until another one is given.
trusted=$state/public-key
[ -n "$key" ] || [ ! -f "$trusted" ] || key=$trusted kept_key=yes # in an upgrade
made=$( (printf '%s\n' "$was" | grep '^dir ' || true; folders) | sort -u)
version=$(required version)
# While the installation runs, the receipt names the files of the former version too.
write_receipt() { # state, text
  rm -f "$receipt.new" # it may be a link
  { printf 'mote %s %s\n' "$version" "$1"; printf '%s\n' "$made" | grep . || true; printf '%s\n' "$2" | grep -v '^mote \|^dir ' | grep . | sort -u; } >"$receipt.new"
  mv -f "$receipt.new" "$receipt"
}
installed=$(printf '%s\n' "$was" | sed -n '1s/^mote \([^ ]*\) .*/\1/p')
if [ $upgrade = no ] && [ -n "$installed" ] && older "$version" "$installed"; then
  say "mote $version is older than the installed $installed; a node may refuse the data of the newer version"
fi
planned=$(plan)
ended() {
  if [ "$1" != 0 ]; then say "the installation is not complete; run install.sh again, or with --uninstall" >&2; fi
}
trap 'ended $?' EXIT
if [ ! -d "$state" ]; then
  # The new folders appear together with the receipt, so that there is no folder without one.
  first=$state
  while [ ! -d "$(dirname "$first")" ]; do first=$(dirname "$first"); done
  new=$(dirname "$first")/.mote-install.new
  rm -rf "$new"
  # Without -p, so that a folder that somebody else has just made is not taken.
  mkdir "$new"
  mkdir -p "$new${state#"$first"}"
  receipt=$new${receipt#"$first"}
  write_receipt incomplete "$planned"
  mv "$new" "$first"
  receipt=$state/receipt
else
  write_receipt incomplete "$was
$planned"
fi

put() { # mode, path; the content is the input
  mkdir -p "$(dirname "$2")"
  # A rename replaces a program that runs, which cannot be written to.
  rm -f "$2.mote-new" # it may be a link
  cat >"$2.mote-new"
  chmod "$1" "$2.mote-new"
  mv -f "$2.mote-new" "$2"
}
listed | while read -r _ path; do
  case $path in
    bin/* | *.sh) mode=755 ;;
    *) mode=644 ;;
  esac
  put $mode "$prefix/$path" <"$from/$path"
done
if [ -n "$key" ] && [ $kept_key = no ]; then put 644 "$trusted" <"$key"; fi
case $service in no) ;; systemd) unit_text | put 644 "$UNIT" ;; *) unit_text | put 755 "$UNIT" ;; esac

# Files of the former version that this one does not have.
printf '%s\n' "$was" | grep '^file ' | while read -r _ sum path; do
  printf '%s\n' "$planned" | cut -c71- | grep -qxF "$path" && continue
  case $path in
    /etc/systemd/system/mote.service) systemctl disable --now mote.service >/dev/null 2>&1 || true ;;
    /etc/init.d/mote) "$path" stop >/dev/null 2>&1 || true ;;
  esac
  [ ! -f "$path" ] || [ "$(sum_of "$path")" != "$sum" ] || rm -f "$path"
  [ "$path" != /etc/systemd/system/mote.service ] || systemctl daemon-reload >/dev/null 2>&1 || true
done || true

"$prefix/bin/mote" version >/dev/null 2>&1 || {
  why=$("$prefix/bin/mote" version 2>&1) || true
  fail "the installed program $prefix/bin/mote does not run: $why" "Remove it with $state/uninstall.sh, and report this machine and the text above."
}
case $service-$upgrade in
  systemd-yes) systemctl daemon-reload ;;
  *-yes | no-no) ;;
  systemd-no)
    systemctl daemon-reload
    systemctl enable --quiet mote.service
    systemctl restart mote.service ||
      fail "the service mote did not start" "Read why with: journalctl -u mote. Then run: systemctl start mote"
    ;;
  openrc-no)
    rc-update --quiet add mote default
    rc-service --quiet mote restart 9<&- ||
      fail "the service mote did not start" "Read why in /var/log/mote.log. Then run: rc-service mote start"
    ;;
  procd-no)
    $UNIT enable
    $UNIT restart ||
      fail "the service mote did not start" "Read why with: logread -e mote. Then run: $UNIT start"
    ;;
esac
write_receipt complete "$planned"
[ $upgrade = no ] || exit 0
# An upgrade that was interrupted is neither completed nor undone after this.
rm -rf "$state/upgrade" "$state/upgrade.new"

say "mote $version is installed in $prefix"
if [ -n "$key" ] && [ $kept_key = no ]; then
  say "the signature belongs to $key, which is kept in $trusted"
elif [ -n "$key" ]; then
  say "the signature belongs to the trusted key $key"
else
  say "the signature was not checked, because no --public-key was given"
fi
if [ $service != no ]; then
  say "the service mote runs, and starts with this machine"
else
  say "start a node with: $prefix/bin/mote up"
fi
say "remove it with: '$state/uninstall.sh' --prefix '$prefix'"
