#!/bin/sh
# Installs or removes the files that packaging/build.sh has made: packaging/install.sh
# [install|uninstall]
#
#   DESTDIR  put before every path, for packagers; then the running system is not touched
#   PREFIX   /usr/local unless given
#
# /etc/omr, /var/lib/omr and /var/lib/omr-root never change, except that a missing /etc/omr/omr.toml
# is created, and that files of an older version move from one of the latter two to the other.
set -eu
cd "$(dirname "$0")/.."

prefix=${PREFIX:-/usr/local}
root=${DESTDIR:-}
stage=target/package

files() {
    packaging/files.sh install "$prefix"
}

# Prints the path of a file. omr reads the file of its defaults below /usr only, and has the same
# defaults built in. Below another prefix the file is for people to read.
place() {
    if [ "$1" = "$prefix/lib/omr/omr.toml" ] && [ "$prefix" != /usr ]; then
        echo "$root$prefix/share/doc/omr/omr.toml"
    else
        echo "$root$1"
    fi
}

# Succeeds where systemd runs and this is root.
live() {
    [ -z "$root" ] && [ -d /run/systemd/system ] && [ "$(id -u)" = 0 ]
}

install_all() {
    if [ ! -x $stage/omr ] || [ ! -x $stage/omr-daemon ] || [ ! -d $stage/man ]; then
        echo "packaging/install.sh: nothing is built; run packaging/build.sh first (as yourself, not as root)" >&2
        exit 1
    fi
    files | while read -r source destination mode; do
        case $destination in
            # The administrator's file stays.
            /etc/*) [ ! -e "$root$destination" ] || continue ;;
        esac
        file=$(place "$destination")
        install -D -m "$mode" "$source" "$file"
        case $destination in
            # These files name others of the list.
            */systemd/* | */hints.conf) sed -i "s#/usr/\(bin/omr\|libexec/omr\|lib/omr/\)#$prefix/\1#" "$file" ;;
        esac
    done
    if live; then
        systemd-sysusers "$prefix/lib/sysusers.d/omr.conf"
        "$prefix/libexec/omr/take-over"
        systemctl daemon-reload
        systemctl try-restart omr omr-watch omr-follow omr-presence omr-mount omr-web.socket
        echo "omr is installed. What this machine can do: omr doctor. To start it now and at every boot: systemctl enable --now omr omr-presence"
        echo "To see groups and charts in a browser: systemctl enable --now omr-web.socket"
        echo "To prepare the machine when it hibernates: systemctl enable omr-prepare-hibernate omr-warm"
    fi
}

uninstall_all() {
    if live; then
        systemctl disable --now --quiet omr-web.socket omr-web omr-watch omr-follow omr-presence omr-mount omr-metrics.timer omr omr-prepare-hibernate omr-warm 2> /dev/null || true
        rm -rf /run/omr /run/omr-root /run/omr-web
    fi
    files | while read -r _ destination _; do
        case $destination in
            /etc/*) ;;
            *) rm -f "$(place "$destination")" ;;
        esac
    done
    # Pages of an earlier version, too.
    rm -f "$root$prefix"/share/man/man1/omr.1 "$root$prefix"/share/man/man1/omr-*.1 "$root$prefix"/share/man/man5/omr.toml.5
    for directory in lib/omr libexec/omr share/doc/omr share/omr/grafana share/omr/prometheus share/omr; do
        rmdir "$root$prefix/$directory" 2> /dev/null || true
    done
    if live; then
        systemctl daemon-reload
        echo "omr is gone, but for /etc/omr, /var/lib/omr, /var/lib/omr-root, the group omr and the users of its services."
    fi
}

case ${1:-install} in
    install) install_all ;;
    uninstall) uninstall_all ;;
    *) echo "usage: packaging/install.sh [install|uninstall]" >&2; exit 2 ;;
esac
