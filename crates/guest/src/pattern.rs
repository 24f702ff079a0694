//! Memory contents in which the index of a word and a seed determine the word.

/// Words in a 4 KiB page, the unit of compression and of swapping.
pub(crate) const PAGE: usize = 512;

#[derive(Clone, Copy)]
pub(crate) struct Pattern {
    pub(crate) seed: u64,
    /// Number of words at the start of each page that are zero.
    zeros: usize,
}

impl Pattern {
    /// A pattern in which `compressible` percent of each page are zero. The rest cannot be
    /// compressed.
    pub(crate) fn new(seed: u64, compressible: u8) -> Self {
        Self { seed, zeros: PAGE * usize::from(compressible.min(100)) / 100 }
    }

    pub(crate) fn word(self, index: usize) -> u64 {
        if index % PAGE < self.zeros { 0 } else { mix(self.seed.wrapping_add(index as u64)) }
    }

    pub(crate) fn fill(self, words: usize) -> Vec<u64> {
        (0..words).map(|index| self.word(index)).collect()
    }

    /// Number of words that differ from the pattern.
    pub(crate) fn errors(self, words: &[u64]) -> usize {
        words.iter().enumerate().filter(|&(index, &word)| word != self.word(index)).count()
    }
}

/// splitmix64's finalizer (Steele, Lea, Flood 2014): neighbouring inputs give unrelated outputs.
pub(crate) fn mix(input: u64) -> u64 {
    let z = input.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_flipped_bit_is_one_error() {
        let pattern = Pattern::new(7, 25);
        let mut words = pattern.fill(4 * PAGE);
        assert_eq!(pattern.errors(&words), 0);
        words[PAGE + 3] ^= 1;
        assert_eq!(pattern.errors(&words), 1);
    }

    #[test]
    fn the_compressible_share_of_each_page_is_zero() {
        let words = Pattern::new(7, 25).fill(2 * PAGE);
        assert_eq!(words.iter().filter(|&&word| word == 0).count(), PAGE / 2);
    }
}
