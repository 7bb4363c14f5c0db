//! Records the latency of each transaction, by the minute of the load in which it ended.

use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Result, anyhow};
use hdrhistogram::Histogram;

/// Latencies are recorded with this number of significant digits.
const DIGITS: u8 = 3;

/// The latencies of all clients.
pub struct Record {
    /// The length of a minute. It is shorter in a quick run.
    minute: Duration,
    minutes: Mutex<Vec<Histogram<u64>>>,
}

/// The latencies of one client, which it adds to those of the others at its end.
pub struct ClientRecord<'r> {
    record: &'r Record,
    minutes: Vec<Histogram<u64>>,
}

/// The transactions of one minute.
#[derive(Clone, Copy, Debug)]
pub struct Minute {
    pub transactions: u64,
    pub p99_ms: f64,
}

impl Record {
    pub fn new(minute: Duration) -> Self {
        Self {
            minute,
            minutes: Mutex::default(),
        }
    }

    pub fn of_client(&self) -> ClientRecord<'_> {
        ClientRecord {
            record: self,
            minutes: Vec::new(),
        }
    }

    /// Returns the first `count` minutes.
    pub fn minutes(&self, count: usize) -> Result<Vec<Minute>> {
        let minutes = self
            .minutes
            .lock()
            .map_err(|_| anyhow!("a client panicked"))?;
        let full = minutes.iter().take(count);
        Ok(full
            .map(|minute| Minute {
                transactions: minute.len(),
                p99_ms: minute.value_at_quantile(0.99) as f64 / 1_000.0,
            })
            .collect())
    }
}

impl ClientRecord<'_> {
    /// Adds a transaction that ended `since_start` after the start of the load.
    pub fn add(&mut self, since_start: Duration, latency: Duration) -> Result<()> {
        let number = (since_start.as_nanos() / self.record.minute.as_nanos()) as usize;
        while self.minutes.len() <= number {
            self.minutes.push(Histogram::new(DIGITS)?);
        }
        self.minutes[number].record(latency.as_micros() as u64)?;
        Ok(())
    }

    /// Adds the latencies of this client to those of all clients.
    pub fn end(self) -> Result<()> {
        let all = self.record.minutes.lock();
        let mut all = all.map_err(|_| anyhow!("a client panicked"))?;
        for (number, minute) in self.minutes.into_iter().enumerate() {
            match all.get_mut(number) {
                Some(others) => others.add(minute)?,
                None => all.push(minute),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transactions_of_all_clients_are_in_their_minute() {
        let record = Record::new(Duration::from_secs(60));
        for client in 0..2 {
            let mut own = record.of_client();
            for (second, ms) in [(1, 5), (59, 7), (61, 100 + client)] {
                own.add(Duration::from_secs(second), Duration::from_millis(ms))
                    .unwrap();
            }
            own.end().unwrap();
        }
        let minutes = record.minutes(2).unwrap();
        assert_eq!(minutes[0].transactions, 4);
        assert_eq!(minutes[1].transactions, 2);
        assert!((6.9..7.1).contains(&minutes[0].p99_ms), "{minutes:?}");
        assert!((100.9..101.2).contains(&minutes[1].p99_ms), "{minutes:?}");
    }
}
