//! The end of a campaign: what was sent is handled, and the processes stop in the order of the
//! stream.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::server_log::LOOK;
use super::site::Site;
use crate::range::live::{
    Role,
    crew::Crew,
    place::{self, Queue},
};

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(300);

/// When nothing has changed for so long, nothing will: what is missing then is lost.
const STANDSTILL: Duration = Duration::from_secs(60);

/// Everything that changes as long as messages are handled.
const PROGRESS: &str = "SELECT (SELECT count(*) FROM shot) + (SELECT count(*) FROM moved), (SELECT count(*) FROM heard),
    (SELECT count(*) FROM counted), (SELECT coalesce(sum(lag_messages), 0)::bigint FROM idem.relays),
    (SELECT count(*) FROM idem.dead_letters), (SELECT count(DISTINCT poison) FROM mended),
    (SELECT count(*) FROM idem.inbox)";

/// Where the numbers of unpublished effects, dead letters and requeued messages are.
const UNPUBLISHED: usize = 3;
const LETTERS: usize = 4;
const MENDED: usize = 5;

/// Drains a campaign whose producer has stopped. Returns how many queues and effects are left over.
///
/// # Errors
/// When a server is away, or a process does not stop.
pub async fn drain(site: &Site, crew: &mut Crew) -> Result<u64> {
    let mut drain = Drain {
        site,
        crew,
        seen: Vec::new(),
        changed: Instant::now(),
    };
    let poison = site.poison();
    let requeued = poison.iter().filter(|sent| sent.repaired).count();
    let letters = poison.len() - requeued;
    // A process that is stopped forgets how often a message has failed. A requeued message comes
    // back through the outbox, and the queue of the targets may be empty before that.
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
    drain.crew.stop(Role::Relay).await?;
    Ok(left)
}

struct Drain<'d> {
    site: &'d Site,
    crew: &'d mut Crew,
    seen: Vec<i64>,
    changed: Instant,
}

impl Drain<'_> {
    /// Stops the processes of a role when nothing waits for them, and nothing comes back from them.
    /// Returns one when something is left.
    async fn close(&mut self, role: Role, queue: Queue) -> Result<u64> {
        loop {
            let (kind, url) = (self.site.kind, self.site.broker_url.clone());
            let is_empty = async || anyhow::Ok(place::waiting(kind, &url, queue).await? == 0);
            self.until(async |_| is_empty().await).await?;
            self.crew.stop(role).await?;
            if is_empty().await? {
                return Ok(0);
            }
            if self.stands_still() {
                return Ok(1);
            }
            self.crew.start(role)?;
        }
    }

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
            if reached(&self.seen).await? || self.stands_still() {
                return Ok(());
            }
            self.crew.tend()?;
            tokio::time::sleep(PAUSE).await;
        }
    }

    fn stands_still(&self) -> bool {
        self.changed.elapsed() > STANDSTILL
    }
}
