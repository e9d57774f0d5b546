#!/bin/sh
# Counts its calls. The node keeps the number: $MOTE_SERVICES is the address of its services.
# --fail-with-body makes curl fail if the node refuses.
set -e
count=$(curl -sS --fail-with-body -X POST "$MOTE_SERVICES/kv/count?increment=1")
echo "call $count"
