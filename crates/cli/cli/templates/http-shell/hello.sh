#!/bin/sh
# The body of the request is on stdin. The answer goes to stdout, and the log to stderr.
name=$(cat)
echo "Hello, ${name:-world}!"
