//! The checker: what the clients were told against what the business table holds.
//!
//! All times are the server's clock in microseconds, taken before and after a claim in one
//! statement: the claim was made between the two. Every judgement uses the end of that interval
//! which speaks for the accused, so what it reports is certain.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;

/// A row of the business table: somebody got `true` and committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handled {
    /// Which claim of which client; no two are equal.
    pub attempt: i64,
    /// The message.
    pub identity: i64,
    /// The clock before the claim.
    pub before: i64,
    /// The clock after the claim.
    pub after: i64,
}

/// What became of the transaction (or savepoint) of a claim, as far as the client knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The server has reported the commit.
    Committed,
    /// It was rolled back, or the connection was lost before the commit was sent.
    RolledBack,
    /// The connection was lost while the commit was under way: both is possible.
    Unknown,
}

/// One claim, as its client has seen it.
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    /// The claim with its times.
    pub claim: Handled,
    /// What the server answered.
    pub claimed: bool,
    /// What became of it.
    pub fate: Fate,
}

/// `idem_is_claimed` asked about a claim that was reported committed.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// The message.
    pub identity: i64,
    /// The clock before the claim.
    pub claimed_from: i64,
    /// The clock after the look.
    pub looked_until: i64,
    /// What the server answered.
    pub found: bool,
}

/// What the checker found. Empty lists are what has to be.
#[derive(Debug, Default)]
pub struct Verdict {
    /// Two committed claims of one message, closer together than the retention.
    pub doubled: Vec<(Handled, Handled)>,
    /// Reported committed, but not in the business table.
    pub lost: Vec<Handled>,
    /// Rolled back, but in the business table.
    pub risen: Vec<Handled>,
    /// Answered `false` although nobody had claimed the message.
    pub unfounded: Vec<Handled>,
    /// Reported committed, but not found within the retention.
    pub forgotten: Vec<Look>,
    /// Messages that were claimed again after the retention: the ring does forget.
    pub claimed_again: usize,
    /// Looks that came within the retention.
    pub telling_looks: usize,
}

impl Verdict {
    /// Nothing was found.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.doubled.is_empty()
            && self.lost.is_empty()
            && self.risen.is_empty()
            && self.unfounded.is_empty()
            && self.forgotten.is_empty()
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} claimed twice, {} lost, {} rolled back but there, {} duplicates of nothing, {} forgotten early ({} looks); {} claimed again after the retention",
            self.doubled.len(),
            self.lost.len(),
            self.risen.len(),
            self.unfounded.len(),
            self.forgotten.len(),
            self.telling_looks,
            self.claimed_again,
        )?;
        // One example says where to look.
        if let Some((first, second)) = self.doubled.first() {
            write!(f, "\n  twice: {first:?} and {second:?}")?;
        }
        if let Some(lost) = self.lost.first() {
            write!(f, "\n  lost: {lost:?}")?;
        }
        if let Some(risen) = self.risen.first() {
            write!(f, "\n  rolled back but there: {risen:?}")?;
        }
        if let Some(unfounded) = self.unfounded.first() {
            write!(f, "\n  duplicate of nothing: {unfounded:?}")?;
        }
        if let Some(forgotten) = self.forgotten.first() {
            write!(f, "\n  forgotten: {forgotten:?}")?;
        }
        Ok(())
    }
}

/// Judges a run. `retention` in microseconds.
#[must_use]
pub fn check(handled: &[Handled], answers: &[Answer], looks: &[Look], retention: i64) -> Verdict {
    let (doubled, claimed_again) = repeated(handled, retention);
    let there: HashSet<i64> = handled.iter().map(|h| h.attempt).collect();
    let mut first_claim: HashMap<i64, i64> = HashMap::new();
    for h in handled {
        let first = first_claim.entry(h.identity).or_insert(h.before);
        *first = (*first).min(h.before);
    }
    let mut verdict = Verdict {
        doubled,
        claimed_again,
        ..Verdict::default()
    };
    for answer in answers {
        let claim = answer.claim;
        match (answer.claimed, answer.fate) {
            (true, Fate::Committed) if !there.contains(&claim.attempt) => verdict.lost.push(claim),
            (true, Fate::RolledBack) if there.contains(&claim.attempt) => verdict.risen.push(claim),
            (false, _)
                if first_claim
                    .get(&claim.identity)
                    .is_none_or(|&first| first > claim.after) =>
            {
                verdict.unfounded.push(claim);
            }
            _ => {}
        }
    }
    for look in looks {
        if look.looked_until < look.claimed_from + retention {
            verdict.telling_looks += 1;
            if !look.found {
                verdict.forgotten.push(*look);
            }
        }
    }
    verdict
}

/// The claims of one message that are certainly closer together than the retention, and how many
/// are not.
#[must_use]
pub fn repeated(handled: &[Handled], retention: i64) -> (Vec<(Handled, Handled)>, usize) {
    let mut by_identity: BTreeMap<i64, Vec<Handled>> = BTreeMap::new();
    for h in handled {
        by_identity.entry(h.identity).or_default().push(*h);
    }
    let mut doubled = Vec::new();
    let mut apart = 0;
    for claims in by_identity.values_mut() {
        claims.sort_by_key(|h| h.before);
        for pair in claims.windows(2) {
            // Whoever began first is the first: if it was the other way round they are even closer.
            if pair[1].after - pair[0].before < retention {
                doubled.push((pair[0], pair[1]));
            } else {
                apart += 1;
            }
        }
    }
    (doubled, apart)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RETENTION: i64 = 1_000;

    fn handled(attempt: i64, identity: i64, before: i64) -> Handled {
        Handled {
            attempt,
            identity,
            before,
            after: before + 10,
        }
    }

    fn answer(claim: Handled, claimed: bool, fate: Fate) -> Answer {
        Answer {
            claim,
            claimed,
            fate,
        }
    }

    #[test]
    fn two_claims_within_the_retention_are_a_double() {
        let rows = [handled(1, 7, 0), handled(2, 7, 989), handled(3, 8, 5)];
        let verdict = check(&rows, &[], &[], RETENTION);
        assert_eq!(verdict.doubled, [(rows[0], rows[1])]);
    }

    #[test]
    fn two_claims_that_may_be_a_retention_apart_are_none() {
        let verdict = check(&[handled(1, 7, 0), handled(2, 7, 990)], &[], &[], RETENTION);
        assert!(verdict.is_clean());
        assert_eq!(verdict.claimed_again, 1);
    }

    #[test]
    fn a_reported_commit_without_its_row_is_lost_and_an_unknown_one_is_not() {
        let answers = [
            answer(handled(1, 7, 0), true, Fate::Committed),
            answer(handled(2, 8, 0), true, Fate::Unknown),
            answer(handled(3, 9, 0), true, Fate::RolledBack),
        ];
        assert_eq!(
            check(&[], &answers, &[], RETENTION).lost,
            [answers[0].claim]
        );
    }

    #[test]
    fn a_rolled_back_claim_with_a_row_has_risen() {
        let row = handled(1, 7, 0);
        let verdict = check(
            &[row],
            &[answer(row, true, Fate::RolledBack)],
            &[],
            RETENTION,
        );
        assert_eq!(verdict.risen, [row]);
    }

    #[test]
    fn a_duplicate_needs_a_claim_before_it() {
        let duplicate = answer(handled(2, 7, 100), false, Fate::RolledBack);
        assert_eq!(check(&[], &[duplicate], &[], RETENTION).unfounded.len(), 1);
        assert_eq!(
            check(&[handled(1, 7, 111)], &[duplicate], &[], RETENTION)
                .unfounded
                .len(),
            1
        );
        assert!(check(&[handled(1, 7, 110)], &[duplicate], &[], RETENTION).is_clean());
    }

    #[test]
    fn a_claim_is_forgotten_early_only_within_the_retention() {
        let look = |looked_until| Look {
            identity: 7,
            claimed_from: 0,
            looked_until,
            found: false,
        };
        let verdict = check(&[], &[], &[look(999), look(1_000)], RETENTION);
        assert_eq!((verdict.forgotten.len(), verdict.telling_looks), (1, 1));
    }
}
