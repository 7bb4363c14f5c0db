//! The end of a run: waits until all messages are handled, and stops the processes in the order of
//! the message flow.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::{
    config::Kind,
    place::{self, Queue},
    post::Role,
    processes::Processes,
};

/// The interval between two looks at the progress.
const PAUSE: Duration = Duration::from_millis(300);

/// The time without progress after which a run counts as stalled. Messages that are not handled by
/// then are lost.
pub const STANDSTILL: Duration = Duration::from_secs(60);

/// The drain of one run.
pub struct Drain<'d, L, P> {
    /// The processes that are not stopped yet.
    pub processes: &'d mut Processes,
    broker: (Kind, &'d str),
    look: L,
    seen: P,
    changed: Instant,
}

impl<'d, L: AsyncFnMut() -> Result<P>, P: PartialEq> Drain<'d, L, P> {
    /// Creates the drain of the queues of this broker. `look` returns the progress of the run.
    pub async fn new(
        processes: &'d mut Processes,
        broker: (Kind, &'d str),
        mut look: L,
    ) -> Result<Self> {
        Ok(Self {
            processes,
            broker,
            seen: look().await?,
            look,
            changed: Instant::now(),
        })
    }

    /// Stops the processes of a role when their queue is empty. If they return messages to the
    /// queue when they stop, they are started again. Returns 1 if the queue is not empty at the
    /// end, and 0 otherwise.
    pub async fn close(&mut self, role: Role, queue: Queue) -> Result<u64> {
        let (kind, url) = self.broker;
        loop {
            self.until(async |_| Ok(place::waiting(kind, url, queue).await? == 0))
                .await?;
            self.processes.stop(role).await?;
            if place::left(kind, url, queue).await? == 0 {
                return Ok(0);
            }
            if self.is_stalled() {
                return Ok(1);
            }
            self.processes.start(role)?;
        }
    }

    /// Waits until `reached` returns true for the progress, or until the drain is stalled. In the
    /// second case messages are lost, and the checker reports them.
    pub async fn until(&mut self, reached: impl AsyncFn(&P) -> Result<bool>) -> Result<()> {
        loop {
            let seen = (self.look)().await?;
            if self.seen != seen {
                self.seen = seen;
                self.changed = Instant::now();
            }
            if reached(&self.seen).await? || self.is_stalled() {
                return Ok(());
            }
            self.processes.tend()?;
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Returns the progress at the last look.
    pub fn seen(&self) -> &P {
        &self.seen
    }

    fn is_stalled(&self) -> bool {
        self.changed.elapsed() > STANDSTILL
    }
}
