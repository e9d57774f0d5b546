#!/bin/bash
# start.sh NAME BIN PORT UIDBASE
n=$1; bin=$2; port=$3; uid=$4
rm -rf /tmp/m/$n; mkdir -p /tmp/m/$n
$bin up --data /tmp/m/$n --http 127.0.0.1:$port --coap 127.0.0.1:$port --socket /tmp/m/$n/s --uid-base $uid ${5:-} >/tmp/m/$n.out 2>&1 &
echo $! > /tmp/m/$n.pid
for i in $(seq 100); do MOTE_SOCKET=/tmp/m/$n/s $bin list >/dev/null 2>&1 && break; sleep 0.1; done
rm -rf /tmp/m/p-$n; mkdir -p /tmp/m/p-$n/py /tmp/m/p-$n/node
cp /tmp/m/app.py /tmp/m/mote.toml /tmp/m/p-$n/py/; cp /tmp/m/app.mjs /tmp/m/p-$n/node/index.mjs; cp /tmp/m/mote.toml /tmp/m/p-$n/node/
MOTE_SOCKET=/tmp/m/$n/s $bin deploy /tmp/m/p-$n/py --name py >/dev/null; MOTE_SOCKET=/tmp/m/$n/s $bin deploy /tmp/m/p-$n/node --name node >/dev/null
