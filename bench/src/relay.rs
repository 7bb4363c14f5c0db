//! A relay without a broker: it reads all effects and acknowledges them at once.

use anyhow::{Context, Result, ensure};
use idem_cluster::Cluster;
use postgres_protocol::message::backend::DataRowBody;

use super::side::Side;
use super::wire::Session;

/// The number of effects in one batch.
pub const BATCH: &str = "1000";

/// A session that reads as the relay `default`.
pub struct Relay {
    session: Session,
}

/// The number of effects that were read, and the sum of their sequence numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    pub effects: u64,
    pub seq_sum: u64,
}

impl Relay {
    pub fn connect(cluster: &Cluster) -> Result<Self> {
        let mut session = Session::connect(cluster, Side::Idem.database())?;
        session.prepare(
            "next",
            "SELECT seq, token, message_id, topic, key, type, payload, content_type, headers,
                    traceparent, recorded_at, source_destination
               FROM idem_relay_next('default', 0, $1::integer)",
        )?;
        session.prepare("ack", "SELECT idem_relay_ack('default', 0, $1::bigint)")?;
        Ok(Self { session })
    }

    /// Returns the first column of a row, which must be `seq`.
    pub fn seq(row: &DataRowBody) -> Result<u64> {
        Ok(row_columns(row.buffer())
            .next()
            .context("no seq")??
            .parse()?)
    }

    /// Reads one batch and acknowledges it. A real relay publishes the batch in between.
    pub fn step(&mut self) -> Result<Drained> {
        let mut drained = Drained::default();
        let mut token = String::new();
        let mut last = 0;
        self.session.execute_each("next", &[BATCH], |row| {
            let mut columns = row_columns(row.buffer());
            let seq: u64 = columns.next().context("no seq")??.parse()?;
            ensure!(seq > last, "effect {seq} was read after effect {last}");
            last = seq;
            if token.is_empty() {
                columns.next().context("no token")??.clone_into(&mut token);
            }
            drained.effects += 1;
            drained.seq_sum += seq;
            Ok(())
        })?;
        if drained.effects > 0 {
            self.session.execute("ack", &[&token])?;
        }
        Ok(drained)
    }

    /// Reads and acknowledges exactly `effects` effects. Fails when there are fewer or more.
    pub fn drain(&mut self, effects: u64) -> Result<Drained> {
        let mut all = Drained::default();
        while all.effects < effects {
            let step = self.step()?;
            ensure!(
                step.effects > 0,
                "only {} of {effects} effects were read",
                all.effects
            );
            all.effects += step.effects;
            all.seq_sum += step.seq_sum;
        }
        ensure!(
            all.effects == effects,
            "{} effects were read instead of {effects}",
            all.effects
        );
        Ok(all)
    }
}

/// Returns the columns of a row as text. NULL becomes an empty text.
pub fn row_columns(mut row: &[u8]) -> impl Iterator<Item = Result<&str>> {
    std::iter::from_fn(move || {
        let (length, rest) = row.split_first_chunk::<4>()?;
        let length = usize::try_from(i32::from_be_bytes(*length)).unwrap_or(0);
        let (column, rest) = rest.split_at_checked(length)?;
        row = rest;
        Some(std::str::from_utf8(column).map_err(Into::into))
    })
}
