//! `omr record export`: what a machine hands over to its fleet.

use std::fs::{self, File};
use std::path::Path;

use parquet::basic::Compression;
use parquet::file::reader::{FileReader as _, SerializedFileReader};

use crate::common::{omr, text, with_history};

/// The groups in a file, each once for each of its samples.
fn groups(path: &Path) -> Vec<String> {
    let reader = SerializedFileReader::new(File::open(path).expect("a file")).expect("Parquet");
    assert!(matches!(reader.metadata().row_group(0).column(0).compression(), Compression::ZSTD(_)));
    let rows = reader.get_row_iter(None).expect("rows");
    let group = |row: parquet::record::Row| {
        let group = row.into_columns().into_iter().find(|(name, _)| name == "group").expect("a group").1;
        group.to_string().trim_matches('"').to_owned()
    };
    rows.map(|row| group(row.expect("a row"))).collect()
}

#[test]
fn a_week_is_exported_and_a_replay_reads_it() {
    let root = with_history();
    let (file, out) = (root.resolve("week.parquet"), root.resolve("out"));
    let (code, stdout, stderr) = text(&omr(&root, &["record", "export", file.to_str().expect("UTF-8")]));
    assert_eq!((code, stdout, stderr), (0, format!("8 rows in {}\n", file.display()), String::new()));
    assert_eq!(groups(&file), ["/", "/gone.scope"].repeat(4));
    root.write("p.json", r#"{"policies":[{"name":"default"}]}"#);
    let policies = root.resolve("p.json");
    let words = ["--shard", &file.display().to_string(), "--policies", &policies.display().to_string()];
    let (code, result, _) =
        text(&omr(&root, &[&["whatif"], &words[..], &["--out", out.to_str().expect("UTF-8")]].concat()));
    assert_eq!(code, 0);
    let result: serde_json::Value = serde_json::from_slice(&fs::read(result.trim()).expect("a result")).expect("JSON");
    // No sample says how long ago the one before was, so there is no window.
    assert_eq!((&result["shard"]["rows"], &result["shard"]["jobs"]), (&8.into(), &0.into()));
    // Half an hour ago and since then there is one time.
    let (_, stdout, _) = text(&omr(&root, &["record", "export", file.to_str().expect("UTF-8"), "--since", "35min"]));
    assert!(stdout.starts_with("2 rows"), "{stdout}");
}

#[test]
fn names_are_hashed_with_a_key_and_the_tree_stays() {
    let root = with_history();
    root.write("key", "0123456789abcdef");
    root.write("other", "0123456789abcdeX");
    let export = |key: &str| {
        let file = root.resolve(format!("{key}.parquet"));
        let words = ["record", "export", &file.display().to_string(), "--hash-names"].map(str::to_owned);
        let key = root.resolve(key).display().to_string();
        let (code, _, stderr) =
            text(&omr(&root, &words.iter().map(String::as_str).chain([key.as_str()]).collect::<Vec<_>>()));
        assert_eq!(code, 0, "{stderr}");
        groups(&file)
    };
    let (one, other) = (export("key"), export("other"));
    assert!(one.iter().step_by(2).all(|group| group == "/"), "{one:?}");
    let hashed = &one[1];
    assert!(hashed.len() == 13 && hashed[1..].bytes().all(|digit| digit.is_ascii_hexdigit()), "{hashed}");
    assert!(one.iter().skip(1).step_by(2).all(|group| group == hashed), "the same name, the same hash: {one:?}");
    assert_ne!(hashed, &other[1], "another key");
    assert_eq!(one, export("key"));
}

#[test]
fn a_mistake_is_named_and_leaves_no_file() {
    let root = with_history();
    root.write("short", "123456789012345");
    root.write("long", "x".repeat(4097));
    let file = root.resolve("week.parquet").display().to_string();
    for (words, code, says) in [
        (&["--hash-names", "short"][..], 2, "short: 15 bytes; expected a key of 16 to 4,096"),
        (&["--hash-names", "long"], 2, "long: 4097 bytes; expected"),
        (&["--hash-names", "nothing"], 1, "nothing: No such file"),
        (&["--since", "yesterday"], 2, "--since"),
    ] {
        let words: Vec<String> = words
            .iter()
            .map(|word| match *word {
                "short" | "long" | "nothing" => root.resolve(word).display().to_string(),
                word => word.to_owned(),
            })
            .collect();
        let all: Vec<&str> = ["record", "export", &file].into_iter().chain(words.iter().map(String::as_str)).collect();
        let (found, _, stderr) = text(&omr(&root, &all));
        assert!(found == code && stderr.contains(says), "{words:?}: {found} {stderr}");
        assert!(!Path::new(&file).exists());
    }
    let (code, _, stderr) = text(&omr(&root, &["record", "export", "/nowhere/week.parquet"]));
    assert!(code == 1 && stderr.contains("there is no folder /nowhere"), "{code} {stderr}");
    // A machine that has recorded nothing.
    let empty = crate::common::machine();
    let file = empty.resolve("week.parquet").display().to_string();
    let (code, stdout, stderr) = text(&omr(&empty, &["record", "export", &file]));
    assert!(code == 0 && stdout.starts_with("0 rows") && !stderr.is_empty(), "{code} {stdout} {stderr}");
}
