#!/bin/sh
# Makes a sysroot of Debian's arm64 packages, for cross builds: cmake --preset arm64.
#
#   tools/arm64-sysroot.sh DIRECTORY       the preset expects build/arm64-sysroot
#
# Needs neither root nor a foreign architecture in dpkg, and installs nothing: apt works on a state of its own, in which no
# package is installed, and what it downloads is only unpacked. So no -dev package of this machine has to give way to another
# architecture's. Sources and keys are those of this machine's apt. Does nothing when the packages asked for are there.
set -eu

[ $# = 1 ] || { echo "usage: tools/arm64-sysroot.sh DIRECTORY" >&2; exit 2; }
packages="libc6-dev liburing-dev libyajl-dev libcjson-dev libxxhash-dev libsentencepiece-dev libminizip-dev zlib1g-dev libzstd-dev
libcmocka-dev"

stamp=$(echo $packages)
if [ -f "$1/.packages" ] && [ "$(cat "$1/.packages")" = "$stamp" ]; then
    exit 0
fi
for tool in apt-get dpkg-deb readlink; do
    command -v "$tool" >/dev/null || { echo "arm64-sysroot: needs $tool" >&2; exit 1; }
done

mkdir -p "$1"
sysroot=$(cd "$1" && pwd)
work=$sysroot.work
rm -rf "$work"
mkdir -p "$work/state/lists/partial" "$work/cache/archives/partial"
trap 'rm -rf "$work"' EXIT
: >"$work/status"

apt() {
    apt-get -qq -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o Dir::State="$work/state" -o Dir::State::status="$work/status" \
        -o Dir::Cache="$work/cache" -o APT::Sandbox::User="$(id -un)" -o Debug::NoLocking=1 "$@"
}

echo "arm64-sysroot: fetching $stamp" >&2
apt update >&2 || true # a source without arm64 may fail; what matters is whether the packages are found
# shellcheck disable=SC2086 # a list of words
apt install --download-only -y --no-install-recommends $packages >/dev/null || {
    echo "arm64-sysroot: apt finds no arm64 packages" >&2
    exit 1
}
rm -rf "$sysroot"
mkdir -p "$sysroot"
for p in "$work"/cache/archives/*.deb; do
    dpkg-deb --fsys-tarfile "$p" | tar -C "$sysroot" -xf - --exclude='./usr/share/doc*' --exclude='./usr/share/man*' \
        --exclude='./usr/share/locale*' --no-same-owner
done

# Links from the root are links from the sysroot.
find "$sysroot" -type l | while read -r link; do
    to=$(readlink "$link")
    case $to in
    /*) ln -sfn "$sysroot$to" "$link" ;;
    esac
done
echo "$stamp" >"$sysroot/.packages"
