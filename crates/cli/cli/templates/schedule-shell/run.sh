#!/bin/sh
echo "the run of $MOTE_HEADER_MOTE_SCHEDULE_DUE"
