//! Drawings are compared with files, texts and styles: `tests/golden/NAME`. `OMR_GOLDEN=write cargo
//! test -p omr-top golden` writes them anew: read the difference.
//!
//! The history is written as the daemon writes it, and questions are answered from it at once.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use crossterm::event::{Event, KeyCode, KeyEvent, KeyModifiers, MouseButton, MouseEvent, MouseEventKind};
use omr_base::paths;
use omr_charts::{moment, samples_at};
use omr_control::status::{GroupView, Status};
use omr_history::ledger::{Entry, Ledger, Swept};
use omr_history::{AGES, Compressed, Cost, Idle, Machine, Sample, Since, Store};
use omr_policy::age::{Bounds, Promotions};
use omr_policy::{Class, End, Objective};
use omr_testkit::FakeRoot;
use omr_units::{Bytes, GroupId};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::style::{Color, Modifier, Style};

use super::*;
use crate::state::State;

/// Now: 2026-11-18T11:06:40Z.
const NOW: u64 = 1_795_000_000;

/// A group at a time, with figures that change from round to round.
fn sample(round: u64, group: &str, mib: u64) -> Sample {
    let bounds = AGES.map(|age| {
        let used = mib * u64::from(age.as_secs().ilog2()) / 20;
        let least = Bytes::mib(mib.saturating_sub(used + round));
        // Nobody watched for eight hours.
        let least = if age.as_secs() > 14_400 { Bytes::ZERO } else { least };
        let most = if age.as_secs() > 14_400 { Bytes::mib(mib) } else { least + Bytes::mib(mib / 10) };
        Some(Bounds { least, most })
    });
    let promoted = Bounds { least: Bytes::kib(16 * round), most: Bytes::kib(40 * round) };
    Sample {
        time: Duration::ZERO,
        boot: "b".into(),
        group: Path::new(group).into(),
        id: GroupId(7),
        current: Bytes::mib(mib + mib / 4),
        peak: Bytes::mib(2 * mib),
        anon: Bytes::mib(mib),
        file: Bytes::mib(mib / 4),
        shmem: Bytes::ZERO,
        swap: Some(Bytes::mib(3 * round)),
        idle: Some(Idle { ago: Duration::ZERO, memory: Bytes::mib(mib), bounds }),
        since: Some(Since {
            over: Duration::from_secs(600),
            refaults_anon: Some(Bytes::mib(round % 4)),
            refaults_file: Some(Bytes::mib(1)),
            swapped_in: None,
            stalled: Some(Duration::from_millis(100 * round)),
            stalled_full: Some(Duration::from_millis(40 * round)),
            reclaimed: Some(Bytes::ZERO),
        }),
        promotions: Some(Promotions { over: Duration::from_secs(600), bounds: [promoted; AGES.len()] }),
        nodes: Vec::new(),
        threshold: (round < 9 && !group.is_empty()).then(|| Duration::from_secs(if round < 3 { 1800 } else { 480 })),
        machine: group.is_empty().then(|| machine_at(round)),
        cost: Some(Cost { agings: 3, cpu: Duration::from_millis(40 + round) }),
    }
}

fn machine_at(round: u64) -> Machine {
    let zram = Compressed { stored: Bytes::mib(2 * round), occupied: Bytes::mib(round) };
    Machine {
        free: Some(Bytes::mib(200 + 10 * round)),
        zram: Some(zram),
        zswap: None,
        disk: Some(Bytes::mib(round)),
        image: (round > 2).then(|| Bytes::mib(300 - 10 * round)),
    }
}

/// Two hours of history, without samples of half an hour in the middle, and sweeps.
fn machine() -> FakeRoot {
    let root = FakeRoot::new();
    let mut store = Store::new(&paths::history(root.path()), "b", Bytes::mib(64));
    for round in (0..12).filter(|round| !(5..8).contains(round)) {
        let groups = [("", 400), ("app.slice", 300), ("app.slice/firefox.scope", 200), ("db.service", 60)];
        let samples = groups.map(|(group, mib)| sample(round, group, mib));
        store.add(Duration::from_secs(NOW - 200 - 600 * (11 - round)), &samples);
    }
    let mut ledger = Ledger::open(&paths::state_dir(root.path()));
    ledger.add(&Entry::LeftAlone { time: NOW - 7000, group: "db.service".into(), reason: "no ages".into() });
    for (ago, mib, end) in [(6000, 20, End::Complete), (5900, 8, End::Stopped), (1500, 40, End::Complete)] {
        ledger.add(&Entry::Sweep(sweep(NOW - ago, mib, end)));
    }
    root
}

fn sweep(time: u64, mib: u64, end: End) -> Swept {
    Swept {
        time,
        sweep: 1,
        group: "app.slice/firefox.scope".into(),
        id: GroupId(7),
        observed: false,
        asked: Bytes::mib(mib),
        freed: Bytes::mib(mib),
        freed_anon: Bytes::mib(mib / 2),
        freed_file: Bytes::mib(mib / 2),
        swapped_out: Bytes::mib(mib / 2),
        demoted: Bytes::ZERO,
        cpu_ms: 9 * mib,
        wall_ms: 900,
        writes: 4,
        longest_write_ms: mib / 4,
        stop_ms: None,
        method: None,
        last_write_end_ns: 1,
        start_reason: "idle for 61 s".into(),
        stop_reason: if end == End::Stopped { "foreground work began".into() } else { "complete".into() },
        end,
        error: None,
    }
}

fn status() -> Status {
    let mut status: Status =
        serde_json::from_str(include_str!("../../control/src/status/example.json")).expect("a status");
    let of = status.groups.remove(0);
    let group = |group: &str, class, mib| GroupView {
        group: group.into(),
        class,
        current: Some(Bytes::mib(mib)),
        freed: Bytes::mib(mib / 4),
        came_back: Bytes::mib(mib / 40),
        last: Some(Duration::from_secs(mib)),
        ..of.clone()
    };
    status.groups = vec![
        group("app.slice/firefox.scope", Class::Background, 240),
        group("db.service", Class::Protected, 75),
        group("app.slice/editor.scope", Class::Foreground, 60),
    ];
    status
}

/// A screen whose questions are answered.
struct Screen {
    state: State,
    root: FakeRoot,
    status: Result<Status, String>,
}

impl Screen {
    fn new(root: FakeRoot, status: Result<Status, String>, size: (u16, u16), colours: Colours, signs: Signs) -> Self {
        let options = Options {
            group: "app.slice".into(),
            at: None,
            span: Duration::from_secs(7200),
            objective: Objective::default(),
        };
        let state = State::new(&options, colours, signs, size, NOW);
        let mut screen = Screen { state, root, status };
        screen.input(Input::Tick(NOW));
        screen.input(Input::Tick(NOW + 1));
        screen
    }

    fn of(size: (u16, u16)) -> Self {
        Screen::new(machine(), Ok(status()), size, Colours::All, Signs::Blocks)
    }

    fn input(&mut self, input: Input) {
        let mut asks: Vec<Ask> = self.state.update(input);
        while let Some(ask) = asks.pop() {
            let root = self.root.path();
            let answer = match ask {
                Ask::Status => Answer::Status(self.status.clone().map(Box::new)),
                Ask::Explain { group } => Answer::Explained(match &self.status {
                    Ok(_) => Ok(vec![format!("not swept: {group} is fine"), "class: background".into()]),
                    Err(why) => Err(why.clone()),
                }),
                Ask::Samples { at } => {
                    let samples = samples_at(root, Duration::from_secs(at));
                    Answer::Samples(at, samples.map_err(|err| format!("{err:#}")))
                }
                Ask::Charts { group, window, now } => {
                    let charts = omr_charts::read(root, &group, window, &now);
                    Answer::Charts(charts.map(Box::new).map_err(|err| format!("{err:#}")), 3)
                }
                Ask::Moment { group, from, to, seen } => {
                    Answer::Explained(Ok(moment(root, &group, from..to, &seen).expect("lines")))
                }
            };
            asks.extend(self.state.update(Input::Answer(answer)));
        }
    }

    fn key(&mut self, code: KeyCode) {
        self.input(Input::Terminal(Event::Key(KeyEvent::new(code, KeyModifiers::NONE))));
    }

    fn keys(&mut self, text: &str) -> &mut Self {
        for c in text.chars() {
            self.key(match c {
                '<' => KeyCode::Left,
                '>' => KeyCode::Right,
                '^' => KeyCode::Up,
                'v' => KeyCode::Down,
                '\n' => KeyCode::Enter,
                '\u{1b}' => KeyCode::Esc,
                c => KeyCode::Char(c),
            });
        }
        self
    }

    fn click(&mut self, x: u16, y: u16) {
        let mouse = |kind| MouseEvent { kind, column: x, row: y, modifiers: KeyModifiers::NONE };
        self.input(Input::Terminal(Event::Mouse(mouse(MouseEventKind::Down(MouseButton::Left)))));
    }

    /// The screen as text, and the runs of its styles.
    fn drawn(&self) -> (String, String) {
        let (width, height) = self.state.size;
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
        terminal.draw(|frame| draw(&self.state, frame)).expect("drawn");
        let buffer = terminal.backend().buffer();
        let (mut text, mut styles) = (String::new(), String::new());
        for y in 0..height {
            let mut runs: Vec<(u16, u16, Style)> = Vec::new();
            for x in 0..width {
                let cell = &buffer[(x, y)];
                text.push_str(cell.symbol());
                match runs.last_mut() {
                    Some((_, end, style)) if *style == cell.style() => *end = x,
                    _ => runs.push((x, x, cell.style())),
                }
            }
            text.truncate(text.trim_end_matches(' ').len());
            text.push('\n');
            let shown = runs.iter().filter_map(|(from, to, style)| Some(format!(" {from}-{to} {}", words(style)?)));
            let shown: String = shown.collect();
            if !shown.is_empty() {
                let _ = writeln!(styles, "{y}:{shown}");
            }
        }
        (text, styles)
    }

    fn text(&self) -> String {
        self.drawn().0
    }
}

/// A style in a word; `None`: the terminal's own.
fn words(style: &Style) -> Option<String> {
    let colour =
        |colour: Option<Color>| colour.filter(|colour| *colour != Color::Reset).map(|colour| colour.to_string());
    let mut words: Vec<String> = colour(style.fg).into_iter().collect();
    words.extend(colour(style.bg).map(|colour| format!("on-{colour}")));
    for (modifier, name) in [(Modifier::BOLD, "bold"), (Modifier::REVERSED, "reversed")] {
        words.extend(style.add_modifier.contains(modifier).then(|| name.to_owned()));
    }
    (!words.is_empty()).then(|| words.join(","))
}

/// A state that is drawn: name, size, colours, signs and keys.
type Case = (&'static str, (u16, u16), Colours, Signs, &'static str);

const SMALL: (u16, u16) = (40, 12);
const USUAL: (u16, u16) = (80, 24);
const LARGE: (u16, u16) = (120, 40);

const CASES: [Case; 25] = [
    ("groups-40x12", SMALL, Colours::All, Signs::Blocks, ""),
    ("groups-80x24", USUAL, Colours::All, Signs::Blocks, ""),
    ("groups-120x40", LARGE, Colours::All, Signs::Blocks, ""),
    ("groups-no-colour-80x24", USUAL, Colours::None, Signs::Ascii, ""),
    ("groups-past-80x24", USUAL, Colours::All, Signs::Blocks, "<<<<<<<<"),
    ("groups-filter-80x24", USUAL, Colours::All, Signs::Blocks, "/fox"),
    ("unused-40x12", SMALL, Colours::Many, Signs::Blocks, "1"),
    ("unused-many-80x24", USUAL, Colours::Many, Signs::Blocks, "vc"),
    ("unused-sixteen-80x24", USUAL, Colours::Sixteen, Signs::Blocks, "vc"),
    ("unused-120x40", LARGE, Colours::All, Signs::Blocks, "vc"),
    ("promise-80x24", USUAL, Colours::Sixteen, Signs::Blocks, "2c"),
    ("taken-80x24", USUAL, Colours::Sixteen, Signs::Blocks, "3c"),
    ("timeline-80x24", USUAL, Colours::Sixteen, Signs::Blocks, "4c"),
    ("timeline-40x12", SMALL, Colours::None, Signs::Ascii, "4"),
    ("waited-80x24", USUAL, Colours::Sixteen, Signs::Blocks, "5c"),
    ("place-80x24", USUAL, Colours::Sixteen, Signs::Blocks, "6c"),
    ("place-no-colour-80x24", USUAL, Colours::None, Signs::Ascii, "6c"),
    ("cost-80x24", USUAL, Colours::Sixteen, Signs::Blocks, "7c"),
    ("sleep-80x24", USUAL, Colours::Sixteen, Signs::Blocks, "8c"),
    ("sleep-past-80x24", USUAL, Colours::Sixteen, Signs::Blocks, "8c<<"),
    ("unused-no-colour-80x24", USUAL, Colours::None, Signs::Ascii, "vc"),
    ("numbers-80x24", USUAL, Colours::Sixteen, Signs::Blocks, "t"),
    ("explanation-80x24", USUAL, Colours::Sixteen, Signs::Blocks, "\n"),
    ("explanation-past-80x24", USUAL, Colours::Sixteen, Signs::Blocks, "4<<<<<<<<<<<<<<\n"),
    ("help-40x12", SMALL, Colours::Sixteen, Signs::Blocks, "?"),
];

#[test]
fn golden_each_view_is_drawn_as_expected() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let mut wrong = String::new();
    for (name, size, colours, signs, keys) in CASES {
        let mut screen = Screen::new(machine(), Ok(status()), size, colours, signs);
        let (text, styles) = screen.keys(keys).drawn();
        compare(&dir.join(name), &format!("{text}styles\n{styles}"), &mut wrong);
    }
    assert!(wrong.is_empty(), "{wrong}");
}

fn compare(file: &PathBuf, actual: &str, wrong: &mut String) {
    if std::env::var_os("OMR_GOLDEN").is_some_and(|value| value == "write") {
        std::fs::write(file, actual).expect("written");
        return;
    }
    let expected = std::fs::read_to_string(file).unwrap_or_else(|err| format!("({err})\n"));
    if expected != actual {
        let _ = writeln!(wrong, "{}\n--- expected\n{expected}--- actual\n{actual}", file.display());
    }
}

#[test]
fn groups_can_be_selected_folded_filtered_and_put_in_another_order() {
    let mut screen = Screen::of(USUAL);
    let shown = |screen: &Screen| {
        let paths = screen.state.rows.iter().map(|row| screen.state.groups[row.group].path.as_str());
        paths.collect::<Vec<_>>().join(" ")
    };
    assert_eq!(shown(&screen), " app.slice app.slice/firefox.scope app.slice/editor.scope db.service");
    assert_eq!(screen.state.selected, "app.slice");
    assert_eq!(shown(screen.keys(" ")), " app.slice db.service");
    screen.keys("v");
    assert_eq!(screen.state.selected, "db.service");
    assert_eq!(shown(screen.keys("^ ")), " app.slice app.slice/firefox.scope app.slice/editor.scope db.service");
    assert_eq!(shown(screen.keys("ssss")), " app.slice app.slice/editor.scope app.slice/firefox.scope db.service");
    assert_eq!(shown(screen.keys("/fox\n")), " app.slice app.slice/firefox.scope");
    assert!(!screen.state.typing && !screen.state.is_over(), "keys are keys again");
    assert_eq!(shown(screen.keys("\u{1b}")).split(' ').count(), 5);
    assert_eq!(shown(screen.keys("/q")), "", "a q is typed");
    screen.keys("\u{1b}");
    screen.key(KeyCode::End);
    assert_eq!(screen.state.selected, "db.service");
    assert_eq!(screen.state.charts.as_ref().map(|charts| charts.group.as_str()), Some("db.service"));
    assert!(screen.keys("q").state.is_over());
}

#[test]
fn arrows_travel_through_the_history_and_back_to_now() {
    let mut screen = Screen::of(USUAL);
    let now = screen.text();
    assert!(now.contains("background") && now.contains("now 11:06 UTC"), "{now}");
    screen.keys("<<<<<<<<<<");
    let at = screen.state.at.expect("the past");
    assert_eq!((NOW - at) / 60, 17, "ten columns of 105 s");
    let past = screen.text();
    assert!(past.contains("17 min ago: 2026-11-18 10:49 UTC") && !past.contains("background"), "{past}");
    // Out of the window: it moves, and the time that was left is in its middle.
    for _ in 0..80 {
        screen.keys("<");
    }
    let window = screen.state.charts.as_ref().expect("charts").window;
    assert!(window.to < NOW - 1800 && window.column(screen.state.at.expect("the past")).is_some(), "{window:?}");
    screen.keys("n");
    assert_eq!((screen.state.at, screen.text()), (None, now));
    assert_eq!(screen.keys(">").state.at, None, "there is no future");
    screen.keys("+");
    assert_eq!(screen.state.charts.as_ref().expect("charts").window.seconds(), 21_600);
}

#[test]
fn a_moment_of_the_timeline_is_explained_by_enter_and_by_a_click() {
    let mut screen = Screen::of(USUAL);
    let text = screen.keys("\n").text();
    assert!(text.contains("not swept: app.slice is fine"), "now, the daemon explains: {text}");
    screen.keys("\u{1b}4");
    let areas = crate::draw::areas::Areas::of(&screen.state);
    let window = screen.state.charts.as_ref().expect("charts").window;
    let column = window.column(NOW - 5900).expect("in the window");
    screen.click(areas.plot.x + u16::try_from(column).expect("a column"), areas.plot.y + 1);
    let text = screen.text();
    assert!(
        text.contains("8.00 MiB freed") && text.contains("foreground work") && text.contains("began: idle for 61 s"),
        "{text}"
    );
    assert!(!text.contains("40.0 MiB"), "another time: {text}");
    screen.keys("\u{1b}");
    assert_eq!(screen.state.view, View::Groups);
    assert_eq!(screen.keys("\u{1b}").state.at, None);
}

#[test]
fn a_click_selects_a_group_and_the_wheel_moves_on() {
    let mut screen = Screen::of(USUAL);
    let areas = crate::draw::areas::Areas::of(&screen.state);
    screen.click(4, areas.tree.y + 2);
    assert_eq!(screen.state.selected, "app.slice/firefox.scope");
    screen.click(4, areas.tree.y + 1);
    screen.click(4, areas.tree.y + 1);
    assert_eq!(screen.state.rows.len(), 3, "a second click folds");
    let wheel = MouseEvent { kind: MouseEventKind::ScrollDown, column: 1, row: 5, modifiers: KeyModifiers::NONE };
    screen.input(Input::Terminal(Event::Mouse(wheel)));
    assert_eq!(screen.state.selected, "db.service");
    screen.click(79, 23);
    screen.click(4, areas.tree.bottom() - 1);
    assert_eq!(screen.state.selected, "db.service", "nothing is there");
}

#[test]
fn each_size_can_be_drawn_and_a_small_one_says_what_is_needed() {
    let mut screen = Screen::of(USUAL);
    for view in ["", "c", "t", "\u{1b}\n", "\u{1b}?", "\u{1b}2c", "3", "4", "5", "6", "7", "8"] {
        screen.keys(view);
        for width in [1, 2, 9, 20, 29, 30, 31, 40, 80, 200, 500] {
            for height in [1, 2, 5, 7, 8, 9, 11, 12, 19, 20, 24, 60] {
                screen.input(Input::Terminal(Event::Resize(width, height)));
                let text = screen.text();
                assert_eq!(text.lines().count(), usize::from(height));
            }
        }
    }
    screen.input(Input::Terminal(Event::Resize(20, 5)));
    assert_eq!(screen.text().lines().next(), Some("omr top needs 30 x …"));
    screen.input(Input::Terminal(Event::Resize(60, 5)));
    assert_eq!(screen.text().trim_end(), "omr top needs 30 x 8 cells");
}

#[test]
fn the_charts_fit_the_screen_after_it_has_another_size() {
    let mut screen = Screen::of(USUAL);
    let columns = |screen: &Screen| screen.state.charts.as_ref().map(|charts| charts.window.columns);
    assert_eq!(columns(&screen), Some(68));
    screen.input(Input::Terminal(Event::Resize(120, 40)));
    assert_eq!(columns(&screen), Some(108));
}

#[test]
fn no_daemon_no_history_and_no_right_to_read_are_said_and_the_rest_is_shown() {
    let why = "the daemon is not running (no answer on /run/omr/omr.sock); systemctl start omr";
    let screen = Screen::new(machine(), Err(why.into()), USUAL, Colours::All, Signs::Blocks);
    let text = screen.text();
    assert!(text.contains(why) && text.contains("firefox.scope"), "{text}");
    let text = Screen::new(FakeRoot::new(), Err(why.into()), USUAL, Colours::All, Signs::Blocks).text();
    assert!(text.contains("no groups are known yet") && text.contains("no history yet"), "{text}");
    let text = Screen::new(FakeRoot::new(), Ok(status()), USUAL, Colours::All, Signs::Blocks).text();
    assert!(text.contains("firefox.scope") && text.contains("no history yet"), "{text}");
    let root = machine();
    let history = paths::history(root.path());
    std::fs::remove_dir_all(&history).expect("removed");
    std::fs::write(&history, "no directory").expect("a file in its place");
    let text = Screen::new(root, Ok(status()), USUAL, Colours::All, Signs::Blocks).text();
    assert!(text.contains("Not a directory") && text.contains("firefox.scope"), "{text}");
}

#[test]
fn a_daemon_that_does_not_answer_is_said_and_keys_work_meanwhile() {
    let mut screen = Screen::of(USUAL);
    assert_eq!(screen.state.update(Input::Tick(NOW + 2)).first(), Some(&Ask::Status));
    for second in 3..11 {
        let asks = screen.state.update(Input::Tick(NOW + second));
        assert!(!asks.contains(&Ask::Status), "one question at a time");
    }
    assert!(!screen.text().contains("has not answered"), "there may be no news for so long");
    screen.state.update(Input::Tick(NOW + 14));
    let text = screen.text();
    assert!(text.contains("the daemon has not answered for 12 s"), "{text}");
    assert_eq!(screen.keys("v").state.selected, "app.slice/firefox.scope");
}

#[test]
fn names_of_groups_cannot_act_on_the_terminal() {
    let mut hostile = status();
    let names = [
        "\u{1b}[2J\u{1b}]0;owned\u{7}".to_owned(),
        "<script>alert(1)</script>".to_owned(),
        "x".repeat(4000),
        "日本語".repeat(1300),
        "a\u{202e}b\u{200b}".to_owned() + "/" + &"c/".repeat(1000) + "d",
        "a\nb\tc\r".to_owned(),
    ];
    let of = hostile.groups[0].clone();
    hostile.groups = names.iter().map(|name| GroupView { group: name.clone(), ..of.clone() }).collect();
    hostile.reason = names.join(" ");
    for size in [SMALL, USUAL, LARGE] {
        for (colours, signs) in [(Colours::All, Signs::Blocks), (Colours::None, Signs::Ascii)] {
            let mut screen = Screen::new(FakeRoot::new(), Ok(hostile.clone()), size, colours, signs);
            for keys in ["", "v", "v", "v", "v", "v", "\n", "\u{1b}c", "t", "\u{1b}/\u{7f}\n"] {
                let text = screen.keys(keys).text();
                assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{text:?}");
                assert!(!text.contains('\u{202e}'), "{text:?}");
                assert_eq!(text.lines().count(), usize::from(size.1));
            }
        }
    }
}

#[test]
fn ten_thousand_groups_have_rows_and_the_last_one_can_be_reached() {
    let mut many = status();
    let of = many.groups[0].clone();
    let group = |number: u64| GroupView { group: format!("g{}/s{number}", number % 100), ..of.clone() };
    many.groups = (0..10_000).map(group).collect();
    let mut screen = Screen::new(FakeRoot::new(), Ok(many), USUAL, Colours::All, Signs::Blocks);
    screen.key(KeyCode::End);
    assert!(screen.text().contains("GROUP 10101 of 10101"), "{}", screen.text());
    screen.key(KeyCode::Home);
    screen.key(KeyCode::PageDown);
    assert!(screen.text().contains("GROUP 9 of 10101"), "{}", screen.text());
}

#[test]
fn a_clock_that_is_set_back_does_not_stop_the_reading() {
    let mut screen = Screen::of(USUAL);
    screen.input(Input::Tick(NOW + 30));
    let asks = |screen: &mut Screen, time| screen.state.update(Input::Tick(time)).len();
    assert_eq!(asks(&mut screen, NOW - 90_000), 1, "the status only");
    screen.input(Input::Answer(Answer::Status(Ok(Box::new(status())))));
    assert!(asks(&mut screen, NOW - 90_000 + 61) > 1, "and the records a minute later");
    let text = screen.text();
    assert!(text.contains("now 10:07 UTC"), "{text}");
}

#[test]
fn records_are_read_seldom_if_reading_takes_long() {
    let mut screen = Screen::of(USUAL);
    screen.state.read_again();
    let asks = screen.state.update(Input::Tick(NOW + 100));
    let charts = asks.iter().find(|ask| matches!(ask, Ask::Charts { .. }));
    assert!(charts.is_some(), "{asks:?}");
    let charts = screen.state.charts.clone().expect("charts");
    screen.state.update(Input::Answer(Answer::Charts(Ok(charts), 500)));
    screen.state.update(Input::Answer(Answer::Status(Ok(Box::new(status())))));
    let reads =
        |state: &mut State, time| state.update(Input::Tick(time)).iter().any(|ask| matches!(ask, Ask::Charts { .. }));
    assert!(!reads(&mut screen.state, NOW + 100 + 499), "half a second of reading has 500 s of rest");
    assert!(reads(&mut screen.state, NOW + 100 + 501));
}
