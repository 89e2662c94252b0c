#!/bin/sh
# Installs what is missing to build and test on Debian 12 (and its relatives), through apt. Does nothing, and needs no network and no
# root, when all is there.
#
#   tools/setup.sh [arm64]      arm64: also a cross compiler, an emulator, and build/arm64-sysroot, for cmake --preset arm64
set -eu
cd "$(dirname "$0")/.."

packages="gcc g++ cmake ninja-build pkg-config liburing-dev libyajl-dev libcjson-dev libxxhash-dev
libsentencepiece-dev libminizip-dev zlib1g-dev libzstd-dev libcmocka-dev"
case ${1:-} in
'') ;;
arm64) packages="$packages gcc-aarch64-linux-gnu g++-aarch64-linux-gnu qemu-user" ;;
*) echo "usage: tools/setup.sh [arm64]" >&2; exit 2 ;;
esac

# Beside the build: the tests' second compiler, formatter and timer are used where they are, and named where they are not.
missing=""
for p in $packages; do
    dpkg-query -W -f '${Status}' "$p" 2>/dev/null | grep -q "install ok installed" || missing="$missing $p"
done
install_missing() {
    command -v apt-get >/dev/null || {
        echo "setup: not a Debian system; please install:$missing" >&2
        exit 1
    }
    sudo=""
    if [ "$(id -u)" != 0 ]; then
        command -v sudo >/dev/null || {
            echo "setup: neither root nor sudo; please install:$missing" >&2
            exit 1
        }
        sudo="sudo"
    fi
    echo "setup: installing$missing" >&2
    $sudo apt-get update -qq
    # shellcheck disable=SC2086 # a list of words
    $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
}

[ -z "$missing" ] || install_missing
[ "${1:-}" != arm64 ] || tools/arm64-sysroot.sh build/arm64-sysroot
