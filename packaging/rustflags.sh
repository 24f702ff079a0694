#!/bin/sh
# Prints the compiler flags of the installed programs, for CARGO_ENCODED_RUSTFLAGS.
#
# The programs are static, and name no directory of the machine that built them: neither cargo's nor
# this one, below which crates generate sources. So each machine with the same toolchain makes the
# same bytes.
set -eu
cd "$(dirname "$0")/.."
printf '%s\037%s\037%s' '-Ctarget-feature=+crt-static' \
    "--remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=/cargo" "--remap-path-prefix=$(pwd -P)=/omr"
