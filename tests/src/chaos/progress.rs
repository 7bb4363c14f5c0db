//! How far each stream of a campaign is. After a fault each of them has to go on.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::server_log::LOOK;
use super::site::Site;
use crate::range::live::work;

/// After a fault, every stream goes on within this time.
const RECOVERY: Duration = Duration::from_secs(60);

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(300);

/// A look that takes longer has failed: its connection hangs.
const LONGEST_LOOK: Duration = Duration::from_secs(10);

/// One stream for each role. The relays are behind "facts heard".
const STREAMS: [&str; 8] = [
    "commands sent",
    "commands handled",
    "facts heard",
    "hits counted",
    "letters written",
    "claims",
    "completed leases",
    "steps",
];

/// How far the streams are that the database knows, in the order of [`STREAMS`].
const IN_DATABASE: &str = "SELECT (SELECT count(*) FROM shot) + (SELECT count(*) FROM moved),
    (SELECT count(*) FROM heard), (SELECT count(*) FROM counted),
    (SELECT coalesce(max(seq), 0) FROM idem.outbox_row WHERE topic = 'range.letters'),
    (SELECT count(*) FROM claimed), (SELECT count(*) FROM completed),
    (SELECT sum(n)::bigint FROM step)";

/// How far each stream is, in the order of [`STREAMS`].
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

    /// The streams that have not gone on since `before`.
    fn stuck_since(&self, before: &Self) -> Vec<&'static str> {
        let numbers = self.0.iter().zip(before.0);
        let streams = STREAMS.into_iter().zip(numbers);
        streams
            .filter(|(_, (now, before))| *now <= before)
            .map(|(stream, _)| stream)
            .collect()
    }
}

/// Waits until every stream has gone on. Returns those that have not in time. The first look that
/// the database takes is what they have to go beyond.
pub async fn stuck_streams(site: &Site, dir: &Path) -> Vec<&'static str> {
    let began = Instant::now();
    let mut before = None;
    let mut stuck = STREAMS.to_vec();
    while began.elapsed() < RECOVERY && !stuck.is_empty() {
        let look = tokio::time::timeout(LONGEST_LOOK, Progress::look(site, dir)).await;
        // Errors are those of a primary that is not back yet.
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

    #[test]
    fn each_stream_that_stands_still_is_named() {
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
