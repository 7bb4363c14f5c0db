//! The rotation's view of the claims: publish a step, then wait until nobody acts on what was
//! before.

use super::cache::ring_table;
use super::version::check_version;
use crate::errors::given;
use crate::pg::{Lockers, wait_a_moment};
use crate::settings;
use crate::stats::watch_transactions;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::prelude::*;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::time::{Duration, Instant};

thread_local! {
    /// The fence of each ring's last step. Kept between calls, also when it has passed: a list that
    /// began anew each time would, with enough long transactions, never become empty.
    static FENCES: RefCell<HashMap<Ring, Fence>> = RefCell::default();
    /// This transaction has changed what claims go by.
    static PUBLISHED: Cell<bool> = const { Cell::new(false) };
}

/// A ring by name. The table is part of it: when the extension is created anew, its turns are
/// counted anew.
type Ring = (pg_sys::Oid, String);

struct Fence {
    /// What was published.
    step: String,
    /// Empty: the fence has passed.
    lockers: Lockers,
    /// Since the last look at what is pending.
    asked_for: bool,
}

/// True when every transaction that held a claim when this step was first asked for has ended.
/// 25001 in the transaction that published a step.
///
/// `step` names what was published, differently each time; its first word is the ring. With `wait`
/// it waits up to `idem.fence_wait` for that.
#[pg_extern(
    requires = ["schema"],
    sql = r#"
CREATE FUNCTION idem.fence(step text, wait boolean) RETURNS boolean LANGUAGE c AS 'MODULE_PATHNAME', 'fence_wrapper';
"#
)]
fn fence(step: Option<&str>, wait: Option<bool>) -> Result<bool, ErrorReport> {
    let step = given(step, "step")?;
    let wait = given(wait, "wait")?;
    not_in_the_transaction_that_published()?;
    check_version()?;
    let table = ring_table()?;
    let deadline = wait.then(|| {
        Instant::now() + Duration::from_millis(settings::FENCE_WAIT_MS.get().max(0) as u64)
    });
    while !has_passed(table, step) {
        if deadline.is_none_or(|deadline| Instant::now() >= deadline) {
            return Ok(false);
        }
        wait_a_moment(5);
    }
    Ok(true)
}

/// Looks at the fence of a step, which is taken at the first look. It stays where it is while the
/// caller waits: a wait that is cancelled loses nothing.
fn has_passed(table: pg_sys::Oid, step: &str) -> bool {
    let ring = step.split(' ').next().unwrap_or_default().to_owned();
    FENCES.with_borrow_mut(|fences| {
        fences.retain(|(other, _), _| *other == table);
        let new = || Fence {
            step: step.to_owned(),
            lockers: Lockers::of(table),
            asked_for: true,
        };
        let fence = fences.entry((table, ring)).or_insert_with(new);
        if fence.step != step {
            *fence = new();
        }
        fence.asked_for = true;
        fence.lockers.have_ended()
    })
}

/// What this transaction publishes is sent when it commits: whoever claims until then does not know
/// of it, and stands in no list that is taken here.
fn not_in_the_transaction_that_published() -> Result<(), ErrorReport> {
    if !PUBLISHED.get() {
        return Ok(());
    }
    Err(ErrorReport::new(
        PgSqlErrorCode::ERRCODE_ACTIVE_SQL_TRANSACTION,
        "the fence cannot be passed in the transaction that published a step",
        "idem",
    )
    .set_hint("Each step of a rotation is a transaction of its own: CALL idem_maintain()."))
}

/// The transaction has ended: what it published has been sent, or never was.
pub fn transaction_ended() {
    PUBLISHED.set(false);
}

/// Whether a rotation waits at its fence in this backend. What was not asked for since the last
/// look has been done by another maintainer, and is forgotten.
pub fn fences_pending() -> bool {
    FENCES.with_borrow_mut(|fences| {
        fences.retain(|_, fence| std::mem::take(&mut fence.asked_for));
        fences.values().any(|fence| !fence.lockers.is_empty())
    })
}

/// Whether a fence that was waited for has passed by now. In a transaction.
pub fn fence_passed() -> bool {
    FENCES.with_borrow_mut(|fences| {
        fences
            .values_mut()
            .any(|fence| !fence.lockers.is_empty() && fence.lockers.have_ended())
    })
}

/// Makes every backend read this table's state again at its next claim; sent when the transaction
/// commits.
#[pg_extern(
    requires = ["schema"],
    sql = r#"
CREATE FUNCTION idem.invalidate(relation oid) RETURNS void LANGUAGE c AS 'MODULE_PATHNAME', 'invalidate_wrapper';
"#
)]
fn invalidate(relation: Option<pg_sys::Oid>) -> Result<(), ErrorReport> {
    let relation = given(relation, "relation")?;
    watch_transactions();
    PUBLISHED.set(true);
    // SAFETY: relation_open raises unless it is a relation.
    unsafe {
        let rel = pg_sys::relation_open(relation, pg_sys::AccessShareLock as pg_sys::LOCKMODE);
        pg_sys::CacheInvalidateRelcache(rel);
        pg_sys::relation_close(rel, pg_sys::AccessShareLock as pg_sys::LOCKMODE);
    }
    Ok(())
}
