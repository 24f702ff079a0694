#!/bin/sh
# Installs or removes what packaging/build.sh has made: packaging/install.sh [install|uninstall]
#
#   DESTDIR  put before every path, for packagers; nothing of the running system is touched then
#   PREFIX   /usr/local unless given
#
# Never touched: /etc/omr and /var/lib/omr, except that a missing /etc/omr/omr.toml is made.
set -eu
cd "$(dirname "$0")/.."

prefix=${PREFIX:-/usr/local}
root=${DESTDIR:-}
stage=target/package

# The program reads its defaults from /usr/lib only, which belongs to packages; they are built in as
# well, so that elsewhere the file is there to be read by people.
case $prefix in
    /usr) defaults=lib/omr/omr.toml ;;
    *) defaults=share/doc/omr/omr.toml ;;
esac

# mode, where from, where to below the prefix
files() {
    echo 755 $stage/omr bin/omr
    echo 644 packaging/omr.toml "$defaults"
    echo 644 packaging/hints.conf lib/omr/hints.conf
    echo 644 packaging/systemd/omr.service lib/systemd/system/omr.service
    echo 644 packaging/systemd/omr-watch.service lib/systemd/system/omr-watch.service
    echo 644 packaging/systemd/omr-follow.service lib/systemd/system/omr-follow.service
    echo 644 packaging/systemd-user/omr-follow.service lib/systemd/user/omr-follow.service
    echo 644 packaging/systemd/omr-mount.service lib/systemd/system/omr-mount.service
    echo 644 packaging/systemd/omr-prepare-hibernate.service lib/systemd/system/omr-prepare-hibernate.service
    echo 644 packaging/systemd/omr-warm.service lib/systemd/system/omr-warm.service
    echo 644 packaging/sysusers.d/omr.conf lib/sysusers.d/omr.conf
    echo 644 $stage/completions/omr.bash share/bash-completion/completions/omr
    echo 644 $stage/completions/_omr share/zsh/site-functions/_omr
    echo 644 $stage/completions/omr.fish share/fish/vendor_completions.d/omr.fish
}

# The only directory in which systemd looks for it, whatever the prefix.
hook=/usr/lib/systemd/system-sleep/omr

# Whether there is a systemd to talk to, and we may.
live() {
    [ -z "$root" ] && [ -d /run/systemd/system ] && [ "$(id -u)" = 0 ]
}

install_all() {
    if [ ! -x $stage/omr ] || [ ! -d $stage/man ]; then
        echo "packaging/install.sh: nothing is built; run packaging/build.sh first (as yourself, not as root)" >&2
        exit 1
    fi
    files | while read -r mode from to; do
        install -D -m "$mode" "$from" "$root$prefix/$to"
    done
    for page in $stage/man/*; do
        install -D -m 644 "$page" "$root$prefix/share/man/man${page##*.}/${page##*/}"
    done
    install -D -m 755 packaging/systemd-sleep/omr "$root$hook"
    if [ "$prefix" != /usr ]; then
        sed -i "/^Exec/s#/usr/bin/omr #$prefix/bin/omr #" "$root$prefix"/lib/systemd/system/omr*.service "$root$prefix"/lib/systemd/user/omr*.service
        sed -i "s#/usr/lib/omr/#$prefix/lib/omr/#" "$root$prefix"/lib/omr/hints.conf
        sed -i "s# /usr/bin/omr # $prefix/bin/omr #" "$root$hook"
    fi
    [ -e "$root/etc/omr/omr.toml" ] || install -D -m 644 packaging/etc/omr.toml "$root/etc/omr/omr.toml"
    if live; then
        systemd-sysusers "$prefix/lib/sysusers.d/omr.conf"
        systemctl daemon-reload
        systemctl try-restart omr omr-watch omr-follow omr-mount
        echo "omr is installed. What this machine can do: omr doctor. To start it now and at every boot: systemctl enable --now omr"
        echo "To prepare the machine when it hibernates: systemctl enable omr-prepare-hibernate omr-warm"
    fi
}

uninstall_all() {
    if live; then
        systemctl disable --now --quiet omr-watch omr-follow omr-mount omr omr-prepare-hibernate omr-warm 2> /dev/null || true
        rm -rf /run/omr
    fi
    files | while read -r _ _ to; do
        rm -f "$root$prefix/$to"
    done
    rm -f "$root$hook"
    rm -f "$root$prefix"/share/man/man1/omr.1 "$root$prefix"/share/man/man1/omr-*.1 "$root$prefix"/share/man/man5/omr.toml.5
    for directory in lib/omr share/doc/omr; do
        rmdir "$root$prefix/$directory" 2> /dev/null || true
    done
    if live; then
        systemctl daemon-reload
        echo "omr is gone, but for /etc/omr, /var/lib/omr and the group omr."
    fi
}

case ${1:-install} in
    install) install_all ;;
    uninstall) uninstall_all ;;
    *) echo "usage: packaging/install.sh [install|uninstall]" >&2; exit 2 ;;
esac
