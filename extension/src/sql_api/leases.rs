//! The functions that lease and complete messages (sql/api/leases.sql).

use super::expanded::ensure_called_once;
use super::{Report, uuids};
use crate::complete::complete;
use crate::effects::parse;
use crate::errors::given;
use crate::pending::acquire::{Acquired, acquire};
use crate::pending::lease;
use crate::pg::ensure_writable;
use crate::sql_types::{CompositeDatum, JsonText};
use pgrx::datum::Interval;
use pgrx::prelude::*;
use pgrx::{Uuid, pg_sys};

overloads! {
    fn idem_acquire_text | idem_acquire_uuid(
        id,
        destination: Option<&str>,
        lease: Option<Interval>,
        fcinfo: pg_sys::FunctionCallInfo
    ) -> Report<CompositeDatum> {
        let destination = given(destination, "destination")?;
        let lease = lease::microseconds(given(lease, "lease")?)?;
        ensure_writable(c"idem_acquire()");
        let acquired = acquire(id, destination, lease)?;
        ensure_called_once(fcinfo, c"idem_acquire")?;
        lease_row(acquired, fcinfo)
    }
}

/// Returns the row of `idem_acquire`.
fn lease_row(acquired: Acquired, fcinfo: pg_sys::FunctionCallInfo) -> Report<CompositeDatum> {
    let (label, lease, retry_after) = match acquired {
        Acquired::Leased(lease) => (c"acquired", Some(lease), None),
        Acquired::Exhausted(lease) => (c"exhausted", Some(lease), None),
        Acquired::Duplicate => (c"duplicate", None, None),
        Acquired::InProgress { retry_after } => (c"in_progress", None, Some(retry_after)),
        Acquired::Dead => (c"dead", None, None),
    };
    let retry_after = retry_after.and_then(|microseconds| Interval::new(0, 0, microseconds).ok());
    Ok(CompositeDatum::labelled(
        fcinfo,
        label,
        &[
            lease.as_ref().and_then(|lease| lease.token.into_datum()),
            lease.as_ref().and_then(|lease| lease.attempt.into_datum()),
            retry_after.and_then(IntoDatum::into_datum),
            lease
                .and_then(|lease| lease.last_error)
                .and_then(IntoDatum::into_datum),
        ],
    )?)
}

overloads! {
    fn idem_complete | idem_complete_uuid(
        id,
        destination: Option<&str>,
        token: Option<i64>,
        effects: Option<JsonText>
    ) -> Report<Vec<Uuid>> {
        let destination = given(destination, "destination")?;
        let token = given(token, "token")?;
        let effects = given(effects, "effects")?;
        let effects = parse(&effects)?;
        ensure_writable(c"idem_complete()");
        Ok(uuids(complete(id, destination, token, &effects)?))
    }
}
