//! Functions for administration, for the tools of an operator. [`grant`] gives a role the right to
//! use these functions.

use std::{cmp::Reverse, str::FromStr, time::Duration};

use tokio_postgres::{Client, types::Type};
use tracing::Instrument;

use crate::{Destination, Error, Executor, MessageId, Row, executor::value, span};

/// Forgets the claim of a message and its external calls, so that the message can be processed
/// again.
///
/// Returns whether the message was claimed.
///
/// For manual use; no consumer needs this function. After this function,
/// [`effects`](crate::effects) no longer returns the effects of the message. Effects that were
/// published stay published.
pub async fn forget(
    executor: &impl Executor,
    id: &MessageId,
    destination: &Destination,
) -> Result<bool, Error> {
    let sql = "SELECT idem_forget($1, $2)";
    value(executor, sql, &[id.parameter(), destination.parameter()])
        .instrument(span::of_message("forget", id, destination))
        .await
}

/// Writes the recorded effects of a message to the outbox again, with the same message ids. Returns
/// the number of effects.
pub async fn replay_effects(
    executor: &impl Executor,
    id: &MessageId,
    destination: &Destination,
) -> Result<i32, Error> {
    let sql = "SELECT idem_replay_effects($1, $2)";
    value(executor, sql, &[id.parameter(), destination.parameter()])
        .instrument(span::of_message("replay_effects", id, destination))
        .await
}

/// Sets the retention of a destination: its claims are found for at least this long.
///
/// The destination moves to the first ring with a sufficient retention. Earlier claims are still
/// found.
///
/// Inside a transaction, commit immediately after this function: no claim can be made until the
/// commit. Waits at most 2 seconds for running claims, and then fails with
/// [`ErrorKind::Conflict`](crate::ErrorKind::Conflict); retry in this case. Fails with
/// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if `retention` is zero or longer than the
/// retention of the longest ring.
pub async fn configure(
    executor: &impl Executor,
    destination: &Destination,
    retention: Duration,
) -> Result<(), Error> {
    executor
        .fetch_all(
            "SELECT idem_configure($1, make_interval(secs => $2))",
            &[
                destination.parameter(),
                (&retention.as_secs_f64(), Type::FLOAT8),
            ],
        )
        .await?;
    Ok(())
}

/// What makes two messages of a database the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MessageIdentity {
    /// The id and the destination: the default.
    IdAndDestination,
    /// The id. The first claim of an id counts for all destinations.
    Id,
}

impl MessageIdentity {
    /// Returns the name of the identity.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::IdAndDestination => "id_and_destination",
            Self::Id => "id",
        }
    }
}

/// Sets what makes two messages of the database the same.
///
/// Blocks new claims until the end of its transaction, so commit at once. Fails with SQLSTATE 55000
/// while the database has a claim, an external call, a message or a dead letter.
pub async fn set_message_identity(
    executor: &impl Executor,
    identity: MessageIdentity,
) -> Result<(), Error> {
    executor
        .fetch_all(
            "SELECT idem_set_message_identity($1)",
            &[(&identity.as_str(), Type::TEXT)],
        )
        .await?;
    Ok(())
}

/// A ring: a set of slices with one retention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Ring {
    /// Retention of 1 hour by default.
    Short,
    /// Retention of 7 days by default. A new destination uses this ring.
    Standard,
    /// Retention of 30 days by default.
    Long,
}

impl Ring {
    /// Returns the name of the ring.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Short => "short",
            Self::Standard => "standard",
            Self::Long => "long",
        }
    }
}

/// Changes the retention of a ring, for all destinations in it: 100 milliseconds to 10 years.
///
/// Fails with [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if the retentions of the rings
/// would not be in ascending order, or if a destination in the ring requires a longer retention.
pub async fn set_retention(
    executor: &impl Executor,
    ring: Ring,
    retention: Duration,
) -> Result<(), Error> {
    executor
        .fetch_all(
            "SELECT idem_set_retention($1, make_interval(secs => $2))",
            &[
                (&ring.as_str(), Type::TEXT),
                (&retention.as_secs_f64(), Type::FLOAT8),
            ],
        )
        .await?;
    Ok(())
}

/// Removes a destination that is no longer in use. Returns false if no destination has this name.
///
/// Fails with SQLSTATE 55000 while a claim, an effect, a message or a dead letter refers to the
/// destination.
pub async fn remove_destination(
    executor: &impl Executor,
    destination: &Destination,
) -> Result<bool, Error> {
    let sql = "SELECT idem_remove_destination($1)";
    value(executor, sql, &[destination.parameter()]).await
}

/// Ends the restore of a dump, when `pg_restore` has ended without an error. A restore in one
/// transaction needs no such call.
///
/// Fails with SQLSTATE 55000 while the restore is not complete, and with 55P03 while another
/// session writes to a table of idem.
pub async fn finish_restore(executor: &impl Executor) -> Result<(), Error> {
    let sql = "SELECT idem_finish_restore()";
    executor.fetch_one(sql, &[]).await.map(drop)
}

/// Makes this database another installation, for example a clone that becomes a test system.
/// Message ids of effects and idempotency keys that are derived from now on differ from those of
/// the original.
///
/// Fails with SQLSTATE 55000 while the result of an external call is not known, and with 55P03 if
/// transactions with claims run for more than 2 seconds.
pub async fn new_installation(executor: &impl Executor) -> Result<(), Error> {
    let sql = "SELECT idem_new_installation()";
    executor.fetch_one(sql, &[]).await.map(drop)
}

/// The purpose of a database role.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RoleKind {
    /// Claims messages, records effects and sends messages.
    Consumer,
    /// Reads batches of effects and acknowledges them.
    Relay,
    /// Reads health and the views, except the dead letters.
    Monitor,
    /// Stores messages in the durable inbox, and nothing else.
    Receiver,
    /// Reads health and the views of messages. Requeues, forwards and discards dead letters, and
    /// unparks and discards parked effects.
    Operator,
    /// Changes the configuration, forgets claims, creates and repairs relays.
    Admin,
}

impl RoleKind {
    /// Returns the name of the kind.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Consumer => "consumer",
            Self::Relay => "relay",
            Self::Monitor => "monitor",
            Self::Receiver => "receiver",
            Self::Operator => "operator",
            Self::Admin => "admin",
        }
    }
}

/// Grants a role the privileges of this kind: EXECUTE on functions and SELECT on views. No kind has
/// privileges on tables.
///
/// `role` is the unquoted name, which can contain any characters. Fails with 42704 if the role does
/// not exist.
pub async fn grant(executor: &impl Executor, role: &str, kind: RoleKind) -> Result<(), Error> {
    executor
        .fetch_all(
            "SELECT idem_grant($1, $2)",
            &[(&role, Type::TEXT), (&kind.as_str(), Type::TEXT)],
        )
        .await?;
    Ok(())
}

/// Revokes the privileges that [`grant`] granted for this kind.
///
/// If the role has another kind too, the privileges that the other kind needs stay granted.
///
/// `role` is the unquoted name. Does nothing if the role was not granted the kind. Fails with 42704
/// if the role does not exist, and with 25000 in a transaction that is not READ COMMITTED.
pub async fn revoke(executor: &impl Executor, role: &str, kind: RoleKind) -> Result<(), Error> {
    executor
        .fetch_all(
            "SELECT idem_revoke($1, $2)",
            &[(&role, Type::TEXT), (&kind.as_str(), Type::TEXT)],
        )
        .await?;
    Ok(())
}

/// Runs one maintenance pass: rotates the rings that are due and empties slices.
///
/// Use this for a database without the maintenance worker.
///
/// This function takes a client and not an [`Executor`], because it commits after each step: in a
/// transaction it would fail. A pooled connection can be borrowed as a client: `&connection` of
/// `deadpool-postgres`, `&*connection` of `bb8`.
pub async fn maintain(client: &Client) -> Result<(), Error> {
    Ok(client.batch_execute("CALL idem_maintain()").await?)
}

/// The result of one health check.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Check {
    /// The name of the check.
    pub name: String,
    /// The status.
    pub status: Status,
    /// What is wrong, and how to correct it.
    pub detail: String,
}

impl TryFrom<&Row> for Check {
    type Error = Error;

    fn try_from(row: &Row) -> Result<Self, Error> {
        Ok(Self {
            name: row.try_get(0)?,
            status: row.try_get::<_, &str>(1)?.parse()?,
            detail: row.try_get(2)?,
        })
    }
}

/// The status of a [`Check`]. A worse status is greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Status {
    /// No action is needed.
    Ok,
    /// Action is needed today.
    Warning,
    /// Action is needed now.
    Critical,
}

impl FromStr for Status {
    type Err = Error;

    fn from_str(status: &str) -> Result<Self, Error> {
        match status {
            "ok" => Ok(Self::Ok),
            "warning" => Ok(Self::Warning),
            "critical" => Ok(Self::Critical),
            other => Err(Error::Unexpected(format!("status {other:?}"))),
        }
    }
}

/// Checks the worker, the rings and the relays. Returns the worst status first. Works on a standby.
pub async fn health(executor: &impl Executor) -> Result<Vec<Check>, Error> {
    let rows = executor
        .fetch_all("SELECT check_name, status, detail FROM idem_health()", &[])
        .await?;
    let mut checks = rows
        .iter()
        .map(Check::try_from)
        .collect::<Result<Vec<_>, Error>>()?;
    checks.sort_by_key(|check| Reverse(check.status));
    Ok(checks)
}

/// A session, a prepared transaction or a relay that a rotation waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RotationBlocker {
    /// The ring that cannot rotate.
    pub ring: String,
    /// The process id of the backend of the session.
    pub pid: Option<i32>,
    /// The `application_name` of the session.
    pub application_name: Option<String>,
    /// The name of the prepared transaction.
    pub gid: Option<String>,
    /// The step that the rotation cannot do until this blocker has ended.
    pub blocks: String,
}

impl TryFrom<&Row> for RotationBlocker {
    type Error = Error;

    fn try_from(row: &Row) -> Result<Self, Error> {
        Ok(Self {
            ring: row.try_get(0)?,
            pid: row.try_get(1)?,
            application_name: row.try_get(2)?,
            gid: row.try_get(3)?,
            blocks: row.try_get(4)?,
        })
    }
}

/// Returns what the rotations wait for at the moment. Empty if no rotation is blocked.
pub async fn rotation_blockers(executor: &impl Executor) -> Result<Vec<RotationBlocker>, Error> {
    let sql = "SELECT ring, pid, application_name, gid, blocks FROM idem_rotation_blockers()";
    let rows = executor.fetch_all(sql, &[]).await?;
    rows.iter().map(RotationBlocker::try_from).collect()
}
