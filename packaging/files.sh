#!/bin/sh
# Prints packaging/files.txt with its wildcards expanded, a file a line: source, destination, mode.
#
#   packaging/files.sh package|install PREFIX
set -eu
cd "$(dirname "$0")/.."

for_whom=$1
prefix=$2

while read -r source destination mode only; do
    case $source in
        '' | '#'*) continue ;;
    esac
    [ "${only:-$for_whom}" = "$for_whom" ] || continue
    case $destination in
        /*) ;;
        *) destination=$prefix/$destination ;;
    esac
    for file in $source; do
        case $destination in
            */) echo "$file $destination${file##*/} $mode" ;;
            *) echo "$file $destination $mode" ;;
        esac
    done
done < packaging/files.txt
