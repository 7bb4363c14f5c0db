//! A circuit breaker: after a failure of the environment nothing is tried for a time, longer each
//! time.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use backon::ExponentialBackoff;
use tokio::time::Instant;

use super::intake::growing;

pub(super) const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// A breaker that has been closed so long is quiet: every message that met the failure has come
/// again.
const QUIET_AFTER: Duration = Duration::from_secs(30);

/// Open while nothing is tried. Once it is due, a probe that succeeds closes it.
pub(super) struct Breaker(Mutex<State>);

struct State {
    /// When the next probe is due; `None` while it is closed.
    due: Option<Instant>,
    /// Goes on growing from one opening to the next until something succeeds.
    pauses: ExponentialBackoff,
    /// Whether it was opened since something succeeded.
    is_suspended: bool,
    /// Whether it was closed again since then.
    is_probed: bool,
    closed_at: Instant,
    /// The begin of the latest attempt that succeeded.
    succeeded: Option<Instant>,
}

impl State {
    fn forget(&mut self) {
        (self.is_suspended, self.is_probed) = (false, false);
        self.pauses = growing(FIRST_PAUSE, LONGEST_PAUSE);
    }
}

impl Breaker {
    pub(super) fn closed() -> Self {
        Self(Mutex::new(State {
            due: None,
            pauses: growing(FIRST_PAUSE, LONGEST_PAUSE),
            is_suspended: false,
            is_probed: false,
            closed_at: Instant::now(),
            succeeded: None,
        }))
    }

    /// Open, and due at once.
    pub(super) fn open() -> Self {
        let breaker = Self::closed();
        breaker.state().due = Some(Instant::now());
        breaker
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No change of the state can panic half-way.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens it, unless it is open. Returns the pause, and whether something had succeeded since it
    /// was open last.
    pub(super) fn trip(&self) -> (Duration, bool) {
        let mut state = self.state();
        let now = Instant::now();
        let is_new = !std::mem::replace(&mut state.is_suspended, true);
        if let Some(due) = state.due {
            return (due.saturating_duration_since(now), is_new);
        }
        let pause = state.pauses.next().unwrap_or(LONGEST_PAUSE);
        state.due = Some(now + pause);
        (pause, is_new)
    }

    /// The probe failed: the next one is due later. Returns whether this is the first failure since
    /// something succeeded.
    pub(super) fn probe_failed(&self) -> bool {
        self.state().due = None;
        self.trip().1
    }

    /// A probe succeeded. Returns whether this is the first time since the first failure, so that a
    /// breaker that opens and closes in turn is noted once.
    pub(super) fn close(&self) -> bool {
        let mut state = self.state();
        state.due = None;
        state.closed_at = Instant::now();
        state.is_suspended && !std::mem::replace(&mut state.is_probed, true)
    }

    pub(super) fn due(&self) -> Option<Instant> {
        self.state().due
    }

    /// When it will have been closed long enough to forget the failures, if it has any to forget.
    pub(super) fn quiet_at(&self) -> Option<Instant> {
        let state = self.state();
        (state.is_suspended && state.due.is_none()).then(|| state.closed_at + QUIET_AFTER)
    }

    /// Forgets the failures.
    pub(super) fn forget(&self) {
        self.state().forget();
    }

    /// What is left of the pause, while it is open.
    pub(super) fn pause(&self) -> Option<Duration> {
        Some(self.due()?.saturating_duration_since(Instant::now()))
    }

    /// An attempt that began at this moment succeeded. Returns whether this is the first success
    /// since it was open.
    pub(super) fn succeeded(&self, began: Instant) -> bool {
        let mut state = self.state();
        state.succeeded = state.succeeded.max(Some(began));
        if state.due.is_some() || !state.is_suspended || began < state.closed_at {
            return false;
        }
        state.forget();
        true
    }

    /// Whether an attempt succeeded that began after this moment and since the breaker was closed.
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

    #[test]
    fn pauses_grow_until_an_attempt_succeeds() {
        let breaker = Breaker::closed();
        let (first, is_new) = breaker.trip();
        assert!(
            is_new && first >= FIRST_PAUSE && first <= 2 * FIRST_PAUSE,
            "{first:?}"
        );
        let stale = Instant::now();
        breaker.close();
        let (second, is_new) = breaker.trip();
        assert!(!is_new && second >= 2 * FIRST_PAUSE, "{second:?}");
        breaker.close();
        assert!(
            !breaker.succeeded(stale),
            "it began before the breaker was closed"
        );
        assert!(breaker.succeeded(Instant::now()));
        assert!(breaker.trip().1);
    }

    #[test]
    fn success_of_an_earlier_attempt_proves_nothing() {
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
            "it was before the breaker was closed"
        );
    }
}
