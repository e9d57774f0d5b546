#!/bin/sh
set -e
test "$(printf Ada | ./hello.sh)" = 'Hello, Ada!'
test "$(./hello.sh </dev/null)" = 'Hello, world!'
