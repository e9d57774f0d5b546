#!/usr/bin/env bash
# Tests what install.sh and uninstall.sh refuse, and how interrupted installations end. It changes
# the system in which it runs, so scripts/test-dist.sh runs it in a separate system.
#
# Usage: test-install.sh ARCHIVE.tar.gz PACKAGE.deb
set -euo pipefail

if [ "$(cat /proc/1/comm)" != systemd ] || [ "$(hostname)" != mote-dist ]; then
  echo "test-install: only scripts/test-dist.sh runs this, in a system of its own" >&2
  exit 2
fi
archive=$1 deb=$2
export LC_ALL=C
work=$(mktemp -d /tmp/install-test.XXXXXX)
cd "$work"
tar -xzf "$archive"
original=$work/$(basename "$archive" .tar.gz)
passed=0 failed=0

pass() { echo "ok      install: $*"; passed=$((passed + 1)); }
wrong() { echo "FAILED  install: $*"; failed=$((failed + 1)); }

# Lists everything that an installation could change: names and modes, and for files also size and
# time.
system() {
  for folder in /usr/local /opt /srv /etc/systemd /etc/mote /var/lib/mote; do
    [ ! -e $folder ] || find $folder -xdev \( -type d -printf '%p %m %y\n' -o -printf '%p %m %s %T@ %y\n' \)
  done | sort
}
copy() { # a fresh copy of the archive, in $tree
  rm -rf "$work/copy"
  cp -a "$original" "$work/copy"
  tree=$work/copy
}
# refused NAME TEXT command…: checks that the command fails, prints TEXT and no other error, and
# changes nothing.
refused() {
  local name=$1 text=$2 before output code=0
  shift 2
  before=$(system)
  output=$("$@" 2>&1) || code=$?
  if [ $code = 0 ]; then wrong "$name: it was not refused"
  elif [[ $output != *"$text"* ]]; then wrong "$name: it says: $output"
  elif [ "$(grep -c ' error: ' <<<"$output")" != 1 ] || [ "$(wc -l <<<"$output")" -lt 2 ]; then
    wrong "$name: not one error and what to do: $output"
  elif [ "$(system)" != "$before" ]; then
    wrong "$name: it changed the system"
    diff <(echo "$before") <(system) || true
  else pass "$name: $text"
  fi
}
succeeds() { # name, command…
  local name=$1 output
  shift
  if output=$("$@" 2>&1); then pass "$name"; else wrong "$name: $output"; fi
}
# Makes a program that replaces one of the system's programs for a command.
fake() { # name, text
  mkdir -p "$work/fake"
  printf '#!/bin/sh\n%s\n' "$2" >"$work/fake/$1"
  chmod +x "$work/fake/$1"
}
faked() { # command…
  local code=0
  PATH=$work/fake:$PATH "$@" || code=$?
  rm -rf "$work/fake"
  return $code
}
anybody() { setpriv --reuid 65534 --regid 65534 --clear-groups "$@"; }

chmod 755 "$work"

# --- The archive is not as it should be ---------------------------------------------------------

copy && printf x | dd of="$tree/bin/mote" bs=1 seek=5000 conv=notrunc status=none
refused "a damaged program" "the file bin/mote is damaged or missing" "$tree/install.sh"
copy && truncate -s 100 "$tree/share/doc/mote/LICENSE"
refused "a cut file" "the file share/doc/mote/LICENSE is damaged or missing" "$tree/install.sh"
copy && rm "$tree/share/man/man1/mote.1.gz"
refused "a missing file" "the file share/man/man1/mote.1.gz is damaged or missing" "$tree/install.sh"
copy && sed -i 's/glibc=.*/glibc=2.1/' "$tree/requirements"
refused "changed requirements" "the file requirements is damaged or missing" "$tree/install.sh"
copy && echo 'not a sum' >>"$tree/SHA256SUMS"
refused "damaged sums" "SHA256SUMS of the archive is damaged" "$tree/install.sh"
copy && echo "$(printf x | sha256sum | cut -c1-64)  ../../etc/passwd" >>"$tree/SHA256SUMS"
refused "sums that name a file elsewhere" "SHA256SUMS of the archive is damaged" "$tree/install.sh"
copy && : >"$tree/SHA256SUMS"
refused "empty sums" "SHA256SUMS of the archive is damaged" "$tree/install.sh"
copy && rm "$tree/requirements"
refused "not an archive" "is not an unpacked archive of mote" "$tree/install.sh"

# --- The signature ------------------------------------------------------------------------------

minisign -G -W -p "$work/ours.pub" -s "$work/ours.key" >/dev/null
minisign -G -W -p "$work/other.pub" -s "$work/other.key" >/dev/null
copy && rm -f "$tree/SHA256SUMS.minisig"
refused "no signature" "the archive has no signature" "$tree/install.sh" --public-key "$work/ours.pub"
minisign -S -s "$work/other.key" -m "$tree/SHA256SUMS" >/dev/null
refused "a signature of another key" "does not belong to the key" "$tree/install.sh" --public-key "$work/ours.pub"
minisign -S -s "$work/ours.key" -m "$tree/SHA256SUMS" >/dev/null
sed -i '1s/^./0/;1s/^00/10/' "$tree/SHA256SUMS"
refused "sums that were changed after they were signed" "does not belong to the key" "$tree/install.sh" --public-key "$work/ours.pub"
refused "a key that does not exist" "the public key $work/none.pub cannot be read" "$tree/install.sh" --public-key "$work/none.pub"
copy
mv /usr/bin/minisign /usr/bin/minisign.away
refused "no minisign" "minisign is not installed" "$tree/install.sh" --public-key "$work/ours.pub"
mv /usr/bin/minisign.away /usr/bin/minisign

# --- The machine --------------------------------------------------------------------------------

copy
uname_says() { fake uname "case \$1 in -m) echo $1 ;; -r) echo $2 ;; -s) echo $3 ;; esac"; }
uname_says aarch64 6.1.0 Linux
refused "another architecture" "this archive is for x86_64, and this machine is aarch64" faked "$tree/install.sh"
uname_says x86_64 5.10.0-30-amd64 Linux
refused "an old kernel" "the kernel 5.10.0-30-amd64 is too old" faked "$tree/install.sh"
uname_says x86_64 23.1.0 Darwin
refused "another system" "mote runs on Linux, and this system is Darwin" faked "$tree/install.sh"
getconf_says() { fake getconf "case \$1 in LONG_BIT) echo $1 ;; *) $2 ;; esac"; }
getconf_says 32 "exit 1"
refused "32-bit programs" "the programs of this system are for 32 bits" faked "$tree/install.sh"
getconf_says 64 "echo glibc 2.17"
refused "an old C library" "the C library glibc 2.17 is too old" faked "$tree/install.sh"
getconf_says 64 "exit 1"
fake ldd 'echo "musl libc (x86_64)" >&2; exit 1'
refused "another C library" "this system has no GNU C library" faked "$tree/install.sh"

# --- The place ----------------------------------------------------------------------------------

mkdir -p /srv/tiny /srv/readonly
mount -t tmpfs -o size=2m tmpfs /srv/tiny
refused "no space" "KiB free, and the installation needs" "$tree/install.sh" --no-service --prefix /srv/tiny/mote
umount /srv/tiny
mount -t tmpfs -o ro tmpfs /srv/readonly
refused "a read-only file system" "/srv/readonly cannot be written to" "$tree/install.sh" --no-service --prefix /srv/readonly
umount /srv/readonly
rmdir /srv/tiny /srv/readonly
mkdir -p /srv/readonly/share/man
mount -t tmpfs -o ro tmpfs /srv/readonly/share/man
refused "a read-only folder below the prefix" "/srv/readonly/share/man cannot be written to" "$tree/install.sh" --no-service --prefix /srv/readonly
umount /srv/readonly/share/man
rm -r /srv/readonly
touch /srv/file
refused "a prefix below a file" "/srv/file is not a folder" "$tree/install.sh" --no-service --prefix /srv/file/mote
rm /srv/file
refused "a relative prefix" "is not an absolute path" "$tree/install.sh" --prefix opt
refused "the root as prefix" "would mix mote with the files of the system" "$tree/install.sh" --prefix //
refused "a prefix with .." "contains a line break or .." "$tree/install.sh" --prefix /opt/../etc
refused "a prefix that a unit cannot name" "cannot be written into a service file" "$tree/install.sh" --prefix "/opt/a b"
mkdir -p /usr/local/bin && echo mine >/usr/local/bin/mote
refused "a file of somebody else" "/usr/local/bin/mote exists and was not installed by this script" "$tree/install.sh"
rm /usr/local/bin/mote
echo '[Unit]' >/etc/systemd/system/mote.service
refused "a unit of somebody else" "/etc/systemd/system/mote.service exists and was not installed by this script" "$tree/install.sh"
rm /etc/systemd/system/mote.service
mkdir -p /srv/p/share/mote && echo nonsense >/srv/p/share/mote/receipt
refused "a damaged receipt" "receipt of the earlier installation is damaged" "$tree/install.sh" --no-service --prefix /srv/p
refused "a damaged receipt at the removal" "receipt is damaged" "$tree/install.sh" --uninstall --prefix /srv/p
printf 'mote 1 complete\nfile %064d /srv/p/../../etc/passwd\n' 0 >/srv/p/share/mote/receipt
refused "a receipt that names a file elsewhere" "it names a path with .." "$tree/install.sh" --uninstall --prefix /srv/p
rm -r /srv/p

# --- Who installs -------------------------------------------------------------------------------

refused "a service without root" "a service can be installed by root only" anybody "$tree/install.sh"
refused "a folder of root" "you may not write to /usr/local" anybody "$tree/install.sh" --no-service
refused "an unknown flag" "--serv is not a flag" "$tree/install.sh" --serv
refused "a flag without its value" "--prefix needs a value" "$tree/install.sh" --prefix
refused "a purge at an installation" "--purge needs --uninstall" "$tree/install.sh" --purge
refused "a removal of nothing" "mote is not installed in /usr/local" "$tree/install.sh" --uninstall
if dpkg -i "$deb" >/dev/null 2>&1; then
  # The node writes its first files. It writes the last of them after it is ready.
  for _ in $(seq 600); do
    mote list >/dev/null 2>&1 && [ -e /var/lib/mote/shims/python/compiled ] && break
    sleep 0.1
  done
  refused "an installed package" "already installed by the Debian package mote" "$tree/install.sh"
  dpkg --purge mote >/dev/null 2>&1
else
  wrong "an installed package: dpkg could not install it"
fi

# --- Installations that succeed -----------------------------------------------------------------

# clean_after NAME: checks that the removal leaves nothing below the prefix or in systemd's folder.
clean_after() { # name, state before
  if [ "$(system)" = "$2" ]; then pass "$1"; else
    wrong "$1: it left:"
    diff <(echo "$2") <(system) | head -n 20 || true
  fi
}
before=$(system)
minisign -S -s "$work/ours.key" -m "$tree/SHA256SUMS" >/dev/null
succeeds "the signature of the right key" "$tree/install.sh" --no-service --prefix /srv/m/n --public-key "$work/ours.pub"
succeeds "the installed program" /srv/m/n/bin/mote version
echo changed >>/srv/m/n/share/doc/mote/mote-node.toml
output=$(/srv/m/n/share/mote/uninstall.sh)
if [[ $output == *"was changed after the installation and is kept"* ]] && [ "$(find /srv/m -type f)" = /srv/m/n/share/doc/mote/mote-node.toml ]; then
  pass "a changed file is kept and named"
else
  wrong "a changed file: $output; $(find /srv/m -type f)"
fi
rm -rf /srv/m
mkdir -m 777 /srv/m
refused "a folder that everybody may write to" "everybody may write to /srv/m" "$tree/install.sh" --no-service --prefix /srv/m/home
chmod 755 /srv/m && chown 65534 /srv/m
refused "a folder of an ordinary user, as root" "belongs to the user with the number 65534" "$tree/install.sh" --no-service --prefix /srv/m/home
succeeds "an ordinary user in a folder of their own" anybody "$tree/install.sh" --no-service --prefix /srv/m/home
# This does not use the function, so that the process is the node itself and not a shell.
HOME=/srv/m/user setpriv --reuid 65534 --regid 65534 --clear-groups /srv/m/home/bin/mote up --data /tmp/mote-data --socket /tmp/mote-test.sock >"$work/node.log" 2>&1 &
node=$!
for _ in $(seq 100); do [ -S /tmp/mote-test.sock ] && break; sleep 0.1; done
refused "a removal while a node runs" "a node still runs as process" anybody /srv/m/home/share/mote/uninstall.sh
kill $node 2>/dev/null || wrong "the node of an ordinary user does not run: $(tail -n 5 "$work/node.log")"
wait $node || true
rm -rf /tmp/mote-data /tmp/mote-test.sock
succeeds "their removal" anybody /srv/m/home/share/mote/uninstall.sh
rmdir /srv/m || wrong "their removal left: $(find /srv/m)"
clean_after "nothing is left of these" "$before"

# Tests an update: the former version had one more program.
copy
printf '#!/bin/sh\n' >"$tree/bin/mote-nats" && chmod 755 "$tree/bin/mote-nats"
(cd "$tree" && sha256sum bin/mote-nats >>SHA256SUMS)
"$tree/install.sh" --no-service --prefix /srv/m >/dev/null
copy
succeeds "an update" "$tree/install.sh" --no-service --prefix /srv/m
if [ -e /srv/m/bin/mote-nats ] || grep -q mote-nats /srv/m/share/mote/receipt; then wrong "an update keeps a file that the new version does not have"; else pass "an update removes what the new version does not have"; fi
succeeds "the removal after an update" /srv/m/share/mote/uninstall.sh
clean_after "nothing is left after an update" "$before"

# --- Installations that are killed --------------------------------------------------------------

# Kills the whole installation before or after the Nth call of a program.
killing() { # program, which call, before or after
  local real
  real=$(command -v "$1")
  echo 0 >"$work/calls"
  fake "$1" "n=\$((\$(cat $work/calls) + 1)); echo \$n >$work/calls
[ \$n != $2 ] || [ $3 != before ] || kill -9 0
$real \"\$@\" || exit
[ \$n != $2 ] || kill -9 0"
}
copy
files=$(grep -cE '  (bin|share)/' "$tree/SHA256SUMS")
# mv is called for the receipt, the new folder, each file, the unit, and the receipt again.
points="mkdir:1:after mv:1:before mv:1:after mv:2:before mv:2:after mv:3:before mv:3:after mv:4:after
  mv:$((files / 2)):after mv:$((files + 2)):after mv:$((files + 3)):after systemctl:1:before systemctl:2:after systemctl:3:before
  systemctl:3:after mv:$((files + 4)):before"
for point in $points; do
  IFS=: read -r program call when <<<"$point"
  for then in again uninstall; do
    name="killed $when call $call of $program"
    killing "$program" "$call" "$when"
    code=0
    # The shell reports in its own words that a program was killed.
    { PATH=$work/fake:$PATH setsid --wait "$tree/install.sh" --prefix /srv/m >"$work/out" || code=$?; } 2>/dev/null
    rm -rf "$work/fake"
    if [ $code = 0 ]; then
      wrong "$name: the installation was not killed"
      "$tree/install.sh" --uninstall --prefix /srv/m >/dev/null 2>&1 || true
      continue
    fi
    if [ $then = again ]; then
      succeeds "$name: a second run completes it" "$tree/install.sh" --prefix /srv/m
      if [ "$(systemctl is-active mote)" = active ] && head -n 1 /srv/m/share/mote/receipt | grep -q ' complete$' &&
        [ -z "$(find /srv -name '*.mote-new' -o -name '.mote-install*')" ]; then pass "$name: the service runs"; else
        wrong "$name: the service is $(systemctl is-active mote), $(head -n 1 /srv/m/share/mote/receipt), $(find /srv -name '*mote-*new')"
      fi
    fi
    if [ -e /srv/m ] || [ -e /srv/.mote-install.new ]; then
      succeeds "$name, then $then: the removal" "$tree/install.sh" --uninstall --purge --prefix /srv/m
    fi
    clean_after "$name, then $then: nothing is left" "$before"
  done
done

cd / && rm -rf "$work"
echo "test-install: $passed checks passed, $failed failed"
[ $failed = 0 ]
