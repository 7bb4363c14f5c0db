//! Waits for a state, and never for a fixed time.

use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};

/// The longest time that a test waits for one state. Each state is reached earlier, even on a busy
/// machine.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// The pause between two checks.
const INTERVAL: Duration = Duration::from_millis(10);

/// The result of a check of a state.
pub trait Check {
    /// The result of the whole wait.
    type Waited;

    /// Returns the result of the wait if the wait has ended.
    fn ended(self) -> Option<Self::Waited>;

    /// Returns the result of a wait that has lasted too long.
    fn timed_out(what: &str) -> Self::Waited;
}

/// A check that cannot fail. A wait that lasts too long panics.
impl Check for bool {
    type Waited = ();

    fn ended(self) -> Option<()> {
        self.then_some(())
    }

    fn timed_out(what: &str) {
        panic!("{what}: not reached within {DEADLINE:?}");
    }
}

/// A check that can fail. The wait returns the first error, and an error after [`DEADLINE`].
impl Check for Result<bool> {
    type Waited = Result<()>;

    fn ended(self) -> Option<Result<()>> {
        match self {
            Ok(true) => Some(Ok(())),
            Ok(false) => None,
            Err(error) => Some(Err(error)),
        }
    }

    fn timed_out(what: &str) -> Result<()> {
        Err(anyhow!("{what}: not reached within {DEADLINE:?}"))
    }
}

/// Checks again and again until the check returns true, for at most [`DEADLINE`].
pub async fn until<C: Check>(what: &str, mut check: impl AsyncFnMut() -> C) -> C::Waited {
    let started = Instant::now();
    loop {
        if let Some(waited) = check().await.ended() {
            return waited;
        }
        if started.elapsed() >= DEADLINE {
            return C::timed_out(what);
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

/// Waits for a future, for at most [`DEADLINE`].
///
/// # Panics
/// When the future is not ready before the deadline.
pub async fn in_time<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(DEADLINE, what)
        .await
        .unwrap_or_else(|_| panic!("not ready within {DEADLINE:?}"))
}
