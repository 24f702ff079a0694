//! Drawings are compared with files: `tests/golden/NAME.svg`. `OMR_GOLDEN=write cargo test -p
//! omr-picture golden` writes them anew: look at them, and read the difference. With
//! `OMR_PICTURES=DIR` the test of sizes also writes its pictures there.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use omr_base::paths;
use omr_charts::{Charts, Now, Topic, Window};
use omr_history::ledger::{Entry, Ledger, Swept};
use omr_history::{AGES, Cost, Idle, Sample, Since, Store};
use omr_policy::End;
use omr_policy::age::{Bounds, Promotions};
use omr_policy::threshold::PromotionRate;
use omr_testkit::FakeRoot;
use omr_units::{Budget, Bytes, GroupId};
use tiny_skia::{Pixmap, PremultipliedColorU8};

use super::*;
use crate::drawing::HATCH;
use crate::page::{LEFT, LIMIT};

/// The time of the last sample: 2026-11-18T11:06:40Z.
const END: u64 = 1_795_000_000;
const EVERY: u64 = 600;

/// A group with this much memory, half of it cold.
fn sample(time: u64, group: &str, memory: Bytes) -> Sample {
    let part = |of: u64| Bytes(memory.0 / 16 * of);
    let bounds: Vec<_> = (0..AGES.len() as u64)
        .map(|age| Some(Bounds { least: part(12u64.saturating_sub(age)), most: part(13u64.saturating_sub(age)) }))
        .collect();
    let promoted = Bounds { least: Bytes(memory.0 / 20_000), most: Bytes(memory.0 / 10_000) };
    Sample {
        time: Duration::from_secs(time),
        boot: "b".into(),
        group: Path::new(group).into(),
        id: GroupId(7),
        current: memory,
        peak: memory,
        anon: memory,
        file: part(2),
        shmem: Bytes::ZERO,
        swap: Some(part(1)),
        idle: Some(Idle { ago: Duration::ZERO, memory, bounds: bounds.try_into().expect("all ages") }),
        since: Some(Since {
            over: Duration::from_secs(EVERY),
            refaults_anon: Some(part(1)),
            refaults_file: Some(part(1)),
            swapped_in: None,
            stalled: Some(Duration::from_millis(1200)),
            stalled_full: Some(Duration::from_millis(300)),
            reclaimed: Some(Bytes::ZERO),
        }),
        promotions: Some(Promotions { over: Duration::from_secs(EVERY), bounds: [promoted; AGES.len()] }),
        nodes: Vec::new(),
        cost: Some(Cost { agings: 3, cpu: Duration::from_millis(60) }),
        threshold: Some(Duration::from_secs(300)),
        machine: None,
    }
}

fn sweep(time: u64, freed: Bytes, end: End) -> Entry {
    Entry::Sweep(Swept {
        time,
        sweep: 1,
        group: "app.slice".into(),
        id: GroupId(7),
        observed: false,
        asked: freed,
        freed,
        freed_anon: Bytes(freed.0 / 4 * 3),
        freed_file: Bytes(freed.0 / 4),
        swapped_out: Bytes(freed.0 / 4 * 3),
        demoted: Bytes::ZERO,
        cpu_ms: 40,
        wall_ms: 2000,
        writes: 9,
        longest_write_ms: 12,
        stop_ms: None,
        method: None,
        last_write_end_ns: 1,
        start_reason: "idle for 61 s".into(),
        stop_reason: "complete".into(),
        end,
        error: None,
    })
}

/// A machine whose samples of these times, counted back from the end, have this much memory.
fn machine(samples: &[(u64, Bytes)], group: &str) -> FakeRoot {
    let root = FakeRoot::new();
    let mut store = Store::new(&paths::history(root.path()), "b", Bytes::mib(64));
    let mut ledger = Ledger::open(&paths::state_dir(root.path()));
    for (ago, memory) in samples {
        let time = END - ago * EVERY;
        store.add(Duration::from_secs(time), &["", group].map(|group| sample(time, group, *memory)));
        let end = if ago % 2 == 0 { End::Complete } else { End::Stopped };
        ledger.add(&sweep(time - 100, Bytes(memory.0 / 8), end));
    }
    root
}

fn charts(root: &FakeRoot, group: &str, columns: usize) -> Charts {
    let window = Window::ending(Duration::from_secs(END), Duration::from_secs(8 * EVERY), columns);
    let budget = Some(Budget { bytes: Bytes::mib(1024), hours: 24 });
    let now = Now { threshold: Some(Duration::from_secs(300)), objective: PromotionRate::FAST, budget };
    omr_charts::read(root.path(), group, window, &now).expect("charts")
}

/// Samples of an hour and twenty minutes, in the middle of which nobody took any.
const USUAL: [(u64, Bytes); 6] = [
    (7, Bytes::mib(300)),
    (6, Bytes::mib(500)),
    (5, Bytes::mib(800)),
    (2, Bytes::mib(700)),
    (1, Bytes::mib(900)),
    (0, Bytes::mib(400)),
];

#[test]
fn golden_each_chart_is_drawn_as_expected() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let charts = charts(&machine(&USUAL, "app.slice"), "", 16);
    let mut wrong = String::new();
    for topic in Topic::ALL {
        let file = dir.join(format!("{}.svg", topic.name()));
        let actual = draw(&charts, topic, true).svg();
        if std::env::var_os("OMR_GOLDEN").is_some_and(|value| value == "write") {
            std::fs::write(&file, actual).expect("written");
            continue;
        }
        let expected = std::fs::read_to_string(&file).unwrap_or_else(|err| format!("({err})\n"));
        if expected != actual {
            let _ = writeln!(wrong, "{}\n--- expected\n{expected}--- actual\n{actual}", file.display());
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

/// The part of the pixels between these edges, in tenths, that have this colour, in thousandths.
fn share(pixels: &Pixmap, area: Area, is: impl Fn([u8; 3]) -> bool) -> usize {
    let [left, top, right, bottom] =
        [area.left, area.top, area.right, area.bottom].map(|tenths| u32::try_from(tenths / 5).expect("a place"));
    let mut all = 0;
    let mut found = 0;
    for y in top..bottom {
        for x in left..right {
            let pixel: PremultipliedColorU8 = pixels.pixel(x, y).expect("a pixel");
            all += 1;
            found += usize::from(is([pixel.red(), pixel.green(), pixel.blue()]));
        }
    }
    found * 1000 / all
}

/// The hatched rectangles of this drawing, without the sign of the legend.
fn hatched(drawing: &Drawing) -> Vec<Area> {
    let areas = drawing.items.iter().filter_map(|item| match item {
        Item::Rect(area, Fill::Unknown) if area.width() != 130 => Some(*area),
        _ => None,
    });
    areas.collect()
}

#[test]
fn a_png_is_hatched_where_nothing_is_known_and_has_colours_elsewhere() {
    let charts = charts(&machine(&USUAL, "app.slice"), "", 16);
    for topic in Topic::ALL {
        let drawing = draw(&charts, topic, true);
        let file = drawing.png().expect("a PNG");
        let pixels = Pixmap::decode_png(&file).expect("a PNG that others read");
        assert_eq!((pixels.width(), pixels.height()), (2000, u32::try_from(drawing.height / 5).expect("a height")));
        let areas = hatched(&drawing);
        assert!(!areas.is_empty(), "{topic:?}: twenty minutes are not known");
        let (ground, line, _) = HATCH;
        for area in &areas {
            let [grounds, lines] = [ground, line].map(|colour| share(&pixels, *area, |pixel| pixel == colour));
            // The edges of the lines are smooth, so they have other colours as well.
            assert!(grounds > 400 && lines > 40, "{topic:?} {area:?}: {grounds} and {lines} of 1000");
        }
        // The control: where much is known there is no hatch, and there is a colour.
        let ends = areas.iter().filter(|area| area.right > LEFT + PLOT - 1000).map(|area| area.top);
        let bottom = ends.min().unwrap_or(drawing.height - 1200);
        let known = Area { left: LEFT + PLOT - 1000, top: 900, right: LEFT + PLOT - 20, bottom };
        let colourful = share(&pixels, known, |[red, green, blue]| red.abs_diff(green).max(green.abs_diff(blue)) > 20);
        let lines = share(&pixels, known, |pixel| pixel == line);
        if topic != Topic::Sleep {
            assert!(colourful > 20 && lines < 10, "{topic:?}: {colourful} and {lines} of 1000");
        }
    }
}

#[test]
fn the_line_of_the_threshold_is_in_both_files() {
    let root = machine(&USUAL, "app.slice");
    let with = draw(&charts(&root, "", 16), Topic::Unused, true);
    let is_line = |item: &&Item| matches!(item, Item::Line(_, stroke) if stroke.colour == LIMIT);
    assert!(with.items.iter().filter(is_line).count() >= 3, "one in the legend, and one on both sides of the gap");
    let pixels = with.pixels().expect("pixels");
    let plot = Area { left: LEFT, top: 900, right: LEFT + PLOT, bottom: with.height - 900 };
    assert!(share(&pixels, plot, |pixel| pixel == LIMIT) > 0);
    // The control: a window in which no threshold is recorded, and none is in force now.
    let window = Window { from: END - 9000, to: END - 8000, columns: 16 };
    let now = Now { threshold: None, objective: PromotionRate::FAST, budget: None };
    let without = draw(&omr_charts::read(root.path(), "", window, &now).expect("charts"), Topic::Unused, true);
    assert_eq!(without.items.iter().filter(is_line).count(), 0);
}

#[test]
fn an_empty_history_is_hatched_and_says_what_will_be_there() {
    let root = FakeRoot::new();
    for topic in Topic::ALL {
        let drawing = draw(&charts(&root, "", 16), topic, true);
        let plots = hatched(&drawing);
        assert!(plots.iter().all(|area| (area.left, area.right) == (LEFT, LEFT + PLOT)), "{topic:?}: {plots:?}");
        assert!(!plots.is_empty(), "{topic:?}");
        assert!(drawing.description.contains("no history yet"), "{topic:?}: {}", drawing.description);
        assert!(drawing.svg().contains("no history yet"), "{topic:?}");
    }
}

#[test]
fn texts_are_inside_of_the_picture_and_do_not_overlap_whatever_the_sizes_are() {
    let long = format!("user.slice/{}", "app-with-a-long-name-".repeat(11));
    let cases = [
        ("usual", USUAL.to_vec(), "app.slice"),
        ("one-sample", vec![(3, Bytes::mib(300))], "app.slice"),
        ("tiny", vec![(5, Bytes(16)), (4, Bytes(32)), (0, Bytes(1))], "app.slice"),
        ("huge", vec![(5, Bytes(u64::MAX)), (4, Bytes(u64::MAX / 3)), (0, Bytes(0))], "app.slice"),
        ("tiny-and-huge", vec![(5, Bytes(16)), (4, Bytes(1 << 50)), (0, Bytes::mib(1))], "app.slice"),
        ("unknown", vec![(900, Bytes::mib(300))], "app.slice"),
        ("long-name", USUAL.to_vec(), long.as_str()),
        ("hostile-name", USUAL.to_vec(), "a.slice/<b>&\u{1b}[2J\u{202e}日本語"),
    ];
    let font = font::Font::new();
    for (name, samples, group) in cases {
        let root = machine(&samples, group);
        for topic in Topic::ALL {
            let drawing = draw(&charts(&root, group, 80), topic, true);
            let mut texts: Vec<(Area, &str)> = Vec::new();
            for item in &drawing.items {
                let Item::Text { x, y, size, anchor, text, .. } = item else { continue };
                let width = font.width(text, *size);
                let left = x - match anchor {
                    Anchor::Start => 0,
                    Anchor::Middle => width / 2,
                    Anchor::End => width,
                };
                texts.push((Area { left, top: y - size * 3 / 4, right: left + width, bottom: y + size / 5 }, text));
            }
            for (number, (area, text)) in texts.iter().enumerate() {
                let inside = area.left >= 0 && area.right <= drawing.width && area.bottom <= drawing.height;
                assert!(inside, "{name} {topic:?}: {text:?} at {area:?}");
                for (other, with) in &texts[..number] {
                    let apart = area.left >= other.right
                        || other.left >= area.right
                        || area.top >= other.bottom
                        || other.top >= area.bottom;
                    assert!(apart, "{name} {topic:?}: {text:?} and {with:?} overlap");
                }
            }
            if let Some(dir) = std::env::var_os("OMR_PICTURES") {
                let file = Path::new(&dir).join(format!("{name}-{}.png", topic.name()));
                std::fs::write(file, drawing.png().expect("a PNG")).expect("written");
            }
        }
    }
}

#[test]
fn columns_have_lengths_that_people_know() {
    for (seconds, expected) in [(7200, 240), (86_400, 144), (604_800, 168), (155, 16), (60, 6), (0, 1)] {
        assert_eq!(columns(seconds), expected, "{seconds}");
    }
    assert_eq!(columns(u64::MAX), 240);
}
