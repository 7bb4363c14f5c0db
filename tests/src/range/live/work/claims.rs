//! Claims the same ids from several sessions at the same time, with plain transactions and no
//! broker.
//!
//! The ids are those of a window of time, so that most are claimed while another session claims
//! them, and some after their ring has forgotten them. Every claim is noted with the monotonic
//! clock before and after it, for the checker of the stress tests.

use std::{cell::RefCell, fs::File, io::Write, rc::Rc, time::Duration};

use anyhow::Result;
use rand::{Rng, RngExt};
use tokio_postgres::{Client, types::Type};

use super::{
    Post,
    sessions::{monotonic_us, repeat},
};

/// The ids that are claimed here, in a ring that turns every second.
pub const DESTINATION: &str = "range.claims";

/// How long that ring remembers them.
pub const RETENTION: Duration = Duration::from_secs(2);

/// Where the attempts are whose commits were reported, one a line.
pub const COMMITTED: &str = "claims.committed";

const SESSIONS: usize = 6;

/// A new id comes in so many microseconds.
const NEW_ID_EVERY_US: i64 = 30_000;

/// Ids are claimed for so long: beyond the retention, so that some are claimed again.
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

/// One transaction with several claims. Returns the attempts that were committed.
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
                "INSERT INTO claimed (attempt, identity, before_us, after_us) VALUES ($1, $2, $3, $4)",
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
        // The ring may turn between two claims of one transaction.
        tokio::time::sleep(Duration::from_millis(rand::rng().random_range(5..40))).await;
    }
    tx.commit().await?;
    Ok(attempts)
}

/// Some ids in their order: two transactions that take their locks in one order do not deadlock.
fn draw() -> Result<Vec<i64>> {
    let newest = monotonic_us()? / NEW_ID_EVERY_US;
    let mut dice = rand::rng();
    let mut ids: Vec<i64> = (0..3).map(|_| newest - age(&mut dice)).collect();
    ids.sort_unstable();
    ids.dedup();
    Ok(ids)
}

/// Most of the time one of the newest ids, so that sessions meet.
fn age(dice: &mut impl Rng) -> i64 {
    let oldest = if dice.random_bool(0.7) {
        4
    } else {
        WINDOW_US / NEW_ID_EVERY_US
    };
    dice.random_range(0..oldest)
}
