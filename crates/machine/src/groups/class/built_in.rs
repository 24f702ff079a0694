//! Built-in classes: groups that need no rule.

use std::borrow::Cow;

/// Groups that are protected unless a rule names them: the beginning and the end of the last part
/// of the path. The list is short on purpose. It holds the services without which a machine looks
/// dead while they are read back from a slow disk.
pub const BUILT_IN: [(&str, &str); 33] = [
    // omr itself, for the command line; the daemon knows its own group under any name.
    ("omr.service", ""),
    ("omr-mount.service", ""),
    // The first process, and a user's service manager.
    ("init.scope", ""),
    // Everything waits for the bus.
    ("dbus.service", ""),
    ("dbus-broker.service", ""),
    ("systemd-journald.service", ""),
    ("systemd-journald@", ".service"),
    ("systemd-udevd.service", ""),
    ("systemd-logind.service", ""),
    // Logins. The group holds the listener, some MiB; sessions have their own groups (pam_systemd).
    // An administrator who repairs a machine that swaps must not wait for the listener.
    ("ssh.service", ""),
    ("sshd.service", ""),
    ("getty@", ".service"),
    ("serial-getty@", ".service"),
    // Display managers and servers.
    ("display-manager.service", ""),
    ("gdm.service", ""),
    ("gdm3.service", ""),
    ("greetd.service", ""),
    ("lightdm.service", ""),
    ("lxdm.service", ""),
    ("ly.service", ""),
    ("ly@", ".service"),
    ("plasmalogin.service", ""),
    ("sddm.service", ""),
    ("xdm.service", ""),
    // The essential part of a user's session by systemd's rules: compositor, shell, sound.
    ("session.slice", ""),
    // Compositors where they are not in session.slice.
    ("org.gnome.Shell@", ".service"),
    ("gnome-shell-wayland.service", ""),
    ("gnome-shell-x11.service", ""),
    ("plasma-kwin_", ".service"),
    ("plasma-plasmashell.service", ""),
    ("wayland-wm@", ".service"),
    ("niri.service", ""),
    ("weston.service", ""),
];

/// The low-priority part of a user's session by systemd's rules. It is background unless it, or a
/// group above it, has another class.
pub(super) const BACKGROUND: &str = "background.slice";

/// Returns true if the group at these parts of a path is [`BACKGROUND`] in a place where systemd puts
/// it: below a user's service manager, or at the top. Anywhere else, any user can make a group of that
/// name, and the CPU time of the background is no sign of work.
pub(super) fn is_background(path: &[Cow<'_, str>]) -> bool {
    match path {
        [name] => name == BACKGROUND,
        [users, user, manager, name] => {
            let is_of = |part: &str, start: &str, end: &str| part.starts_with(start) && part.ends_with(end);
            name == BACKGROUND
                && users == "user.slice"
                && is_of(user, "user-", ".slice")
                && is_of(manager, "user@", ".service")
        }
        _ => false,
    }
}

/// Returns the line of [`BUILT_IN`] for the group of this name.
pub(super) fn protecting(name: &str) -> Option<&'static (&'static str, &'static str)> {
    BUILT_IN.iter().find(|(start, end)| match *end {
        "" => name == *start,
        end => name.strip_prefix(start).is_some_and(|rest| rest.ends_with(end)),
    })
}
