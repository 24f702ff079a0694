//! Signs and a scale of colours for heatmaps, bars and lines of text.

/// The steps of a heatmap's scale, without the step of zero.
pub const STEPS: u64 = 10;

/// The signs that the terminal can show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signs {
    /// Unicode's blocks.
    Blocks,
    /// ASCII only: the locale is not UTF-8.
    Ascii,
}

/// The colour of a step of the scale: from dark blue over grey to yellow, close to cividis, which
/// people with any colour vision can read. Red, green and blue.
pub fn rgb(step: u64) -> [u8; 3] {
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

/// `part` of `whole`, in this many pieces. A little is one piece at least.
pub fn pieces(part: u64, whole: u64, pieces: u64) -> u64 {
    if part == 0 || whole == 0 {
        return 0;
    }
    let number = u128::from(part) * u128::from(pieces) / u128::from(whole);
    u64::try_from(number).unwrap_or(u64::MAX).clamp(1, pieces)
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

    /// A sign of a row of values: zero is the lowest one.
    pub fn spark(self, step: u64) -> char {
        const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
        const ASCII: [char; 8] = ['_', '.', ':', '-', '=', '+', '*', '#'];
        let step = usize::try_from(step).unwrap_or(usize::MAX).min(7);
        let of = if self == Signs::Blocks { BLOCKS } else { ASCII };
        of.get(step).copied().unwrap_or('#')
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
    fn more_memory_is_lighter() {
        let brightness = |step| rgb(step).into_iter().map(u32::from).sum::<u32>();
        assert!((0..STEPS).all(|step| brightness(step) < brightness(step + 1)));
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
