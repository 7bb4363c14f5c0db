//! The options of the benchmark: parts, durations and sizes.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

/// The parts of the benchmark, by what they measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// `process()` of the runtime, against the same transaction without protection and by hand
    Process,
    /// Claims with their business update, against a hand-written inbox
    Claims,
    /// A claim inside the server, in a loop, against a hand-written insert
    InServer,
    /// A claim with 10 M and 50 M retained claims, against one with 1 M
    Flat,
    /// WAL of claims after a checkpoint with 1 M, 10 M and 50 M retained claims, against a
    /// hand-written inbox
    Wal,
    /// A transaction that is sent as one pipeline, with and without the claim, and against a round
    /// trip for each statement
    Pipelined,
    /// Claims with 50 M retained identities, 15 minutes on each side (only with --only: takes an
    /// hour and 30 GB of disk)
    LongRun,
    /// WAL per claim and bytes per retained claim, over ten retention periods
    Storage,
    /// Batches of 1,000 claims, against one set-based insert
    Batch,
    /// Recording an effect and draining the outbox
    Effects,
    /// Draining the outbox, against the batches of PgQ (only with --only: needs Debian's
    /// postgresql-15-pgq3)
    Pgq,
    /// The consumer runtime on RabbitMQ and NATS, against the same consumer without idem
    #[cfg(feature = "brokers")]
    Consumer,
    /// The relay to RabbitMQ and NATS, against a publisher that reads from memory
    #[cfg(feature = "brokers")]
    Relay,
    /// The durable inbox against graphile-worker and pg-boss (needs Node.js with npm)
    Inbox,
}

/// The command line.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Run only this part; can be given several times
    #[arg(long)]
    pub only: Vec<Part>,
    /// Rounds of each measurement; both sides run in each [default: 5, quick: 2]
    #[arg(long)]
    rounds: Option<usize>,
    /// Seconds that one side is measured in one round [default: 5, quick: 1]
    #[arg(long)]
    seconds: Option<f64>,
    /// Use small sizes and short rounds, to check that the benchmark works
    #[arg(long)]
    pub quick: bool,
    /// Number of clients in the part `claims`, instead of 1, 8 and 32; can be given several times
    #[arg(long)]
    pub clients: Vec<usize>,
    /// The file in which the results of each full run are kept
    #[arg(long, default_value = "bench/results.json")]
    pub results: PathBuf,
    /// Write the kept results into README.md, docs/benchmarks.md and its pictures, and measure only
    /// the parts of --only
    #[arg(long)]
    pub write: bool,
    /// Profile a claim on both sides instead of the measurements (needs perf)
    #[arg(long)]
    pub profile: bool,
}

impl Options {
    /// Returns the selected parts in order.
    pub(super) fn parts(&self) -> Vec<Part> {
        let is_selected = |part: &Part| match self.only.as_slice() {
            [] => !self.write && !matches!(part, Part::LongRun | Part::Pgq),
            only => only.contains(part),
        };
        Part::value_variants()
            .iter()
            .copied()
            .filter(is_selected)
            .collect()
    }

    pub(super) fn rounds(&self) -> usize {
        self.rounds.unwrap_or(if self.quick { 2 } else { 5 }).max(1)
    }

    /// Returns how long one side is measured in one round.
    pub(super) fn round(&self) -> Duration {
        Duration::from_secs_f64(
            self.seconds
                .unwrap_or(if self.quick { 1.0 } else { 5.0 })
                .max(0.1),
        )
    }

    /// Returns the client counts of the part `claims`.
    pub(super) fn client_counts(&self) -> Vec<usize> {
        if self.clients.is_empty() {
            vec![1, 8, 32]
        } else {
            self.clients.clone()
        }
    }

    /// Returns the number of identities that both sides retain while they are measured.
    pub(super) fn retained(&self) -> u64 {
        if self.quick { 200_000 } else { 2_000_000 }
    }

    /// Returns `full` in a full run and `quick` in a quick run.
    pub(super) fn sized<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }
}
