#!/bin/sh
# Installs what is missing, builds, runs every test, and ends with ctest's summary.
#
#   tests/run.sh [CTEST ARGUMENTS]      e.g. tests/run.sh -R golden
#
# Four builds: release, debug with the address and undefined-behaviour sanitizers, debug with the thread sanitizer, and one for
# aarch64, whose tests run under an emulator; where that cannot be had, the reason is said. A second run builds only what changed.
set -eu
cd "$(dirname "$0")/.."
tools/setup.sh

build() { # preset
    cmake --preset "$1" >"build-$1.log" 2>&1 || { cat "build-$1.log" >&2; rm -f "build-$1.log"; exit 1; }
    rm -f "build-$1.log"
    cmake --build --preset "$1" -- -k 0
}

# The compiler, the emulator and the libraries of another architecture are not everywhere; on aarch64 itself, release is that.
without_arm64=""
if [ "$(uname -m)" = aarch64 ]; then
    without_arm64="this machine is one"
elif ! tools/setup.sh arm64; then
    without_arm64="its packages cannot be installed here, as said above"
fi

status=0
build release
build asan
build tsan
[ -n "$without_arm64" ] || build arm64
jobs=$(nproc)
ctest --preset asan -j "$jobs" "$@" || status=1
ctest --preset tsan -j "$jobs" "$@" || status=1
if [ -z "$without_arm64" ]; then
    ctest --preset arm64 -j "$jobs" "$@" || status=1
else
    echo "tests for aarch64: skipped: $without_arm64"
fi
ctest --preset release -j "$jobs" "$@" || status=1
exit $status
