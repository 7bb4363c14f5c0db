//! A circuit breaker: after a failure of the environment it stops all attempts for a time that
//! grows with each failure.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use crate::backoff::{Backoff, Pauses};

/// The pauses between two probes.
pub(super) const PAUSES: Pauses = Pauses::from_millis(100, 5_000);

/// The time between the close of the breaker and the moment when it forgets its failures. By then,
/// every message that met the failure has been redelivered.
const QUIET_AFTER: Duration = Duration::from_secs(30);

/// A circuit breaker. While the breaker is open, no message is tried. When its pause is over, the
/// breaker is due for a probe, and a successful probe closes it.
pub(super) struct Breaker(Mutex<State>);

struct State {
    /// When the next probe is due. `None` while the breaker is closed.
    due: Option<Instant>,
    /// The back-off. It keeps growing over several openings until an attempt succeeds.
    pauses: Backoff,
    /// Whether the breaker has opened since it last forgot its failures.
    is_suspended: bool,
    /// Whether the breaker has closed since `is_suspended` was set.
    is_probed: bool,
    closed_at: Instant,
    /// When the latest successful attempt started.
    succeeded: Option<Instant>,
}

impl State {
    fn forget(&mut self) {
        (self.is_suspended, self.is_probed) = (false, false);
        self.pauses.reset();
    }
}

impl Breaker {
    pub(super) fn closed() -> Self {
        Self(Mutex::new(State {
            due: None,
            pauses: PAUSES.start(),
            is_suspended: false,
            is_probed: false,
            closed_at: Instant::now(),
            succeeded: None,
        }))
    }

    /// Creates an open breaker. Its first probe is due at once.
    pub(super) fn open() -> Self {
        let breaker = Self::closed();
        breaker.state().due = Some(Instant::now());
        breaker
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // The state of a poisoned lock is valid, because no change of the state can panic halfway.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens the breaker unless it is open. Returns the rest of the pause, and whether this is the
    /// first failure since the breaker last forgot its failures.
    pub(super) fn trip(&self) -> (Duration, bool) {
        let mut state = self.state();
        let now = Instant::now();
        let is_new = !std::mem::replace(&mut state.is_suspended, true);
        if let Some(due) = state.due {
            return (due.saturating_duration_since(now), is_new);
        }
        let pause = state.pauses.next();
        state.due = Some(now + pause);
        (pause, is_new)
    }

    /// Postpones the next probe after a failed probe. Returns whether this is the first failure
    /// since the failures were last forgotten.
    pub(super) fn probe_failed(&self) -> bool {
        self.state().due = None;
        self.trip().1
    }

    /// Closes the breaker after a successful probe. Returns whether the breaker closes for the
    /// first time since its first failure. The caller logs only this close.
    pub(super) fn close(&self) -> bool {
        let mut state = self.state();
        state.due = None;
        state.closed_at = Instant::now();
        state.is_suspended && !std::mem::replace(&mut state.is_probed, true)
    }

    pub(super) fn due(&self) -> Option<Instant> {
        self.state().due
    }

    /// Returns when the breaker forgets its failures if it stays closed. `None` if the breaker is
    /// open or has no failures.
    pub(super) fn quiet_at(&self) -> Option<Instant> {
        let state = self.state();
        (state.is_suspended && state.due.is_none()).then(|| state.closed_at + QUIET_AFTER)
    }

    /// Forgets the failures.
    pub(super) fn forget(&self) {
        self.state().forget();
    }

    /// Returns the rest of the pause while the breaker is open.
    pub(super) fn pause(&self) -> Option<Duration> {
        Some(self.due()?.saturating_duration_since(Instant::now()))
    }

    /// Records that an attempt that started at `began` succeeded. Returns whether this is the first
    /// success after the breaker closed.
    pub(super) fn succeeded(&self, began: Instant) -> bool {
        let mut state = self.state();
        state.succeeded = state.succeeded.max(Some(began));
        if state.due.is_some() || !state.is_suspended || began < state.closed_at {
            return false;
        }
        state.forget();
        true
    }

    /// Returns whether an attempt has succeeded that started both after `moment` and after the
    /// breaker closed.
    pub(super) fn has_succeeded_since(&self, moment: Instant) -> bool {
        let state = self.state();
        state
            .succeeded
            .is_some_and(|success| success > moment && success > state.closed_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pause grows over several openings, until an attempt that started after the breaker
    /// closed succeeds.
    #[test]
    fn pause_grows_until_an_attempt_succeeds() {
        let breaker = Breaker::closed();
        let (first, is_new) = breaker.trip();
        assert!(
            is_new && first >= PAUSES.first && first <= 2 * PAUSES.first,
            "{first:?}"
        );
        let stale = Instant::now();
        breaker.close();
        let (second, is_new) = breaker.trip();
        assert!(!is_new && second >= 2 * PAUSES.first, "{second:?}");
        breaker.close();
        assert!(
            !breaker.succeeded(stale),
            "the attempt started before the breaker closed"
        );
        assert!(breaker.succeeded(Instant::now()));
        assert!(breaker.trip().1);
    }

    /// Only an attempt that started after the failure and after the breaker closed counts as a
    /// success.
    #[test]
    fn success_of_an_earlier_attempt_does_not_count() {
        let breaker = Breaker::closed();
        let failed = Instant::now();
        breaker.succeeded(failed);
        assert!(!breaker.has_succeeded_since(failed));
        let later = failed + Duration::from_millis(1);
        breaker.succeeded(later);
        assert!(breaker.has_succeeded_since(failed));
        breaker.trip();
        while Instant::now() <= later {
            std::thread::yield_now();
        }
        breaker.close();
        assert!(
            !breaker.has_succeeded_since(failed),
            "the success was before the breaker closed"
        );
    }
}
