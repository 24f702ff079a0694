//! The page, which is a part of the program.

use hyper::StatusCode;

use crate::answer::Answer;

/// A file of the page.
#[derive(Debug)]
pub struct File {
    /// The name below `/`; empty: the page itself.
    pub name: &'static str,
    kind: &'static str,
    /// Its text.
    pub text: &'static str,
}

const STYLE: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// All files, the page first.
pub const FILES: [File; 5] = [
    File { name: "", kind: "text/html; charset=utf-8", text: include_str!("../page/index.html") },
    File { name: "app.css", kind: STYLE, text: include_str!("../page/app.css") },
    File { name: "app.js", kind: SCRIPT, text: include_str!("../page/app.js") },
    File { name: "uplot.css", kind: STYLE, text: include_str!("../page/uplot.css") },
    File { name: "uplot.js", kind: SCRIPT, text: include_str!("../page/uplot.js") },
];

/// Returns the file of this name.
pub fn file(name: &str) -> Option<&'static File> {
    FILES.iter().find(|file| file.name == name)
}

impl File {
    /// The answer with this file; `known`: the version that the browser has, as its `If-None-Match`.
    pub fn answer(&self, known: Option<&str>) -> Answer {
        let version = format!("\"{:08x}-{:x}\"", crc32fast::hash(self.text.as_bytes()), self.text.len());
        let is_known =
            known.is_some_and(|known| known.split(',').any(|of| of.trim().trim_start_matches("W/") == version));
        let answer = match is_known {
            true => Answer::new(StatusCode::NOT_MODIFIED, self.kind, &b""[..]),
            false => Answer::new(StatusCode::OK, self.kind, self.text),
        };
        answer.with("etag", &version).with("cache-control", "no-cache")
    }
}

/// Returns the page as one file, with this data in it. `data` is JSON.
pub fn with_data(data: &str) -> Result<String, String> {
    let text = |name: &str| file(name).map(|file| file.text).ok_or_else(|| format!("the page has no {name}"));
    let mut page = text("")?.to_owned();
    // The data may hold anything that a group's name does. Without "<" it cannot end its element.
    let data = data.replace('<', "\\u003c");
    let mut scripts = format!("<script type=\"application/json\" id=\"omr-data\">{data}</script>\n");
    for name in ["uplot.css", "app.css"] {
        let style = format!("<style>\n{}</style>", text(name)?.replace("</style", "<\\/style"));
        page = replace(&page, &format!("<link rel=\"stylesheet\" href=\"{name}\">"), &style)?;
    }
    for name in ["uplot.js", "app.js"] {
        // A script that stands in the page does not wait for the end of it, so it comes there.
        scripts += &format!("<script>\n{}</script>\n", text(name)?.replace("</script", "<\\/script"));
        page = replace(&page, &format!("<script src=\"{name}\" defer></script>\n"), "")?;
    }
    replace(&page, "</body>", &format!("{scripts}</body>"))
}

fn replace(page: &str, old: &str, new: &str) -> Result<String, String> {
    match page.matches(old).count() {
        1 => Ok(page.replacen(old, new, 1)),
        count => Err(format!("crates/web/page/index.html: expected {old:?} once, found it {count} times")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_becomes_one_file_in_which_data_stays_data() {
        let page = with_data(r#"{"a":"</script><script>alert(1)</script>"}"#).expect("a page");
        assert!(page.contains(r"\u003c/script>\u003cscript>alert(1)"), "{page}");
        assert!(!page.contains("<script>alert"));
        assert!(!page.contains("src=\"app.js\"") && !page.contains("href=\"app.css\""), "nothing is outside");
        assert!(page.contains(file("app.css").expect("a file").text.trim()), "the control");
        let ends = page.matches("</script>").count();
        assert_eq!(ends, 3, "the data and two scripts");
    }
}
