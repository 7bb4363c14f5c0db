//! The claim: the right to process a message. Only one transaction gets it.
//!
//! [`ClaimWriter::decide`] has the steps. They use no SPI, no plan and no snapshot of the
//! transaction. A dirty snapshot does not depend on the isolation level, so two claims never cause
//! 40001.
//!
//! **Two claimers of one key.** The second finds the row of the first in progress, and waits for
//! the end of that transaction. If it commits, the second is a duplicate; if it rolls back, also to
//! a savepoint before the claim, the second inserts. If both have looked before either inserted,
//! the unique index of their common segment lets one insert succeed, and the other looks again. It
//! looks only into the segment of the conflict, because its own row may be in the segment before.
//!
//! **Two written segments.** A claim is in all written segments or in none. Its second insert can
//! conflict too: the other claimer has entered later, when the ring had advanced, and has written
//! only this segment. The claimer waits for it. If the other commits, the claimer deletes its row
//! in the first segment. It recognizes its row by the xmin, because the index can return the row of
//! another loser first.
//!
//! **A deleted row** is in progress for other sessions until its transaction ends. If the row of a
//! committed claim exists too, the message is a duplicate for them, and they do not wait
//! (`pg::find_in`).
//!
//! **Ordinary inserts.** A speculative insertion takes a lock and writes one more record of WAL. It
//! is needed only if another claimer inserts the same message at the same moment. So the claimer
//! that is the first to add its claim to a complete hint inserts its row as INSERT does. If it
//! loses, it deletes its row and waits for the winner. Two losers with deleted rows would wait for
//! each other, so at most one open claimer is the first: a claimer locks the slice before it adds
//! its claim, and a filter is complete only after the earlier writers have ended. With `wal_level =
//! logical` all insertions are speculative, because subscribers would get the deleted row. A
//! deadlock remains possible when a transaction deletes the claim of the winner with `idem_forget`
//! and claims the message again while the loser waits for it.
//!
//! **Locks.** `idem.ring` and the written slices stay locked until the end of the transaction. The
//! locks of other look-ups are released at once, because before PostgreSQL 18 a backend has 16
//! fast-path lock slots. A claimer that waits does not lock the pending table, unless it has
//! written a pending row before: the rotation of this table would wait for that claim.
//!
//! **Expired.** Every claim since `remembers_since` of a ring is found. A claim of a message that
//! was sent before that may have been forgotten, also by a ring that its destination has left. With
//! `sent_at` the outcome is then `expired`, unless the claim is found.

mod batch;
mod inspect;
pub mod lone;
mod own;
mod together;

pub use batch::claim_batch;
pub use inspect::{claim_of, held, own_claim};

use crate::claim_row::{claim_row, column};
use crate::errors::{Error, Result};
use crate::filters::ClaimHashes;
use crate::identity::Identity;
use crate::inbox::claimed_at;
use crate::pause::{is_left_out, pause_point};
use crate::pending::{PendingCheck, PendingState};
use crate::pg::{self, FoundIn, Home, Inserter, Lookup, find_in, look_again};
use crate::ring::Entered;
use crate::slices::{Probed, Slices, Written, excludes};
use crate::stats::{Counter, count};
use idem_core::MessageId;
use idem_core::filter::ClaimHash;
use pgrx::pg_sys;
use pgrx::prelude::*;
use std::cell::Cell;

/// The proof that this transaction holds the claim of a message, and has entered the rings. Only
/// this module creates it.
#[derive(Clone, Copy)]
pub struct Claimed<'a> {
    identity: Identity<'a>,
    rings: &'a Entered,
    claimed_at: pg_sys::TimestampTz,
}

impl<'a> Claimed<'a> {
    pub fn identity(&self) -> &Identity<'a> {
        &self.identity
    }

    pub fn rings(&self) -> &'a Entered {
        self.rings
    }

    /// Returns the time of the claim. The effects of the claim store the same time.
    pub fn claimed_at(&self) -> pg_sys::TimestampTz {
        self.claimed_at
    }

    /// Returns the ordinal of the next effect, if it is known without a look-up.
    pub fn next_ordinal(&self) -> Option<i32> {
        own::next_ordinal(&self.identity)
    }

    /// Notes the ordinal of the next effect.
    pub fn set_next_ordinal(&self, next: i32) {
        own::set_next_ordinal(&self.identity, next);
    }
}

/// The outcome of a claim. `handled_at` is the time of the earlier claim.
pub enum Outcome<'a> {
    Claimed(Claimed<'a>),
    Duplicate { handled_at: pg_sys::TimestampTz },
    InProgress,
    Mismatch { handled_at: pg_sys::TimestampTz },
    Expired,
}

/// The options of a claim.
#[derive(Debug, Clone, Copy)]
pub struct Terms<'a> {
    /// Whether to wait for a concurrent claimer. If false, the outcome is `InProgress` instead.
    pub wait: bool,
    /// The fingerprint that is stored with the claim. A duplicate with another fingerprint is a
    /// `Mismatch`.
    pub fingerprint: Option<&'a [u8]>,
    /// The time at which the sender sent the message. If the ring may have forgotten a claim of
    /// that time, the outcome is `Expired`.
    pub sent_at: Option<pg_sys::TimestampTz>,
    /// Whether this transaction has locked the row of the pending message and will delete it.
    pub holds_pending: bool,
}

impl Terms<'_> {
    pub const PLAIN: Terms<'static> = Terms {
        wait: true,
        fingerprint: None,
        sent_at: None,
        holds_pending: false,
    };

    /// The terms of a transaction that has locked the pending row. The transaction does not wait
    /// for another claimer: that claimer may wait for the row, which would be a deadlock.
    pub const LEASED: Terms<'static> = Terms {
        wait: false,
        holds_pending: true,
        ..Terms::PLAIN
    };
}

/// Claims one message.
pub fn claim<'a>(
    id: MessageId<'a>,
    name: &'a str,
    rings: &'a Entered,
    terms: Terms,
) -> Result<Outcome<'a>> {
    claim_identity(Identity::intern(id, name, rings)?, rings, terms)
}

/// Claims one message of a destination that exists.
pub fn claim_identity<'a>(
    identity: Identity<'a>,
    rings: &'a Entered,
    terms: Terms,
) -> Result<Outcome<'a>> {
    let slices = Slices::open(&identity.destination, rings);
    let mut writer = ClaimWriter::new(&slices, rings, terms);
    writer.claim(identity)
}

/// Claims messages of one destination. Look-ups and inserts are set up once for a whole batch.
struct ClaimWriter<'s, 'a> {
    rings: &'a Entered,
    terms: Terms<'s>,
    hashes: ClaimHashes,
    probed_only: Vec<ProbedSlice<'s>>,
    written: Vec<WrittenClaim<'s>>,
    pending: Option<PendingCheck<'a>>,
    /// False while messages are looked up again.
    counts_look_ups: bool,
}

/// A look-up in one slice or segment. It is created for the first claim that needs it, because the
/// filters exclude most claims.
struct LazyLookup<'s> {
    lookup: Option<Lookup<'s>>,
    /// Where the look-up is created: it lives longer than the claim that needs it first.
    home: Home,
}

impl<'s> LazyLookup<'s> {
    fn new() -> Self {
        LazyLookup {
            lookup: None,
            home: Home::here(),
        }
    }

    fn get(&mut self, create: impl FnOnce() -> Lookup<'s>) -> &mut Lookup<'s> {
        let home = self.home;
        self.lookup.get_or_insert_with(|| home.run(create))
    }
}

/// A slice that is only probed.
struct ProbedSlice<'s> {
    slice: &'s Probed,
    lookup: LazyLookup<'s>,
    /// Whether the slice was read for the present claim.
    is_read: bool,
}

impl<'s> ProbedSlice<'s> {
    /// Returns the look-up, unless the filter excludes the claim.
    fn lookup(&mut self, hash: Option<ClaimHash>) -> Option<&mut Lookup<'s>> {
        let slice = self.slice;
        self.is_read = !slice.excludes(hash);
        let lookup = &mut self.lookup;
        self.is_read
            .then(|| lookup.get(|| Lookup::in_segments(slice.table())))
    }
}

/// A segment to which claims are written.
struct WrittenClaim<'s> {
    slice: &'s Written,
    /// In the whole slice.
    lookup: LazyLookup<'s>,
    /// In this segment only. This claim may have a row in the segment before it.
    in_segment: LazyLookup<'s>,
    inserter: Inserter<'s>,
    /// Whether the slice was read for the present claim before the insert.
    is_read: bool,
}

impl<'s> WrittenClaim<'s> {
    /// Returns the look-up, unless the hint excludes the claim. An insert follows: its unique index
    /// decides. Each running claimer that writes an earlier segment also writes this one.
    fn lookup(&mut self, hash: Option<ClaimHash>) -> Option<&mut Lookup<'s>> {
        let slice = self.slice;
        self.is_read = !slice.is_repeated && !excludes(slice.hint, hash);
        let lookup = &mut self.lookup;
        self.is_read
            .then(|| lookup.get(|| Lookup::in_segments(&slice.table)))
    }

    fn in_segment(&mut self) -> &mut Lookup<'s> {
        let slice = self.slice;
        self.in_segment
            .get(|| Lookup::in_segment(&slice.table, slice.segment))
    }
}

impl<'s, 'a> ClaimWriter<'s, 'a> {
    fn new(slices: &'s Slices, rings: &'a Entered, terms: Terms<'s>) -> Self {
        ClaimWriter {
            rings,
            terms,
            hashes: ClaimHashes::new(),
            probed_only: slices
                .probed_only
                .iter()
                .map(|slice| ProbedSlice {
                    slice,
                    lookup: LazyLookup::new(),
                    is_read: false,
                })
                .collect(),
            written: slices
                .written
                .iter()
                .map(|slice| WrittenClaim {
                    slice,
                    lookup: LazyLookup::new(),
                    in_segment: LazyLookup::new(),
                    inserter: Inserter::new(&slice.table),
                    is_read: false,
                })
                .collect(),
            pending: (!terms.holds_pending).then(|| PendingCheck::new(rings)),
            counts_look_ups: true,
        }
    }

    /// Reads the lines of the filters that the claim will need. The reads for several claims do not
    /// depend on each other, so the processor waits for the memory once.
    fn fetch_lines(&self, identity: &Identity) {
        let Some(hash) = self.hashes.of(identity) else {
            return;
        };
        let sealed = self.probed_only.iter().map(|at| at.slice.filter);
        let written = self.written.iter().map(|at| at.slice.hint);
        for filter in sealed.chain(written).flatten() {
            std::hint::black_box(filter.excludes(hash));
        }
    }

    /// Claims a message and counts the outcome.
    fn claim(&mut self, identity: Identity<'a>) -> Result<Outcome<'a>> {
        let outcome = self.decide(identity)?;
        count(match outcome {
            Outcome::Claimed(_) => Counter::Claimed,
            Outcome::Duplicate { .. } => Counter::Duplicate,
            Outcome::InProgress => Counter::InProgress,
            Outcome::Mismatch { .. } => Counter::Mismatch,
            Outcome::Expired => Counter::Expired,
        });
        Ok(outcome)
    }

    fn decide(&mut self, identity: Identity<'a>) -> Result<Outcome<'a>> {
        let mut keys = identity.keys();
        if let Some(outcome) = self.probe(&mut keys, &identity)? {
            return Ok(outcome);
        }
        if self
            .terms
            .sent_at
            .is_some_and(|sent_at| identity.destination.may_have_forgotten(self.rings, sent_at))
        {
            return Ok(Outcome::Expired);
        }
        // Look before the insert, so that a claimer that finds a lease writes nothing. If it
        // inserted and deleted a row, other sessions would see a claim in progress until its
        // transaction ends, and the holder of the lease could not complete the message.
        let terms = self.terms;
        if let Some(outcome) = self.pending_outcome(&identity, |pending, identity| {
            pending.look(identity, terms.wait)
        })? {
            return Ok(outcome);
        }
        pause_point("claim: before insert");
        // Read the clock after the look-ups. The time must be later than that of an earlier claim
        // that idem_forget deleted, because effects are matched to their claim by its time.
        let mut claimed_at = pg::clock();
        for n in 0..self.written.len() {
            if let Some(outcome) = self.insert(n, &mut keys, &identity, &mut claimed_at)? {
                self.retract(n, &mut keys);
                return Ok(outcome);
            }
        }
        pause_point("claim: before second look");
        // Check the pending messages again after the claim is written, so that a later writer of a
        // pending message finds the claim.
        if let Some(outcome) = self.pending_outcome(&identity, |pending, identity| {
            pending.remove_unless_leased(identity, terms.wait)
        })? {
            self.retract(self.written.len(), &mut keys);
            return Ok(outcome);
        }
        own::add(&identity, claimed_at);
        Ok(Outcome::Claimed(Claimed {
            identity,
            rings: self.rings,
            claimed_at,
        }))
    }

    /// Looks for an earlier claim in every slice whose filter does not exclude it. Returns the
    /// outcome if there is one.
    fn probe(
        &mut self,
        keys: &mut [pg_sys::ScanKeyData],
        identity: &Identity,
    ) -> Result<Option<Outcome<'static>>> {
        let hash = self.hashes.of(identity);
        let outcome = look_again(|| {
            let sealed = self.probed_only.iter_mut();
            let sealed = sealed.filter_map(|slice| slice.lookup(hash));
            let written = self.written.iter_mut();
            let written = written.filter_map(|slice| slice.lookup(hash));
            let slices = sealed.chain(written);
            earlier_claim(slices, keys, identity, self.terms, &mut self.pending)
        })?;
        if outcome.is_none() && self.counts_look_ups {
            self.count_look_ups();
        }
        Ok(outcome)
    }

    /// Counts look-ups of a claim that is in no slice, for the view idem.filters. Each false
    /// positive is counted. Of the look-ups, only each `SAMPLE`-th is, because backends share the
    /// counters.
    fn count_look_ups(&self) {
        const SAMPLE: u32 = 64;
        thread_local! {
            static CLAIMS: Cell<u32> = const { Cell::new(0) };
        }
        CLAIMS.set((CLAIMS.get() + 1) % SAMPLE);
        let sealed = self
            .probed_only
            .iter()
            .map(|at| (at.slice.filter, at.is_read));
        let written = self.written.iter().filter(|at| !at.slice.is_repeated);
        let written = written.map(|at| (at.slice.hint, at.is_read));
        for (filter, is_read) in sealed.chain(written) {
            let Some(filter) = filter else {
                continue;
            };
            if is_read {
                filter.count_false_positive();
            }
            if CLAIMS.get() == 0 {
                filter.count_look_ups(u64::from(SAMPLE));
            }
        }
    }

    /// Inserts the claim into one of the written segments. Returns the outcome if another claimer
    /// has inserted the key since the look-up.
    fn insert(
        &mut self,
        n: usize,
        keys: &mut [pg_sys::ScanKeyData],
        identity: &Identity,
        claimed_at: &mut pg_sys::TimestampTz,
    ) -> Result<Option<Outcome<'static>>> {
        let written = &mut self.written[n];
        let slice = written.slice;
        let hash = self.hashes.of(identity);
        let is_first = slice
            .hint
            .zip(hash)
            .is_some_and(|(hint, hash)| hint.add(hash));
        pause_point("claim: after hint");
        let pending = &mut self.pending;
        let terms = self.terms;
        // If two ordinary inserts of one message lost, each claimer would wait for the deleted row
        // of the other. A claimer that does not wait must leave no row behind, because its
        // transaction continues without the claim. The completion of a lease does not wait either,
        // but it fails without the claim, so a rollback removes its row.
        let mut is_ordinary = (is_first || is_left_out("claim: first"))
            && (terms.wait || terms.holds_pending)
            && !pg::is_decoded();
        look_again(|| {
            let row = claim_row(identity, *claimed_at, slice.segment, terms.fingerprint);
            let is_inserted = match std::mem::take(&mut is_ordinary) {
                true => written.inserter.insert_ordinary(&row),
                false => written.inserter.insert(&row),
            };
            if is_inserted {
                return Some(Ok(None));
            }
            let lookup = written.in_segment();
            let earlier =
                look_again(|| earlier_claim([&mut *lookup], keys, identity, terms, pending));
            match earlier {
                Ok(None) => {
                    // The other claim may have been committed with effects and then deleted by
                    // idem_forget, so this claim needs a later time. Only in the first segment: the
                    // rows of a claim have the same time. In the second segment the time of this
                    // claim is earlier than that of the other one.
                    if n == 0 {
                        *claimed_at = pg::clock();
                    }
                    None
                }
                earlier => Some(earlier),
            }
        })
    }

    /// Checks the pending message of this claim. Returns the outcome if the message cannot be
    /// claimed, or fails with 55P03 if the claimer waits for other claimers and a lease protects
    /// the message.
    fn pending_outcome(
        &self,
        identity: &Identity,
        check: impl FnOnce(&PendingCheck, &Identity) -> Result<PendingState>,
    ) -> Result<Option<Outcome<'static>>> {
        let Some(pending) = &self.pending else {
            return Ok(None);
        };
        match check(pending, identity)? {
            PendingState::Clear => Ok(None),
            PendingState::Leased { remaining } if self.terms.wait => Err(Error::Leased {
                destination: identity.name.to_owned(),
                seconds: remaining as f64 / 1e6,
            }),
            PendingState::Leased { .. } | PendingState::InProgress => Ok(Some(Outcome::InProgress)),
        }
    }

    /// Deletes this claim from the first `count` written segments, because the claim failed after
    /// these inserts. A claim is in all written segments or in none.
    fn retract(&mut self, count: usize, keys: &mut [pg_sys::ScanKeyData]) {
        for written in &mut self.written[..count] {
            let lookup = written.in_segment();
            if lookup.find_mine(keys) {
                lookup.delete();
            }
        }
    }
}

/// Returns the outcome if the key is taken in one of the slices. If `terms.wait` is true, waits for
/// another transaction that is writing the key. Returns `None` after this wait, so that the caller
/// looks again.
fn earlier_claim<'l, 's: 'l>(
    slices: impl IntoIterator<Item = &'l mut Lookup<'s>>,
    keys: &mut [pg_sys::ScanKeyData],
    identity: &Identity,
    terms: Terms,
    pending: &mut Option<PendingCheck>,
) -> Option<Result<Option<Outcome<'static>>>> {
    match find_in(slices, keys) {
        FoundIn::Nothing => Some(Ok(None)),
        FoundIn::Row(row) => Some(taken(row, identity, terms).map(Some)),
        FoundIn::InProgress(_) if !terms.wait => Some(Ok(Some(Outcome::InProgress))),
        FoundIn::InProgress(writer) => {
            if let Some(pending) = pending {
                pending.unlock();
            }
            writer.wait();
            pause_point("claim: after wait");
            None
        }
    }
}

/// Returns the outcome of a claim after a row with its key was found.
fn taken(row: &Lookup, identity: &Identity, terms: Terms) -> Result<Outcome<'static>> {
    identity.check(row, column::ID)?;
    row.wait_for_flush();
    let handled_at = claimed_at(row);
    // SAFETY: the column is bytea; the copy is made before the next look-up.
    let fingerprint = unsafe {
        row.column(column::FINGERPRINT)
            .and_then(|d| Vec::<u8>::from_datum(d, false))
    };
    Ok(match (terms.fingerprint, fingerprint) {
        (Some(asked), Some(kept)) if asked != kept => Outcome::Mismatch { handled_at },
        _ => Outcome::Duplicate { handled_at },
    })
}
