//! Checks the claims and leases of the clients without a broker, and the letters and steps in the
//! log of the broker.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use anyhow::Result;
use tokio_postgres::Client;
use uuid::Uuid;

use super::violation::{Errors, Violation};
use idem_demo::range::live::{
    place::{LETTERS, Logged},
    work::{
        claims::{COMMITTED, RETENTION},
        letters::Letter,
        steps::Step,
    },
};
use idem_stress::checker::{Handled, repeated};

/// Checks the concurrent claims of the same ids: no id may be claimed twice within the retention,
/// and no acknowledged commit may be lost.
pub(super) async fn claims(client: &Client, dir: &Path, errors: &mut Errors) -> Result<()> {
    let rows = client
        .query(
            "SELECT attempt, identity, before_us, after_us FROM claimed",
            &[],
        )
        .await?;
    let handled: Vec<Handled> = rows
        .iter()
        .map(|row| {
            anyhow::Ok(Handled {
                attempt: row.try_get(0)?,
                identity: row.try_get(1)?,
                before: row.try_get(2)?,
                after: row.try_get(3)?,
            })
        })
        .collect::<Result<_>>()?;
    let (doubled, _) = repeated(&handled, i64::try_from(RETENTION.as_micros())?);
    if let Some((first, second)) = doubled.first() {
        eprintln!("claimed twice: {first:?} and {second:?}");
    }
    let committed = match fs::read_to_string(dir.join(COMMITTED)) {
        Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
        text => text?,
    };
    errors.extend([
        (Violation::ClaimedTwice, doubled.len() as u64),
        (Violation::CommitLost, lost(&committed, &handled)),
    ]);
    Ok(())
}

/// Returns the number of attempts in the lines of `committed` that have no row in `handled`. The
/// last line is ignored if it is incomplete, because a kill may have interrupted the write.
fn lost(committed: &str, handled: &[Handled]) -> u64 {
    let there: HashSet<i64> = handled.iter().map(|row| row.attempt).collect();
    let whole = committed.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let attempts = whole.lines().filter_map(|line| line.parse().ok());
    attempts
        .filter(|attempt: &i64| !there.contains(attempt))
        .count() as u64
}

/// Counts the completions that began after another session had acquired the lease, so that their
/// token was no longer valid, and the ids that were completed twice.
pub(super) async fn leases(client: &Client, errors: &mut Errors) -> Result<()> {
    let row = client
        .query_one(
            "SELECT (SELECT count(*) FROM completed c WHERE EXISTS (SELECT FROM leased l
                        WHERE l.identity = c.identity AND l.token > c.token
                          AND l.told_us < c.asked_us)),
                    (SELECT count(*) - count(DISTINCT identity) FROM completed)",
            &[],
        )
        .await?;
    errors.extend([
        (
            Violation::LostToken,
            u64::try_from(row.try_get::<_, i64>(0)?)?,
        ),
        (
            Violation::CompletedTwice,
            u64::try_from(row.try_get::<_, i64>(1)?)?,
        ),
    ]);
    Ok(())
}

/// Checks the log of the broker: it must have one letter for each hit, and every committed step.
/// The steps of a key must be in order.
pub(super) async fn log(logged: &[Logged], client: &Client, errors: &mut Errors) -> Result<()> {
    let rows = client
        .query("SELECT DISTINCT attempt FROM heard WHERE hit", &[])
        .await?;
    let hits: Vec<Uuid> = rows
        .iter()
        .map(|row| row.try_get(0))
        .collect::<Result<_, _>>()?;
    let rows = client.query("SELECT key, n FROM step", &[]).await?;
    let last: BTreeMap<i32, i64> = rows
        .iter()
        .map(|row| anyhow::Ok((row.try_get(0)?, row.try_get(1)?)))
        .collect::<Result<_>>()?;
    // Each execution of the handler puts its own execution id into its letter. Letters with the
    // same message id and execution id are one letter that a relay has published twice, which is no
    // error. Two executions can also use the same message id, so the message id alone is not
    // enough.
    let (mut letters, mut steps) = (HashMap::<Uuid, HashSet<(&str, Uuid)>>::new(), Vec::new());
    for Logged {
        topic,
        message_id,
        payload,
    } in logged
    {
        if topic == LETTERS {
            let Letter { attempt, execution } = serde_json::from_slice(payload)?;
            letters
                .entry(attempt)
                .or_default()
                .insert((message_id, execution));
        } else {
            steps.push(serde_json::from_slice::<Step>(payload)?);
        }
    }
    let (lost, disordered) = order(&steps, &last);
    let unwritten = hits.iter().filter(|hit| !letters.contains_key(hit));
    for hit in unwritten.clone().take(3) {
        eprintln!("a hit without a letter: attempt {hit}");
    }
    errors.extend([
        (Violation::LetterLost, unwritten.count() as u64),
        (
            Violation::LetterTwice,
            letters.values().filter(|traces| traces.len() > 1).count() as u64,
        ),
        (Violation::StepLost, lost),
        (Violation::StepOutOfOrder, disordered),
    ]);
    Ok(())
}

/// Returns the number of steps that were never published, and the number of steps that were first
/// published after a later step of their key. `last` is the last committed step of each key. A step
/// that a relay publishes again is no error.
fn order(steps: &[Step], last: &BTreeMap<i32, i64>) -> (u64, u64) {
    let mut seen: BTreeMap<i32, HashSet<i64>> = BTreeMap::new();
    let mut highest: BTreeMap<i32, i64> = BTreeMap::new();
    let mut disordered = 0;
    for Step { key, n } in steps {
        if seen.entry(*key).or_default().insert(*n) {
            let highest = highest.entry(*key).or_default();
            disordered += u64::from(*n < *highest);
            *highest = (*highest).max(*n);
        }
    }
    let published = |key: &i32, n: i64| seen.get(key).is_some_and(|seen| seen.contains(&n));
    let lost =
        |(key, last): (&i32, &i64)| (1..=*last).filter(|n| !published(key, *n)).count() as u64;
    (last.iter().map(lost).sum(), disordered)
}
