//! Leases, for work that cannot share a transaction: the message is leased first, then processed,
//! then completed.
//!
//! A lease is committed *before* the work. The lease counts the attempt, so an attempt that crashes
//! the consumer is counted too. Only the clock of the server decides when the lease ends. The lease
//! has a fencing token: after the lease is lost, this token can neither extend the lease nor
//! complete the message. If a message is leased by one process and claimed in a transaction by
//! another process, only one of them succeeds.
//!
//! `Idem::process_leased` and `Consumer::handle_leased` of the crate `idem-runtime` do all of this
//! around a handler, and its `Keeper` renews a lease. The functions can also be used directly:
//!
//! ```no_run
//! use std::time::Duration;
//! use idem_client::{Destination, MessageId, lease::{Lease, acquire}};
//!
//! # async fn work(client: &mut tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
//! let (id, destination) = (MessageId::text("order-4711")?, Destination::new("shipping.book")?);
//! match acquire(client, &id, &destination, Duration::from_secs(30)).await? {
//!     Lease::Acquired(held) => {
//!         // ... the work, without a transaction ...
//!         let tx = client.transaction().await?;
//!         tx.execute("UPDATE parcel SET is_booked = true WHERE id = 4711", &[]).await?;
//!         held.complete(&tx, &[]).await?;
//!         idem_client::commit(tx).await?;
//!     }
//!     Lease::Duplicate | Lease::Dead => {}                                // acknowledge
//!     Lease::InProgress { retry_after } => println!("in {retry_after:?}"),
//!     Lease::Exhausted(held) => drop(held),                               // bury it
//!     other => return Err(format!("not processed: {other:?}").into()),    // redeliver
//! }
//! # Ok(()) }
//! ```

pub(crate) mod held;

use std::time::{Duration, Instant};

use tokio_postgres::types::Type;
use tracing::Instrument;

use self::held::seconds;
use crate::{Destination, Error, Executor, MessageId, span};

pub use held::Held;

/// The result of [`acquire`].
#[derive(Debug)]
#[non_exhaustive]
#[must_use = "only an acquired message may be worked on"]
pub enum Lease {
    /// The message is leased. Process it.
    Acquired(Held),
    /// The message was processed before.
    Duplicate,
    /// The message is leased by another process, or waits for its next attempt after a failure.
    InProgress {
        /// The remaining time of the lease or of the delay.
        retry_after: Duration,
    },
    /// The message is leased, but its attempts are used up. [Bury](Held::bury) it.
    Exhausted(Held),
    /// The message is a dead letter.
    Dead,
}

/// Leases a message for the time `lease`. 30 seconds are enough for most work, and [`Held::extend`]
/// renews the lease. The lease is effective once the transaction is committed.
///
/// This function does not wait for other transactions. The result reflects the current state in
/// every isolation level.
pub async fn acquire(
    executor: &impl Executor,
    id: &MessageId,
    destination: &Destination,
    lease: Duration,
) -> Result<Lease, Error> {
    let span = span::of_message("acquire", id, destination);
    async {
        // Read the clock before the server reads its clock, so that this process never assumes a
        // later end of the lease than the server.
        let asked_at = Instant::now();
        let row = executor
            .fetch_one(
                "SELECT outcome::text, token, attempt, \
                 extract(epoch FROM retry_after)::float8, last_error \
                 FROM idem_acquire($1, $2, make_interval(secs => $3))",
                &[
                    id.parameter(),
                    destination.parameter(),
                    (&lease.as_secs_f64(), Type::FLOAT8),
                ],
            )
            .await?;
        let outcome: &str = row.try_get(0)?;
        span.record("idem.outcome", outcome);
        let held = || -> Result<Held, Error> {
            let (token, attempt, last_error) = (row.try_get(1)?, row.try_get(2)?, row.try_get(4)?);
            Ok(Held::new(
                id,
                destination,
                token,
                attempt,
                last_error,
                lease,
                asked_at,
            ))
        };
        match outcome {
            "acquired" => Ok(Lease::Acquired(held()?)),
            "duplicate" => Ok(Lease::Duplicate),
            "in_progress" => Ok(Lease::InProgress {
                retry_after: seconds(row.try_get(3)?),
            }),
            "exhausted" => Ok(Lease::Exhausted(held()?)),
            "dead" => Ok(Lease::Dead),
            other => Err(Error::Unexpected(format!("outcome {other:?} of a lease"))),
        }
    }
    .instrument(span.clone())
    .await
}
