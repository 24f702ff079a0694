//! Colours of the terminal.

use omr_charts::signs::{STEPS, rgb};
use ratatui::style::{Color, Modifier, Style};

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
        for colours in [Colours::Sixteen, Colours::Many, Colours::All] {
            assert_ne!(colours.heat(0), colours.heat(1), "nothing is not a little");
            assert_ne!(colours.heat(1), colours.heat(STEPS));
            assert_eq!(colours.heat(STEPS), colours.heat(u64::MAX));
        }
    }
}
