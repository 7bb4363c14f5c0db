//! The progress of a campaign, and of its streams. After a fault, each stream must continue.

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
    "commands handled",
    "facts received",
    "hits counted",
    "letters written",
    "ids claimed",
    "leases completed",
    "steps sent",
    "commands sent",
];

/// The query for the progress of all streams except the last, in the order of [`STREAMS`], and of
/// the other numbers of [`Progress`].
const PROGRESS: &str = "
    SELECT (SELECT count(*) FROM shot) + (SELECT count(*) FROM moved),
           (SELECT count(*) FROM heard),
           (SELECT count(*) FROM counted),
           (SELECT coalesce(max(seq), 0) FROM idem.outbox_row WHERE topic = 'range.letters'),
           (SELECT count(*) FROM claimed),
           (SELECT count(*) FROM completed),
           (SELECT sum(n)::bigint FROM step),
           (SELECT coalesce(sum(lag_messages), 0)::bigint FROM idem.relays),
           (SELECT count(*) FROM idem.dead_letters),
           (SELECT count(DISTINCT poison) FROM mended),
           (SELECT count(*) FROM idem.inbox)";

/// Numbers that change as long as messages are handled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    streams: Vec<i64>,
    /// The number of unpublished effects.
    pub unpublished: i64,
    /// The number of dead letters.
    pub dead_letters: i64,
    /// The number of requeued messages that were handled.
    pub mended: i64,
    claims: i64,
}

impl Progress {
    /// Reads the progress in the database.
    pub async fn look(site: &Site) -> Result<Self> {
        let client = site.connect_as("postgres", LOOK).await?;
        let row = client.query_one(PROGRESS, &[]).await?;
        let streams = 0..STREAMS.len() - 1;
        Ok(Self {
            streams: streams.map(|n| row.try_get(n)).collect::<Result<_, _>>()?,
            unpublished: row.try_get(7)?,
            dead_letters: row.try_get(8)?,
            mended: row.try_get(9)?,
            claims: row.try_get(10)?,
        })
    }
}

/// Returns the streams with numbers that are not higher than `before`.
fn stuck(now: &[i64], before: &[i64]) -> Vec<&'static str> {
    let numbers = now.iter().zip(before);
    let streams = STREAMS.into_iter().zip(numbers);
    streams
        .filter(|(_, (now, before))| now <= before)
        .map(|(stream, _)| stream)
        .collect()
}

/// Waits up to 60 seconds until every stream has continued, and returns the streams that have not.
/// A stream has continued when its progress is larger than in the first successful read.
pub async fn stuck_streams(site: &Site, dir: &Path) -> Vec<&'static str> {
    let began = Instant::now();
    let mut before = None;
    let mut names = STREAMS.to_vec();
    while began.elapsed() < RECOVERY && !names.is_empty() {
        let look = async {
            let mut streams = Progress::look(site).await?.streams;
            streams.push(i64::try_from(work::noted(dir)?)?);
            anyhow::Ok(streams)
        };
        // The primary may still be down, so errors are ignored.
        if let Ok(Ok(now)) = tokio::time::timeout(LONGEST_LOOK, look).await {
            names = stuck(&now, before.get_or_insert_with(|| now.clone()));
        }
        tokio::time::sleep(PAUSE).await;
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stream without progress is reported by its name.
    #[test]
    fn each_stalled_stream_is_named() {
        let (before, later) = ([7; STREAMS.len()], [8; STREAMS.len()]);
        assert_eq!(stuck(&later, &before), [""; 0]);
        assert_eq!(stuck(&before, &before), STREAMS);
        for (n, stream) in STREAMS.into_iter().enumerate() {
            let mut now = later;
            now[n] = 7;
            assert_eq!(stuck(&now, &before), [stream]);
        }
    }
}
