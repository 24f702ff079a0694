//! Questions, as a query of a URL asks them.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use omr_base::text::printable;

/// A week, five times.
const LONGEST_SPAN: u64 = 604_800 * 5;
/// The last second of the year 9999.
const LATEST: u64 = 253_402_300_799;

/// A question about the records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// The groups.
    Groups {
        /// The time, in seconds since 1970; `None`: now.
        at: Option<u64>,
    },
    /// The charts of a group.
    Charts {
        /// The path of the group; empty: the machine.
        group: String,
        /// The last second of the charts; `None`: now.
        at: Option<u64>,
        /// The length in seconds.
        span: u64,
        /// The number of columns.
        columns: usize,
    },
    /// The metrics.
    Metrics,
    /// What omr did to a group.
    Moment {
        /// The path of the group; empty: the machine.
        group: String,
        /// The first second.
        from: u64,
        /// The second after the last one.
        to: u64,
    },
}

/// A question for an explanation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Explain {
    /// By the daemon, now.
    Now(String),
    /// By the ledger.
    Past(Question),
}

impl Question {
    /// Parses the query of `/api/groups`.
    pub fn groups(query: &str) -> Result<Self, String> {
        let query = Query::parse(query, &["at"])?;
        Ok(Question::Groups { at: query.number("at", "seconds since 1970", 0..=LATEST)? })
    }

    /// Parses the query of `/api/charts`.
    pub fn charts(query: &str) -> Result<Self, String> {
        let query = Query::parse(query, &["group", "at", "span", "columns"])?;
        let columns = query.number("columns", "columns", 1..=1000)?.unwrap_or(240);
        Ok(Question::Charts {
            group: query.group(),
            at: query.number("at", "seconds since 1970", 0..=LATEST)?,
            span: query.number("span", "seconds", 60..=LONGEST_SPAN)?.unwrap_or(7200),
            columns: usize::try_from(columns).map_err(|err| err.to_string())?,
        })
    }
}

impl Explain {
    /// Parses the query of `/api/explain`.
    pub fn parse(query: &str) -> Result<Self, String> {
        let query = Query::parse(query, &["group", "from", "to"])?;
        let time = |name| query.number(name, "seconds since 1970", 0..=LATEST);
        match (time("from")?, time("to")?) {
            (None, None) => Ok(Explain::Now(query.group())),
            (Some(from), Some(to)) if from < to && to - from <= LONGEST_SPAN => {
                Ok(Explain::Past(Question::Moment { group: query.group(), from, to }))
            }
            (Some(from), Some(to)) => Err(format!(
                "from, to: expected from < to, at most {LONGEST_SPAN} seconds apart; found {from} and {to}"
            )),
            (Some(_), None) => Err("to: missing; from and to belong together".to_owned()),
            (None, Some(_)) => Err("from: missing; from and to belong together".to_owned()),
        }
    }
}

/// Parses a query without parameters.
pub fn nothing(query: &str) -> Result<(), String> {
    Query::parse(query, &[]).map(|_| ())
}

struct Query(BTreeMap<String, String>);

impl Query {
    fn parse(query: &str, known: &[&str]) -> Result<Self, String> {
        let mut found = BTreeMap::new();
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            if !known.contains(&&*name) {
                let expected = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
                return Err(format!("{}: no such parameter; expected: {expected}", short(&name)));
            }
            if found.insert(name.to_string(), value.into_owned()).is_some() {
                return Err(format!("{name}: given twice"));
            }
        }
        Ok(Query(found))
    }

    fn group(&self) -> String {
        self.0.get("group").cloned().unwrap_or_default()
    }

    fn number(&self, name: &str, unit: &str, range: RangeInclusive<u64>) -> Result<Option<u64>, String> {
        let Some(text) = self.0.get(name) else { return Ok(None) };
        let number = text.parse().ok().filter(|number| range.contains(number));
        number.map(Some).ok_or_else(|| {
            let (least, most) = (range.start(), range.end());
            format!("{name}: expected a whole number of {unit} from {least} to {most}, found {:?}", short(text))
        })
    }
}

/// The beginning of a text of others, to be shown to people.
fn short(text: &str) -> String {
    printable(&text.chars().take(60).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_parameter_what_was_found_and_the_range() {
        let charts = |query: &str| Question::charts(query).expect_err(query);
        assert_eq!(charts("span=59"), "span: expected a whole number of seconds from 60 to 3024000, found \"59\"");
        assert_eq!(charts("columns=0"), "columns: expected a whole number of columns from 1 to 1000, found \"0\"");
        assert_eq!(charts("columns=1001").split(',').next(), charts("columns=1e3").split(',').next());
        assert_eq!(charts("span=60&span=60"), "span: given twice");
        assert_eq!(charts("spam=1"), "spam: no such parameter; expected: group, at, span, columns");
        assert_eq!(
            charts("at=-1%0a"),
            r#"at: expected a whole number of seconds since 1970 from 0 to 253402300799, found "-1\\n""#
        );
        assert!(Explain::parse("from=2&to=2").is_err() && Explain::parse("from=2").is_err());
        // The control.
        let expected = Question::Charts { group: "a/b c".into(), at: None, span: 60, columns: 1000 };
        assert_eq!(Question::charts("group=a%2fb+c&span=60&columns=1000"), Ok(expected));
        assert_eq!(Question::groups(""), Ok(Question::Groups { at: None }));
    }

    #[test]
    fn no_query_makes_it_panic_and_what_it_takes_is_in_range() {
        let queries = ["group=a%2Fb&at=1795000000&span=7200&columns=240", "group=&from=1&to=2", "at=0", "%ff=%00&&=;"];
        omr_testkit::fuzz::feed(&queries, |query| {
            let query = String::from_utf8_lossy(query);
            if let Ok(Question::Charts { span, columns, at, .. }) = Question::charts(&query) {
                assert!((60..=LONGEST_SPAN).contains(&span) && (1..=1000).contains(&columns));
                assert!(at.is_none_or(|at| at <= LATEST));
            }
            if let Ok(Explain::Past(Question::Moment { from, to, .. })) = Explain::parse(&query) {
                assert!(from < to && to - from <= LONGEST_SPAN);
            }
            for wrong in [Question::groups(&query).err(), Explain::parse(&query).err()].into_iter().flatten() {
                assert!(wrong.len() < 1000 && !wrong.contains(char::is_control), "{wrong:?}");
            }
        });
    }
}
