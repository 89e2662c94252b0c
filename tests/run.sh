#!/bin/sh
# Installs what is missing, builds, runs every test, and ends with ctest's summary.
#
#   tests/run.sh [CTEST ARGUMENTS]      e.g. tests/run.sh -R golden
#
# Three builds: release, debug with the address and undefined-behaviour sanitizers, debug with the thread sanitizer.
# A second run builds only what changed.
set -eu
cd "$(dirname "$0")/.."
tools/setup.sh

build() { # preset
    cmake --preset "$1" >"build-$1.log" 2>&1 || { cat "build-$1.log" >&2; rm -f "build-$1.log"; exit 1; }
    rm -f "build-$1.log"
    cmake --build --preset "$1" -- -k 0
}

status=0
build release
build asan
build tsan
jobs=$(nproc)
ctest --preset asan -j "$jobs" "$@" || status=1
ctest --preset tsan -j "$jobs" "$@" || status=1
ctest --preset release -j "$jobs" "$@" || status=1
exit $status
