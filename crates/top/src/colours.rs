//! Colours, and the signs that take their place where there are none.

use ratatui::style::{Color, Modifier, Style};

/// The steps of a heatmap's scale, without the step of zero.
pub const STEPS: u64 = 10;

/// The colours that the terminal has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colours {
    /// None: `NO_COLOR` is set, or the terminal is dumb.
    None,
    /// The 16 colours of ANSI.
    Sixteen,
    /// 256 colours.
    Many,
    /// 24 bits.
    All,
}

/// The signs that the terminal can show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signs {
    /// Unicode's blocks.
    Blocks,
    /// ASCII only: the locale is not UTF-8.
    Ascii,
}

impl Colours {
    /// Finds out from the environment.
    pub fn detect(variable: impl Fn(&str) -> Option<String>) -> Self {
        let term = variable("TERM").unwrap_or_default();
        let more = variable("COLORTERM").unwrap_or_default();
        if variable("NO_COLOR").is_some_and(|value| !value.is_empty()) || term.is_empty() || term == "dumb" {
            return Colours::None;
        }
        if more == "truecolor" || more == "24bit" || term.ends_with("-direct") {
            return Colours::All;
        }
        if term.contains("256color") { Colours::Many } else { Colours::Sixteen }
    }

    /// The colour of a step of the scale; zero is the first step.
    pub fn heat(self, step: u64) -> Color {
        let step = step.min(STEPS);
        match self {
            Colours::None => Color::Reset,
            Colours::Sixteen => match step {
                0 => Color::Black,
                1..=2 => Color::Blue,
                3..=4 => Color::Cyan,
                5..=6 => Color::Green,
                7..=8 => Color::Yellow,
                _ => Color::White,
            },
            Colours::Many => {
                // The cube of 6 x 6 x 6 colours.
                let [red, green, blue] = rgb(step).map(|part| (u16::from(part) * 5 + 127) / 255);
                Color::Indexed(u8::try_from(16 + 36 * red + 6 * green + blue).unwrap_or(16))
            }
            Colours::All => {
                let [red, green, blue] = rgb(step);
                Color::Rgb(red, green, blue)
            }
        }
    }

    /// The colour of a part of a whole, or of a series.
    pub fn series(self, number: usize) -> Style {
        const NAMED: [Color; 10] = [
            Color::Green,
            Color::Cyan,
            Color::Blue,
            Color::DarkGray,
            Color::Yellow,
            Color::Magenta,
            Color::LightMagenta,
            Color::LightBlue,
            Color::LightRed,
            Color::LightGreen,
        ];
        match self {
            Colours::None => Style::new(),
            _ => Style::new().fg(NAMED.get(number % NAMED.len()).copied().unwrap_or(Color::Reset)),
        }
    }

    fn named(self, colour: Color) -> Style {
        if self == Colours::None { Style::new() } else { Style::new().fg(colour) }
    }

    /// Of headings.
    pub fn heading(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    /// Of what is less important.
    pub fn dim(self) -> Style {
        self.named(Color::DarkGray)
    }

    /// Of trouble.
    pub fn alarm(self) -> Style {
        self.named(Color::Red).add_modifier(Modifier::BOLD)
    }

    /// Of what omr does now.
    pub fn active(self) -> Style {
        self.named(Color::Green)
    }

    /// Of the past.
    pub fn past(self) -> Style {
        self.named(Color::Yellow).add_modifier(Modifier::BOLD)
    }

    /// Of the line of a threshold, over any colour of a heatmap.
    pub fn threshold(self) -> Style {
        self.named(Color::LightRed).add_modifier(Modifier::BOLD)
    }

    /// Of the selected row.
    pub fn selected(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }
}

/// A scale from dark blue over grey to yellow, which people with any colour vision can read.
fn rgb(step: u64) -> [u8; 3] {
    const ENDS: [[u64; 3]; 3] = [[0, 32, 76], [122, 122, 120], [255, 233, 69]];
    let [low, middle, high] = ENDS;
    let half = STEPS / 2;
    let (from, to, at) = if step <= half { (low, middle, step) } else { (middle, high, step - half) };
    let mut mixed = [0; 3];
    for ((of, from), to) in mixed.iter_mut().zip(from).zip(to) {
        *of = u8::try_from((from * (half - at) + to * at) / half).unwrap_or(u8::MAX);
    }
    mixed
}

impl Signs {
    /// Finds out from the environment.
    pub fn detect(variable: impl Fn(&str) -> Option<String>) -> Self {
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().filter_map(variable).find(|value| !value.is_empty());
        let is_utf8 = locale.is_some_and(|locale| {
            let locale = locale.to_ascii_lowercase();
            locale.ends_with("utf-8") || locale.ends_with("utf8")
        });
        if is_utf8 { Signs::Blocks } else { Signs::Ascii }
    }

    /// The sign of a step of the scale, where there are no colours.
    pub fn heat(self, step: u64) -> char {
        const RAMP: [char; 11] = [' ', '.', ':', '-', '~', '=', '+', '*', '#', '%', '@'];
        let step = usize::try_from(step).unwrap_or(usize::MAX).min(RAMP.len() - 1);
        RAMP.get(step).copied().unwrap_or('@')
    }

    /// The sign of what is not known.
    pub fn unknown(self) -> char {
        if self == Signs::Blocks { '╱' } else { '/' }
    }

    /// The end of a text that was cut.
    pub fn cut(self) -> char {
        if self == Signs::Blocks { '…' } else { '~' }
    }

    /// A bar of eighths of a cell, from the bottom.
    pub fn bar(self, eighths: u64) -> char {
        const EIGHTHS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
        let eighths = usize::try_from(eighths).unwrap_or(usize::MAX).min(8);
        match self {
            Signs::Blocks => EIGHTHS.get(eighths).copied().unwrap_or('█'),
            Signs::Ascii if eighths >= 4 => '#',
            Signs::Ascii => ' ',
        }
    }

    /// What may be, between the least and the most.
    pub fn may_be(self) -> char {
        if self == Signs::Blocks { '░' } else { ':' }
    }

    /// A line to the side.
    pub fn line(self) -> char {
        if self == Signs::Blocks { '─' } else { '-' }
    }

    /// The line of a threshold in a heatmap. The ramp has no such sign.
    pub fn threshold(self) -> char {
        if self == Signs::Blocks { '─' } else { '_' }
    }

    /// The fill of a part of a whole.
    pub fn part(self, number: usize, is_coloured: bool) -> char {
        const FILLS: [char; 10] = ['#', '+', '=', '?', '.', 'o', 'z', 'w', 'd', '_'];
        match self {
            Signs::Blocks if is_coloured => '█',
            _ => FILLS.get(number % FILLS.len()).copied().unwrap_or('#'),
        }
    }

    /// The marks of a folded group, of one that is not, and of one without groups below.
    pub fn fold(self, has_below: bool, folded: bool) -> char {
        match (self, has_below, folded) {
            (_, false, _) => ' ',
            (Signs::Blocks, true, true) => '▸',
            (Signs::Blocks, true, false) => '▾',
            (Signs::Ascii, true, true) => '+',
            (Signs::Ascii, true, false) => '-',
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_says_how_many_colours_there_are() {
        let of = |set: &[(&str, &str)]| {
            let set: Vec<(String, String)> =
                set.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
            Colours::detect(move |name| set.iter().find(|(of, _)| of == name).map(|(_, value)| value.clone()))
        };
        assert_eq!(of(&[("TERM", "xterm-256color"), ("COLORTERM", "truecolor")]), Colours::All);
        assert_eq!(of(&[("TERM", "screen-256color")]), Colours::Many);
        assert_eq!(of(&[("TERM", "linux"), ("NO_COLOR", "")]), Colours::Sixteen);
        assert_eq!(of(&[("TERM", "xterm-256color"), ("COLORTERM", "24bit"), ("NO_COLOR", "1")]), Colours::None);
        assert_eq!([of(&[("TERM", "dumb")]), of(&[])], [Colours::None; 2]);
    }

    #[test]
    fn more_memory_is_lighter_in_each_number_of_colours() {
        let brightness = |step| rgb(step).into_iter().map(u32::from).sum::<u32>();
        assert!((0..STEPS).all(|step| brightness(step) < brightness(step + 1)));
        for colours in [Colours::Sixteen, Colours::Many, Colours::All] {
            assert_ne!(colours.heat(0), colours.heat(1), "nothing is not a little");
            assert_ne!(colours.heat(1), colours.heat(STEPS));
            assert_eq!(colours.heat(STEPS), colours.heat(u64::MAX));
        }
        assert_eq!((0..=STEPS).map(|step| Signs::Ascii.heat(step)).collect::<String>(), " .:-~=+*#%@");
    }

    #[test]
    fn a_locale_without_utf_8_gets_ascii() {
        let of = |lang: &str| {
            let lang = lang.to_owned();
            Signs::detect(move |name| (name == "LANG").then(|| lang.clone()))
        };
        assert_eq!(
            [of("C.UTF-8"), of("de_DE.utf8"), of("C"), of("")],
            [Signs::Blocks, Signs::Blocks, Signs::Ascii, Signs::Ascii]
        );
        for step in 0..=STEPS {
            assert!(Signs::Ascii.heat(step).is_ascii() && Signs::Ascii.bar(step).is_ascii());
        }
    }
}
