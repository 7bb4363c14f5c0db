//! The checker: it compares the results that the clients received with the content of the business
//! table.
//!
//! All times are the server's clock in microseconds, taken before and after a claim in one
//! statement, so that the claim was made between these two times. Every check uses the one of these
//! two times that favours the system under test. A reported violation is therefore certain.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;

/// A row of the business table: a claim that returned `true` and committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handled {
    /// The number of the claim. It is unique among the claims of all clients.
    pub attempt: i64,
    /// The message.
    pub identity: i64,
    /// The server's clock before the claim.
    pub before: i64,
    /// The server's clock after the claim.
    pub after: i64,
}

/// How the transaction (or savepoint) of a claim ended, as the client observed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The server reported the commit.
    Committed,
    /// The transaction was rolled back, or the connection was lost before the commit was sent.
    RolledBack,
    /// The connection was lost during the commit: both outcomes are possible.
    Unknown,
}

/// One claim, as its client observed it.
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    /// The claim with its times.
    pub claim: Handled,
    /// The result of the claim function.
    pub claimed: bool,
    /// How the transaction of the claim ended.
    pub fate: Fate,
}

/// One look-up with `idem_is_claimed` of a claim that was reported committed.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// The message.
    pub identity: i64,
    /// The server's clock before the claim.
    pub claimed_from: i64,
    /// The server's clock after the look-up.
    pub looked_until: i64,
    /// The result of the look-up.
    pub found: bool,
}

/// The result of the checker. Every list must be empty.
#[derive(Debug, Default)]
pub struct Verdict {
    /// Two committed claims of one message, closer together than the retention.
    pub doubled: Vec<(Handled, Handled)>,
    /// Claims that were reported committed, without a row in the business table.
    pub lost: Vec<Handled>,
    /// Claims that were rolled back, with a row in the business table.
    pub risen: Vec<Handled>,
    /// Claims that returned `false` although no claim of the message had been made.
    pub unfounded: Vec<Handled>,
    /// Look-ups that did not find a claim within the retention although its commit was reported.
    pub forgotten: Vec<Look>,
    /// The number of claims that repeat an older claim after its retention. They prove that the
    /// ring forgets claims.
    pub claimed_again: usize,
    /// The number of look-ups within the retention.
    pub telling_looks: usize,
}

impl Verdict {
    /// Returns whether no violation was found.
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
            "{} claimed twice, {} lost, {} rolled back but present, \
             {} duplicates without a claim, {} forgotten early ({} look-ups); \
             {} claimed again after the retention",
            self.doubled.len(),
            self.lost.len(),
            self.risen.len(),
            self.unfounded.len(),
            self.forgotten.len(),
            self.telling_looks,
            self.claimed_again,
        )?;
        // One example of each kind of violation is printed.
        if let Some((first, second)) = self.doubled.first() {
            write!(f, "\n  twice: {first:?} and {second:?}")?;
        }
        if let Some(lost) = self.lost.first() {
            write!(f, "\n  lost: {lost:?}")?;
        }
        if let Some(risen) = self.risen.first() {
            write!(f, "\n  rolled back but present: {risen:?}")?;
        }
        if let Some(unfounded) = self.unfounded.first() {
            write!(f, "\n  duplicate without a claim: {unfounded:?}")?;
        }
        if let Some(forgotten) = self.forgotten.first() {
            write!(f, "\n  forgotten: {forgotten:?}")?;
        }
        Ok(())
    }
}

/// Checks a run. `retention` is in microseconds.
#[must_use]
pub fn check(handled: &[Handled], results: &[Answer], looks: &[Look], retention: i64) -> Verdict {
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
    for result in results {
        let claim = result.claim;
        match (result.claimed, result.fate) {
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

/// Returns the pairs of claims of one message that are certainly closer together than the
/// retention, and the number of pairs that may be further apart.
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
            // If the second claim was in fact made first, the two claims are even closer together.
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

    fn result(claim: Handled, claimed: bool, fate: Fate) -> Answer {
        Answer {
            claim,
            claimed,
            fate,
        }
    }

    #[test]
    fn claims_within_the_retention_are_a_double() {
        let rows = [handled(1, 7, 0), handled(2, 7, 989), handled(3, 8, 5)];
        let verdict = check(&rows, &[], &[], RETENTION);
        assert_eq!(verdict.doubled, [(rows[0], rows[1])]);
    }

    #[test]
    fn claims_that_may_be_a_retention_apart_are_no_double() {
        let verdict = check(&[handled(1, 7, 0), handled(2, 7, 990)], &[], &[], RETENTION);
        assert!(verdict.is_clean());
        assert_eq!(verdict.claimed_again, 1);
    }

    #[test]
    fn only_a_reported_commit_without_its_row_is_lost() {
        let results = [
            result(handled(1, 7, 0), true, Fate::Committed),
            result(handled(2, 8, 0), true, Fate::Unknown),
            result(handled(3, 9, 0), true, Fate::RolledBack),
        ];
        assert_eq!(
            check(&[], &results, &[], RETENTION).lost,
            [results[0].claim]
        );
    }

    #[test]
    fn rolled_back_claim_with_a_row_is_reported() {
        let row = handled(1, 7, 0);
        let verdict = check(
            &[row],
            &[result(row, true, Fate::RolledBack)],
            &[],
            RETENTION,
        );
        assert_eq!(verdict.risen, [row]);
    }

    #[test]
    fn duplicate_without_an_earlier_claim_is_reported() {
        let duplicate = result(handled(2, 7, 100), false, Fate::RolledBack);
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
    fn missing_claim_is_reported_only_within_the_retention() {
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
