#!/bin/sh
# The answer is what goes to stdout.
printf mote
