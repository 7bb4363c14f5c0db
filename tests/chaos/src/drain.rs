//! The drain at the end of a campaign: waits until all messages are handled, and stops the
//! processes in the order of the message flow.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::server_log::LOOK;
use super::site::Site;
use idem_demo::range::live::{
    Role,
    place::{self, Queue},
    processes::Processes,
};

/// The interval between two checks.
const PAUSE: Duration = Duration::from_millis(300);

/// The time without progress after which the drain counts as stalled. Messages that are not handled
/// by then are lost.
const STANDSTILL: Duration = Duration::from_secs(60);

/// Numbers that change as long as messages are handled.
const PROGRESS: &str = "
    SELECT (SELECT count(*) FROM shot) + (SELECT count(*) FROM moved),
           (SELECT count(*) FROM heard),
           (SELECT count(*) FROM counted),
           (SELECT coalesce(sum(lag_messages), 0)::bigint FROM idem.relays),
           (SELECT count(*) FROM idem.dead_letters),
           (SELECT count(DISTINCT poison) FROM mended),
           (SELECT count(*) FROM idem.inbox)";

/// The column of [`PROGRESS`] with the number of unpublished effects.
const UNPUBLISHED: usize = 3;
/// The column of [`PROGRESS`] with the number of dead letters.
const LETTERS: usize = 4;
/// The column of [`PROGRESS`] with the number of requeued messages that were handled.
const MENDED: usize = 5;

/// Drains a campaign after its producer was stopped. Returns the number of queues that are not
/// empty plus the number of effects that are not published.
///
/// # Errors
/// When a server cannot be reached, or when a process does not stop.
pub async fn drain(site: &Site, processes: &mut Processes) -> Result<u64> {
    let mut drain = Drain {
        site,
        processes,
        seen: Vec::new(),
        changed: Instant::now(),
    };
    let poison = site.poison();
    let requeued = poison.iter().filter(|sent| sent.repaired).count();
    let letters = poison.len() - requeued;
    // Wait for dead letters and requeued messages before the targets stop. A stopped process loses
    // its counts of failed deliveries. A requeued message comes from the inbox, so an empty queue
    // does not show that it was handled.
    drain
        .until(async |seen| Ok(seen[LETTERS] >= letters as i64 && seen[MENDED] >= requeued as i64))
        .await?;
    let mut left = drain.close(Role::Targets, Queue::Commands).await?;
    drain.until(async |seen| Ok(seen[UNPUBLISHED] == 0)).await?;
    for (role, queue) in [
        (Role::Letters, Queue::Letters),
        (Role::Observer, Queue::Observer),
        (Role::Board, Queue::Board),
    ] {
        left += drain.close(role, queue).await?;
    }
    drain.until(async |seen| Ok(seen[UNPUBLISHED] == 0)).await?;
    left += u64::try_from(drain.seen[UNPUBLISHED])?;
    drain.processes.stop(Role::Relay).await?;
    Ok(left)
}

struct Drain<'d> {
    site: &'d Site,
    processes: &'d mut Processes,
    seen: Vec<i64>,
    changed: Instant,
}

impl Drain<'_> {
    /// Stops the processes of a role when their queue is empty. If they return messages to the
    /// queue when they stop, they are started again. Returns 1 if the queue is not empty at the
    /// end, and 0 otherwise.
    async fn close(&mut self, role: Role, queue: Queue) -> Result<u64> {
        loop {
            let (kind, url) = (self.site.kind, self.site.broker_url.clone());
            let is_empty = async || anyhow::Ok(place::waiting(kind, &url, queue).await? == 0);
            self.until(async |_| is_empty().await).await?;
            self.processes.stop(role).await?;
            if place::left(kind, &url, queue).await? == 0 {
                return Ok(0);
            }
            if self.is_stalled() {
                return Ok(1);
            }
            self.processes.start(role)?;
        }
    }

    /// Waits until `reached` returns true for the numbers of [`PROGRESS`], or until the drain is
    /// stalled.
    async fn until(&mut self, reached: impl AsyncFn(&[i64]) -> Result<bool>) -> Result<()> {
        loop {
            let row = self
                .site
                .connect_as("postgres", LOOK)
                .await?
                .query_one(PROGRESS, &[])
                .await?;
            let seen = (0..row.len())
                .map(|n| row.try_get(n))
                .collect::<Result<_, _>>()?;
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

    fn is_stalled(&self) -> bool {
        self.changed.elapsed() > STANDSTILL
    }
}
