//! The systemd unit of a group, and the command that limits its memory.

use std::path::Path;

use omr_base::text::printable;
use omr_units::Bytes;

/// Returns the command that limits the group to this size. For a systemd unit it is a systemctl
/// command, as systemd would overwrite another setting.
pub(super) fn limit_command(group: &Path, size: Bytes) -> String {
    match unit(group) {
        Some((unit, _)) => {
            let user = if is_users(group) { "--user " } else { "" };
            format!("systemctl {user}set-property {} MemoryHigh={}", printable(&unit), size.0)
        }
        None => format!("write {} to memory.high of {}", size.0, printable(&group.to_string_lossy())),
    }
}

/// Returns true if a user's own systemd made the group: it is below `user@1000.service`.
pub(super) fn is_users(group: &Path) -> bool {
    let above = group.parent().into_iter().flat_map(Path::iter);
    above.filter_map(|part| part.to_str()).any(|part| part.starts_with("user@"))
}

/// Returns the systemd unit of a group, and its section. A leading "_" in the name of a group is an
/// escape.
pub(super) fn unit(group: &Path) -> Option<(String, &'static str)> {
    let name = group.file_name()?.to_str()?;
    let name = name.strip_prefix('_').unwrap_or(name);
    let section = match name.rsplit_once('.')?.1 {
        "service" => "Service",
        "slice" => "Slice",
        "scope" => "Scope",
        _ => return None,
    };
    Some((name.to_owned(), section))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_a_unit_or_it_is_not() {
        for (path, found) in [
            ("system.slice/db.service", Some(("db.service", "Service"))),
            ("system.slice/_cgroup.slice", Some(("cgroup.slice", "Slice"))),
            ("user.slice/user-1000.slice/session-2.scope", Some(("session-2.scope", "Scope"))),
            ("docker/4f1e", None),
            ("db", None),
        ] {
            let found = found.map(|(unit, section)| (unit.to_owned(), section));
            assert_eq!(unit(Path::new(path)), found);
        }
    }
}
