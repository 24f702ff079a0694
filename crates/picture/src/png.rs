//! Writes a drawing as PNG. Only here are coordinates floats.

use anyhow::{Context, Result, bail};
use tiny_skia::{
    Color, FillRule, FilterQuality, LineJoin, Paint, Path, PathBuilder, Pattern, Pixmap, Rect, Shader, SpreadMode,
    Stroke as Pen, StrokeDash, Transform,
};
use ttf_parser::{Face, GlyphId, OutlineBuilder};

use crate::drawing::{Anchor, Area, Colour, DASH, Drawing, Fill, HATCH, HATCH_LINE, Item, Stroke};
use crate::font::Font;

/// Pixels of the file in a pixel of the drawing: sharp on screens of today.
const PIXELS: i32 = 2;
/// The largest width and height of a file, in pixels.
const LARGEST: u32 = 16_384;

impl Drawing {
    /// Returns the drawing as a PNG file, twice as large as the SVG. Characters that the built-in
    /// font lacks are boxes.
    pub fn png(&self) -> Result<Vec<u8>> {
        self.pixels()?.encode_png().context("encode the PNG")
    }

    pub(crate) fn pixels(&self) -> Result<Pixmap> {
        let size = |tenths: i32| u32::try_from(tenths * PIXELS / 10).unwrap_or_default();
        let (width, height) = (size(self.width), size(self.height));
        if width.max(height) > LARGEST {
            bail!("the picture would have {width} x {height} pixels, expected at most {LARGEST} on each side");
        }
        let mut pixels = Pixmap::new(width, height).context("the picture has no size")?;
        pixels.fill(Color::WHITE);
        let font = Font::new();
        let face = font.face().context("the built-in font cannot be read")?;
        let tile = hatch().context("the hatch has no size")?;
        for item in &self.items {
            match item {
                Item::Rect(area, fill) => rect(&mut pixels, *area, *fill, &tile),
                Item::Polygon(points, colour) => {
                    if let Some(path) = path(points, true) {
                        pixels.fill_path(&path, &paint(*colour, true), FillRule::Winding, scale(), None);
                    }
                }
                Item::Line(points, stroke) => line(&mut pixels, points, *stroke),
                Item::Text { x, y, size, anchor, colour, text } => {
                    let before = match anchor {
                        Anchor::Start => 0,
                        Anchor::Middle => font.width(text, *size) / 2,
                        Anchor::End => font.width(text, *size),
                    };
                    letters(&mut pixels, face, (*x - before, *y), *size, *colour, text);
                }
            }
        }
        Ok(pixels)
    }
}

/// From the drawing's tenths to pixels of the file.
fn scale() -> Transform {
    let by = PIXELS as f32 / 10.0;
    Transform::from_scale(by, by)
}

fn paint<'p>(colour: Colour, smooth: bool) -> Paint<'p> {
    let [red, green, blue] = colour;
    Paint {
        shader: Shader::SolidColor(Color::from_rgba8(red, green, blue, 255)),
        anti_alias: smooth,
        ..Paint::default()
    }
}

/// The tile of the hatch.
fn hatch() -> Option<Pixmap> {
    let (ground, colour, size) = HATCH;
    let side = u32::try_from(size * PIXELS / 10).ok()?;
    let mut tile = Pixmap::new(side, side)?;
    rect(&mut tile, Area { left: 0, top: 0, right: size, bottom: size }, Fill::Colour(ground), &Pixmap::new(1, 1)?);
    // The corners belong to the lines of the tiles beside this one.
    let stroke = Stroke { colour, width: HATCH_LINE, dashed: false };
    for points in [[(-10, 10), (10, -10)], [(0, size), (size, 0)], [(size - 10, size + 10), (size + 10, size - 10)]] {
        line(&mut tile, &points, stroke);
    }
    Some(tile)
}

fn rect(pixels: &mut Pixmap, area: Area, fill: Fill, tile: &Pixmap) {
    let Area { left, top, right, bottom } = area;
    let corners = [left, top, right, bottom].map(|tenths| tenths as f32);
    let [left, top, right, bottom] = corners;
    let Some(rect) = Rect::from_ltrb(left, top, right, bottom) else { return };
    let paint = match fill {
        Fill::Colour(colour) => paint(colour, false),
        Fill::Unknown => {
            // The tile is in pixels of the file already.
            let by = 10.0 / PIXELS as f32;
            let to = Transform::from_scale(by, by);
            let shader = Pattern::new(tile.as_ref(), SpreadMode::Repeat, FilterQuality::Nearest, 1.0, to);
            Paint { shader, anti_alias: false, ..Paint::default() }
        }
    };
    pixels.fill_rect(rect, &paint, scale(), None);
}

fn path(points: &[(i32, i32)], closed: bool) -> Option<Path> {
    let mut path = PathBuilder::new();
    for (number, (x, y)) in points.iter().enumerate() {
        match number {
            0 => path.move_to(*x as f32, *y as f32),
            _ => path.line_to(*x as f32, *y as f32),
        }
    }
    if closed {
        path.close();
    }
    path.finish()
}

fn line(pixels: &mut Pixmap, points: &[(i32, i32)], stroke: Stroke) {
    let Some(path) = path(points, false) else { return };
    let dash = stroke.dashed.then(|| StrokeDash::new(vec![DASH.0 as f32, DASH.1 as f32], 0.0)).flatten();
    let pen = Pen { width: stroke.width as f32, dash, line_join: LineJoin::Miter, ..Pen::default() };
    pixels.stroke_path(&path, &paint(stroke.colour, true), &pen, scale(), None);
}

/// Draws letters from this place on, by their outlines.
fn letters(pixels: &mut Pixmap, face: &Face<'_>, place: (i32, i32), size: i32, colour: Colour, text: &str) {
    let by = size as f32 / f32::from(face.units_per_em().max(1));
    let (mut x, y) = (place.0 as f32, place.1 as f32);
    for c in text.chars() {
        let glyph = face.glyph_index(c).unwrap_or(GlyphId(0));
        let mut outline = Outline(PathBuilder::new());
        face.outline_glyph(glyph, &mut outline);
        if let Some(path) = outline.0.finish() {
            let to = Transform::from_row(by, 0.0, 0.0, -by, x, y).post_concat(scale());
            pixels.fill_path(&path, &paint(colour, true), FillRule::Winding, to, None);
        }
        x += f32::from(face.glyph_hor_advance(glyph).unwrap_or_default()) * by;
    }
}

/// Takes an outline of the font.
struct Outline(PathBuilder);

impl OutlineBuilder for Outline {
    fn move_to(&mut self, x: f32, y: f32) {
        self.0.move_to(x, y);
    }

    fn line_to(&mut self, x: f32, y: f32) {
        self.0.line_to(x, y);
    }

    fn quad_to(&mut self, x1: f32, y1: f32, x: f32, y: f32) {
        self.0.quad_to(x1, y1, x, y);
    }

    fn curve_to(&mut self, x1: f32, y1: f32, x2: f32, y2: f32, x: f32, y: f32) {
        self.0.cubic_to(x1, y1, x2, y2, x, y);
    }

    fn close(&mut self) {
        self.0.close();
    }
}
