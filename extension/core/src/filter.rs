//! A blocked membership filter: "this claim is not here", or "this claim may be here".
//!
//! A filter is an array of lines of 64 bytes, the size of a cache line. The hash of a claim selects
//! one line and one bit in each of the eight words of this line. So a look-up reads one cache line.
//! The form is the split-block filter of Parquet, with words of 64 bits instead of 32.
//!
//! Bits are stored inverted: adding a claim clears its bits. Memory that is zero therefore says
//! "may be here" for every claim, and a filter that is not initialized excludes nothing.
//!
//! Several processes may add claims and look claims up at the same time. A look-up is not ordered
//! with them: the caller publishes a filter after all its claims were added. Only the calls that
//! add the same claim are ordered, so that at most one of them is the first.

mod arena;

pub use arena::{
    Arena, Building, CHUNK_BYTES, CLAIMS_OF_CHUNK, Chunk, Description, Slot, Status, Tag,
};

use crate::Key;
use std::sync::atomic::{
    AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed},
};

/// The number of words of a line. A claim has one bit in each word.
pub const WORDS: usize = 8;
/// The size of a line in bytes.
pub const LINE_BYTES: usize = WORDS * 8;
/// The number of bits of a line.
const LINE_BITS: u64 = LINE_BYTES as u64 * 8;
/// The number of hash bits that select a bit of a word.
const WORD_INDEX_BITS: u32 = u64::BITS.ilog2();

/// A line of a filter. All bits zero: every claim may be here.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Line([AtomicU64; WORDS]);

impl Line {
    /// Makes the line exclude every claim.
    pub fn exclude_all(&self) {
        for word in &self.0 {
            word.store(u64::MAX, Relaxed);
        }
    }

    /// Adds a claim whose line this is. Returns true for at most one call with this claim, and only
    /// if the line excluded the claim before. Can also return false for the first call, if other
    /// calls run at the same time.
    pub fn add(&self, hash: ClaimHash) -> bool {
        let bits = || self.0.iter().zip(hash.bits());
        // Most bits of a full line are cleared already. A load leaves the cache line shared.
        //
        // All words are loaded before one is changed. So if two calls for one claim both returned
        // true, each of them would have loaded a change of the other before it made its own.
        let mut is_missing = [false; WORDS];
        for ((word, bit), is_missing) in bits().zip(&mut is_missing) {
            *is_missing = word.load(Acquire) & bit != 0;
        }
        let mut is_first = is_missing.contains(&true);
        for ((word, bit), _) in bits().zip(is_missing).filter(|(_, is_missing)| *is_missing) {
            is_first &= word.fetch_and(!bit, AcqRel) & bit != 0;
        }
        is_first
    }

    /// Returns false if the claim was not added. Returns true if it was added, and for a small part
    /// of all other claims.
    pub fn may_have(&self, hash: ClaimHash) -> bool {
        self.0
            .iter()
            .zip(hash.bits())
            .all(|(word, bit)| word.load(Relaxed) & bit == 0)
    }

    /// Returns the probability that this line may have a claim that was not added.
    fn false_positives(&self) -> f64 {
        self.0
            .iter()
            .map(|word| f64::from(word.load(Relaxed).count_zeros()) / f64::from(u64::BITS))
            .product()
    }
}

/// The hash of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClaimHash {
    line: u64,
    bits: u64,
}

impl ClaimHash {
    /// Hashes a claim. `seed` is secret, so that a sender cannot choose ids that fill one line.
    pub fn new(seed: u64, key: &Key, destination: i32) -> Self {
        let bytes = u128::from_be_bytes(*key.bytes());
        // A UUID of version 7 begins with a time, so its halves are not uniform: mix both.
        let high = mix((bytes >> 64) as u64 ^ seed);
        let low = mix((bytes as u64) ^ high ^ (u64::from(destination as u32) << 32));
        ClaimHash {
            line: mix(low ^ high.rotate_left(32)),
            bits: mix(low.wrapping_add(seed)),
        }
    }

    /// Returns the number of the line of this claim in a filter with `lines` lines.
    pub fn line(self, lines: u64) -> u64 {
        ((u128::from(self.line) * u128::from(lines)) >> 64) as u64
    }

    /// Returns the bit of this claim in each word.
    fn bits(self) -> impl Iterator<Item = u64> {
        (0..WORDS as u32).map(move |word| {
            1 << ((self.bits >> (word * WORD_INDEX_BITS)) & u64::from(u64::BITS - 1))
        })
    }
}

/// The finalizer of splitmix64 (Steele, Lea, Flood 2014), with the constants of variant 13
/// (Stafford 2011). Each bit of the input changes each bit of the output with a probability of one
/// half.
const fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Returns the number of lines of a filter for this many claims, at least one.
pub fn lines_for(claims: u64, bits_per_claim: u64) -> u64 {
    claims
        .saturating_mul(bits_per_claim)
        .div_ceil(LINE_BITS)
        .max(1)
}

/// Returns the probability that these lines may have a claim that was not added. It is computed
/// from the bits that are set, so it is exact for a claim with a random hash.
pub fn false_positives<'a>(lines: impl IntoIterator<Item = &'a Line>) -> f64 {
    let (count, sum) = lines.into_iter().fold((0_u64, 0.0), |(count, sum), line| {
        (count + 1, sum + line.false_positives())
    });
    if count == 0 { 1.0 } else { sum / count as f64 }
}

#[cfg(test)]
mod tests;
