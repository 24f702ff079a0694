//! `omr advise` from the history: the memory that groups had and used.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use anyhow::Result;
use humantime::format_duration;
use omr_base::exit::Exit;
use omr_base::paths;
use omr_base::text::printable;
use omr_config::{Glob, parts};
use omr_history as history;
use omr_history::Idle;
use omr_kernel::{Kernel, clock};
use omr_policy::advise::{self, Advice, LEAST_COVERED, LEAST_SAMPLES, MARGIN, Sample};
use omr_policy::age::Bounds;
use omr_policy::short;
use omr_policy::trial::Guard;
use omr_units::{Bytes, Permyriad};
use serde::Serialize;

use super::args::Args;
use super::unit::{is_users, limit_command, unit};

/// Groups in the table; `--json` has all.
const ROWS: usize = 15;

/// A group with its advice, or with the reason why there is none.
struct Group {
    path: Rc<Path>,
    result: Result<Advice, advise::TooLittle>,
}

/// Runs the command.
pub fn run(root: &Path, args: &Args) -> Result<Exit> {
    let groups = read(root, args)?;
    if groups.is_empty() {
        return Err(no_groups(root, args));
    }
    let advised = groups.iter().any(|group| group.result.is_ok());
    if args.json {
        for group in &groups {
            outln!("{}", serde_json::to_string(&Line::new(group))?);
        }
    } else if args.systemd {
        outln!("{}", drop_ins(&groups, args.window));
    } else if let Some(container) = &args.kubernetes {
        outln!("{}", patch(&groups, container)?);
    } else if let [group] = groups.as_slice() {
        outln!("{}", describe(group, args));
    } else {
        outln!("{}", table(&groups, args));
    }
    Ok(if advised { Exit::Done } else { Exit::Partial })
}

fn guard(args: &Args) -> Guard {
    Guard { stall: args.psi, refaults: args.refaults }
}

/// Returns the named groups, or all groups without a group below them. Largest saving first.
fn read(root: &Path, args: &Args) -> Result<Vec<Group>> {
    let kernel = Kernel::open(root)?;
    let mut globs = Vec::new();
    for named in &args.groups {
        let path = kernel.group_path(named).to_string_lossy().into_owned();
        let wrong = |why| Exit::Usage.error(format!("{}: {why}", printable(&named.to_string_lossy())));
        if path.is_empty() {
            return Err(Exit::Usage.error("the machine as a whole has no limits; name a group, or none for all"));
        }
        globs.push(Glob::path(&path).map_err(wrong)?);
    }
    let all = globs.is_empty();
    let wanted = move |path: &Path| {
        !path.as_os_str().is_empty() && (globs.is_empty() || globs.iter().any(|glob| glob.matches(&parts(path))))
    };
    let now = clock::read_wall();
    let from = now.saturating_sub(args.window);
    let mut samples: BTreeMap<Rc<Path>, Vec<Sample>> = BTreeMap::new();
    let mut history = history::read(&paths::history(root), from..Duration::MAX, wanted)?;
    for sample in history.by_ref() {
        samples.entry(Rc::clone(&sample.group)).or_default().push(to_policy(&sample));
    }
    for skipped in history.skipped() {
        eprintln!("omr: {skipped}");
    }
    if all {
        // In the order of paths a group below another one comes right behind it.
        let paths: Vec<Rc<Path>> = samples.keys().cloned().collect();
        for (path, next) in paths.iter().zip(paths.iter().skip(1)) {
            if next.starts_with(path) {
                samples.remove(path);
            }
        }
    }
    let guard = guard(args);
    let mut groups: Vec<Group> = samples
        .into_iter()
        .map(|(path, samples)| Group { path, result: advise::advise(&samples, args.window, &guard) })
        .collect();
    groups.sort_by_key(|group| std::cmp::Reverse(group.result.as_ref().map_or(Bytes::ZERO, |advice| advice.saved)));
    Ok(groups)
}

/// Converts a sample of the history for the policy.
fn to_policy(sample: &history::Sample) -> Sample {
    let since = sample.since.as_ref();
    let over = since.map(|since| since.over);
    let refaults = since.and_then(|since| {
        let anon = since.refaults_anon?.max(since.swapped_in.unwrap_or_default());
        Some(anon + since.refaults_file?)
    });
    Sample {
        over,
        current: sample.current,
        peak: sample.peak,
        cache: sample.file - sample.shmem,
        memory: sample.anon + sample.shmem,
        used: sample.idle.as_ref().and_then(|idle| used(idle, over?)),
        refaults,
        stalled: since.and_then(|since| since.stalled),
    }
}

/// Returns the memory that was used since the previous sample; `None`: unknown, as ages from long
/// before the sample do not cover this time.
fn used(idle: &Idle, over: Duration) -> Option<Bounds> {
    let (_, idle_for) = idle.ages().find(|&(age, _)| reaches_back(age, over)).filter(|_| idle.ago <= over / 8)?;
    Some(Bounds { least: idle.memory - idle_for.most, most: idle.memory - idle_for.least })
}

/// Returns true if this age reaches back to about the previous sample: samples do not come to the
/// second.
fn reaches_back(age: Duration, over: Duration) -> bool {
    age + age / 8 >= over
}

/// Error if there is no group.
fn no_groups(root: &Path, args: &Args) -> anyhow::Error {
    let window = format_duration(args.window);
    match args.groups.as_slice() {
        [] => Exit::Partial.error(format!(
            "the history has no groups in the last {window}: the daemon writes it ({}); \
             omr advise --verify GROUP tries a size without it",
            paths::history(root).display()
        )),
        groups => {
            let names: Vec<String> = groups.iter().map(|group| printable(&group.to_string_lossy())).collect();
            Exit::Partial.error(format!(
                "the history has no samples of {} in the last {window}: it has only the larger groups, while the \
                 daemon runs; omr history --groups shows them",
                names.join(" ")
            ))
        }
    }
}

/// A group in JSON.
#[derive(Debug, Serialize)]
struct Line<'a> {
    group: String,
    margin: Permyriad,
    samples: usize,
    covered_seconds: u64,
    advice: Option<&'a Advice>,
}

impl<'a> Line<'a> {
    fn new(group: &'a Group) -> Self {
        let (samples, covered) = match &group.result {
            Ok(advice) => (advice.samples, advice.covered),
            Err(little) => (little.samples, little.covered),
        };
        Line {
            group: format!("/{}", group.path.to_string_lossy()),
            margin: MARGIN,
            samples,
            covered_seconds: covered.as_secs(),
            advice: group.result.as_ref().ok(),
        }
    }
}

fn name(group: &Group) -> String {
    printable(&group.path.to_string_lossy())
}

/// Returns how much history an advice is based on.
fn basis(group: &Group, window: Duration) -> String {
    match &group.result {
        Ok(advice) if advice.weak => {
            format!("{} of {}: weak", short(advice.covered), format_duration(window))
        }
        Ok(advice) => format!("{} of {}", short(advice.covered), format_duration(window)),
        Err(little) => format!(
            "{} in {}: too little for advice, which needs {LEAST_SAMPLES} samples in {}",
            counted(little.samples, "sample"),
            short(little.covered),
            short(LEAST_COVERED)
        ),
    }
}

fn counted(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

fn evidence(advice: &Advice) -> String {
    match &advice.evidence {
        None => "it was never this small: omr advise --verify tries it".into(),
        Some(seen) => format!(
            "at {} or less for {}: tasks waited {} for memory, {} came back{}",
            advice.high,
            short(seen.time),
            short(seen.stalled),
            seen.refaults,
            match seen.short {
                0 => String::new(),
                n => format!("; too much in {n} of {}", counted(seen.samples, "sample")),
            }
        ),
    }
}

fn describe(group: &Group, args: &Args) -> String {
    let name = name(group);
    let advice = match &group.result {
        Ok(advice) => advice,
        Err(_) => return format!("{name}: {}", basis(group, args.window)),
    };
    let mut text = format!("{name}: memory.high {}", advice.high);
    let _ = match advice.saved {
        Bytes::ZERO => writeln!(text, ", more than the {} it has now: nothing is saved.", advice.current),
        saved => writeln!(text, ", {saved} less than the {} it has now.", advice.current),
    };
    let set = &advice.working_set;
    let _ = write!(
        text,
        "\n  working set     half of the time {}, 19 of 20 {}, most {}\
         \n  request         {}   (19 of 20, plus {MARGIN})\
         \n  memory.high     {}   (most, plus {MARGIN})\
         \n  memory.max      {}   (a quarter above its peak, {}, at least memory.high)\
         \n  seen            {}\
         \n  history         {}, {}",
        set.p50,
        set.p95,
        set.max,
        advice.request,
        advice.high,
        advice.max,
        advice.peak,
        evidence(advice),
        basis(group, args.window),
        counted(advice.samples, "sample"),
    );
    if advice.cache.0 > 0 {
        let _ = write!(text, "\n  page cache      {} of it: counts in full, as its use is unknown", advice.cache);
    }
    if advice.unaged > 0 {
        let _ = write!(text, "\n  without ages    {}: all its memory counts as used", counted(advice.unaged, "sample"));
    }
    if advice.short > 0 {
        let _ = write!(
            text,
            "\n  lacked memory   in {}: all its memory counts as used, and more may be needed",
            counted(advice.short, "sample")
        );
    }
    let _ = write!(text, "\n\nTo limit it: {}", limit_command(&group.path, advice.high));
    text
}

fn table(groups: &[Group], args: &Args) -> String {
    let shown = groups.get(..ROWS).unwrap_or(groups);
    let width = shown.iter().map(|group| name(group).chars().count()).max().unwrap_or(0).clamp(5, 48);
    let mut text = format!(
        "{:width$}  {:>10}  {:>10}  {:>10}  {:>10}  {:>10}  {:>10}  {:>10}  HISTORY",
        "GROUP", "NOW", "USED p50", "USED p95", "REQUEST", "HIGH", "MAX", "SAVED"
    );
    for group in shown {
        let sizes = match &group.result {
            Ok(advice) => [
                advice.current,
                advice.working_set.p50,
                advice.working_set.p95,
                advice.request,
                advice.high,
                advice.max,
                advice.saved,
            ]
            .map(|size| format!("{:>10}", size.to_string()))
            .join("  "),
            Err(_) => format!("{:82}", ""),
        };
        let _ = write!(text, "\n{:width$}  {sizes}  {}", name(group), basis(group, args.window));
    }
    let more = groups.len().saturating_sub(ROWS);
    if more > 0 {
        let _ = write!(text, "\nand {more} more; --json has all");
    }
    text
}

/// Returns drop-ins for systemd units, each with its path.
fn drop_ins(groups: &[Group], window: Duration) -> String {
    let of = |group: &Group| {
        let Ok(advice) = &group.result else { return format!("# {}: {}\n", name(group), basis(group, window)) };
        let Some((unit, section)) = unit(&group.path) else {
            return format!("# {} is not a systemd unit\n", name(group));
        };
        let manager = if is_users(&group.path) { "user" } else { "system" };
        format!(
            "# /etc/systemd/{manager}/{}.d/50-omr.conf\n# {}; {}\n[{section}]\nMemoryHigh={}\nMemoryMax={}\n",
            printable(&unit),
            basis(group, window),
            evidence(advice),
            advice.high.0,
            advice.max.0,
        )
    };
    groups.iter().map(of).collect::<Vec<_>>().join("\n").trim_end().to_owned()
}

/// Returns a strategic-merge patch of the pod template of a Deployment, StatefulSet or DaemonSet.
fn patch(groups: &[Group], container: &str) -> Result<String> {
    let [group] = groups else {
        let text = format!("--kubernetes is for one group, but there are {}", groups.len());
        return Err(Exit::Usage.error(text));
    };
    let Ok(advice) = &group.result else {
        return Err(Exit::Partial.error(format!("{}: {}", name(group), basis(group, Duration::ZERO))));
    };
    let mib = |bytes: Bytes| format!("{}Mi", bytes.0 >> 20);
    let resources = serde_json::json!({
        "requests": { "memory": mib(advice.request) },
        "limits": { "memory": mib(advice.max) },
    });
    let containers = serde_json::json!([{ "name": container, "resources": resources }]);
    let patch = serde_json::json!({ "spec": { "template": { "spec": { "containers": containers } } } });
    Ok(serde_json::to_string_pretty(&patch)?)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;

    use clap::Parser;
    use omr_testkit::FakeRoot;
    use omr_units::GroupId;

    use super::*;
    use omr_history::{AGES, Since, Store};

    #[derive(Debug, Parser)]
    struct Words {
        #[command(flatten)]
        args: Args,
    }

    fn args(words: &[&str]) -> Args {
        Words::try_parse_from([&["advise"], words].concat()).expect("a command line").args
    }

    /// A group of 1000 MiB, none of it page cache, with `used` MiB used in the last ten minutes.
    fn sample(time: Duration, path: &str, used: u64) -> history::Sample {
        let used = Bytes::mib(used);
        let memory = Bytes::mib(1000);
        let idle = Bounds { least: memory - used, most: memory - used };
        history::Sample {
            time,
            boot: "b".into(),
            group: Path::new(path).into(),
            id: GroupId(7),
            current: memory,
            peak: memory,
            anon: memory,
            file: Bytes::ZERO,
            shmem: Bytes::ZERO,
            swap: None,
            idle: Some(Idle { ago: Duration::ZERO, memory, bounds: [Some(idle); AGES.len()] }),
            since: Some(Since {
                over: Duration::from_secs(600),
                refaults_anon: Some(Bytes::ZERO),
                refaults_file: Some(Bytes::ZERO),
                swapped_in: None,
                stalled: Some(Duration::ZERO),
                stalled_full: None,
                reclaimed: Some(Bytes::ZERO),
            }),
            promotions: None,
            nodes: Vec::new(),
            threshold: None,
            machine: None,
            cost: None,
        }
    }

    /// A machine whose daemon took samples of these groups every ten minutes for `hours` hours
    /// until now.
    fn machine(hours: u64, groups: &[(&str, u64)]) -> FakeRoot {
        let root = FakeRoot::new();
        let now = clock::read_wall();
        let mut store = Store::new(&paths::history(root.path()), "b", Bytes::mib(64));
        for n in (0..hours * 6).rev() {
            let time = now - Duration::from_secs(600 * n);
            let round: Vec<_> = groups.iter().map(|&(path, used)| sample(time, path, used)).collect();
            store.add(time, &round);
        }
        root
    }

    fn advice(group: &Group) -> &Advice {
        group.result.as_ref().expect("advice")
    }

    #[test]
    fn the_history_is_where_advice_comes_from() {
        let root = machine(4 * 24, &[("", 900), ("a.slice", 500), ("a.slice/db.service", 200), ("b.scope", 100)]);
        let groups = read(root.path(), &args(&[])).expect("groups");
        // Those with others below them are left out, unless they are named; the largest saving
        // comes first.
        let names: Vec<String> = groups.iter().map(name).collect();
        assert_eq!(names, ["b.scope", "a.slice/db.service"]);
        assert_eq!(advice(&groups[1]).high, Bytes::mib(230));
        assert_eq!(advice(&groups[1]).saved, Bytes::mib(770));
        for (named, found) in [("a.slice", 1), ("/sys/fs/cgroup/a.slice/", 1), ("**", 3), ("a.slice/*", 1), ("c", 0)] {
            assert_eq!(read(root.path(), &args(&[named])).expect("groups").len(), found, "{named}");
        }
        let err = read(root.path(), &args(&["/"])).err().map(|err| err.to_string()).unwrap_or_default();
        assert!(err.contains("name a group"), "{err}");
    }

    #[test]
    fn little_history_is_said_and_of_too_little_nothing_is_advised() {
        for (hours, window, expected) in [
            (96, "7d", "96 h of 7days, 576 samples"),
            (3, "7d", "3 h of 7days: weak, 18 samples"),
            (3, "3h", "3 h of 3h"),
            (0, "7d", "no samples of b.scope in the last 7days"),
        ] {
            let root = machine(hours, &[("b.scope", 100)]);
            let args = args(&["b.scope", "--window", window]);
            let groups = read(root.path(), &args).expect("groups");
            let text = match groups.as_slice() {
                [group] => describe(group, &args),
                _ => no_groups(root.path(), &args).to_string(),
            };
            assert!(text.contains(expected), "{hours} {text}");
        }
        let little = Group {
            path: Path::new("b.scope").into(),
            result: Err(advise::TooLittle { samples: 2, covered: Duration::from_secs(600) }),
        };
        let text = describe(&little, &args(&["b.scope"]));
        assert!(text.contains("2 samples in 10 min: too little for advice"), "{text}");
        assert!(!text.contains("memory.high") && !text.contains("MiB"), "{text}");
        assert!(drop_ins(&[little], Duration::ZERO).starts_with("# b.scope: 2 samples"));
    }

    #[test]
    fn a_time_without_ages_counts_as_used() {
        let at = |idle: Option<Idle>| to_policy(&history::Sample { idle, ..sample(Duration::ZERO, "a", 100) });
        let known = sample(Duration::ZERO, "a", 100).idle;
        assert_eq!(at(known).used, Some(Bounds { least: Bytes::mib(100), most: Bytes::mib(100) }));
        assert_eq!(at(None).used, None);
        let old = |seconds| {
            sample(Duration::ZERO, "a", 100).idle.map(|idle| Idle { ago: Duration::from_secs(seconds), ..idle })
        };
        assert_eq!((at(old(75)).used.is_some(), at(old(76)).used), (true, None));
        // The first sample of a daemon: since when is not known.
        let first = history::Sample { since: None, ..sample(Duration::ZERO, "a", 100) };
        assert_eq!((to_policy(&first).used, to_policy(&first).over), (None, None));
    }

    #[test]
    fn systemd_takes_the_drop_ins() {
        let root = machine(96, &[("a.slice/db.service", 200), ("docker/4f1e", 100)]);
        let groups = read(root.path(), &args(&[])).expect("groups");
        let text = drop_ins(&groups, Duration::from_secs(7 * 86_400));
        assert!(text.contains("# docker/4f1e is not a systemd unit"), "{text}");
        let begin = text.find("# /etc/systemd/system/db.service.d/50-omr.conf").expect("a path");
        let drop_in = &text[begin..];
        assert!(drop_in.contains("[Service]\nMemoryHigh=241172480\nMemoryMax="), "{text}");
        // systemd succeeds in any case; it complains about lines that it does not understand.
        let verify = |drop_in: &str| {
            let dir = tempfile::tempdir().expect("a directory");
            let unit = dir.path().join("db.service");
            fs::write(&unit, "[Service]\nExecStart=/bin/true\n").expect("a unit");
            fs::create_dir(dir.path().join("db.service.d")).expect("a directory");
            fs::write(dir.path().join("db.service.d/50-omr.conf"), drop_in).expect("a drop-in");
            let output = Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&unit).output().ok()?;
            Some(String::from_utf8_lossy(&output.stderr).lines().filter(|line| line.contains("50-omr.conf")).count())
        };
        match verify(drop_in) {
            Some(complaints) => assert_eq!(complaints, 0),
            None => return eprintln!("SKIP: no systemd-analyze here"),
        }
        // The controls.
        assert_eq!(verify(&drop_in.replace("MemoryHigh=", "MemoryHigher=")), Some(1));
        assert_eq!(verify(&drop_in.replace("MemoryHigh=", "MemoryHigh=x")), Some(1));
    }

    #[test]
    fn a_units_file_is_its_managers() {
        let of = |path: &str| {
            let root = machine(96, &[(path, 200)]);
            let groups = read(root.path(), &args(&[])).expect("groups");
            drop_ins(&groups, Duration::ZERO).lines().next().map(str::to_owned)
        };
        let user = "user.slice/user-1000.slice/user@1000.service";
        assert_eq!(
            of(&format!("{user}/app.slice/app.service")).as_deref(),
            Some("# /etc/systemd/user/app.service.d/50-omr.conf")
        );
        assert_eq!(of(user).as_deref(), Some("# /etc/systemd/system/user@1000.service.d/50-omr.conf"));
    }

    #[test]
    fn kubernetes_gets_a_patch_of_one_container() {
        let root = machine(96, &[("kubepods.slice/pod1/4f1e", 200), ("kubepods.slice/pod2/77aa", 200)]);
        let of = |words: &[&str]| patch(&read(root.path(), &args(words)).expect("groups"), "db");
        let patch: serde_json::Value = serde_json::from_str(&of(&["**/4f1e"]).expect("a patch")).expect("JSON");
        let container = &patch["spec"]["template"]["spec"]["containers"][0];
        assert_eq!(container["name"], "db");
        assert_eq!(container["resources"]["requests"]["memory"], "230Mi");
        assert_eq!(container["resources"]["limits"]["memory"], "1250Mi");
        let err = of(&[]).expect_err("two groups").to_string();
        assert!(err.contains("for one group, but there are 2"), "{err}");
    }

    #[test]
    fn the_age_reaches_back_to_the_sample_before() {
        for (over, seconds) in [
            (600.02, Some(600)),
            (660.0, Some(600)),
            (700.0, Some(900)),
            (30.0, Some(30)),
            (5000.0, Some(7200)),
            (40_000.0, None),
        ] {
            let over = Duration::from_secs_f64(over);
            let age = AGES.into_iter().find(|&age| reaches_back(age, over));
            assert_eq!(age, seconds.map(Duration::from_secs), "{over:?}");
        }
    }

    #[test]
    fn of_a_sample_of_an_older_omr_the_next_age_that_it_has_counts() {
        let mut sample = sample(Duration::ZERO, "a", 100);
        let idle = sample.idle.as_mut().expect("ages");
        for (age, bounds) in AGES.iter().zip(&mut idle.bounds) {
            *bounds = match age.as_secs() {
                240 | 480 | 900 | 7200.. => None,
                600 => Some(Bounds { least: Bytes::mib(800), most: Bytes::mib(800) }),
                _ => Some(Bounds { least: Bytes::mib(900), most: Bytes::mib(900) }),
            };
        }
        let used = used(idle, Duration::from_secs(500));
        assert_eq!(used, Some(Bounds { least: Bytes::mib(200), most: Bytes::mib(200) }));
    }

    #[test]
    fn no_figure_of_the_history_makes_advice_panic() {
        let root = machine(26, &[("system.slice/db.service", 300), ("user.slice/app.scope", 10)]);
        let dir = paths::history(root.path());
        let file = fs::read_dir(&dir).expect("files").next().expect("a file").expect("a file").path();
        let whole = fs::read(&file).expect("bytes");
        let args = args(&["--window", "24h"]);
        let advised = std::cell::Cell::new(0);
        omr_testkit::fuzz::feed(&[whole], |bytes| {
            let mut bytes = bytes.to_vec();
            omr_history::mend_checksums(&mut bytes);
            fs::write(&file, bytes).expect("written");
            let groups = read(root.path(), &args).expect("a history");
            advised.set(advised.get() + groups.iter().filter(|group| group.result.is_ok()).count());
            let _ = (table(&groups, &args), drop_ins(&groups, args.window), patch(&groups, "main"));
            for group in &groups {
                serde_json::to_string(&Line::new(group)).expect("JSON");
                describe(group, &args);
            }
        });
        assert!(advised.get() >= 2, "the control: {} advised", advised.get());
    }
}
