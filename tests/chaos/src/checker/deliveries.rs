//! Checks commands and facts: each command was handled once, and all copies of its fact are equal.

use std::collections::HashSet;

use anyhow::Result;
use tokio_postgres::{Client, types::Type};
use uuid::Uuid;

use super::violation::{Errors, Violation};
use crate::config::RETENTION;
use idem_demo::range::{
    live::{self, LiveVerdict, post::TARGETS},
    message::FireAt,
    traffic::Traffic,
    verdict,
};

/// Returns the number of commands that were handled again within the retention (`$1`), of commands
/// and hits that were repeated later, and of hits that were counted again within the retention.
/// Also returns the shortest and the longest time between two executions of an id.
const GAPS: &str = "
    SELECT count(*) FILTER (WHERE NOT is_hit AND gap < $1),
           count(*) FILTER (WHERE gap >= $1),
           count(*) FILTER (WHERE is_hit AND gap < $1),
           coalesce(min(gap), 0),
           coalesce(max(gap), 0)
    FROM (SELECT false AS is_hit,
                 at_s - lag(at_s) OVER (PARTITION BY attempt ORDER BY at_s) AS gap
            FROM shot
          UNION ALL
          SELECT false, at_s - lag(at_s) OVER (PARTITION BY move ORDER BY at_s) FROM moved
          UNION ALL
          SELECT true, at_s - lag(at_s) OVER (PARTITION BY attempt ORDER BY at_s) FROM counted) g
    WHERE gap IS NOT NULL";

pub(super) async fn check(client: &Client, traffic: &Traffic, errors: &mut Errors) -> Result<()> {
    // The recorded effects of an attempt are checked only if its claim is still found. The claims
    // are read after the effects, because a ring may rotate in between: a claim that exists now
    // also existed when its effects were read.
    let recorded = verdict::recorded(client, TARGETS, &traffic.attempts).await?;
    let mut retained = traffic.attempts.clone();
    let claimed = claimed(client, &retained).await?;
    retained.retain(|shot| claimed.contains(&shot.attempt));
    let (found, _) = live::verdict::judge(client, traffic, &recorded, &retained).await?;
    let gaps = client
        .query_typed_one(GAPS, &[(&RETENTION.as_secs_f64(), Type::FLOAT8)])
        .await?;
    let gap = |n| {
        gaps.try_get::<_, i64>(n)
            .map(|count| u64::try_from(count).unwrap_or(u64::MAX))
    };
    let (shortest, longest): (f64, f64) = (gaps.try_get(3)?, gaps.try_get(4)?);
    if longest > 0.0 {
        eprintln!("repeated effects: {shortest:.1} to {longest:.1} s after the previous one");
    }
    let two_claims: i64 = client
        .query_one(
            "SELECT count(*)
               FROM (SELECT FROM idem.inbox
                      WHERE destination IN ('range.targets', 'range.board', 'range.letters')
                      GROUP BY destination, id HAVING count(*) > 1) twice",
            &[],
        )
        .await?
        .try_get(0)?;
    let LiveVerdict { range, .. } = found;
    errors.extend([
        (Violation::Lost, range.lost_messages as u64),
        (Violation::HandledTwice, gap(0)?),
        (Violation::Late, gap(1)?),
        (Violation::Torn, range.torn_attempts as u64),
        (Violation::Contradiction, range.contradictions as u64),
        (Violation::OtherFact, range.unequal_duplicates as u64),
        (Violation::NotOneEffect, found.not_one_fact as u64),
        (Violation::MoveNotOnce, found.moves_not_once as u64),
        (Violation::HitAgain, gap(2)?),
        (Violation::WrongBoard, range.wrong_hit_counts as u64),
        (Violation::TwoClaims, u64::try_from(two_claims)?),
    ]);
    Ok(())
}

/// Returns the attempts whose claim is still found.
async fn claimed(client: &Client, attempts: &[FireAt]) -> Result<HashSet<Uuid>> {
    let attempts: Vec<Uuid> = attempts.iter().map(|shot| shot.attempt).collect();
    let rows = client
        .query_typed(
            "SELECT attempt FROM unnest($1) AS attempt WHERE idem_is_claimed(attempt, $2)",
            &[(&attempts, Type::UUID_ARRAY), (&TARGETS, Type::TEXT)],
        )
        .await?;
    rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
}
