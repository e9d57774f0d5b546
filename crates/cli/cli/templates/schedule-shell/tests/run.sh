#!/bin/sh
set -e
test "$(MOTE_HEADER_MOTE_SCHEDULE_DUE=noon ./run.sh)" = 'the run of noon'
