//! The font of the pictures. SVG names it only, and a viewer without it takes another one; the widths
//! are good enough for both.

use ttf_parser::Face;

/// DejaVu Sans with ASCII and a few signs, made by fonttools:
/// `pyftsubset DejaVuSans.ttf --unicodes=20-7e,b0,b7,2013,2026 --layout-features= --no-hinting
/// --drop-tables+=FFTM,GDEF,GPOS,GSUB,kern --notdef-outline`. Its licence is
/// LICENSES/Bitstream-Vera.txt.
const DATA: &[u8] = include_bytes!("../font/DejaVuSans-subset.ttf");

/// The font.
pub struct Font(Option<Face<'static>>);

impl Font {
    pub fn new() -> Self {
        Font(Face::parse(DATA, 0).ok())
    }

    /// The face; `None`: the font that was built in is damaged.
    pub fn face(&self) -> Option<&Face<'static>> {
        self.0.as_ref()
    }

    /// The width of a text, in the unit of `size`.
    pub fn width(&self, text: &str, size: i32) -> i32 {
        let Some(face) = &self.0 else { return size };
        let units: i64 = text.chars().map(|c| i64::from(self.advance(face, c))).sum();
        i32::try_from(units * i64::from(size) / i64::from(face.units_per_em().max(1))).unwrap_or(i32::MAX)
    }

    /// The width of a character in the units of the font. Characters that the font lacks are as wide
    /// as the sign for them.
    fn advance(&self, face: &Face<'_>, c: char) -> u16 {
        face.glyph_hor_advance(face.glyph_index(c).unwrap_or_default()).unwrap_or_default()
    }

    /// Cuts a text to this width. A text that was cut ends with an ellipsis.
    pub fn cut(&self, text: &str, size: i32, room: i32) -> String {
        if self.width(text, size) <= room {
            return text.to_owned();
        }
        let mut cut = String::new();
        for c in text.chars() {
            cut.push(c);
            if self.width(&cut, size) + self.width("…", size) > room {
                cut.pop();
                break;
            }
        }
        cut + "…"
    }

    /// Breaks a text into lines of at most this width, between words. A word that is too long is cut.
    pub fn lines(&self, text: &str, size: i32, room: i32) -> Vec<String> {
        let mut lines: Vec<String> = Vec::new();
        for word in text.split_whitespace() {
            let longer = lines.last().map(|line| format!("{line} {word}"));
            match (longer.filter(|longer| self.width(longer, size) <= room), lines.last_mut()) {
                (Some(longer), Some(line)) => *line = longer,
                _ => lines.push(self.cut(word, size, room)),
            }
        }
        lines
    }
}
