//! Claims the same ids from several sessions concurrently, with plain transactions and without a
//! broker.
//!
//! The ids are computed from the time. Most claims use a new id, which other sessions claim at the
//! same time. Some claims use an id that is older than the retention of the ring. Every claim is
//! recorded with the monotonic clock before and after it, for the checker of the stress tests.

use std::{cell::RefCell, fs::File, io::Write, rc::Rc, time::Duration};

use anyhow::Result;
use rand::{Rng, RngExt};
use tokio_postgres::{Client, types::Type};

use super::sessions::{monotonic_us, repeat};
use crate::range::live::post::Post;

/// The destination of these claims, in a ring that rotates three times in a second.
pub const DESTINATION: &str = "range.claims";

/// The retention of that ring.
pub const RETENTION: Duration = Duration::from_secs(2);

/// The file with the attempts that were committed and acknowledged, one per line.
pub const COMMITTED: &str = "claims.committed";

const SESSIONS: usize = 6;

/// The time between two new ids, in microseconds.
const NEW_ID_EVERY_US: i64 = 30_000;

/// The time during which an id is used, in microseconds. It is longer than the retention, so that
/// some ids are claimed again.
const WINDOW_US: i64 = 12_000_000;

pub async fn run(post: &Post) -> Result<()> {
    let committed = File::options()
        .create(true)
        .append(true)
        .open(post.dir.join(COMMITTED))?;
    let committed = Rc::new(RefCell::new(committed));
    repeat(post, SESSIONS, async move |client: &mut Client, _| {
        let attempts = claim_some(client).await?;
        committed.borrow_mut().write_all(attempts.as_bytes())?;
        Ok(())
    })
    .await
}

/// Executes one transaction with several claims. Returns the attempts that were committed, one per
/// line.
async fn claim_some(client: &mut Client) -> Result<String> {
    let tx = client.transaction().await?;
    let mut attempts = String::new();
    for identity in draw()? {
        let before = monotonic_us()?;
        let claimed: bool = tx
            .query_typed_one(
                "SELECT idem_try_claim($1, $2)",
                &[
                    (&format!("c-{identity}"), Type::TEXT),
                    (&DESTINATION, Type::TEXT),
                ],
            )
            .await?
            .try_get(0)?;
        let after = monotonic_us()?;
        if claimed {
            let attempt = i64::from_ne_bytes(rand::rng().random());
            tx.execute_typed(
                "INSERT INTO claimed (attempt, identity, before_us, after_us)
                 VALUES ($1, $2, $3, $4)",
                &[
                    (&attempt, Type::INT8),
                    (&identity, Type::INT8),
                    (&before, Type::INT8),
                    (&after, Type::INT8),
                ],
            )
            .await?;
            attempts += &format!("{attempt}\n");
        }
        // This pause is needed so that the ring sometimes rotates between two claims of one
        // transaction.
        tokio::time::sleep(Duration::from_millis(rand::rng().random_range(5..40))).await;
    }
    tx.commit().await?;
    Ok(attempts)
}

/// Draws some ids, sorted: two transactions that acquire their locks in the same order do not
/// deadlock.
fn draw() -> Result<Vec<i64>> {
    let newest = monotonic_us()? / NEW_ID_EVERY_US;
    let mut dice = rand::rng();
    let mut ids: Vec<i64> = (0..3).map(|_| newest - age(&mut dice)).collect();
    ids.sort_unstable();
    ids.dedup();
    Ok(ids)
}

/// Draws the age of an id. Most ids are among the newest four, so that several sessions use the
/// same id.
fn age(dice: &mut impl Rng) -> i64 {
    let oldest = if dice.random_bool(0.7) {
        4
    } else {
        WINDOW_US / NEW_ID_EVERY_US
    };
    dice.random_range(0..oldest)
}
