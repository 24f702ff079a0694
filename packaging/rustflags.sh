#!/bin/sh
# Prints the compiler flags of the installed programs, for CARGO_ENCODED_RUSTFLAGS.
#
# The programs are static, and name no directory of the machine that built them. So each machine
# with the same toolchain makes the same bytes.
printf '%s\037%s' '-Ctarget-feature=+crt-static' "--remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=/cargo"
