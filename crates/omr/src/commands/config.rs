//! `omr config check` and `omr config show`.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Result;
use omr_base::exit::Exit;
use omr_base::text::printable;
use omr_config as config;
use omr_config::{GroupRule, KEYS, Loaded, Place, Selector, TABLES, age_text};
use omr_engine::aging::{self, Missing, NO_SWAP};
use omr_kernel::Kernel;
use omr_machine::groups::lint;
use omr_machine::sample::snapshot::SwapSpace;
use omr_policy::MinAge;
use omr_units::Bytes;
use serde_json::{Map, Value, json};

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Check the configuration for mistakes
    ///
    /// Prints every mistake with its file and line. A setting that is valid but probably not meant
    /// gives a warning. Exit code 2 if there are mistakes.
    Check {
        #[command(flatten)]
        source: Source,
    },
    /// Print the effective configuration
    Show {
        #[command(flatten)]
        source: Source,
        /// Show where each value is written
        #[arg(long)]
        origin: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, clap::Args)]
struct Source {
    /// Read this file instead of those below /usr/lib/omr, /etc/omr and /run/omr
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// Runs the command.
pub fn run(root: &Path, args: &Args) -> Result<Exit> {
    match &args.command {
        Command::Check { source } => Ok(check(root, source)),
        Command::Show { source, origin, json } => {
            let loaded = config::load_or_refuse(root, source.config.as_deref())?;
            if *json {
                println!("{:#}", to_json(&loaded, *origin));
            } else {
                print!("{}", to_toml(&loaded, *origin));
            }
            Ok(Exit::Done)
        }
    }
}

fn check(root: &Path, source: &Source) -> Exit {
    let loaded = match config::load(root, source.config.as_deref()) {
        Ok(loaded) => loaded,
        Err(errors) => {
            eprintln!("{errors}");
            return Exit::Usage;
        }
    };
    for warning in lint::warnings(&loaded) {
        eprintln!("warning: {warning}");
    }
    let by_age: Vec<&GroupRule> = loaded.groups.iter().filter(|rule| rule.has_min_age()).collect();
    if let Some(obstacle) = Some(&by_age).filter(|rules| !rules.is_empty()).and_then(|_| Obstacle::find(root)) {
        for rule in by_age {
            let name = printable(rule.selector.glob().as_str());
            eprintln!("warning: {}: group \"{name}\": older_than: {}", rule.place, obstacle.describe(rule));
        }
    }
    let files: Vec<String> = loaded.files.iter().map(|file| printable(&file.to_string_lossy())).collect();
    match files.len() {
        0 => println!("OK: no configuration files, so all values are built in"),
        _ => println!("OK: {}", files.join(", ")),
    }
    Exit::Done
}

/// The reason why reclaim by age does not work here, as far as this user can tell.
enum Obstacle {
    NoAges(Missing),
    NoSwap,
}

impl Obstacle {
    fn find(root: &Path) -> Option<Self> {
        let kernel = Kernel::open(root).ok()?;
        if let Some(missing) = aging::missing(&kernel).ok()?.filter(|missing| *missing != Missing::Denied) {
            return Some(Obstacle::NoAges(missing));
        }
        (SwapSpace::read(&kernel)?.total == Bytes::ZERO).then_some(Obstacle::NoSwap)
    }

    /// What sweeps do all the same under this rule.
    fn describe(&self, rule: &GroupRule) -> String {
        match self {
            Obstacle::NoAges(missing) if rule.older_than == Some(MinAge::Learned) => {
                format!("these groups are only probed here: {}", missing.describe())
            }
            Obstacle::NoAges(missing) => format!("these groups are not swept here: {}", missing.describe()),
            Obstacle::NoSwap => format!("these groups are not swept here: {NO_SWAP}"),
        }
    }
}

/// Formats the configuration as a file that loads to the same values.
fn to_toml(loaded: &Loaded, origin: bool) -> String {
    let mut out = String::new();
    let comment = |place: Option<&Place>| match place {
        _ if !origin => String::new(),
        Some(place) => format!("  # {place}"),
        None => "  # built in".into(),
    };
    for table in [""].into_iter().chain(TABLES) {
        if !table.is_empty() {
            let _ = writeln!(out, "\n[{table}]");
        }
        for key in KEYS.iter().filter(|key| key.table == table) {
            let place = comment(loaded.origin(&key.full_name()));
            let _ = writeln!(out, "{} = {}{place}", key.name, quoted(&loaded.text(key)));
        }
    }
    for rule in &loaded.groups {
        let _ = writeln!(out, "\n[[group]]{}", comment(Some(&rule.place)));
        write_fields(&mut out, fields(rule));
    }
    for rule in &loaded.processes {
        let _ = writeln!(out, "\n[[process]]{}", comment(Some(&rule.place)));
        write_fields(&mut out, rule.fields());
    }
    out
}

fn write_fields(out: &mut String, fields: Vec<(&str, Value)>) {
    for (name, value) in fields {
        let text = value.as_str().map_or_else(|| value.to_string(), quoted);
        let _ = writeln!(out, "{name} = {text}");
    }
}

fn to_json(loaded: &Loaded, origin: bool) -> Value {
    let with_origin = |value: String, place: Option<&Place>| match (origin, place) {
        (false, _) => json!(value),
        (true, Some(place)) => json!({"value": value, "file": place.file.to_string_lossy(), "line": place.line}),
        (true, None) => json!({"value": value, "file": null, "line": null}),
    };
    let mut top = Map::new();
    for key in &KEYS {
        let value = with_origin(loaded.text(key), loaded.origin(&key.full_name()));
        if key.table.is_empty() {
            top.insert(key.name.into(), value);
        } else if let Some(table) = top.entry(key.table).or_insert_with(|| json!({})).as_object_mut() {
            table.insert(key.name.into(), value);
        }
    }
    let rule = |fields: Vec<(&str, Value)>, place: &Place| {
        let mut rule: Map<String, Value> = fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        if origin {
            rule.insert("file".into(), json!(place.file.to_string_lossy()));
            rule.insert("line".into(), json!(place.line));
        }
        Value::Object(rule)
    };
    let groups = loaded.groups.iter().map(|group| rule(fields(group), &group.place));
    top.insert("group".into(), groups.collect());
    let processes = loaded.processes.iter().map(|process| rule(process.fields(), &process.place));
    top.insert("process".into(), processes.collect());
    top.insert("files".into(), loaded.files.iter().map(|file| json!(file.to_string_lossy())).collect());
    Value::Object(top)
}

fn fields(rule: &GroupRule) -> Vec<(&'static str, Value)> {
    let selector = match &rule.selector {
        Selector::Match(_) => "match",
        Selector::Unit(_) => "unit",
    };
    let mut fields = vec![(selector, json!(rule.selector.glob().to_string()))];
    fields.extend(rule.class.map(|class| ("class", json!(class.name()))));
    fields.extend(rule.enforce.then_some(("enforce", json!(true))));
    fields.extend(rule.keep.map(|keep| ("keep", json!(keep.exact()))));
    fields.extend(rule.older_than.map(|age| ("older_than", json!(age_text(age)))));
    fields
}

/// Formats a basic string of TOML.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => {
                let _ = write!(out, "\\u{:04X}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out + "\""
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn an_accepted_configuration_prints_as_one_with_the_same_values() {
        let dir = tempfile::tempdir().expect("a directory");
        let load = |text: &str| {
            let file = dir.path().join("omr.toml");
            std::fs::write(&file, text).expect("written");
            config::load(Path::new("/"), Some(&file))
        };
        let rules = "[[group]]\nmatch = 'a/*'\nclass = 'foreground'\nolder_than = 'auto'\nkeep = '10%'\nenforce = true\n\
            [[group]]\nunit = 'app-*.scope'\nclass = 'background'\n[[process]]\nexe = '/usr/bin/*'\nuid = 1000\n\
            class = 'background'\noom_score_adj = '>300'\n[[process]]\ncommand = '* --\"x\" \\\\ *'\nclass = 'protected'\n";
        // Each table alone, as most changes of a long file are mistakes.
        let built_in = include_str!("../../tests/config/built-in.toml").split("\n\n");
        let files: Vec<&str> =
            built_in.chain([include_str!("../../../../packaging/usr-lib-omr.toml"), rules]).collect();
        let accepted = Cell::new(0);
        omr_testkit::fuzz::feed(&files, |text| {
            let Ok(loaded) = load(&String::from_utf8_lossy(text)) else { return };
            accepted.set(accepted.get() + 1);
            let printed = to_toml(&loaded, false);
            let again = load(&printed).unwrap_or_else(|errors| panic!("{errors}\n{printed}"));
            assert_eq!((&again.policy, again.backend, &again.cloud), (&loaded.policy, loaded.backend, &loaded.cloud));
            assert_eq!(to_toml(&again, false), printed);
            lint::warnings(&loaded);
            for path in ["", "a/b", "user.slice/app-x.scope"] {
                let parts = config::parts(Path::new(path));
                let fits = |rule: &&GroupRule| rule.selector.glob().matches(&parts);
                assert!(loaded.groups.iter().filter(fits).count() <= loaded.groups.len());
            }
        });
        assert!(accepted.get() >= files.len(), "the control: {} accepted", accepted.get());
    }
}
