//! The functions that claim messages (sql/api/claim.sql).

use super::{Report, text_id, uuid_id};
use crate::claim::lone::{self, Needs};
use crate::claim::{Outcome, Terms, claim, claim_batch, claim_of};
use crate::errors::{Error, Result, given, invalid};
use crate::forget::forget;
use crate::pg::ensure_writable;
use crate::ring;
use crate::sql_types::CompositeDatum;
use idem_core::memory::push;
use idem_core::{MessageId, check_destination, limits};
use pgrx::prelude::*;
use pgrx::{Array, Uuid, pg_sys};

overloads! {
    fn idem_try_claim_text | idem_try_claim_uuid(
        id,
        destination: Option<&str>,
        fcinfo: pg_sys::FunctionCallInfo
    ) -> Report<bool> {
        let destination = given(destination, "destination")?;
        check_destination(destination).map_err(Error::from)?;
        lone::check(&Needs::NotAlone(fcinfo), c"idem_try_claim()")?;
        let rings = ring::enter()?;
        let outcome = claim(id, destination, &rings, Terms::PLAIN)?;
        Ok(matches!(outcome, Outcome::Claimed(_)))
    }
}

#[pg_extern(sql = false)]
fn idem_try_claim_batch(
    ids: Option<Array<&str>>,
    destination: Option<&str>,
    fcinfo: pg_sys::FunctionCallInfo,
) -> Report<Vec<bool>> {
    let ids = given(ids, "ids")?;
    let ids = checked(ids.len(), ids.iter().map(text_id))?;
    let check = || lone::check(&Needs::NotAlone(fcinfo), c"idem_try_claim_batch()");
    try_claim_batch(&ids, destination, check)
}

#[pg_extern(sql = false)]
fn idem_try_claim_uuid_batch(
    ids: Option<Array<Uuid>>,
    destination: Option<&str>,
    fcinfo: pg_sys::FunctionCallInfo,
) -> Report<Vec<bool>> {
    let ids = given(ids, "ids")?;
    let ids = checked(ids.len(), ids.iter().map(uuid_id))?;
    let check = || lone::check(&Needs::NotAlone(fcinfo), c"idem_try_claim_uuid_batch()");
    try_claim_batch(&ids, destination, check)
}

/// Returns the ids of a batch, or the first error.
pub(super) fn checked<'a>(
    count: usize,
    ids: impl Iterator<Item = Result<MessageId<'a>>>,
) -> Result<Vec<MessageId<'a>>> {
    if count > limits::BATCH_IDS {
        return invalid(
            format!("{count} ids in one batch"),
            format!("Give at most {} ids in one batch.", limits::BATCH_IDS),
        );
    }
    let mut checked = Vec::new();
    for id in ids {
        check_for_interrupts!();
        push(&mut checked, id?)?;
    }
    Ok(checked)
}

fn try_claim_batch(
    ids: &[MessageId],
    destination: Option<&str>,
    check_transaction: impl FnOnce() -> Result<()>,
) -> Report<Vec<bool>> {
    let destination = given(destination, "destination")?;
    check_destination(destination).map_err(Error::from)?;
    check_transaction()?;
    Ok(claim_batch(ids, destination)?)
}

overloads! {
    fn idem_claim_text | idem_claim_uuid(
        id,
        destination: Option<&str>,
        wait: Option<bool>,
        fingerprint: Option<&[u8]>,
        sent_at: Option<TimestampWithTimeZone>,
        fcinfo: pg_sys::FunctionCallInfo
    ) -> Report<CompositeDatum> {
        let check = || lone::check(&Needs::NotAlone(fcinfo), c"idem_claim()");
        full_claim(id, destination, wait, fingerprint, sent_at, check, fcinfo)
    }
}

overloads! {
    fn idem_claim_in_block_text | idem_claim_in_block_uuid(
        id,
        destination: Option<&str>,
        wait: Option<bool>,
        fingerprint: Option<&[u8]>,
        sent_at: Option<TimestampWithTimeZone>,
        fcinfo: pg_sys::FunctionCallInfo
    ) -> Report<CompositeDatum> {
        let check = || lone::check(&Needs::Block, c"idem_claim_in_block()");
        full_claim(id, destination, wait, fingerprint, sent_at, check, fcinfo)
    }
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
        Outcome::Claimed(claimed) => (c"claimed", Some(claimed.claimed_at())),
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

overloads! {
    fn idem_is_claimed | idem_is_claimed_uuid(id, destination: Option<&str>) -> Report<bool> {
        Ok(claim_of(id, given(destination, "destination")?)?.is_some())
    }
}

overloads! {
    fn idem_forget | idem_forget_uuid(id, destination: Option<&str>) -> Report<bool> {
        let destination = given(destination, "destination")?;
        ensure_writable(c"idem_forget()");
        Ok(forget(id, destination)?)
    }
}
