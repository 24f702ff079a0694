//! Writes metrics as text.

use std::fmt::{Display, Write as _};

use crate::families::{Family, Kind};

/// The format of the text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// OpenMetrics 1.0, for HTTP.
    #[default]
    OpenMetrics,
    /// The older format of Prometheus, for files of node_exporter.
    Prometheus,
}

impl Format {
    /// The media type.
    pub fn media_type(self) -> &'static str {
        match self {
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Format::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// The text so far.
pub struct Writer {
    text: String,
    format: Format,
    /// The metric of the last line.
    last: &'static str,
}

impl Writer {
    /// An empty text.
    pub fn new(format: Format) -> Self {
        Writer { text: String::new(), format, last: "" }
    }

    /// Adds a value of a metric. All values of a metric come one after the other.
    pub fn add(&mut self, family: &Family, labels: &[(&str, &str)], value: impl Display) {
        let suffix = match family.kind {
            Kind::Counter => "_total",
            Kind::Info => "_info",
            Kind::Gauge | Kind::Histogram => "",
        };
        self.add_part(family, suffix, labels, value);
    }

    /// Adds a value that may be unknown. An unknown value has no line.
    pub fn add_known(&mut self, family: &Family, labels: &[(&str, &str)], value: Option<impl Display>) {
        value.into_iter().for_each(|value| self.add(family, labels, value));
    }

    /// Adds a part of a histogram.
    pub fn add_part(&mut self, family: &Family, suffix: &str, labels: &[(&str, &str)], value: impl Display) {
        if self.last != family.name {
            self.describe(family);
        }
        self.text.push_str(family.name);
        self.text.push_str(suffix);
        for (number, (name, text)) in labels.iter().enumerate() {
            self.text.push(if number == 0 { '{' } else { ',' });
            self.text.push_str(name);
            self.text.push_str("=\"");
            self.escape(text, true);
            self.text.push('"');
        }
        self.text.push_str(if labels.is_empty() { " " } else { "} " });
        self.put(format_args!("{value}\n"));
    }

    /// Returns the text.
    pub fn finish(mut self) -> String {
        if self.format == Format::OpenMetrics {
            self.text.push_str("# EOF\n");
        }
        self.text
    }

    fn describe(&mut self, family: &Family) {
        self.last = family.name;
        // The older format has the name with its suffix, knows no info and no unit, and escapes no
        // quotes in descriptions.
        let is_old = self.format == Format::Prometheus;
        let (suffix, kind) = match family.kind {
            Kind::Counter if is_old => ("_total", Kind::Counter),
            Kind::Info if is_old => ("_info", Kind::Gauge),
            kind => ("", kind),
        };
        let name = family.name;
        self.put(format_args!("# TYPE {name}{suffix} {}\n", kind.name()));
        if !is_old && !family.unit.is_empty() {
            self.put(format_args!("# UNIT {name} {}\n", family.unit));
        }
        self.put(format_args!("# HELP {name}{suffix} "));
        self.escape(family.help, !is_old);
        self.text.push('\n');
    }

    fn escape(&mut self, text: &str, quotes: bool) {
        for c in text.chars() {
            match c {
                '\\' => self.text.push_str("\\\\"),
                '\n' => self.text.push_str("\\n"),
                '"' if quotes => self.text.push_str("\\\""),
                c => self.text.push(c),
            }
        }
    }

    fn put(&mut self, text: std::fmt::Arguments<'_>) {
        // A string takes everything.
        let _ = self.text.write_fmt(text);
    }
}
