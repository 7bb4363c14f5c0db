//! The progress of the streams of a campaign. After a fault, each stream must continue.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::server_log::LOOK;
use super::site::Site;
use idem_demo::range::live::work;

/// The longest time in which every stream must continue after a fault.
const RECOVERY: Duration = Duration::from_secs(60);

/// The interval between two reads of the progress.
const PAUSE: Duration = Duration::from_millis(300);

/// The longest time of one read. A longer read counts as failed, because its connection hangs.
const LONGEST_LOOK: Duration = Duration::from_secs(10);

/// The names of the streams, one for each role except the relay. The stream "facts received"
/// continues only when the relays work.
const STREAMS: [&str; 8] = [
    "commands sent",
    "commands handled",
    "facts received",
    "hits counted",
    "letters written",
    "ids claimed",
    "leases completed",
    "steps sent",
];

/// The query for the progress of all streams except the first, in the order of [`STREAMS`].
const IN_DATABASE: &str = "SELECT (SELECT count(*) FROM shot) + (SELECT count(*) FROM moved),
    (SELECT count(*) FROM heard), (SELECT count(*) FROM counted),
    (SELECT coalesce(max(seq), 0) FROM idem.outbox_row WHERE topic = 'range.letters'),
    (SELECT count(*) FROM claimed), (SELECT count(*) FROM completed),
    (SELECT sum(n)::bigint FROM step)";

/// The progress of each stream, in the order of [`STREAMS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Progress([i64; STREAMS.len()]);

impl Progress {
    async fn look(site: &Site, dir: &Path) -> Result<Self> {
        let row = site
            .connect_as("postgres", LOOK)
            .await?
            .query_one(IN_DATABASE, &[])
            .await?;
        let mut progress = Self([0; STREAMS.len()]);
        progress.0[0] = i64::try_from(work::noted(dir)?)?;
        for (n, stream) in progress.0[1..].iter_mut().enumerate() {
            *stream = row.try_get(n)?;
        }
        Ok(progress)
    }

    /// Returns the streams without progress since `before`.
    fn stuck_since(&self, before: &Self) -> Vec<&'static str> {
        let numbers = self.0.iter().zip(before.0);
        let streams = STREAMS.into_iter().zip(numbers);
        streams
            .filter(|(_, (now, before))| *now <= before)
            .map(|(stream, _)| stream)
            .collect()
    }
}

/// Waits up to 60 seconds until every stream has continued, and returns the streams that have not.
/// A stream has continued when its progress is larger than in the first successful read.
pub async fn stuck_streams(site: &Site, dir: &Path) -> Vec<&'static str> {
    let began = Instant::now();
    let mut before = None;
    let mut stuck = STREAMS.to_vec();
    while began.elapsed() < RECOVERY && !stuck.is_empty() {
        let look = tokio::time::timeout(LONGEST_LOOK, Progress::look(site, dir)).await;
        // The primary may still be down, so errors are ignored.
        if let Ok(Ok(now)) = look {
            stuck = now.stuck_since(before.get_or_insert(now));
        }
        tokio::time::sleep(PAUSE).await;
    }
    stuck
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stream without progress is reported by its name.
    #[test]
    fn each_stalled_stream_is_named() {
        let before = Progress([7; STREAMS.len()]);
        let later = Progress([8; STREAMS.len()]);
        assert_eq!(later.stuck_since(&before), [""; 0]);
        assert_eq!(before.stuck_since(&before), STREAMS);
        for (n, stream) in STREAMS.into_iter().enumerate() {
            let mut now = later;
            now.0[n] = 7;
            assert_eq!(now.stuck_since(&before), [stream]);
        }
    }
}
