//! SQL functions that claim messages. Each has a variant for text ids and a variant for uuids.

use super::inspect::{claim_of, forget};
use super::lone::{self, Needs};
use super::{Outcome, Terms, claim, claim_each};
use crate::errors::{Error, Result, given, invalid};
use crate::pg::ensure_writable;
use crate::ring;
use crate::sql_types::CompositeDatum;
use idem_core::memory::{push, reserve};
use idem_core::{MessageId, check_destination, limits};
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::prelude::*;
use pgrx::{Array, Uuid, pg_sys};

type Report<T> = std::result::Result<T, ErrorReport>;

pub fn text_id(id: Option<&str>) -> Result<MessageId<'_>> {
    Ok(MessageId::from_text(given(id, "id")?)?)
}

pub fn uuid_id(id: Option<Uuid>) -> Result<MessageId<'static>> {
    Ok(MessageId::from_uuid(*given(id, "id")?.as_bytes()))
}

#[pg_extern(
    requires = ["schema"],
    sql = r#"
CREATE FUNCTION idem_try_claim(id text, destination text) RETURNS boolean
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_try_claim_text_wrapper';
"#
)]
fn idem_try_claim_text(
    id: Option<&str>,
    destination: Option<&str>,
    fcinfo: pg_sys::FunctionCallInfo,
) -> Report<bool> {
    try_claim(text_id(id)?, destination, fcinfo)
}

#[pg_extern(
    requires = ["schema"],
    sql = r#"
CREATE FUNCTION idem_try_claim(id uuid, destination text) RETURNS boolean
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_try_claim_uuid_wrapper';
"#
)]
fn idem_try_claim_uuid(
    id: Option<Uuid>,
    destination: Option<&str>,
    fcinfo: pg_sys::FunctionCallInfo,
) -> Report<bool> {
    try_claim(uuid_id(id)?, destination, fcinfo)
}

fn try_claim(
    id: MessageId,
    destination: Option<&str>,
    fcinfo: pg_sys::FunctionCallInfo,
) -> Report<bool> {
    let destination = given(destination, "destination")?;
    check_destination(destination).map_err(Error::from)?;
    lone::check(&Needs::NotAlone(fcinfo), c"idem_try_claim()")?;
    let rings = ring::enter()?;
    let outcome = claim(id, destination, &rings, Terms::PLAIN)?;
    Ok(matches!(outcome, Outcome::Claimed(_)))
}

#[pg_extern(
    requires = ["schema"],
    sql = r#"
CREATE FUNCTION idem_try_claim_batch(ids text[], destination text) RETURNS boolean[]
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_try_claim_batch_wrapper';
"#
)]
fn idem_try_claim_batch(
    ids: Option<Array<&str>>,
    destination: Option<&str>,
    fcinfo: pg_sys::FunctionCallInfo,
) -> Report<Vec<bool>> {
    let ids = given(ids, "ids")?;
    check_batch(ids.len())?;
    let ids = ids
        .iter()
        .map(|id| Ok(MessageId::from_text(given(id, "an id in ids")?)?));
    let check = || lone::check(&Needs::NotAlone(fcinfo), c"idem_try_claim_batch()");
    try_claim_batch(ids, destination, check)
}

#[pg_extern(
    requires = ["schema"],
    sql = r#"
CREATE FUNCTION idem_try_claim_uuid_batch(ids uuid[], destination text) RETURNS boolean[]
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_try_claim_uuid_batch_wrapper';
"#
)]
fn idem_try_claim_uuid_batch(
    ids: Option<Array<Uuid>>,
    destination: Option<&str>,
    fcinfo: pg_sys::FunctionCallInfo,
) -> Report<Vec<bool>> {
    let ids = given(ids, "ids")?;
    check_batch(ids.len())?;
    let ids = ids
        .iter()
        .map(|id| Ok(MessageId::from_uuid(*given(id, "an id in ids")?.as_bytes())));
    let check = || lone::check(&Needs::NotAlone(fcinfo), c"idem_try_claim_uuid_batch()");
    try_claim_batch(ids, destination, check)
}

fn check_batch(ids: usize) -> Result<()> {
    if ids > limits::BATCH_IDS {
        return invalid(
            format!("{ids} ids in one batch"),
            format!("Claim at most {} ids in one batch.", limits::BATCH_IDS),
        );
    }
    Ok(())
}

/// Claims the ids in the order of their keys and returns the results in the order of the ids. The
/// caller has checked the number of ids.
fn try_claim_batch<'a>(
    given_ids: impl Iterator<Item = Result<MessageId<'a>>>,
    destination: Option<&str>,
    check_transaction: impl FnOnce() -> Result<()>,
) -> Report<Vec<bool>> {
    let mut ids = Vec::new();
    for id in given_ids {
        check_for_interrupts!();
        push(&mut ids, id?).map_err(Error::from)?;
    }
    let destination = given(destination, "destination")?;
    check_destination(destination).map_err(Error::from)?;
    check_transaction()?;
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let mut order = reserve(ids.len()).map_err(Error::from)?;
    order.extend(0..ids.len());
    // The position is part of the sort key, so that the first of two equal ids gets the claim.
    order.sort_unstable_by_key(|&n| (ids[n].key, n));
    let mut claimed = reserve(ids.len()).map_err(Error::from)?;
    claimed.resize(ids.len(), false);
    let mut places = order.iter();
    let rings = ring::enter()?;
    claim_each(
        order.iter().map(|&n| &ids[n]),
        destination,
        &rings,
        Terms::PLAIN,
        |outcome| {
            if let Some(&place) = places.next() {
                claimed[place] = matches!(outcome, Outcome::Claimed(_));
            }
        },
    )?;
    Ok(claimed)
}

#[pg_extern(
    requires = ["types"],
    sql = r#"
CREATE FUNCTION idem_claim(
    id text, destination text, wait boolean DEFAULT true, fingerprint bytea DEFAULT NULL,
    sent_at timestamptz DEFAULT NULL, OUT outcome idem_outcome, OUT handled_at timestamptz
)
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_claim_text_wrapper';
"#
)]
fn idem_claim_text(
    id: Option<&str>,
    destination: Option<&str>,
    wait: Option<bool>,
    fingerprint: Option<&[u8]>,
    sent_at: Option<TimestampWithTimeZone>,
    fcinfo: pg_sys::FunctionCallInfo,
) -> Report<CompositeDatum> {
    let check = || lone::check(&Needs::NotAlone(fcinfo), c"idem_claim()");
    full_claim(
        text_id(id)?,
        destination,
        wait,
        fingerprint,
        sent_at,
        check,
        fcinfo,
    )
}

#[pg_extern(
    requires = ["types"],
    sql = r#"
CREATE FUNCTION idem_claim(
    id uuid, destination text, wait boolean DEFAULT true, fingerprint bytea DEFAULT NULL,
    sent_at timestamptz DEFAULT NULL, OUT outcome idem_outcome, OUT handled_at timestamptz
)
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_claim_uuid_wrapper';
"#
)]
fn idem_claim_uuid(
    id: Option<Uuid>,
    destination: Option<&str>,
    wait: Option<bool>,
    fingerprint: Option<&[u8]>,
    sent_at: Option<TimestampWithTimeZone>,
    fcinfo: pg_sys::FunctionCallInfo,
) -> Report<CompositeDatum> {
    let check = || lone::check(&Needs::NotAlone(fcinfo), c"idem_claim()");
    full_claim(
        uuid_id(id)?,
        destination,
        wait,
        fingerprint,
        sent_at,
        check,
        fcinfo,
    )
}

#[pg_extern(
    requires = ["types"],
    sql = r#"
CREATE FUNCTION idem_claim_in_block(
    id text, destination text, wait boolean DEFAULT true, fingerprint bytea DEFAULT NULL,
    sent_at timestamptz DEFAULT NULL, OUT outcome idem_outcome, OUT handled_at timestamptz
)
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_claim_in_block_text_wrapper';
"#
)]
fn idem_claim_in_block_text(
    id: Option<&str>,
    destination: Option<&str>,
    wait: Option<bool>,
    fingerprint: Option<&[u8]>,
    sent_at: Option<TimestampWithTimeZone>,
    fcinfo: pg_sys::FunctionCallInfo,
) -> Report<CompositeDatum> {
    let check = || lone::check(&Needs::Block, c"idem_claim_in_block()");
    full_claim(
        text_id(id)?,
        destination,
        wait,
        fingerprint,
        sent_at,
        check,
        fcinfo,
    )
}

#[pg_extern(
    requires = ["types"],
    sql = r#"
CREATE FUNCTION idem_claim_in_block(
    id uuid, destination text, wait boolean DEFAULT true, fingerprint bytea DEFAULT NULL,
    sent_at timestamptz DEFAULT NULL, OUT outcome idem_outcome, OUT handled_at timestamptz
)
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_claim_in_block_uuid_wrapper';
"#
)]
fn idem_claim_in_block_uuid(
    id: Option<Uuid>,
    destination: Option<&str>,
    wait: Option<bool>,
    fingerprint: Option<&[u8]>,
    sent_at: Option<TimestampWithTimeZone>,
    fcinfo: pg_sys::FunctionCallInfo,
) -> Report<CompositeDatum> {
    let check = || lone::check(&Needs::Block, c"idem_claim_in_block()");
    full_claim(
        uuid_id(id)?,
        destination,
        wait,
        fingerprint,
        sent_at,
        check,
        fcinfo,
    )
}

fn full_claim(
    id: MessageId,
    destination: Option<&str>,
    wait: Option<bool>,
    fingerprint: Option<&[u8]>,
    sent_at: Option<TimestampWithTimeZone>,
    check_transaction: impl FnOnce() -> Result<()>,
    fcinfo: pg_sys::FunctionCallInfo,
) -> Report<CompositeDatum> {
    let destination = given(destination, "destination")?;
    let wait = given(wait, "wait")?;
    check_destination(destination).map_err(Error::from)?;
    check_fingerprint(fingerprint)?;
    check_transaction()?;
    let terms = Terms {
        wait,
        fingerprint,
        sent_at: sent_at.map(pg_sys::TimestampTz::from),
        holds_pending: false,
    };
    let rings = ring::enter()?;
    let (label, handled_at) = match claim(id, destination, &rings, terms)? {
        Outcome::Claimed(claimed) => (c"claimed", Some(claimed.claimed_at)),
        Outcome::Duplicate { handled_at } => (c"duplicate", Some(handled_at)),
        Outcome::InProgress => (c"in_progress", None),
        Outcome::Mismatch { handled_at } => (c"mismatch", Some(handled_at)),
        Outcome::Expired => (c"expired", None),
    };
    let handled_at = handled_at.and_then(IntoDatum::into_datum);
    Ok(CompositeDatum::labelled(fcinfo, label, &[handled_at])?)
}

fn check_fingerprint(fingerprint: Option<&[u8]>) -> Result<()> {
    let Some(fingerprint) = fingerprint else {
        return Ok(());
    };
    if (1..=limits::FINGERPRINT_BYTES).contains(&fingerprint.len()) {
        return Ok(());
    }
    invalid(
        format!("the fingerprint has {} bytes", fingerprint.len()),
        format!(
            "It must have 1 to {} bytes: give a hash of the message.",
            limits::FINGERPRINT_BYTES
        ),
    )
}

#[pg_extern(requires = ["schema"])]
fn idem_is_claimed(id: Option<&str>, destination: Option<&str>) -> Report<bool> {
    is_claimed(text_id(id)?, destination)
}

#[pg_extern(name = "idem_is_claimed", requires = ["schema"])]
fn idem_is_claimed_uuid(id: Option<Uuid>, destination: Option<&str>) -> Report<bool> {
    is_claimed(uuid_id(id)?, destination)
}

fn is_claimed(id: MessageId, destination: Option<&str>) -> Report<bool> {
    Ok(claim_of(id, given(destination, "destination")?)?.is_some())
}

#[pg_extern(requires = ["schema"])]
fn idem_forget(id: Option<&str>, destination: Option<&str>) -> Report<bool> {
    forget_claim(text_id(id)?, destination)
}

#[pg_extern(name = "idem_forget", requires = ["schema"])]
fn idem_forget_uuid(id: Option<Uuid>, destination: Option<&str>) -> Report<bool> {
    forget_claim(uuid_id(id)?, destination)
}

fn forget_claim(id: MessageId, destination: Option<&str>) -> Report<bool> {
    let destination = given(destination, "destination")?;
    ensure_writable(c"idem_forget()");
    Ok(forget(id, destination)?)
}
