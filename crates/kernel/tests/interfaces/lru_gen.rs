//! MGLRU: the list of generations, and the commands.

use std::fmt::Write as _;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, Instant};

use omr_kernel::Kernel;
use omr_kernel::lru_gen::{Ids, Lists, Parser, Reader};
use omr_kernel::memcg::Group;
use omr_testkit::{FakeRoot, Release, captured};
use omr_units::Pages;
use proptest::prelude::*;

const FILE: &str = "kernel/debug/lru_gen";

/// All lists of a text that is parsed in pieces of `lines` lines.
fn parse_in(text: &[u8], lines: usize) -> Result<Vec<(Vec<u8>, Ids, Lists)>, String> {
    let mut found = Vec::new();
    let mut visit = |path: &[u8], ids, lists: &Lists| {
        found.push((path.to_vec(), ids, *lists));
        ControlFlow::Continue(())
    };
    let mut parser = Parser::default();
    let all: Vec<&[u8]> = text.split_inclusive(|&c| c == b'\n').collect();
    for piece in all.chunks(lines.max(1)) {
        let _ = parser.feed(&piece.concat(), &mut visit)?;
    }
    let _ = parser.finish(&mut visit);
    Ok(found)
}

fn parse(text: &str) -> Result<Vec<(Vec<u8>, Ids, Lists)>, String> {
    parse_in(text.as_bytes(), usize::MAX)
}

/// Generations as the kernel prints them: number, age in ms, anon, file.
fn lists(generations: &[(u64, u64, u64, u64)]) -> String {
    generations.iter().fold(String::new(), |mut text, (number, age, anon, file)| {
        let _ = writeln!(text, " {number:10} {age:10} {anon:10}  {file:10} ");
        text
    })
}

#[test]
fn real_kernels_lists_are_understood() {
    for (release, ids, busy) in [
        (Release::V6_1, Ids::Private, [(0, 0), (0, 0), (0, 0)].as_slice()),
        (Release::V6_12, Ids::Private, &[(40_952, 0), (0, 0), (8214, 7)]),
        (Release::V7, Ids::Inode, &[(40_531, 0), (151, 4), (4, 2), (8467, 0)]),
    ] {
        let found = parse(captured(release, "sys/kernel/debug/lru_gen")).expect("lists");
        assert_eq!(found.len(), 4, "{release:?}");
        assert!(found.iter().all(|(_, these, _)| *these == ids), "{release:?}");
        assert_eq!(found[0].0, b"/");
        let (path, _, lists) = &found[3];
        assert_eq!(path, b"/captured.slice/busy.service");
        assert_eq!(lists.id, if ids == Ids::Inode { 198 } else { 4 });
        for (generation, &(anon, file)) in lists.generations().iter().zip(busy) {
            assert_eq!((generation.anon, generation.file), (Pages(anon), Pages(file)), "{release:?}");
        }
    }
    let found = parse(captured(Release::V6_12, "sys/kernel/debug/lru_gen")).expect("lists");
    let lists = found[3].2;
    assert_eq!((lists.generations().len(), lists.youngest().number), (3, 5));
    assert_eq!(lists.generations()[0].age, Duration::from_millis(6632));
    assert_eq!((lists.anon(), lists.file()), (Pages(49_166), Pages(7)));
}

#[test]
fn groups_have_their_own_names_whatever_is_in_them() {
    let generations = lists(&[(3, 5, 1, 2), (4, 1, 3, 4)]);
    for name in
        ["/", "", "/a b", "/a ", "/ a", "/memcg 7 ", "/node 0", "/ node     0", "/\u{e4}\r\t", "/memcg     2 /b"]
    {
        let text = format!("memcg     9 {name}\n node     0\n{generations} node     1\n{generations}");
        let found = parse(&text).expect("lists");
        assert_eq!(found.len(), 2);
        assert!(found.iter().all(|(path, _, lists)| path == name.as_bytes() && lists.id == 9), "{name:?}");
        assert_eq!((found[0].2.node, found[1].2.node), (0, 1));
    }
    // The kernel cuts off a longer path, and then it may be the path of another group.
    let long = format!("/{}", "a".repeat(4094));
    assert_eq!(parse(&format!("memcg     9 {long}\n node     0\n{generations}")), Ok(Vec::new()));
}

#[test]
fn an_unknown_text_is_an_error_that_shows_the_text() {
    let ok = lists(&[(3, 5, 1, 2)]);
    for (text, shown) in [
        ("rubbish\n".into(), "line \"rubbish\""),
        ("memcg     1/\n".into(), "memcg     1/"),
        ("memcg     x /\n".into(), "memcg     x /"),
        (" node     0\n".into(), "node     0"),
        (format!("memcg     1 /\n{ok}"), "3          5"),
        (format!("memcg     1 /\n node     -1\n{ok}"), "node     -1"),
        (format!("memcg     1 /\n node  4294967296\n{ok}"), "4294967296"),
        (format!("memcg     1 /\n node     0\n{ok}          4          5          6\n"), "4          5          6"),
        (format!("memcg     1 /\n node     0\n{ok}          4          5          6x          7 \n"), "6x"),
        (format!("memcg     1 /\n node     0\n{ok}          4          5          6          7 8\n"), "7 8"),
        // Numbers that skip, go back, or are too large.
        (format!("memcg     1 /\n node     0\n{ok}{}", lists(&[(5, 1, 1, 1)])), "          5"),
        (format!("memcg     1 /\n node     0\n{ok}{ok}"), "          3"),
        ("memcg     1 /\n node     0\n 18446744073709551616 1 1  1 \n".into(), "18446744073709551616"),
        (format!("memcg     1 /\n node     0\n{}", lists(&[(u64::MAX, 1, 1, 1), (0, 1, 1, 1)])), "          0"),
        // One generation more than the kernel has.
        (
            format!(
                "memcg     1 /\n node     0\n{}",
                lists(&[(1, 9, 0, 0), (2, 8, 0, 0), (3, 7, 0, 0), (4, 6, 0, 0), (5, 5, 0, 0)])
            ),
            "          5",
        ),
    ] {
        let err = parse(&text).expect_err(&text);
        assert!(err.contains(shown), "{err}");
    }
    assert_eq!(parse(""), Ok(Vec::new()));
    assert_eq!(parse("memcg     1 /\n node     0\n"), Ok(Vec::new()), "nothing is known of a node without generations");
}

#[test]
fn a_group_that_is_gone_does_not_hide_the_one_made_anew() {
    let text = format!(
        "memcg     1 /\n node     0\n{0}memcg     5 /a\n node     0\n{1} node     1\n{1}memcg     7 /ab\n node     0\n{0}\
         memcg     6 /a\n node     0\n{0}",
        lists(&[(3, 5, 1, 2), (4, 1, 3, 4)]),
        lists(&[(8, 5, 10, 20), (9, 1, 30, 40)]),
    );
    let root = FakeRoot::new().group("a", &[("memory.current", "1\n")]).sys(FILE, &text);
    let kernel = Kernel::open(root.path()).expect("a kernel");
    let group = Group::open(kernel.cgroup().expect("groups"), Path::new("a")).expect("a group");
    let mut found = Vec::new();
    Reader::default().read_group(&kernel, &group, &mut found).expect("lists");
    assert_eq!(found.iter().map(|lists| (lists.id, lists.node)).collect::<Vec<_>>(), [(6, 0)]);

    // 7.x prints the inode number.
    let id = group.id().0;
    let text = text.replace("memcg     1 ", "memcg 1 ").replace("memcg     5 ", &format!("memcg {id} "));
    root.write(Path::new("sys").join(FILE), &text);
    Reader::default().read_group(&kernel, &group, &mut found).expect("lists");
    assert_eq!(found.iter().map(|lists| (lists.id, lists.node)).collect::<Vec<_>>(), [(id, 0), (id, 1)]);
    root.write(Path::new("sys").join(FILE), text.replace(&format!("memcg {id} "), "memcg 999 "));
    Reader::default().read_group(&kernel, &group, &mut found).expect("lists");
    assert_eq!(found, [], "the same name, another group");
}

#[test]
fn the_root_is_found_and_a_missing_file_is_said() {
    let root = FakeRoot::captured(Release::V6_12);
    let kernel = Kernel::open(root.path()).expect("a kernel");
    let group = Group::open(kernel.cgroup().expect("groups"), Path::new("")).expect("the root");
    let mut found = Vec::new();
    Reader::default().read_group(&kernel, &group, &mut found).expect("lists");
    assert_eq!((found.len(), found[0].id, found[0].anon()), (1, 1, Pages(1810)));
    root.remove(Path::new("sys").join(FILE));
    let err = Reader::default().read_group(&kernel, &group, &mut found).expect_err("no file");
    assert!(err.to_string().contains("sys/kernel/debug/lru_gen: No such file"), "{err}");
}

/// The file for this number of groups and nodes, as 6.12 prints it.
fn machine(groups: usize, nodes: u32) -> String {
    let mut text = String::new();
    for group in 0..groups {
        let path = if group == 0 { "/".into() } else { format!("/load-{}.slice/job-{group}.service", group / 50) };
        let _ = writeln!(text, "memcg {:5} {path}", group + 1);
        for node in 0..nodes {
            let _ = writeln!(text, " node {node:5}");
            text += &lists(&[(3, 180_000, 12_345, 678), (4, 120_000, 234, 5), (5, 60_000, 34_567, 89), (6, 1, 2, 3)]);
        }
    }
    text
}

#[test]
fn thousands_of_groups_are_read_in_pieces() {
    let text = machine(10_000, 2);
    let root = FakeRoot::new().group("load-100.slice/job-5001.service", &[("memory.current", "1\n")]).sys(FILE, &text);
    let kernel = Kernel::open(root.path()).expect("a kernel");
    let mut count = 0;
    let mut pages = 0;
    let read = Reader::default().for_each(&kernel, |_, _, lists| {
        count += 1;
        pages += lists.anon().0;
        ControlFlow::Continue(())
    });
    read.expect("lists");
    assert_eq!((count, pages), (20_000, 20_000 * (12_345 + 234 + 34_567 + 2)));
    let group =
        Group::open(kernel.cgroup().expect("groups"), Path::new("load-100.slice/job-5001.service")).expect("a group");
    let mut found = Vec::new();
    Reader::default().read_group(&kernel, &group, &mut found).expect("lists");
    assert_eq!(found.iter().map(|lists| (lists.id, lists.node)).collect::<Vec<_>>(), [(5002, 0), (5002, 1)]);
}

/// `cargo test --release -p omr-kernel --test interfaces -- --ignored --nocapture megabytes`
#[test]
#[ignore = "a benchmark: prints the parser's speed"]
fn megabytes_a_second() {
    let text = machine(10_000, 2);
    let mut parser = Parser::default();
    let mut pages = 0;
    let mut visit = |_: &[u8], _, lists: &Lists| {
        pages += lists.anon().0;
        ControlFlow::Continue(())
    };
    let mut best = Duration::MAX;
    for _ in 0..20 {
        let began = Instant::now();
        parser.reset();
        let _ = parser.feed(text.as_bytes(), &mut visit).expect("lists");
        let _ = parser.finish(&mut visit);
        best = best.min(began.elapsed());
    }
    assert_eq!(pages % 20, 0);
    println!("{} bytes in {best:?}: {:.0} MB/s", text.len(), text.len() as f64 / 1e6 / best.as_secs_f64());
}

/// Lines like the kernel's, and other lines.
fn line() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => (any::<u64>(), "[ -~]{0,12}").prop_map(|(id, path)| format!("memcg {id:5} /{path}").into_bytes()),
        4 => (0u32..4).prop_map(|node| format!(" node {node:5}").into_bytes()),
        8 => (0u64..6, any::<u64>(), any::<u64>(), any::<u64>())
            .prop_map(|(number, age, anon, file)| lists(&[(number, age, anon, file)]).trim_end_matches('\n').into()),
        1 => "[ -~]{0,40}".prop_map(String::into_bytes),
        1 => prop::collection::vec(any::<u8>().prop_filter("a newline ends a line", |&c| c != b'\n'), 0..40),
    ]
}

proptest! {
    #[test]
    fn no_text_makes_it_panic_and_pieces_make_no_difference(
        lines in prop::collection::vec(line(), 0..40),
        piece in 1usize..10,
    ) {
        let text = lines.join(&b'\n');
        let whole = parse_in(&text, usize::MAX);
        prop_assert_eq!(&parse_in(&text, piece), &whole);
        for (path, _, lists) in whole.into_iter().flatten() {
            // The lists belong to this group: they follow a line with this id and this path.
            let head = format!("memcg {:5} ", lists.id);
            let expected = [head.as_bytes(), &path].concat();
            prop_assert!(text.split(|&c| c == b'\n').any(|line| line == expected
                || (line.starts_with(b"memcg ") && line.ends_with(&path))));
            prop_assert!(!lists.generations().is_empty());
            let _ = (lists.anon(), lists.file(), lists.youngest());
        }
    }

    #[test]
    fn a_printed_value_reads_back_the_same(
        groups in prop::collection::vec(
            ("[ -~]{0,20}", any::<u16>(), prop::collection::vec((any::<u32>(), 0u64..1 << 40, 0u64..1 << 40), 1..5)),
            1..10,
        ),
    ) {
        let mut text = String::new();
        for (name, id, generations) in &groups {
            let rows: Vec<_> = generations
                .iter()
                .enumerate()
                .map(|(index, &(age, anon, file))| (index as u64 + 7, u64::from(age), anon, file))
                .collect();
            let _ = write!(text, "memcg {id:5} /{name}\n node {:5}\n{}", 3, lists(&rows));
        }
        let found = parse(&text).expect("lists");
        prop_assert_eq!(found.len(), groups.len());
        for ((path, _, lists), (name, id, generations)) in found.iter().zip(&groups) {
            prop_assert_eq!(path, &format!("/{name}").into_bytes());
            prop_assert_eq!(lists.id, u64::from(*id));
            prop_assert_eq!(lists.generations().len(), generations.len());
            for (index, (read, &(age, anon, file))) in lists.generations().iter().zip(generations).enumerate() {
                prop_assert_eq!(read.number, index as u64 + 7);
                prop_assert_eq!(read.age, Duration::from_millis(age.into()));
                prop_assert_eq!((read.anon, read.file), (Pages(anon), Pages(file)));
            }
        }
    }
}
