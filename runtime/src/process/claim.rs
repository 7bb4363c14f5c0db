//! The statements of a claim, as the policy requires them.

use idem_client::{Destination, MessageId, sql::IdArray};
use sha2::{Digest, Sha256};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use super::task::Task;
use crate::{Error, Message, policy::Isolation};

/// The statement of a prepared claim, with id, destination and [`ClaimOptions`] as its parameters.
/// It fails outside of a transaction block, and forbids COMMIT. `ClaimOutcome::parse` parses the
/// text in its first column. The column [`CLAIM_PROCESS`] has the process that executes it.
pub(crate) const CLAIM_IN_BLOCK: &str =
    "SELECT (idem_claim_in_block($1, $2, $3, decode($4, 'hex'), $5)).outcome::text,
            idem_forbid_commit(), pg_backend_pid()";
pub(crate) const CLAIM_PROCESS: usize = 2;

/// The options of a claim, as the policy of the message requires them.
pub(crate) struct ClaimOptions {
    pub(crate) wait: bool,
    /// The hexadecimal digits of the hash of the message.
    pub(crate) fingerprint: Option<String>,
    pub(crate) sent_at: Option<OffsetDateTime>,
}

impl ClaimOptions {
    pub(crate) fn of(task: &Task<'_>) -> Self {
        let policy = task.policy;
        Self {
            wait: policy.wait,
            fingerprint: policy.fingerprint.then(|| fingerprint(task.message)),
            sent_at: task.message.sent_at().filter(|_| policy.expire),
        }
    }
}

/// Returns the SQL text of a claim. `ClaimOutcome::parse` parses the first column of its result.
/// The columns `guard` follow.
pub(crate) fn claim(task: &Task<'_>, id: &MessageId, guard: &str) -> Result<String, Error> {
    let (id, destination) = (id.literal()?, task.destination.literal()?);
    let ClaimOptions {
        wait,
        fingerprint,
        sent_at,
    } = ClaimOptions::of(task);
    if wait && fingerprint.is_none() && sent_at.is_none() {
        return Ok(format!(
            "SELECT idem_try_claim({id}, {destination}), {guard}"
        ));
    }
    let sent_at = match sent_at.map(|sent_at| sent_at.format(&Rfc3339)) {
        Some(Ok(sent_at)) => format!("'{sent_at}'"),
        Some(Err(error)) => {
            return Err(Error::Invalid(format!(
                "the time at which the message was sent cannot be formatted: {error}"
            )));
        }
        None => "NULL".into(),
    };
    let fingerprint = fingerprint.map_or("NULL".into(), |hex| format!("decode('{hex}', 'hex')"));
    Ok(format!(
        "SELECT outcome, {guard}
           FROM idem_claim({id}, {destination}, {wait}, {fingerprint}, {sent_at})"
    ))
}

/// Returns the SQL text of a claim of many messages. The first column of its result is an array of
/// booleans. The columns `guard` follow.
pub(crate) fn claim_batch(
    ids: &[MessageId],
    destination: &Destination,
    guard: &str,
) -> Result<String, Error> {
    let ids = IdArray::new(ids);
    let (function, ids, destination) =
        (ids.batch_function(), ids.literal()?, destination.literal()?);
    Ok(format!("SELECT {function}({ids}, {destination}), {guard}"))
}

/// Parses the text of an array of booleans, which says for each message of a batch whether it is
/// claimed.
pub(crate) fn parse_batch(value: Option<&str>, count: usize) -> Result<Vec<bool>, Error> {
    let unexpected =
        || Error::Unexpected(format!("a claim of {count} messages returned {value:?}"));
    let items = value
        .and_then(|value| value.strip_prefix('{')?.strip_suffix('}'))
        .ok_or_else(unexpected)?;
    let claimed: Vec<bool> = items.split(',').map(|item| item == "t").collect();
    if claimed.len() == count {
        Ok(claimed)
    } else {
        Err(unexpected())
    }
}

pub(crate) fn begin(isolation: Isolation) -> &'static str {
    match isolation {
        Isolation::Default => "BEGIN",
        Isolation::ReadCommitted => "BEGIN ISOLATION LEVEL READ COMMITTED",
        Isolation::RepeatableRead => "BEGIN ISOLATION LEVEL REPEATABLE READ",
        Isolation::Serializable => "BEGIN ISOLATION LEVEL SERIALIZABLE",
    }
}

/// Returns the SHA-256 of the payload, in hexadecimal digits.
pub(crate) fn fingerprint(message: &Message) -> String {
    Sha256::digest(message.payload())
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}
