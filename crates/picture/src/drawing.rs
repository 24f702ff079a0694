//! A drawing: what is where, in tenths of a pixel from the top left.

/// A colour: red, green and blue.
pub type Colour = [u8; 3];

/// A drawing. Later items are over earlier ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drawing {
    /// The width.
    pub width: i32,
    /// The height.
    pub height: i32,
    /// The name, which screen readers read first.
    pub title: String,
    /// What the picture shows, in words.
    pub description: String,
    /// What is drawn.
    pub items: Vec<Item>,
}

/// Something that is drawn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// A rectangle with sharp edges.
    Rect(Area, Fill),
    /// A closed area of one colour.
    Polygon(Vec<(i32, i32)>, Colour),
    /// A line through these points.
    Line(Vec<(i32, i32)>, Stroke),
    /// A line of text.
    Text {
        /// The place of the anchor.
        x: i32,
        /// The line on which the letters stand.
        y: i32,
        /// The height of the font.
        size: i32,
        /// The part of the text that is at `x`.
        anchor: Anchor,
        /// The colour.
        colour: Colour,
        /// The text, without control characters.
        text: String,
    },
}

/// A rectangle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Area {
    /// The left edge.
    pub left: i32,
    /// The top edge.
    pub top: i32,
    /// The right edge.
    pub right: i32,
    /// The bottom edge.
    pub bottom: i32,
}

impl Area {
    /// The width.
    pub fn width(self) -> i32 {
        self.right - self.left
    }

    /// The height.
    pub fn height(self) -> i32 {
        self.bottom - self.top
    }
}

/// The inside of a rectangle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// One colour.
    Colour(Colour),
    /// Hatched: not known.
    Unknown,
}

/// A line's look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stroke {
    /// The colour.
    pub colour: Colour,
    /// The width.
    pub width: i32,
    /// With gaps.
    pub dashed: bool,
}

/// The part of a text that is at its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anchor {
    /// The first letter.
    Start,
    /// The middle.
    Middle,
    /// The end.
    End,
}

/// The hatch: its ground, its lines, and the size of the tile that is repeated.
pub const HATCH: (Colour, Colour, i32) = ([244, 244, 244], [176, 176, 176], 80);
/// The width of a hatch's line.
pub const HATCH_LINE: i32 = 12;
/// The length of a dash, and of the gap after it.
pub const DASH: (i32, i32) = (60, 40);
