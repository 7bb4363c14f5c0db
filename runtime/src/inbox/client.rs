//! The statements that a `DurableSource` executes. Each statement is short and uses its own
//! connection of the pool.

use std::time::Duration;

use deadpool_postgres::Pool;
use idem_client::inbox::{Received, next, next_wait};
use idem_client::{Destination, ErrorKind, MessageId, lease::Held};
use tokio::time::sleep;
use tokio_postgres::Client;

use crate::{
    Error,
    connection::{STATEMENT, on_connection, wait_at_server},
};

/// The largest `max_bytes` that `idem_next` accepts.
const LARGEST_BYTES: i64 = 1024 * 1024 * 1024;

#[derive(Debug)]
pub(super) struct InboxClient {
    pub(super) pool: Pool,
    pub(super) destination: Destination,
    pub(super) batch: i32,
    /// The largest number of bytes of fetched messages that wait for delivery.
    pub(super) max_bytes: usize,
    pub(super) lease: Duration,
    /// The interval between two fetches. `None` means that the source waits for messages on a
    /// connection.
    pub(super) look_every: Option<Duration>,
    /// Whether this inbox holds messages that matched no route when they were received.
    pub(super) is_unrouted: bool,
}

impl InboxClient {
    pub(super) async fn next(
        &self,
        at_most: i32,
        max_bytes: usize,
    ) -> Result<Vec<Received>, Error> {
        let max_bytes = i64::try_from(max_bytes)
            .unwrap_or(i64::MAX)
            .clamp(1, LARGEST_BYTES);
        on_connection(&self.pool, self.lease, async |client| {
            next(&**client, &self.destination, at_most, max_bytes, self.lease).await
        })
        .await
    }

    /// Waits until there may be a message to lease. When the future is dropped, its connection is
    /// closed, because the next user of the connection would have to wait for this reply.
    pub(super) async fn wait(&self) -> Result<bool, Error> {
        if let Some(look_every) = self.look_every {
            sleep(look_every).await;
            return Ok(false);
        }
        on_connection(&self.pool, STATEMENT, async |client| {
            next_wait(&**client, &self.destination, wait_at_server(&self.pool)).await
        })
        .await
    }

    /// Renews leases. Returns for each lease whether it is still held.
    ///
    /// A transaction that claims a message locks the row of the message until it commits. The
    /// renewal does not wait for this lock, because no other process gets the message in the
    /// meantime.
    pub(super) async fn extend(&self, leases: &[(i64, MessageId)]) -> Result<Vec<bool>, Error> {
        // All renewals share one time limit, because a lease that is not renewed within this time
        // has expired.
        on_connection(&self.pool, self.lease, async |client| {
            self.extend_on(&client, leases).await
        })
        .await
    }

    async fn extend_on(
        &self,
        client: &Client,
        leases: &[(i64, MessageId)],
    ) -> Result<Vec<bool>, Error> {
        let (to, seconds) = (self.destination.literal()?, self.lease.as_secs_f64());
        let mut held = Vec::with_capacity(leases.len());
        for (token, id) in leases {
            let id = id.literal()?;
            // A simple query runs all its statements in one transaction, which SET LOCAL needs.
            let sql = format!(
                "SET LOCAL lock_timeout = '50ms'; \
                 SELECT idem_extend({id}, {to}, {token}, make_interval(secs => {seconds}))"
            );
            held.push(
                match client.batch_execute(&sql).await.map_err(Error::from) {
                    Ok(()) => true,
                    Err(error) if error.kind() == ErrorKind::Conflict => true,
                    Err(error) if error.kind() == ErrorKind::NotClaimed => false,
                    Err(error) => return Err(error),
                },
            );
        }
        Ok(held)
    }

    /// Turns the lease of a processed message into a claim, and deletes the pending row. The
    /// receipt calls this function only if it knows of no claim of the message.
    pub(super) async fn complete(&self, held: &Held) -> Result<(), Error> {
        on_connection(&self.pool, self.lease, async |client| {
            held.complete(&**client, &[]).await.map(drop)
        })
        .await
    }

    /// Ends the lease of a message. With an error, the attempt counts as failed. Without an error,
    /// the attempt is not counted. Returns the delay until the next attempt, or `None` when the
    /// message is now a dead letter.
    pub(super) async fn release(
        &self,
        held: &Held,
        error: Option<&str>,
        is_final: bool,
    ) -> Result<Option<Duration>, Error> {
        on_connection(&self.pool, self.lease, async |client| match error {
            Some(error) => held.release(&**client, error, is_final).await,
            None => held.give_back(&**client).await.map(|()| None),
        })
        .await
    }
}
