//! Work that cannot share a transaction: it is leased first, then done, then completed.
//!
//! A lease is committed *before* the work. It counts the attempt, so a message that kills whoever
//! works on it is counted too, and it ends by the clock of the server alone. Its token fences: who
//! has lost the lease can neither extend nor complete it. A lease and a transactional claim of the
//! same message never both win.
//!
//! [`Idem::process_leased`](crate::Idem::process_leased) and
//! [`Consumer::handle_leased`](crate::Consumer::handle_leased) do all of this around a handler. The
//! calls by themselves:
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
//! }
//! # Ok(()) }
//! ```

mod held;
#[cfg(feature = "runtime")]
mod keeper;
#[cfg(feature = "runtime")]
mod work;

use std::time::{Duration, Instant};

use tokio_postgres::{GenericClient, types::Type};
use tracing::Instrument;

use crate::{Destination, Error, MessageId, span};

#[cfg(feature = "runtime")]
pub(crate) use held::COMPLETE;
pub use held::{Burial, Held};
#[cfg(feature = "runtime")]
pub use keeper::Keeper;
#[cfg(feature = "runtime")]
pub use work::{LeasedHandler, Work};

/// What became of a lease that was asked for.
#[derive(Debug)]
#[must_use = "only an acquired message may be worked on"]
pub enum Lease {
    /// Do the work.
    Acquired(Held),
    /// It is done.
    Duplicate,
    /// Somebody is at it, or it rests after a failure.
    InProgress {
        /// What is left of the lease or of the rest.
        retry_after: Duration,
    },
    /// Leased, but its attempts are used up: [bury](Held::bury) it.
    Exhausted(Held),
    /// It is among the dead letters.
    Dead,
}

/// Leases a message for so long: 30 seconds do for most work, and [`Held::keep`] renews it. It
/// counts once it is committed.
///
/// Waits for nobody. What it answers is as of now, in every isolation level.
pub async fn acquire(
    client: &impl GenericClient,
    id: &MessageId,
    destination: &Destination,
    lease: Duration,
) -> Result<Lease, Error> {
    let span = span::of_message("acquire", id, destination);
    async {
        // Before the server's clock is read: it never ends later than this side believes.
        let asked_at = Instant::now();
        let row = client
            .query_typed_one(
                "SELECT outcome::text, token, attempt, extract(epoch FROM retry_after)::float8, last_error \
                 FROM idem_acquire($1, $2, make_interval(secs => $3))",
                &[id.parameter(), destination.parameter(), (&lease.as_secs_f64(), Type::FLOAT8)],
            )
            .await?;
        let outcome: &str = row.try_get(0)?;
        span.record("idem.outcome", outcome);
        let held = || -> Result<Held, Error> {
            let (token, attempt, last_error) = (row.try_get(1)?, row.try_get(2)?, row.try_get(4)?);
            Ok(Held::new(id, destination, token, attempt, last_error, lease, asked_at))
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

/// A time to wait, as the server tells it.
fn seconds(seconds: Option<f64>) -> Duration {
    Duration::try_from_secs_f64(seconds.unwrap_or_default()).unwrap_or_default()
}
