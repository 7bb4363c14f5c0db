//! Compares the latency of a message with idem-sqlx and idem-postgres with the same SQL by hand:
//! BEGIN, the claim, an update, one effect and COMMIT.
//!
//! `idem-overhead <messages> <on|off>`: how many messages each variant processes, and
//! `synchronous_commit`. The variants process one message each, in a random order. `PGHOST`,
//! `PGUSER`, `PGPORT` and `PGDATABASE` name the database.

mod by_postgres;
mod by_sqlx;

use std::env;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// Processes the message with an id.
pub type Process = Box<dyn FnMut(&str) -> Result<()>>;

/// One way to process a message.
pub struct Variant {
    pub name: &'static str,
    /// The variant with which this one is compared.
    pub baseline: &'static str,
    pub process: Process,
}

/// The settings of each connection.
pub struct Settings {
    pub synchronous_commit: String,
}

impl Settings {
    pub fn sql(&self) -> String {
        format!("SET synchronous_commit = {}", self.synchronous_commit)
    }
}

pub const CLAIM: &str = "SELECT idem_try_claim($1, $2)";
pub const UPDATE: &str = "UPDATE overhead SET balance = balance - 5 WHERE id = $1";
pub const RECORD: &str = "SELECT idem_record_effects($1, $2, $3)";
pub const TO: &str = "overhead";

/// Messages before the measurement, which fill the caches.
const WARM_UP: usize = 200;

fn main() -> Result<()> {
    let mut arguments = env::args().skip(1);
    let messages: usize = arguments.next().context("no number of messages")?.parse()?;
    let synchronous_commit = arguments.next().context("no synchronous_commit")?;
    let settings = Settings { synchronous_commit };
    let mut variants = by_sqlx::variants(&settings)?;
    variants.extend(by_postgres::variants(&settings)?);

    let mut latencies = vec![Vec::with_capacity(messages); variants.len()];
    for message in 0..WARM_UP + messages {
        // In another order each time: what a variant costs depends on the one before it.
        let mut order: Vec<_> = (0..variants.len()).collect();
        order.sort_by_key(|number| hash(&(message, number)));
        for number in order {
            let id = format!("{}-{number}-{message}", std::process::id());
            let start = Instant::now();
            (variants[number].process)(&id)?;
            if message >= WARM_UP {
                latencies[number].push(start.elapsed());
            }
        }
    }
    let medians: Vec<_> = latencies.iter_mut().map(|values| median(values)).collect();
    println!("{messages} messages each, {}", settings.sql());
    for (variant, median) in variants.iter().zip(&medians) {
        let names = variants.iter().map(|variant| variant.name);
        let baseline = names
            .zip(&medians)
            .find(|(name, _)| *name == variant.baseline);
        let (_, baseline) = baseline.context("no baseline")?;
        let ratio = median.as_secs_f64() / baseline.as_secs_f64();
        println!(
            "{:<36} {:>7.1} us  {ratio:.3}x of {}",
            variant.name,
            micros(median),
            variant.baseline
        );
    }
    Ok(())
}

fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

fn median(values: &mut [Duration]) -> Duration {
    values.sort_unstable();
    values[values.len() / 2]
}

fn micros(duration: &Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}
