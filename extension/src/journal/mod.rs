//! The journal of external calls: each request to a system outside the database is recorded before
//! it is sent, and its result afterwards.
//!
//! The journal is insert-only: each row is one event of a call. Events are numbered, and the unique
//! key of the slices accepts each number once, as it accepts a claim once. So if two attempts begin
//! at the same time, only one of them gets the number, at every isolation level. The slices of the
//! journal rotate with the slices of the claims and are written by the same rules. A call is
//! therefore remembered as long as a claim.

mod history;
mod inspect;

use crate::destination::identity_name;
use crate::errors::{Error, Result};
use crate::identity::Identity;
use crate::pending::ensure_leased;
use crate::pg::{clock, look_again};
use crate::ring::{self, Entered};
use crate::slices::Slices;
pub use history::CallHistory;
pub use inspect::calls_of;

use history::CallJournal;
use idem_core::{CallEvent, CallState, MessageId, call_key, check_len, limits, request_digest};
use pgrx::pg_sys;
use uuid::Uuid;

/// An external call: a step of a message.
#[derive(Clone, Copy)]
pub struct Call<'a> {
    pub id: MessageId<'a>,
    pub destination: &'a str,
    pub step: &'a str,
}

impl Call<'_> {
    fn check(&self) -> Result<()> {
        idem_core::check_destination(self.destination)?;
        Ok(check_len("the step", self.step, limits::NAME_BYTES)?)
    }
}

/// The result of beginning an attempt.
pub struct Begun {
    pub state: CallState,
    pub idempotency_key: Uuid,
    /// The recorded response of a call that is done: a `json`.
    pub response: Option<&'static str>,
    /// The number of attempts, including this one.
    pub attempt: i32,
    /// The start time of the first attempt that may have had its effect.
    pub begun_at: pg_sys::TimestampTz,
    /// The error of a call that failed permanently.
    pub error: Option<&'static str>,
}

/// Begins an attempt. Writes nothing if the call has already ended. Waits for transactions that are
/// recording an event of the same call. Fails if the call was begun with another request, or if
/// `token` does not hold the lease.
pub fn begin(call: Call, request: Option<&str>, token: Option<i64>) -> Result<Begun> {
    call.check()?;
    let rings = ring::enter()?;
    if let Some(token) = token {
        ensure_holder(&call, &rings, token)?;
    }
    let identity = Identity::intern(call.id, call.destination, &rings)?;
    let idempotency_key = call_key(
        rings.installation.salt,
        identity_name(call.destination)?,
        &call.id.key,
        call.step,
    );
    let digest = request.map(request_digest);
    let digest = digest.as_ref().map(|digest| &digest[..]);
    let slices = Slices::open(&identity.destination, &rings.journal_slices());
    let mut journal = CallJournal::new(&slices, identity, call.step);
    let (history, state) = look_again(|| {
        let mut history = journal.read();
        if history.first_digest().is_some_and(|first| first != digest) {
            return Some(Err(Error::RequestMismatch {
                step: call.step.to_owned(),
            }));
        }
        let state = history.attempts.state();
        if matches!(state, CallState::New | CallState::Unknown) {
            let at = clock();
            if !journal.add(&history, CallEvent::Begun, at, digest, None) {
                return None;
            }
            history.attempts.record(CallEvent::Begun, at);
        }
        Some(Ok((history, state)))
    })?;
    Ok(Begun {
        state,
        idempotency_key,
        attempt: history.attempts.made(),
        begun_at: history.attempts.begun_at().unwrap_or_else(clock),
        response: history.body_if(state == CallState::Done),
        error: history.body_if(state == CallState::Failed),
    })
}

/// Fails unless the token holds the lease. Otherwise a consumer that has lost the lease could begin
/// an attempt, and the present holder of the lease would get the state `unknown`.
fn ensure_holder(call: &Call, rings: &Entered, token: i64) -> Result<()> {
    let identity = Identity::find(call.id, call.destination)?
        .ok_or_else(|| Error::lease_lost(call.destination))?;
    ensure_leased(&identity, rings, token)
}

/// Records the response of an attempt. Does nothing if the same response is already the last event.
pub fn finish(call: Call, response: Option<&str>) -> Result<()> {
    record_end(call, CallEvent::Finished, response)
}

/// Records that an attempt had no effect (`retryable`), or that the external system rejected the
/// request permanently.
pub fn fail(call: Call, error: &str, retryable: bool) -> Result<()> {
    let event = if retryable {
        CallEvent::TakenBack
    } else {
        CallEvent::Refused
    };
    record_end(call, event, Some(error))
}

/// Records the end of an attempt. `body` is the response or the error.
fn record_end(call: Call, event: CallEvent, body: Option<&str>) -> Result<()> {
    call.check()?;
    let rings = ring::enter()?;
    let not_begun = || Error::CallNotBegun {
        step: call.step.to_owned(),
    };
    let identity = Identity::find(call.id, call.destination)?.ok_or_else(not_begun)?;
    let slices = Slices::open(&identity.destination, &rings.journal_slices());
    let mut journal = CallJournal::new(&slices, identity, call.step);
    look_again(|| {
        let history = journal.read();
        // A caller that does not know whether its commit succeeded may record the same event again.
        if history
            .last()
            .is_some_and(|last| last.event == event && last.body == body)
        {
            return Some(Ok(()));
        }
        let ended = match history.attempts.state() {
            CallState::New => return Some(Err(not_begun())),
            CallState::Unknown => {
                let digest = history.first_digest().flatten();
                return journal
                    .add(&history, event, clock(), digest, body)
                    .then_some(Ok(()));
            }
            CallState::Done => "done",
            CallState::Failed => "failed",
        };
        Some(Err(Error::CallEnded {
            step: call.step.to_owned(),
            how: ended,
        }))
    })
}
