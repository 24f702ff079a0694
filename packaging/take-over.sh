#!/bin/sh
# Takes over the files of a version whose daemon was root. What root relies on moves to directories
# that the daemon cannot write to. The rest becomes the daemon's when systemd starts it.
#
# A directory that already belongs to the daemon is left alone: it may have put anything there.
set -eu

belongs_to_root() {
    [ -d "$1" ] && [ ! -L "$1" ] && [ "$(stat -c %u "$1")" = 0 ]
}

install -d -m 755 /run/omr-root
install -d -m 750 -g omr /var/lib/omr-root
if belongs_to_root /var/lib/omr; then
    for file in zram.json image_size.json warm hibernated.json; do
        if [ -f /var/lib/omr/$file ] && [ ! -e /var/lib/omr-root/$file ]; then
            mv /var/lib/omr/$file /var/lib/omr-root/
        fi
    done
fi
if belongs_to_root /run/omr && [ -d /run/omr/conf.d ] && [ ! -e /run/omr-root/conf.d ]; then
    mv /run/omr/conf.d /run/omr-root/
fi
