//! Parser of `/sys/kernel/debug/lru_gen` (Linux 6.1): line by line, without an allocation for each
//! line. Ages are in milliseconds, sizes in pages. Source: mm/vmscan.c, lru_gen_seq_show().

use std::ops::ControlFlow;
use std::time::Duration;

use omr_units::Pages;

/// `MAX_NR_GENS`, include/linux/mmzone.h.
const GENERATIONS: usize = 4;

/// `PATH_MAX`: the kernel cuts off a longer path, and then it may be the path of another group.
const PATH_LIMIT: usize = 4095;

/// One generation of pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Generation {
    /// Sequence number; a greater number is younger.
    pub number: u64,
    /// Time since the generation was made. The kernel counts in jiffies, which stand still while
    /// the machine sleeps, and prints 32 bits of milliseconds: after 49.7 days the age starts again
    /// at 0.
    pub age: Duration,
    /// Anonymous and shared memory. The numbers of pages are approximate.
    pub anon: Pages,
    /// Page cache, mapped or not. Approximate as well.
    pub file: Pages,
}

/// One group's generations on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lists {
    /// The group's id in this file, see [`Ids`].
    pub id: u64,
    /// Number of the node.
    pub node: u32,
    generations: [Generation; GENERATIONS],
    length: usize,
}

#[expect(clippy::indexing_slicing, reason = "the length is at least 1 and at most that of the array")]
impl Lists {
    /// The generations, oldest first. There is at least one.
    pub fn generations(&self) -> &[Generation] {
        &self.generations[..self.length]
    }

    /// The youngest generation.
    pub fn youngest(&self) -> &Generation {
        &self.generations[self.length - 1]
    }

    /// Anonymous and shared memory of all generations.
    pub fn anon(&self) -> Pages {
        Pages(self.generations().iter().map(|generation| generation.anon.0).fold(0, u64::saturating_add))
    }

    /// Page cache of all generations.
    pub fn file(&self) -> Pages {
        Pages(self.generations().iter().map(|generation| generation.file.0).fold(0, u64::saturating_add))
    }
}

/// The kind of the groups' ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ids {
    /// 16 bits, private to the memory controller (6.x). The kernel gives an id to another group as
    /// soon as its group is gone.
    Private,
    /// The inode number of the group's directory (7.x).
    Inode,
}

/// One line of the file.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line<'a> {
    /// `memcg     4 /captured.slice/busy.service`, in 7.x `memcg 198 /captured.slice/busy.service`.
    Group { id: u64, path: &'a [u8], padded: bool },
    /// ` node     0`.
    Node(u32),
    /// `          3       6632      40952           0 `: number, milliseconds, pages of both types.
    Generation(Generation),
}

impl<'a> Line<'a> {
    /// Parses a line without its newline. `None`: the line is in another form.
    pub(super) fn parse(line: &'a [u8]) -> Option<Self> {
        if let Some(rest) = line.strip_prefix(b"memcg ") {
            let (id, path) = number(rest)?;
            // One blank separates the path, which may itself begin and end with blanks.
            let path = path.strip_prefix(b" ")?;
            return Some(Line::Group { id, path, padded: rest.first() == Some(&b' ') });
        }
        if let Some(rest) = line.strip_prefix(b" node ") {
            let (node, rest) = number(rest)?;
            return rest.trim_ascii().is_empty().then_some(Line::Node(u32::try_from(node).ok()?));
        }
        let (seq, rest) = number(line.strip_prefix(b" ")?)?;
        let (age, rest) = number(rest)?;
        let (anon, rest) = number(rest)?;
        let (file, rest) = number(rest)?;
        let generation =
            Generation { number: seq, age: Duration::from_millis(age), anon: Pages(anon), file: Pages(file) };
        rest.trim_ascii().is_empty().then_some(Line::Generation(generation))
    }
}

/// A number after blanks, and the text after it. `None`: no number, or neither a blank nor the end
/// of the line follows it.
fn number(text: &[u8]) -> Option<(u64, &[u8])> {
    let start = text.iter().position(|&c| c != b' ')?;
    let mut value = 0u64;
    let mut end = start;
    while let Some(digit) = text.get(end).map(|c| c.wrapping_sub(b'0')).filter(|&digit| digit <= 9) {
        value = value.checked_mul(10)?.checked_add(u64::from(digit))?;
        end += 1;
    }
    let rest = text.get(end..)?;
    (end > start && rest.first().is_none_or(|&c| c == b' ')).then_some((value, rest))
}

/// Builds [`Lists`] from lines. An unknown line is an error, so that no page counts as older than
/// it is.
#[derive(Debug, Default)]
pub struct Parser {
    /// Path of the group that the current lines belong to.
    path: Vec<u8>,
    group: Option<u64>,
    ids: Option<Ids>,
    lists: Option<Lists>,
}

impl Parser {
    /// Starts a new text.
    pub fn reset(&mut self) {
        self.path.clear();
        (self.group, self.ids, self.lists) = (None, None, None);
    }

    /// Parses whole lines, and calls `visit` for each group and node once its generations are
    /// complete.
    pub fn feed(
        &mut self,
        mut text: &[u8],
        visit: &mut impl FnMut(&[u8], Ids, &Lists) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, String> {
        while !text.is_empty() {
            let (line, rest) = text.split_at(memchr::memchr(b'\n', text).unwrap_or(text.len()));
            text = rest.get(1..).unwrap_or_default();
            let parsed = Line::parse(line).ok_or_else(|| unknown(line))?;
            if !matches!(parsed, Line::Generation(_)) && self.finish(visit).is_break() {
                return Ok(ControlFlow::Break(()));
            }
            match parsed {
                Line::Group { id, path, padded } => {
                    // The root comes first. Its private id is padded to five columns. Its inode
                    // number 1 is not padded.
                    self.ids.get_or_insert(if padded { Ids::Private } else { Ids::Inode });
                    self.path.clear();
                    self.path.extend_from_slice(path);
                    self.group = Some(id).filter(|_| path.len() < PATH_LIMIT);
                    self.lists = None;
                }
                Line::Node(node) => {
                    // The lines of a group with a path that is cut off are skipped.
                    let id = self.group.unwrap_or_default();
                    if self.ids.is_none() {
                        return Err(unknown(line));
                    }
                    self.lists = Some(Lists { id, node, generations: Default::default(), length: 0 });
                }
                Line::Generation(generation) => self.add(generation).ok_or_else(|| unknown(line))?,
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Adds a generation. `None`: out of order, a gap, or more than four.
    fn add(&mut self, generation: Generation) -> Option<()> {
        let lists = self.lists.as_mut()?;
        if let Some(before) = lists.generations().last() {
            (before.number.checked_add(1)? == generation.number).then_some(())?;
        }
        *lists.generations.get_mut(lists.length)? = generation;
        lists.length += 1;
        Some(())
    }

    /// Calls `visit` for the last group and node, at the end of the text.
    pub fn finish(&mut self, visit: &mut impl FnMut(&[u8], Ids, &Lists) -> ControlFlow<()>) -> ControlFlow<()> {
        match (self.lists.take(), self.ids, self.group) {
            (Some(lists), Some(ids), Some(_)) if lists.length > 0 => visit(&self.path, ids, &lists),
            _ => ControlFlow::Continue(()),
        }
    }
}

fn unknown(line: &[u8]) -> String {
    let line = String::from_utf8_lossy(line.get(..80).unwrap_or(line)).into_owned();
    format!("line \"{}\" is not \"memcg ID PATH\", \" node N\" or a generation", line.escape_debug())
}
