use super::{ClaimHash, Line, false_positives, lines_for};
use crate::{Key, MessageId};
use proptest::prelude::*;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use uuid::Uuid;

const SEED: u64 = 0x1de4_1de4_1de4_1de4;

fn empty(lines: u64) -> Vec<Line> {
    let lines: Vec<Line> = (0..lines).map(|_| Line::default()).collect();
    lines.iter().for_each(Line::exclude_all);
    lines
}

fn line_of(lines: &[Line], hash: ClaimHash) -> &Line {
    &lines[hash.line(lines.len() as u64) as usize]
}

fn key(uuid: Uuid) -> Key {
    MessageId::from_uuid(*uuid.as_bytes()).key
}

/// A UUID of version 7: many in each millisecond, as senders make them.
fn ordered(n: u64) -> Key {
    let random = u128::from(n).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
    let milliseconds = 1_790_000_000_000 + n / 20;
    key(uuid::Builder::from_unix_timestamp_millis(
        milliseconds,
        &random.to_be_bytes()[..10].try_into().unwrap(),
    )
    .into_uuid())
}

/// Ids that differ only in their last bytes.
fn counted(n: u64) -> Key {
    key(Uuid::from_u128(u128::from(n)))
}

/// Returns the part of the claims `added..added + tried` that the filter may have, after the first
/// `added` claims were added, and the part that `false_positives` expects.
fn measure(bits_per_claim: u64, claim: impl Fn(u64) -> ClaimHash) -> (f64, f64) {
    const ADDED: u64 = 40_000;
    const TRIED: u64 = 100_000;
    let lines = empty(lines_for(ADDED, bits_per_claim));
    for n in 0..ADDED {
        line_of(&lines, claim(n)).add(claim(n));
    }
    for n in 0..ADDED {
        assert!(line_of(&lines, claim(n)).may_have(claim(n)), "claim {n}");
    }
    let found = (ADDED..ADDED + TRIED)
        .filter(|&n| line_of(&lines, claim(n)).may_have(claim(n)))
        .count();
    (found as f64 / TRIED as f64, false_positives(&lines))
}

proptest! {
    #[test]
    fn added_claim_may_be_here(
        seed: u64,
        ids in prop::collection::vec((any::<u128>(), any::<i32>()), 1..200),
        lines in 1_u64..20,
    ) {
        let lines = empty(lines);
        let claims: Vec<_> = ids
            .iter()
            .map(|&(id, destination)| {
                ClaimHash::new(seed, &key(Uuid::from_u128(id)), destination)
            })
            .collect();
        for &claim in &claims {
            line_of(&lines, claim).add(claim);
        }
        for &claim in &claims {
            prop_assert!(line_of(&lines, claim).may_have(claim));
        }
    }
}

#[test]
fn only_the_first_call_for_a_claim_returns_true() {
    let lines = empty(8);
    for n in 0..20 {
        let claim = ClaimHash::new(SEED, &counted(n), 1);
        let line = line_of(&lines, claim);
        let was_there = line.may_have(claim);
        assert_eq!(line.add(claim), !was_there, "claim {n}");
        assert!(!line.add(claim), "claim {n}");
    }
}

#[test]
fn at_most_one_concurrent_call_for_a_claim_returns_true() {
    const THREADS: usize = 4;
    const CLAIMS: u64 = 50_000;
    let lines = empty(lines_for(CLAIMS, 16));
    let firsts: Vec<AtomicU32> = (0..CLAIMS).map(|_| AtomicU32::new(0)).collect();
    let ready = Barrier::new(THREADS);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                ready.wait();
                for (n, first) in (0..).zip(&firsts) {
                    let claim = ClaimHash::new(SEED, &counted(n), 1);
                    if line_of(&lines, claim).add(claim) {
                        first.fetch_add(1, Relaxed);
                    }
                }
            });
        }
    });
    let count = |wanted| firsts.iter().filter(|n| n.load(Relaxed) == wanted).count();
    let (none, one) = (count(0), count(1));
    assert_eq!(none + one, firsts.len());
    assert!(one > 0, "no claim has a first call");
}

#[test]
fn zeroed_memory_excludes_nothing() {
    let line = Line::default();
    for n in 0..1_000 {
        assert!(line.may_have(ClaimHash::new(SEED, &counted(n), 1)));
    }
}

#[test]
fn empty_filter_excludes_everything() {
    let lines = empty(10);
    for n in 0..1_000 {
        let claim = ClaimHash::new(SEED, &counted(n), 1);
        assert!(!line_of(&lines, claim).may_have(claim));
    }
    assert_eq!(false_positives(&lines), 0.0);
}

/// Goal: the false positives are those of the textbook for every kind of id, and those that the
/// view shows.
#[test]
fn false_positives_are_rare_and_expected() {
    for (bits_per_claim, at_most) in [(16, 0.002), (12, 0.007), (10, 0.016), (8, 0.04)] {
        let kinds: [(&str, &dyn Fn(u64) -> ClaimHash); 4] = [
            ("counted ids", &|n| ClaimHash::new(SEED, &counted(n), 7)),
            ("ids of version 7", &|n| {
                ClaimHash::new(SEED, &ordered(n), 7)
            }),
            ("one id, many destinations", &|n| {
                ClaimHash::new(SEED, &counted(5), n as i32)
            }),
            ("text ids", &|n| {
                let text = format!("order-{n}");
                let id = MessageId::from_text(&text).unwrap();
                ClaimHash::new(SEED, &id.key, 7)
            }),
        ];
        for (kind, claim) in kinds {
            let (measured, expected) = measure(bits_per_claim, claim);
            assert!(
                measured <= at_most,
                "{kind}, {bits_per_claim} bits a claim: {measured}"
            );
            assert!(
                (measured - expected).abs() <= 0.1 * expected + 0.0003,
                "{kind}, {bits_per_claim} bits a claim: measured {measured}, expected {expected}"
            );
        }
    }
}

#[test]
fn other_seed_gives_other_lines() {
    let lines = 1_000;
    let same = (0..1_000)
        .filter(|&n| {
            let line = |seed| ClaimHash::new(seed, &counted(n), 1).line(lines);
            line(1) == line(2)
        })
        .count();
    assert!(same < 20, "{same} of 1,000 claims have the same line");
}

#[test]
fn filter_has_at_least_one_line() {
    assert_eq!(lines_for(0, 16), 1);
    assert_eq!(lines_for(32, 16), 1);
    assert_eq!(lines_for(33, 16), 2);
    assert_eq!(lines_for(u64::MAX, 16), u64::MAX.div_ceil(512));
}
