//! Writes a drawing as SVG.

use std::fmt::Write as _;

use crate::drawing::{Anchor, Area, Colour, DASH, Drawing, Fill, HATCH, HATCH_LINE, Item};

impl Drawing {
    /// Returns the drawing as an SVG file. Texts are texts: a viewer finds them, and a screen reader
    /// reads the title and the description. The fonts are those of the viewer.
    pub fn svg(&self) -> String {
        let mut out = String::new();
        // Writing to a string does not fail.
        let _ = self.write(&mut out);
        out
    }

    fn write(&self, out: &mut String) -> std::fmt::Result {
        let (width, height) = (self.width, self.height);
        writeln!(
            out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{}\" height=\"{}\" viewBox=\"0 0 {width} {height}\" \
             role=\"img\" aria-labelledby=\"title description\" font-family=\"'DejaVu Sans', Verdana, sans-serif\">",
            width / 10,
            height / 10,
        )?;
        writeln!(out, "<title id=\"title\">{}</title>", escape(&self.title))?;
        writeln!(out, "<desc id=\"description\">{}</desc>", escape(&self.description))?;
        let (ground, line, size) = HATCH;
        writeln!(
            out,
            "<defs><pattern id=\"unknown\" width=\"{size}\" height=\"{size}\" patternUnits=\"userSpaceOnUse\"><rect \
             width=\"{size}\" height=\"{size}\" fill=\"{}\"/><path d=\"M-10 10L10 -10M0 {size}L{size} 0M{} {}L{} {}\" \
             stroke=\"{}\" stroke-width=\"{HATCH_LINE}\"/></pattern></defs>",
            hex(ground),
            size - 10,
            size + 10,
            size + 10,
            size - 10,
            hex(line),
        )?;
        writeln!(out, "<rect width=\"{width}\" height=\"{height}\" fill=\"#ffffff\"/>")?;
        self.items.iter().try_for_each(|item| write_item(out, item))?;
        writeln!(out, "</svg>")
    }
}

fn write_item(out: &mut String, item: &Item) -> std::fmt::Result {
    match item {
        Item::Rect(area, fill) => {
            let Area { left, top, .. } = area;
            let fill = match fill {
                Fill::Colour(colour) => hex(*colour),
                Fill::Unknown => "url(#unknown)".to_owned(),
            };
            let (width, height) = (area.width(), area.height());
            writeln!(
                out,
                "<rect x=\"{left}\" y=\"{top}\" width=\"{width}\" height=\"{height}\" fill=\"{fill}\" \
                 shape-rendering=\"crispEdges\"/>"
            )
        }
        Item::Polygon(points, colour) => {
            writeln!(out, "<polygon points=\"{}\" fill=\"{}\"/>", list(points), hex(*colour))
        }
        Item::Line(points, stroke) => {
            let dash = match stroke.dashed {
                true => format!(" stroke-dasharray=\"{} {}\"", DASH.0, DASH.1),
                false => String::new(),
            };
            let (points, colour, width) = (list(points), hex(stroke.colour), stroke.width);
            writeln!(
                out,
                "<polyline points=\"{points}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"{width}\"{dash}/>"
            )
        }
        Item::Text { x, y, size, anchor, colour, text } => {
            let anchor = match anchor {
                Anchor::Start => "",
                Anchor::Middle => " text-anchor=\"middle\"",
                Anchor::End => " text-anchor=\"end\"",
            };
            let (colour, text) = (hex(*colour), escape(text));
            writeln!(out, "<text x=\"{x}\" y=\"{y}\" font-size=\"{size}\"{anchor} fill=\"{colour}\">{text}</text>")
        }
    }
}

fn hex(colour: Colour) -> String {
    let [red, green, blue] = colour;
    format!("#{red:02x}{green:02x}{blue:02x}")
}

fn list(points: &[(i32, i32)]) -> String {
    points.iter().map(|(x, y)| format!("{x},{y}")).collect::<Vec<_>>().join(" ")
}

/// Escapes what means something in XML, and leaves out what XML does not allow.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\u{fffe}' | '\u{ffff}' => {}
            c if c.is_control() => {}
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_ends_an_element_or_has_what_xml_forbids() {
        let name = "</text><script>alert(\"1\")</script>&\u{1b}[2J\u{ffff}\u{0}";
        let text = Item::Text { x: 1, y: 2, size: 3, anchor: Anchor::Start, colour: [0; 3], text: name.to_owned() };
        let svg =
            Drawing { title: name.into(), description: name.into(), items: vec![text], ..Drawing::default() }.svg();
        assert!(!svg.contains("<script") && !svg.contains('\u{1b}') && !svg.contains('\u{ffff}'), "{svg}");
        assert_eq!(svg.matches("&lt;script&gt;alert(&quot;1&quot;)").count(), 3, "{svg}");
    }
}
