//! Set-up and care: what an operator's tool calls. `grant` says who may.

use std::{cmp::Reverse, str::FromStr, time::Duration};

use tokio_postgres::{Client, GenericClient, Row, types::Type};
use tracing::Instrument;

use crate::{Destination, Error, MessageId, span};

/// Lets a message be processed again, and answers whether it was claimed. For people; no consumer
/// needs it.
///
/// Its effects are no longer found, and those that were published stay published.
pub async fn forget(
    client: &impl GenericClient,
    id: &MessageId,
    destination: &Destination,
) -> Result<bool, Error> {
    let row = client
        .query_typed_one(
            "SELECT idem_forget($1, $2)",
            &[id.parameter(), destination.parameter()],
        )
        .instrument(span::of_message("forget", id, destination))
        .await?;
    Ok(row.try_get(0)?)
}

/// Remembers the messages of this destination for at least so long: it sits in the first ring that
/// keeps so much. Claims that were made before are found as before.
///
/// In a transaction, commit at once: nobody claims anything until then. Waits at most 2 seconds for
/// claims that are under way ([`ErrorKind::Conflict`](crate::ErrorKind::Conflict): try again).
/// Longer than the longest ring keeps, or nothing, is
/// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid).
pub async fn configure(
    client: &impl GenericClient,
    destination: &Destination,
    retention: Duration,
) -> Result<(), Error> {
    client
        .query_typed(
            "SELECT idem_configure($1, make_interval(secs => $2))",
            &[
                destination.parameter(),
                (&retention.as_secs_f64(), Type::FLOAT8),
            ],
        )
        .await?;
    Ok(())
}

/// A set of slices with one retention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ring {
    /// 1 hour, unless changed.
    Short,
    /// 7 days, unless changed. A new destination sits here.
    Standard,
    /// 30 days, unless changed.
    Long,
}

impl Ring {
    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Short => "short",
            Self::Standard => "standard",
            Self::Long => "long",
        }
    }
}

/// Changes how long a ring remembers, for all destinations in it: 100 milliseconds to 10 years.
///
/// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) when the rings would be out of order, or keep
/// less than a destination in them asks for.
pub async fn set_retention(
    client: &impl GenericClient,
    ring: Ring,
    retention: Duration,
) -> Result<(), Error> {
    client
        .query_typed(
            "SELECT idem_set_retention($1, make_interval(secs => $2))",
            &[
                (&ring.as_str(), Type::TEXT),
                (&retention.as_secs_f64(), Type::FLOAT8),
            ],
        )
        .await?;
    Ok(())
}

/// Removes a destination that nothing refers to any longer; false when there is none of that name.
///
/// While a claim, an effect, a message or a dead letter refers to it the server returns 55000.
pub async fn remove_destination(
    client: &impl GenericClient,
    destination: &Destination,
) -> Result<bool, Error> {
    let sql = "SELECT idem_remove_destination($1)";
    let row = client
        .query_typed_one(sql, &[destination.parameter()])
        .await?;
    Ok(row.try_get(0)?)
}

/// What a role of the database is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RoleKind {
    /// Claims, records, sends.
    Consumer,
    /// Takes batches and acknowledges them.
    Relay,
    /// Looks at health and views.
    Monitor,
    /// Stores messages in the durable inbox, and nothing else.
    Receiver,
    /// Looks at health and views, lets dead letters be tried again or gives them up.
    Operator,
    /// Configures, forgets, makes and repairs relays.
    Admin,
}

impl RoleKind {
    /// Its name.
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

/// Lets a role call what its kind of work needs. It gets EXECUTE on those functions, and no table.
///
/// `role` is the bare name, whatever its letters. A role that does not exist is 42704.
pub async fn grant(client: &impl GenericClient, role: &str, kind: RoleKind) -> Result<(), Error> {
    client
        .query_typed(
            // The text of a regrole is SQL, where a bare name is in lower case.
            "SELECT idem_grant(quote_ident($1)::regrole, $2)",
            &[(&role, Type::TEXT), (&kind.as_str(), Type::TEXT)],
        )
        .await?;
    Ok(())
}

/// Takes away what [`grant`] gave for this kind. Functions that another kind of the role needs
/// stay.
///
/// `role` is the bare name. Changes nothing when the role was not granted the kind. Fails with
/// 42704 when the role does not exist, and with 25000 in a transaction that is not READ COMMITTED.
pub async fn revoke(client: &impl GenericClient, role: &str, kind: RoleKind) -> Result<(), Error> {
    client
        .query_typed(
            "SELECT idem_revoke(quote_ident($1)::regrole, $2)",
            &[(&role, Type::TEXT), (&kind.as_str(), Type::TEXT)],
        )
        .await?;
    Ok(())
}

/// One pass of what the worker does: turns the rings that are due and empties slices. For databases
/// without the worker.
///
/// Not in a transaction, for it commits after each step.
pub async fn maintain(client: &Client) -> Result<(), Error> {
    Ok(client.batch_execute("CALL idem_maintain()").await?)
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Check {
    /// What was looked at.
    pub name: String,
    /// How it is.
    pub status: Status,
    /// What is wrong, and what to do.
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

/// How a [`Check`] is. The worse, the greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Status {
    /// As it should be.
    Ok,
    /// Look at it today.
    Warning,
    /// Look at it now.
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

/// Looks at the worker, the rings and the relays; the worst first. Works on a standby.
pub async fn health(client: &impl GenericClient) -> Result<Vec<Check>, Error> {
    let rows = client
        .query_typed("SELECT check_name, status, detail FROM idem_health()", &[])
        .await?;
    let mut checks = rows
        .iter()
        .map(Check::try_from)
        .collect::<Result<Vec<_>, Error>>()?;
    checks.sort_by_key(|check| Reverse(check.status));
    Ok(checks)
}

/// What a rotation waits for: a session, a prepared transaction or a relay.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RotationBlocker {
    /// The ring that cannot rotate.
    pub ring: String,
    /// The backend of the session.
    pub pid: Option<i32>,
    /// The `application_name` of the session.
    pub application_name: Option<String>,
    /// The name of the prepared transaction.
    pub gid: Option<String>,
    /// The step of the rotation that waits.
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

/// What the rotations wait for at the moment. Empty when nothing holds them up.
pub async fn rotation_blockers(client: &impl GenericClient) -> Result<Vec<RotationBlocker>, Error> {
    let sql = "SELECT ring, pid, application_name, gid, blocks FROM idem_rotation_blockers()";
    let rows = client.query_typed(sql, &[]).await?;
    rows.iter().map(RotationBlocker::try_from).collect()
}
