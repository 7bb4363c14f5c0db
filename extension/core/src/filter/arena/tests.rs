use super::{Arena, Building, CHUNK_LINES, Chunk, ClaimHash, Description, Line, Slot, Status, Tag};
use crate::MessageId;
use std::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use std::thread;

const TAG: Tag = Tag {
    table: 16_384,
    incarnation: 7,
};
/// The number of claims that fill a chunk with 16 bits a claim.
const CLAIMS_OF_CHUNK: u64 = (CHUNK_LINES as u64) * 32;

/// Owns the memory of an arena.
struct Memory {
    slots: Vec<Slot>,
    owners: Vec<AtomicU32>,
    chunks: Vec<Chunk>,
}

impl Memory {
    fn new(slots: usize, chunks: usize) -> Self {
        Memory {
            slots: (0..slots).map(|_| Slot::default()).collect(),
            owners: (0..chunks).map(|_| AtomicU32::new(0)).collect(),
            chunks: (0..chunks)
                .map(|_| Chunk(std::array::from_fn(|_| Line::default())))
                .collect(),
        }
    }

    fn arena(&self) -> Arena<'_> {
        Arena {
            slots: &self.slots,
            owners: &self.owners,
            chunks: &self.chunks,
        }
    }
}

fn claim(n: u64) -> ClaimHash {
    let id = MessageId::from_uuid(u128::from(n).to_be_bytes());
    ClaimHash::new(1, &id.key, 1)
}

fn prepared(arena: Arena<'_>, slot: usize, tag: Tag, claims: u64) -> Building<'_> {
    assert!(arena.prepare(slot, tag, claims, 0), "there is memory");
    arena.building(slot, tag).expect("it is being built")
}

fn built(arena: Arena<'_>, slot: usize, tag: Tag, claims: std::ops::Range<u64>) {
    let filter = prepared(arena, slot, tag, claims.end - claims.start);
    claims.for_each(|n| filter.add(claim(n)));
    assert!(filter.complete());
}

/// Returns the number of chunks that belong to no filter.
fn free(arena: Arena<'_>) -> u64 {
    arena.free_chunks()
}

/// Returns how many of the claims may be in the slice.
fn hits(arena: Arena<'_>, slot: usize, tag: Tag, claims: std::ops::Range<u64>) -> usize {
    claims
        .filter(|&n| arena.may_have(slot, tag, claim(n)))
        .count()
}

#[test]
fn zeroed_memory_excludes_nothing() {
    let memory = Memory::new(2, 4);
    assert_eq!(hits(memory.arena(), 0, TAG, 0..100), 100);
    assert_eq!(hits(memory.arena(), 99, TAG, 0..100), 100, "no such slot");
    assert_eq!(memory.arena().describe(0), None);
}

#[test]
fn complete_filter_excludes_other_claims() {
    let memory = Memory::new(2, 4);
    let arena = memory.arena();
    built(arena, 1, TAG, 0..1_000);
    assert_eq!(hits(arena, 1, TAG, 0..1_000), 1_000);
    assert!(hits(arena, 1, TAG, 1_000..11_000) < 50);
    let filter = arena.describe(1).expect("a filter");
    assert_eq!(filter.status, Status::Complete);
    assert_eq!(filter.bits_per_claim, 24);
    assert_eq!(filter.bytes, 3_008);
    assert!(filter.expected_false_positives < 0.0002, "{filter:?}");
}

/// A slice is emptied and used again, or its number belongs to another table.
#[test]
fn filter_with_another_tag_excludes_nothing() {
    let memory = Memory::new(1, 4);
    let arena = memory.arena();
    built(arena, 0, TAG, 0..1_000);
    for tag in [
        Tag {
            incarnation: 8,
            ..TAG
        },
        Tag { table: 1, ..TAG },
    ] {
        assert_eq!(hits(arena, 0, tag, 1_000..1_100), 100, "{tag:?}");
    }
}

#[test]
fn filter_excludes_nothing_until_it_is_complete() {
    let memory = Memory::new(1, 4);
    let arena = memory.arena();
    let filter = prepared(arena, 0, TAG, 1_000);
    filter.add(claim(1));
    assert_eq!(hits(arena, 0, TAG, 1_000..1_100), 100);
    assert!(filter.complete());
    assert_eq!(hits(arena, 0, TAG, 1_000..1_100), 0);
}

#[test]
fn claim_added_by_another_process_is_found() {
    let memory = Memory::new(1, 4);
    let arena = memory.arena();
    let filter = prepared(arena, 0, TAG, 1_000);
    arena.add(0, TAG, claim(1));
    assert!(filter.complete());
    arena.add(0, TAG, claim(2));
    let other = Tag {
        incarnation: 6,
        ..TAG
    };
    arena.add(0, other, claim(3));
    assert!(arena.may_have(0, TAG, claim(1)));
    assert!(arena.may_have(0, TAG, claim(2)));
    assert!(!arena.may_have(0, TAG, claim(3)), "another tag");
}

#[test]
fn only_a_complete_filter_has_a_first_call() {
    let memory = Memory::new(1, 4);
    let arena = memory.arena();
    let filter = prepared(arena, 0, TAG, 1_000);
    assert!(!arena.add(0, TAG, claim(1)), "it is being built");
    assert!(filter.complete());
    assert!(!arena.add(0, TAG, claim(1)), "the claim was added before");
    assert!(arena.add(0, TAG, claim(2)));
    assert!(!arena.add(0, TAG, claim(2)), "the second call");
    arena.invalidate(0, TAG.table);
    assert!(!arena.add(0, TAG, claim(3)), "it is invalid");
}

/// I1: a filter that is replaced while a claim is added may lack claims of the slice, so the call
/// is not the first one.
#[test]
fn filter_that_changes_during_a_call_has_no_first_call() {
    let memory = Memory::new(1, 4);
    let arena = memory.arena();
    built(arena, 0, TAG, 0..1_000);
    let invalidate = || arena.invalidate(0, TAG.table);
    assert!(!arena.add_then(0, TAG, claim(2_000), invalidate));
    let replace = || built(arena, 0, TAG, 0..1_000);
    built(arena, 0, TAG, 0..1_000);
    assert!(!arena.add_then(0, TAG, claim(2_000), replace));
    assert!(arena.add(0, TAG, claim(2_000)), "the filter stays");
}

#[test]
fn invalid_filter_excludes_nothing() {
    let memory = Memory::new(1, 4);
    let arena = memory.arena();
    built(arena, 0, TAG, 0..1_000);
    arena.invalidate(0, TAG.table + 1);
    assert!(hits(arena, 0, TAG, 1_000..1_100) < 10, "another table");
    arena.invalidate(0, TAG.table);
    assert_eq!(hits(arena, 0, TAG, 1_000..1_100), 100);
    assert_eq!(arena.describe(0).map(|f| f.status), Some(Status::Invalid));
}

#[test]
fn filter_invalidated_during_its_build_stays_invalid() {
    let memory = Memory::new(1, 4);
    let arena = memory.arena();
    let filter = prepared(arena, 0, TAG, 1_000);
    arena.invalidate(0, TAG.table);
    assert!(!filter.complete());
    assert_eq!(hits(arena, 0, TAG, 1_000..1_100), 100);
}

/// The best filters leave half of the memory for others.
#[test]
fn filter_gets_the_best_bits_while_half_of_the_memory_is_free() {
    let memory = Memory::new(4, 6);
    let arena = memory.arena();
    let bits = |slot| arena.describe(slot).map(|filter| filter.bits_per_claim);
    for slot in 0..4 {
        built(arena, slot, TAG, 0..super::CLAIMS_OF_CHUNK);
    }
    assert_eq!([0, 1, 2].map(bits), [Some(24); 3]);
    assert_eq!(bits(3), Some(16));
}

#[test]
fn filter_gets_fewer_bits_when_memory_is_short() {
    let memory = Memory::new(1, 3);
    let arena = memory.arena();
    for (claims, bits_per_claim) in [(2, 16), (5, 12), (6, 10), (8, 8)] {
        // One chunk is the list, so there is room for two chunks of lines.
        let claims = claims * CLAIMS_OF_CHUNK / 2;
        arena.remove(0);
        built(arena, 0, TAG, 0..claims);
        assert_eq!(
            arena.describe(0).map(|filter| filter.bits_per_claim),
            Some(bits_per_claim),
            "{claims} claims"
        );
    }
    let before = arena.describe(0);
    assert!(!arena.prepare(0, TAG, 5 * CLAIMS_OF_CHUNK, 0));
    assert_eq!(arena.describe(0), before, "the filter stays");
    assert!(arena.may_have(0, TAG, claim(1)));
}

/// A filter of one chunk needs no chunk that lists it.
#[test]
fn small_filter_takes_one_chunk() {
    let memory = Memory::new(2, 4);
    let arena = memory.arena();
    built(arena, 0, TAG, 0..CLAIMS_OF_CHUNK);
    assert_eq!(free(arena), 3);
    built(arena, 1, TAG, 0..CLAIMS_OF_CHUNK + 1);
    assert_eq!(free(arena), 0);
    for slot in 0..2 {
        assert_eq!(hits(arena, slot, TAG, 0..1_000), 1_000);
        assert!(hits(arena, slot, TAG, 1_000_000..1_001_000) < 20);
    }
    assert!(!arena.has_room_for(1));
    arena.remove(0);
    assert!(arena.has_room_for(2 * CLAIMS_OF_CHUNK));
    assert!(!arena.has_room_for(2 * CLAIMS_OF_CHUNK + 1));
}

#[test]
fn false_positives_of_a_complete_filter_are_counted() {
    let memory = Memory::new(1, 4);
    let arena = memory.arena();
    let filter = prepared(arena, 0, TAG, 1_000);
    arena.count_false_positive(0, TAG);
    arena.count_look_ups(0, TAG, 64);
    assert!(filter.complete());
    arena.count_look_ups(0, TAG, 64);
    arena.count_false_positive(0, TAG);
    arena.count_false_positive(0, Tag { table: 1, ..TAG });
    arena.count_look_ups(0, Tag { table: 1, ..TAG }, 64);
    let counted = |arena: Arena<'_>| {
        let filter = arena.describe(0).expect("a filter");
        (filter.look_ups, filter.false_positives)
    };
    assert_eq!(counted(arena), (64, 1));
    built(arena, 0, TAG, 0..1_000);
    assert_eq!(counted(arena), (0, 0), "another filter");
}

/// The filter of a slice that takes more claims than expected gets worse, and says so.
#[test]
fn expected_false_positives_grow_with_the_claims() {
    let memory = Memory::new(1, 4);
    let arena = memory.arena();
    built(arena, 0, TAG, 0..CLAIMS_OF_CHUNK);
    let expected = || {
        arena
            .describe(0)
            .expect("a filter")
            .expected_false_positives
    };
    assert!(expected() < 0.003, "{}", expected());
    for n in CLAIMS_OF_CHUNK..4 * CLAIMS_OF_CHUNK {
        arena.add(0, TAG, claim(n));
    }
    let observed = hits(arena, 0, TAG, 1_000_000..1_100_000) as f64 / 100_000.0;
    assert!(observed > 0.05, "{observed}");
    assert!(
        (expected() / observed - 1.0).abs() < 0.1,
        "{} {observed}",
        expected()
    );
}

#[test]
fn memory_of_removed_and_replaced_filters_is_free() {
    let memory = Memory::new(2, 8);
    let arena = memory.arena();
    built(arena, 0, TAG, 0..100);
    assert_eq!(free(arena), 7);
    assert!(arena.prepare(1, TAG, 100, 0));
    assert_eq!(free(arena), 6, "another process may complete it");
    built(arena, 1, TAG, 0..2 * CLAIMS_OF_CHUNK);
    assert_eq!(free(arena), 4, "the next build takes its place");
    let other = Tag {
        incarnation: 8,
        ..TAG
    };
    built(arena, 1, other, 0..100);
    assert_eq!(free(arena), 6, "a filter with another tag is removed");
    arena.remove(0);
    arena.remove(1);
    assert_eq!(free(arena), 8);
}

/// Each claim would read every segment of its slice while the slice has no filter.
#[test]
fn filter_excludes_claims_while_it_is_replaced() {
    let memory = Memory::new(1, 8);
    let arena = memory.arena();
    built(arena, 0, TAG, 0..1_000);
    let first = arena.describe(0);
    let filter = prepared(arena, 0, TAG, 2 * CLAIMS_OF_CHUNK);
    let is_being_replaced =
        |filter: Option<Description>| filter.map(|filter| filter.is_being_replaced);
    assert_eq!(is_being_replaced(first), Some(false));
    assert_eq!(is_being_replaced(arena.describe(0)), Some(true));
    assert!(arena.add(0, TAG, claim(1_000)), "the first call");
    assert!(!arena.add(0, TAG, claim(1_000)), "the second call");
    assert_eq!(hits(arena, 0, TAG, 0..1_001), 1_001);
    assert!(hits(arena, 0, TAG, 2_000..12_000) < 50);
    (0..1_000).for_each(|n| filter.add(claim(n)));
    assert!(filter.complete());
    assert_eq!(hits(arena, 0, TAG, 0..1_001), 1_001);
    assert!(hits(arena, 0, TAG, 2_000..12_000) < 5);
    let bytes = |filter: Option<Description>| filter.map(|filter| filter.bytes);
    assert!(bytes(arena.describe(0)) > bytes(first), "the larger one");
    assert_eq!(free(arena), 5, "the memory of the first one is free");
    assert!(
        !arena.add(0, TAG, claim(1_000)),
        "added before it was complete"
    );
}

/// I1: both filters are complete for a moment. Two calls for one claim can each be the first in one
/// of them, so the first call for the claim is the first in both.
#[test]
fn claim_in_one_of_two_complete_filters_has_no_first_call() {
    let memory = Memory::new(1, 4);
    let arena = memory.arena();
    built(arena, 0, TAG, 0..1_000);
    let filter = prepared(arena, 0, TAG, 1_000);
    filter.add(claim(1_000));
    let state = &memory.slots[0].filters[1].state;
    state.store(Status::Complete.after(filter.number()), Release);
    assert!(!arena.add(0, TAG, claim(1_000)));
    assert!(arena.add(0, TAG, claim(1_001)));
    assert_eq!(hits(arena, 0, TAG, 1_000..1_001), 1, "in both");
}

/// The number is the name of a fence. A fence of an earlier preparation proves nothing.
#[test]
fn each_preparation_of_a_slot_has_its_own_number() {
    let memory = Memory::new(1, 8);
    let arena = memory.arena();
    let mut numbers = Vec::new();
    for _ in 0..20 {
        let filter = prepared(arena, 0, TAG, 1_000);
        numbers.push(filter.number());
        assert!(filter.complete());
    }
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), 20);
}

/// A smaller filter for the same claims would exclude fewer of the others.
#[test]
fn filter_is_only_replaced_by_a_larger_one() {
    let memory = Memory::new(1, 8);
    let arena = memory.arena();
    built(arena, 0, TAG, 0..1_000);
    let bytes = arena.describe(0).map_or(0, |filter| filter.bytes);
    assert!(!arena.prepare(0, TAG, 1_000, bytes));
    assert!(arena.prepare(0, TAG, 1_100, bytes));
}

/// Without memory for both, a filter that has become too small stays, because it excludes more
/// than none.
#[test]
fn filter_without_memory_beside_it_is_not_replaced() {
    let memory = Memory::new(1, 4);
    let arena = memory.arena();
    built(arena, 0, TAG, 0..2 * CLAIMS_OF_CHUNK);
    let before = arena.describe(0);
    assert!(!arena.prepare(0, TAG, 4 * CLAIMS_OF_CHUNK, 0));
    assert_eq!(arena.describe(0), before);
    assert!(arena.has_room_for(1));
}

/// I1: rows that are in neither filter arrive while one replaces the other.
#[test]
fn both_filters_of_a_slot_are_invalidated() {
    let memory = Memory::new(1, 4);
    let arena = memory.arena();
    built(arena, 0, TAG, 0..1_000);
    let filter = prepared(arena, 0, TAG, 2_000);
    arena.invalidate(0, TAG.table);
    assert!(!filter.complete());
    assert_eq!(hits(arena, 0, TAG, 1_000..1_100), 100);
    built(arena, 0, TAG, 0..1_000);
    assert!(hits(arena, 0, TAG, 1_000..1_100) < 10);
    assert_eq!(free(arena), 3);
}

/// I1: two calls for one claim do not both return true, also if one of them finds only the first
/// filter complete and the other one only the second.
#[test]
fn claim_has_one_first_call_while_its_filter_is_replaced() {
    const CLAIMS: u64 = 100_000;
    let memory = Memory::new(1, 16);
    let arena = memory.arena();
    built(arena, 0, TAG, 0..1);
    // The claim that each adder is adding.
    let adding = [AtomicU64::new(0), AtomicU64::new(0)];
    let replaced = AtomicU64::new(0);
    let replace = || {
        assert!(arena.prepare(0, TAG, CLAIMS, 0));
        let filter = arena.building(0, TAG).expect("it is prepared");
        // Wait for the calls that began before, and add the claims that the slice has then.
        for adding in &adding {
            let begun = adding.load(Acquire);
            while begun < CLAIMS && adding.load(Acquire) == begun {
                std::hint::spin_loop();
            }
            (1..=begun.min(CLAIMS - 1)).for_each(|n| filter.add(claim(n)));
        }
        assert!(filter.complete());
        replaced.fetch_add(1, Relaxed);
    };
    let firsts: Vec<Vec<bool>> = thread::scope(|scope| {
        let adders = adding.each_ref().map(|adding| {
            scope.spawn(move || {
                let firsts = (1..CLAIMS).map(|n| {
                    adding.store(n, Release);
                    arena.add(0, TAG, claim(n))
                });
                let firsts = firsts.collect();
                adding.store(CLAIMS, Release);
                firsts
            })
        });
        while !adders.iter().all(|adder| adder.is_finished()) {
            replace();
        }
        adders.map(|adder| adder.join().expect("an adder")).into()
    });
    let both = firsts[0].iter().zip(&firsts[1]);
    assert_eq!(both.filter(|(one, other)| **one && **other).count(), 0);
    assert!(firsts.iter().flatten().any(|&is_first| is_first));
    assert!(replaced.load(Relaxed) > 2);
}

/// Goal: a reader that was interrupted between its loads never trusts a line of another filter.
#[test]
fn line_of_a_reused_chunk_is_not_trusted() {
    let memory = Memory::new(2, 2);
    let arena = memory.arena();
    built(arena, 0, TAG, 0..1_000);
    let filter = &memory.slots[0].filters[0];
    let before = filter.state.load(Acquire);
    let line = arena.line(filter, claim(5)).expect("a line");
    assert!(line.may_have(claim(5)));

    arena.remove(0);
    built(arena, 1, TAG, 2_000..2_001);

    assert!(!line.may_have(claim(5)), "the line excludes the claim now");
    assert_ne!(filter.state.load(Relaxed), before, "the state shows it");
}

/// Goal: a writer that was interrupted before it clears its bits hides no claim of a later filter,
/// also if its line is in a list of chunks by then.
#[test]
fn late_addition_to_a_reused_chunk_hides_no_claim() {
    let memory = Memory::new(1, 4);
    let arena = memory.arena();
    built(arena, 0, TAG, 0..100);
    let filter = &memory.slots[0].filters[0];
    let claims = 2 * CLAIMS_OF_CHUNK;
    // The small filter has one chunk. The large one uses it as its list.
    let late: Vec<_> = (0..2_000)
        .map(|n| (arena.line(filter, claim(n)).expect("a line"), claim(n)))
        .collect();
    built(arena, 0, TAG, 0..claims);
    assert_eq!(hits(arena, 0, TAG, 0..claims), claims as usize);
    for (line, hash) in late {
        line.add(hash);
        assert_eq!(hits(arena, 0, TAG, 0..100), 100);
    }
    assert_eq!(hits(arena, 0, TAG, 0..claims), claims as usize);
}

/// Goal: no reader excludes a claim of its slice while filters are built, invalidated and removed
/// in the same chunks.
#[test]
fn claim_is_never_excluded_while_chunks_are_reused() {
    const ROUNDS: u64 = 400;
    const MOST_ROUNDS: u64 = 1_000_000;
    /// Each reader excludes at least this many claims.
    const EXCLUDED: u64 = 1_000;
    let memory = Memory::new(2, 4);
    let arena = memory.arena();
    let is_over = AtomicBool::new(false);
    let tag = |incarnation| Tag {
        table: 1,
        incarnation,
    };
    // The slice `n` of the incarnation `i` has the claims from 1,000 * (2 * i + n).
    let first = |slot: usize, incarnation: u64| 1_000 * (2 * incarnation + slot as u64);
    let latest = AtomicU32::new(0);
    let excluded = [AtomicU64::new(0), AtomicU64::new(0)];
    thread::scope(|scope| {
        let readers = [0, 1].map(|slot: usize| {
            let (latest, is_over, excluded) = (&latest, &is_over, &excluded[slot]);
            scope.spawn(move || {
                while !is_over.load(Relaxed) {
                    let incarnation = u64::from(latest.load(Relaxed));
                    let from = first(slot, incarnation);
                    for n in from..from + 50 {
                        assert!(arena.may_have(slot, tag(incarnation), claim(n)));
                        let other = claim(n + 1_000_000_000);
                        if !arena.may_have(slot, tag(incarnation), other) {
                            excluded.fetch_add(1, Relaxed);
                        }
                    }
                }
            })
        });
        let is_read = || {
            excluded.iter().all(|n| n.load(Relaxed) >= EXCLUDED)
                // A reader ends early when its assertion fails.
                || readers.iter().any(|reader| reader.is_finished())
        };
        let goes_on = |round| round <= ROUNDS || !is_read() && round <= MOST_ROUNDS;
        for round in (1_u32..).take_while(|&round| goes_on(u64::from(round))) {
            latest.store(round, Relaxed);
            let round = u64::from(round);
            for slot in 0..2 {
                let from = first(slot, round);
                built(arena, slot, tag(round), from..from + 50);
                if round % 3 == 0 {
                    arena.invalidate(slot, 1);
                }
                if round % 2 == 0 {
                    arena.remove(slot);
                }
            }
        }
        is_over.store(true, Relaxed);
        assert!(is_read(), "the readers exclude claims");
    });
}
