//! Tests of learned thresholds.

use std::fs;

use omr_policy::age::AGES;

use super::*;

const GROUP: GroupId = GroupId(7);
const PATH: &str = "system.slice/db.service";
const WALL: u64 = 1_800_000_000;

fn minutes(n: u64) -> Duration {
    Duration::from_secs(60 * n)
}

fn at(minute: u64) -> Monotonic {
    Monotonic(0) + minutes(minute)
}

/// A group of 1 GiB, of which 500 MiB are in use: 1 MiB a minute may be promoted.
struct Learning {
    thresholds: Thresholds,
    id: GroupId,
    minute: u64,
    swapped_in: Bytes,
    disturbed: Option<Monotonic>,
}

impl Learning {
    fn new(dir: &Path) -> Self {
        Learning::of(dir, GROUP, PATH, WALL)
    }

    fn of(dir: &Path, id: GroupId, path: &str, wall: u64) -> Self {
        let mut thresholds = Thresholds::load(dir, at(0)).expect("thresholds");
        thresholds.retain([(id, Path::new(path))].into_iter(), &Slo::default(), wall);
        Learning { thresholds, id, minute: 0, swapped_in: Bytes::ZERO, disturbed: None }
    }

    /// A minute in which this much was promoted at the ages up to 4 min.
    fn minute(&mut self, promoted: Bytes) -> Learned {
        self.minute += 1;
        let mut bounds = [Bounds::default(); AGES.len()];
        bounds[..4].fill(Bounds { least: promoted, most: promoted });
        let seen = Seen {
            at: at(self.minute),
            promotions: Some(Promotions { over: minutes(1), bounds }),
            in_use: Bounds { least: Bytes::mib(500), most: Bytes::mib(500) },
        };
        self.see(&seen)
    }

    fn see(&mut self, seen: &Seen) -> Learned {
        let stalled = Some(Duration::ZERO);
        let counters = Counters { size: Bytes::mib(1024), swapped_in: Some(self.swapped_in), stalled };
        self.thresholds.observe(self.id, Path::new(PATH), seen, counters, &Terms::default(), self.disturbed);
        self.thresholds.learned(&Slo::default(), at(self.minute)).pop().expect("the group")
    }

    fn reclaim(&mut self, path: &str, bytes: Bytes, unused_for: Duration) {
        let now = at(self.minute) + Duration::from_secs(1);
        let reclaimed = Reclaimed { path: path.into(), bytes, unused_for, began: now, ended: now };
        self.thresholds.note_reclaimed(self.id, Path::new(PATH), &[reclaimed]);
    }

    /// Quiet minutes until the threshold is the shortest.
    fn settle(&mut self) {
        for _ in 0..30 {
            self.minute(Bytes::ZERO);
        }
        assert_eq!(self.minute(Bytes::ZERO).step, Step::LEAST);
    }
}

fn dir() -> tempfile::TempDir {
    tempfile::tempdir().expect("a directory")
}

#[test]
fn a_group_is_observed_at_short_ages_until_its_threshold_is_there() {
    let dir = dir();
    let mut group = Learning::new(dir.path());
    for minute in 0..10 {
        let learned = group.minute(Bytes::ZERO);
        assert_eq!((learned.step, learned.observed_at), (Step::MOST, MEASURED_AT), "minute {minute}");
    }
    let ages: Vec<_> = (0..10).map(|_| group.minute(Bytes::ZERO)).map(|of| (of.step.age(), of.observed_at)).collect();
    assert!(ages.iter().all(|(age, observed)| *observed == MEASURED_AT.min(*age)), "{ages:?}");
    assert_eq!(ages.last(), Some(&(minutes(2), minutes(2))));
    // It broke the objective up to 4 min.
    let learned = group.minute(Bytes::mib(2));
    assert_eq!((learned.step.age(), learned.observed_at), (minutes(8), minutes(8)));
    assert!(learned.why.starts_with("too much came back: memory unused for 2 min"), "{}", learned.why);
}

/// W is what was used within two minutes. An interval of eight does not tell that.
#[test]
fn the_working_set_is_measured_first_and_again_after_an_hour() {
    let dir = dir();
    let mut group = Learning::new(dir.path());
    group.minute(Bytes::ZERO);
    let learned = |group: &Learning, minutes| {
        let mut learned = group.thresholds.learned(&Slo::default(), at(group.minute + minutes));
        learned.pop().expect("the group")
    };
    assert_eq!(learned(&group, 0).observed_at, MEASURED_AT, "nothing was measured");
    // At 4 min the objective is broken, so it is observed at 15 min: aged every 8 min.
    group.minute(Bytes::mib(2));
    assert_eq!(learned(&group, 0).observed_at, minutes(16));
    // 0.2 % of 500 MiB is 1 MiB a minute. In this interval 900 MiB were used, which is no reason to allow more.
    let mut long = |promoted: Bytes, in_use: Bytes| {
        group.minute += 4;
        let mut bounds = [Bounds::default(); AGES.len()];
        bounds[..6].fill(Bounds { least: promoted, most: promoted });
        let promotions = Some(Promotions { over: minutes(4), bounds });
        let in_use = Bounds { least: Bytes::ZERO, most: in_use };
        let seen = Seen { at: at(group.minute), promotions, in_use };
        group.see(&seen)
    };
    let why = long(Bytes::mib(3), Bytes::mib(900)).why;
    assert!(why.contains("observed only"), "{why}");
    let why = (0..4).map(|_| long(Bytes::mib(3), Bytes::mib(900))).last().expect("a report").why;
    assert!(why.contains("of the 500 MiB in use"), "{why}");
    // No more than was used at all.
    let why = long(Bytes::mib(3), Bytes::mib(10)).why;
    assert!(why.contains("of the 10.0 MiB in use"), "{why}");
    let step = learned(&group, 0).step.age();
    let stale = STALE.max(4 * step).as_secs() / 60;
    assert!(learned(&group, stale - 25).observed_at > MEASURED_AT);
    assert_eq!(learned(&group, stale).observed_at, MEASURED_AT);
}

#[test]
fn memory_that_omr_reclaimed_is_no_promotion() {
    let dir = dir();
    let step = |reclaim: Option<(&str, Duration)>| {
        let mut group = Learning::new(dir.path());
        group.settle();
        if let Some((path, unused_for)) = reclaim {
            group.reclaim(path, Bytes::mib(9), unused_for);
        }
        group.minute(Bytes::mib(9)).step
    };
    assert_eq!(step(Some((PATH, minutes(5)))), Step::LEAST);
    // The control: nothing was reclaimed.
    assert!(step(None) > Step::LEAST);
    // Memory of any age was: nobody knows whether something was promoted.
    assert_eq!(step(Some((PATH, Duration::ZERO))), Step::LEAST);
    // The group above lost memory. Nobody knows how much of that was this group's.
    assert_eq!(step(Some(("system.slice", minutes(5)))), Step::LEAST);
    // A group below has generations of its own.
    assert!(step(Some(("system.slice/db.service/below", minutes(5)))) > Step::LEAST);
}

#[test]
fn memory_that_comes_back_from_swap_raises_it() {
    let dir = dir();
    let mut group = Learning::new(dir.path());
    group.settle();
    group.swapped_in = Bytes::mib(1);
    assert_eq!(group.minute(Bytes::ZERO).step, Step::LEAST, "within the objective");
    group.swapped_in = Bytes::mib(3);
    assert_eq!(group.minute(Bytes::ZERO).step.age(), minutes(4));
    // The counter does not grow any more.
    assert_eq!(group.minute(Bytes::ZERO).step.age(), minutes(4));
}

#[test]
fn what_comes_back_after_everybody_was_away_does_not_raise_it() {
    let dir = dir();
    let step = |disturbed: Option<u64>| {
        let mut group = Learning::new(dir.path());
        group.settle();
        group.disturbed = disturbed.map(|minute| at(group.minute + minute));
        group.swapped_in = Bytes::mib(30);
        group.minute(Bytes::mib(9));
        // Of the next minute everything is known again.
        group.disturbed = None;
        let quiet = group.minute(Bytes::ZERO);
        assert!(quiet.is_observed);
        quiet.step
    };
    assert_eq!(step(Some(1)), Step::LEAST);
    // The controls: nothing younger was taken, or it was before the interval began.
    assert!(step(None) > Step::LEAST);
    assert!(step(Some(0)) > Step::LEAST);
}

#[test]
fn an_aging_of_which_nothing_is_known_moves_nothing() {
    let dir = dir();
    let mut group = Learning::new(dir.path());
    group.settle();
    group.minute(Bytes::mib(2));
    let before = group.minute(Bytes::ZERO).step;
    for _ in 0..200 {
        group.minute += 1;
        let in_use = Bounds { least: Bytes::mib(500), most: Bytes::mib(500) };
        let seen = Seen { at: at(group.minute), promotions: None, in_use };
        let learned = group.see(&seen);
        assert_eq!(learned.step, before);
    }
    // The control: after an hour of quiet it goes down.
    assert!((0..62).map(|_| group.minute(Bytes::ZERO).step).last().expect("a minute") < before);
}

/// The kernel refused to make a generation, and what was reclaimed or came back until then counts
/// with the next one.
#[test]
fn an_aging_that_made_no_generation_forgets_nothing() {
    let dir = dir();
    let at_last = |group: &Learning| {
        let in_use = Bounds { least: Bytes::mib(500), most: Bytes::mib(500) };
        Seen { at: at(group.minute), promotions: None, in_use }
    };
    let mut group = Learning::new(dir.path());
    group.settle();
    group.reclaim(PATH, Bytes::mib(9), minutes(5));
    let seen = at_last(&group);
    group.see(&seen);
    assert_eq!(group.minute(Bytes::mib(9)).step, Step::LEAST);
    group.swapped_in = Bytes::mib(9);
    let seen = at_last(&group);
    assert_eq!(group.see(&seen).step, Step::LEAST);
    assert!(group.minute(Bytes::ZERO).step > Step::LEAST);
}

#[test]
fn a_threshold_is_kept_by_name_over_a_restart() {
    let dir = dir();
    let mut group = Learning::new(dir.path());
    group.settle();
    group.thresholds.save(WALL);
    let mut again = Learning::of(dir.path(), GroupId(99), PATH, WALL + 60);
    assert_eq!(again.minute(Bytes::ZERO).step, Step::LEAST);
    assert!(again.minute(Bytes::ZERO).is_observed, "after a minute it goes on");
    // After an hour, and where the clock was set back, it is observed first.
    for wall in [WALL + 3600, WALL - 3600] {
        let mut again = Learning::of(dir.path(), GROUP, PATH, wall);
        again.minute(Bytes::ZERO);
        let learned = again.minute(Bytes::ZERO);
        assert_eq!((learned.step, learned.is_observed), (Step::LEAST, false), "{learned:?}");
    }
    // The control: another name.
    let mut other = Learning::of(dir.path(), GROUP, "system.slice/web.service", WALL + 60);
    assert_eq!(other.minute(Bytes::ZERO).step, Step::MOST);
}

#[test]
fn a_group_that_is_made_anew_each_minute_keeps_its_threshold() {
    let dir = dir();
    let mut group = Learning::new(dir.path());
    group.settle();
    for number in 0..20 {
        let path = format!("user.slice/app-foot-{number}a1.scope");
        let groups = [(GroupId(100 + number), Path::new(&path))];
        group.thresholds.retain(groups.into_iter(), &Slo::default(), WALL + 60 * number);
    }
    assert_eq!(group.thresholds.absent.len(), 1, "{:?}", group.thresholds.absent.keys());
    // What it learned before is not in force before it was seen twice.
    let mut again = Learning { id: GroupId(119), ..group };
    let learned = again.thresholds.learned(&Slo::default(), at(0)).pop().expect("the group");
    assert!(!learned.is_observed, "{learned:?}");
    assert!(!again.minute(Bytes::ZERO).is_observed);
    let mut group = Learning { id: GROUP, ..again };
    group.thresholds.retain([(GROUP, Path::new(PATH))].into_iter(), &Slo::default(), WALL + 1200);
    assert_eq!(group.minute(Bytes::ZERO).step, Step::LEAST);
}

#[test]
fn a_wrong_file_is_left_out_as_a_whole() {
    let dir = dir();
    let mut group = Learning::new(dir.path());
    group.settle();
    group.thresholds.save(WALL);
    let file = dir.path().join(FILE);
    let good = fs::read_to_string(&file).expect("a file");
    assert_eq!(read(&file).map(|groups| groups.len()).ok(), Some(1));
    let half = &good[..good.len() / 2];
    for wrong in
        ["", "{}", half, &good.replacen("\"version\":2", "\"version\":3", 1), &good.replace("\"step\":0", "\"step\":9")]
    {
        fs::write(&file, wrong).expect("written");
        assert!(read(&file).is_err(), "{wrong}");
        let mut again = Learning::of(dir.path(), GROUP, PATH, WALL);
        assert_eq!(again.minute(Bytes::ZERO).step, Step::MOST);
    }
    // A directory that is gone costs the file, not the thresholds.
    fs::remove_dir_all(dir.path()).expect("removed");
    group.thresholds.save(WALL);
    assert_eq!(group.minute(Bytes::ZERO).step, Step::LEAST);
}

#[test]
fn a_disk_that_cannot_be_written_costs_nothing_that_was_saved_and_is_said_once() {
    let dir = dir();
    let mut group = Learning::new(dir.path());
    group.settle();
    group.thresholds.save(WALL);
    let file = dir.path().join(FILE);
    let old = fs::read(&file).expect("a file");
    // Where the new file has to be written first, there is something else.
    let in_the_way = dir.path().join(format!("{FILE}.{}.tmp", std::process::id()));
    fs::create_dir(&in_the_way).expect("made");
    let mut later = at(0);
    let mut save = |group: &mut Learning| {
        group.minute(Bytes::ZERO);
        later = later + WRITE;
        crate::test_log::lines_of(|| group.thresholds.save_if_due(later, WALL + 60)).len()
    };
    let said: Vec<usize> = (0..5).map(|_| save(&mut group)).collect();
    assert_eq!(said, [1, 0, 0, 0, 0]);
    assert_eq!(fs::read(&file).expect("the old file"), old);
    assert_eq!(group.minute(Bytes::ZERO).step, Step::LEAST, "it goes on");
    // There is room again, and then none.
    fs::remove_dir(&in_the_way).expect("removed");
    assert_eq!(save(&mut group), 0);
    assert_ne!(fs::read(&file).expect("the new file"), old);
    fs::create_dir(&in_the_way).expect("made");
    assert_eq!(save(&mut group), 1);
}

#[test]
fn the_names_that_are_kept_are_limited_and_the_oldest_go_first() {
    let dir = dir();
    let mut group = Learning::new(dir.path());
    group.settle();
    for number in 0..2 * MOST as u64 {
        let path = format!("user.slice/{number}.service");
        let groups = [(GROUP, Path::new(PATH)), (GroupId(100 + number), Path::new(&path))];
        group.thresholds.retain(groups.into_iter(), &Slo::default(), WALL + number);
        // Also while nothing was learned that would be saved.
        assert!(group.thresholds.absent.len() + group.thresholds.known.len() <= MOST);
    }
    group.thresholds.save(WALL + 2000);
    let groups = read(&dir.path().join(FILE)).expect("a file");
    assert_eq!(groups.len(), MOST);
    assert!(groups.contains_key(PATH) && groups.contains_key("user.slice/998.service"));
    assert!(!groups.contains_key("user.slice/0.service"));
}

#[test]
fn names_leave_out_what_changes_from_start_to_start() {
    for (path, name) in [
        ("system.slice/postgresql@15-main.service", "system.slice/postgresql@15-main.service"),
        ("a/app-gnome-firefox-4711.scope", "a/app-gnome-firefox.scope"),
        ("a/app-foot@1f3a.service", "a/app-foot.service"),
        ("a/session-5.scope", "a/session.scope"),
        ("jobs", "jobs"),
        ("", ""),
        ("a/face.scope", "a/face.scope"),
        ("a/.scope", "a/.scope"),
    ] {
        assert_eq!(name_of(Path::new(path)), name);
    }
}

#[test]
fn no_file_makes_it_panic() {
    let root = omr_testkit::FakeRoot::in_memory(omr_testkit::Release::V6_12);
    let dir = root.path();
    let mut learning = Learning::new(dir);
    for _ in 0..20 {
        learning.minute(Bytes::mib(1));
    }
    learning.thresholds.save(WALL);
    let file = dir.join(FILE);
    let text = fs::read(&file).expect("a file");
    let old = br#"{"version":1,"groups":{}}"#.to_vec();
    let loaded = std::cell::Cell::new(0);
    omr_testkit::fuzz::feed(&[text, old], |text| {
        fs::write(&file, text).expect("written");
        loaded.set(loaded.get() + read(&file).map_or(0, |groups| groups.len()));
        // What it says is used, and written again.
        let mut learning = Learning::new(dir);
        for promoted in [0, 2, 2000] {
            learning.minute(Bytes::mib(promoted));
        }
        learning.thresholds.save(WALL);
        assert!(read(&file).is_ok_and(|groups| groups.len() <= MOST));
    });
    // A slow machine tries few changes, and may find none that leaves a group.
    assert!(loaded.get() > 0, "the control: the file as it was written");
}
