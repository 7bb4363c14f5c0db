//! Waking idle partitions when effects are committed: one connection of the process waits for all
//! of them.

use std::time::Duration;

use deadpool_postgres::Pool;
use tokio::{sync::watch, time::sleep};
use tracing::debug;

use super::{pauses::Pauses, relay_wait};
use crate::{
    Error,
    connection::{Loan, STATEMENT, wait_at_server, within},
};

/// Between two rings, so that many commits a second do not make idle partitions ask as often.
const BREATH: Duration = Duration::from_millis(10);

pub(super) struct Bell {
    rung: watch::Sender<u64>,
    /// How many partitions have nothing to do. While there are none nobody waits, and no connection
    /// is taken.
    idle: watch::Sender<usize>,
}

impl Bell {
    pub(super) fn new() -> Self {
        Self {
            rung: watch::Sender::default(),
            idle: watch::Sender::default(),
        }
    }

    pub(super) fn listen(&self) -> watch::Receiver<u64> {
        self.rung.subscribe()
    }

    /// Says that a partition is idle, for as long as the answer lives.
    pub(super) fn idle(&self) -> Idle<'_> {
        self.idle.send_modify(|idle| *idle += 1);
        Idle(self)
    }

    /// Rings whenever effects are committed. Never ends.
    pub(super) async fn ring(&self, pool: &Pool) {
        let mut idle = self.idle.subscribe();
        let mut away = Pauses::new(Duration::from_millis(100), Duration::from_secs(2));
        loop {
            if idle.wait_for(|idle| *idle > 0).await.is_err() {
                return;
            }
            match wait(pool).await {
                Ok(true) => {
                    away.reset();
                    self.rung.send_modify(|rung| *rung += 1);
                    sleep(BREATH).await;
                }
                Ok(false) => away.reset(),
                Err(error) => {
                    // The partitions meet the same, and say so.
                    debug!(%error, "cannot wait for effects");
                    sleep(away.next()).await;
                }
            }
        }
    }
}

pub(super) struct Idle<'b>(&'b Bell);

impl Drop for Idle<'_> {
    fn drop(&mut self) {
        self.0.idle.send_modify(|idle| *idle -= 1);
    }
}

/// Given up, its connection is closed: in the pool, its next user would wait for the answer.
async fn wait(pool: &Pool) -> Result<bool, Error> {
    let loan = Loan::take(pool).await?;
    let answer = within(
        STATEMENT,
        relay_wait(&**loan.client(), wait_at_server(pool)),
    )
    .await;
    loan.end(answer)
}
