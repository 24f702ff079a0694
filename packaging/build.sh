#!/bin/sh
# Builds the files that are installed, into target/package: programs, man/, completions/.
#
# A program has no shared libraries: one file serves every distribution and the lab's guests, and
# the daemon locks less memory. Nothing in it needs a shared library (no name service, no plug-ins).
set -eu
cd "$(dirname "$0")/.."

programs="omr omr-daemon"

target=$(rustc -vV | sed -n 's/^host: //p')
# The lab's directory, so that the two build a program once.
guest=${OMR_LAB_TARGET:-target/guest}
stage=target/package

mkdir -p $stage
for program in $programs; do
    CARGO_TARGET_DIR=$guest CARGO_ENCODED_RUSTFLAGS=$(packaging/rustflags.sh) \
        cargo build --quiet --locked --release --target "$target" --package "$program"
    # There is no debugging information to lose. Without names of functions omr is 15 % smaller
    # (1.0 MB).
    strip -o "$stage/$program" "$guest/$target/release/$program"
    chmod 755 "$stage/$program"
done

rm -rf $stage/man $stage/completions
cargo run --quiet --locked --package omr --example generate -- $stage
