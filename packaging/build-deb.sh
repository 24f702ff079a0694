#!/bin/sh
# Builds the Debian package and prints its path: packaging/build-deb.sh [VERSION]
set -eu
cd "$(dirname "$0")/.."

# Two minutes of CPU time once, so it is kept between checkouts.
cargo_deb=3.8.0
tools=${XDG_CACHE_HOME:-$HOME/.cache}/omr-tools/cargo-deb-$cargo_deb
if [ ! -x "$tools/bin/cargo-deb" ]; then
    cargo install --quiet --locked --root "$tools" --version $cargo_deb cargo-deb >&2
fi

packaging/build.sh >&2
mkdir -p target/debian
"$tools/bin/cargo-deb" --quiet --no-build --no-strip --package omr --output target/debian/ ${1:+--deb-version "$1"} >&2
ls -t target/debian/omr_*.deb | head -n 1
