#!/bin/sh
# Builds the Debian package and prints its path: packaging/build-deb.sh [VERSION]
set -eu
cd "$(dirname "$0")/.."

# It takes two minutes of CPU time, so it is kept between checkouts.
cargo_deb=3.8.0
tools=${XDG_CACHE_HOME:-$HOME/.cache}/omr-tools/cargo-deb-$cargo_deb
if [ ! -x "$tools/bin/cargo-deb" ]; then
    cargo install --quiet --locked --root "$tools" --version $cargo_deb cargo-deb >&2
fi

# The time in the package is that of the last commit, so that the same commit makes the same bytes.
# Without a repository it is the time of the file CHANGELOG.md.
: "${SOURCE_DATE_EPOCH:=$(git log -1 --format=%ct 2> /dev/null || stat -c %Y CHANGELOG.md)}"

# The programs are built without that time. Build scripts of crates with C code watch it: cargo would
# compile these crates again, and replace files that tests beside it need.
packaging/build.sh >&2

export SOURCE_DATE_EPOCH
packaging/sbom > target/package/omr.cdx.json

# The files in their places. cargo-deb knows one mode for a tree, so each mode has a tree of its
# own.
tree=target/package/tree
rm -rf $tree
packaging/files.sh package /usr | while read -r source destination mode; do
    case $destination in
        # omr.service or a socket starts it.
        */omr-give-back* | */omr-compact* | */omr-web.service) install -D -m "$mode" "$source" "$tree/$mode$destination" ;;
        # cargo-deb installs these itself, by a list that also says what to enable and to start.
        /usr/lib/systemd/system/*)
            unit=$(basename "${destination%.*}")
            grep -q "unit-name = \"$unit\"" crates/omr/Cargo.toml || {
                echo "packaging/build-deb.sh: crates/omr/Cargo.toml has no unit $unit" >&2
                exit 1
            }
            ;;
        *) install -D -m "$mode" "$source" "$tree/$mode$destination" ;;
    esac
done

mkdir -p target/debian
"$tools/bin/cargo-deb" --quiet --no-build --no-strip --package omr --output target/debian/ ${1:+--deb-version "$1"}
