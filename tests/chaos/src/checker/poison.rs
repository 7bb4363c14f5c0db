//! Checks poison messages: each has exactly one dead letter, with the right error.

use std::collections::{HashMap, HashSet};

use anyhow::Result;
use tokio_postgres::Client;
use uuid::Uuid;

use super::violation::{Errors, Violation};
use crate::site::SentPoison;
use idem_demo::range::verdict::times;

/// The payload and the last error of a dead letter.
type Letter = (Vec<u8>, String);

pub(super) async fn check(client: &Client, sent: &[SentPoison], errors: &mut Errors) -> Result<()> {
    let rows = client
        .query(
            "SELECT payload, coalesce(last_error, '') FROM idem.dead_letters",
            &[],
        )
        .await?;
    let letters: Vec<Letter> = rows
        .iter()
        .map(|row| anyhow::Ok((row.try_get(0)?, row.try_get(1)?)))
        .collect::<Result<_>>()?;
    let mended = times(
        client,
        "SELECT poison, count(*) FROM mended GROUP BY poison",
    )
    .await?;
    judge(sent, &letters, &mended, errors)?;
    let parked: i64 = client
        .query_one(
            "SELECT coalesce(sum(parked), 0)::bigint FROM idem.relays",
            &[],
        )
        .await?
        .try_get(0)?;
    errors.insert(Violation::Parked, u64::try_from(parked)?);
    Ok(())
}

fn judge(
    sent: &[SentPoison],
    letters: &[Letter],
    mended: &HashMap<Uuid, i64>,
    errors: &mut Errors,
) -> Result<()> {
    let (mut not_once, mut other_reason, mut not_mended) = (0, 0, 0);
    let mut known = HashSet::new();
    for poison in sent {
        let payload = poison.poison.payload(poison.id)?;
        let about: Vec<_> = letters.iter().filter(|(of, _)| *of == payload).collect();
        known.insert(payload);
        if poison.repaired {
            let is_mended = about.is_empty() && mended.get(&poison.id) == Some(&1);
            not_mended += u64::from(!is_mended);
            continue;
        }
        not_once += u64::from(about.len() != 1);
        let reason = poison.poison.reason();
        for (_, error) in about.iter().filter(|(_, error)| !error.contains(reason)) {
            eprintln!("wrong error in a dead letter: {error:?} does not contain {reason:?}");
        }
        other_reason += about
            .iter()
            .filter(|(_, error)| !error.contains(reason))
            .count() as u64;
    }
    let given_up = letters
        .iter()
        .filter(|(payload, _)| !known.contains(payload));
    for (payload, error) in given_up.clone().take(3) {
        eprintln!(
            "dead letter of a message that is not poison: {}: {error}",
            String::from_utf8_lossy(payload)
        );
    }
    errors.extend([
        (Violation::PoisonNotOnce, not_once),
        (Violation::OtherReason, other_reason),
        (Violation::MendedNotOnce, not_mended),
        (Violation::GivenUp, given_up.count() as u64),
    ]);
    Ok(())
}
