//! `--help` and `-h`.

use crate::common::{machine, omr, text};

#[test]
fn each_command_has_a_short_and_a_long_help() {
    let root = machine();
    for (command, short, long) in [
        ("web", "Show groups and charts in the browser", "Exit codes: 0 done, or ended by a signal"),
        ("watch", "Prepare the machine when its cloud provider", "Exit codes: 0 done, or ended by a signal"),
        ("mount", "Offer the original patch's file", "Exit codes: 0 unmounted"),
        ("run", "Run a command in a group of a class", "Exit codes besides the command's"),
        ("metrics", "Print metrics for Prometheus", "docs/use/metrics.md lists all metrics"),
        ("hint", "Page out, deactivate or bring back", "No data is lost"),
    ] {
        let help = |args: &[&str]| {
            let (code, out, err) = text(&omr(&root, args));
            assert_eq!((code, err.as_str()), (0, ""), "{args:?}");
            out
        };
        let brief = help(&[command, "-h"]);
        assert!(brief.starts_with(short) && !brief.contains(long), "{brief}");
        for full in [help(&[command, "--help"]), help(&["help", command])] {
            assert!(full.contains(long), "{full}");
        }
        assert!(help(&["-h"]).contains(short), "the list of commands");
    }
}
