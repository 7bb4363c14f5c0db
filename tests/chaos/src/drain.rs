//! The drain at the end of a campaign.

use anyhow::Result;

use super::progress::Progress;
use super::site::Site;
use idem_demo::range::live::{Role, drain::Drain, place::Queue, processes::Processes};

/// Drains a campaign after its producer was stopped. Returns the number of queues that are not
/// empty plus the number of effects that are not published.
pub async fn drain(site: &Site, processes: &mut Processes) -> Result<u64> {
    let broker = (site.kind, site.broker_url.as_str());
    let mut drain = Drain::new(processes, broker, async || Progress::look(site).await).await?;
    let poison = site.poison();
    let requeued = poison.iter().filter(|sent| sent.repaired).count() as i64;
    let letters = poison.len() as i64 - requeued;
    // Wait for dead letters and requeued messages before the targets stop. A stopped process loses
    // its counts of failed deliveries. A requeued message comes from the inbox, so an empty queue
    // does not show that it was handled.
    drain
        .until(async |seen| Ok(seen.dead_letters >= letters && seen.mended >= requeued))
        .await?;
    let mut left = drain.close(Role::Targets, Queue::Commands).await?;
    drain.until(async |seen| Ok(seen.unpublished == 0)).await?;
    for (role, queue) in [
        (Role::Letters, Queue::Letters),
        (Role::Observer, Queue::Observer),
        (Role::Board, Queue::Board),
    ] {
        left += drain.close(role, queue).await?;
    }
    drain.until(async |seen| Ok(seen.unpublished == 0)).await?;
    left += u64::try_from(drain.seen().unpublished)?;
    drain.processes.stop(Role::Relay).await?;
    Ok(left)
}
