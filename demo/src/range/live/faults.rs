//! The faults of a run: kills of processes, and crashes of the broker and of the database.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use rand::{RngExt, SeedableRng, rngs::StdRng};

use super::{
    processes::Processes,
    servers::{Crash, Server, Servers},
};

/// Mean time between two kills.
const KILL_EVERY: Duration = Duration::from_millis(500);

/// Kills processes at random intervals, the broker once, and the database once.
pub struct Faults {
    dice: StdRng,
    next_strike: Instant,
    /// The remaining crashes. A crash happens when its share of the commands, from 0 to 1, is
    /// handled.
    to_come: VecDeque<(f64, Server)>,
    under_way: Option<(Server, Crash)>,
    crashed: Vec<Server>,
}

impl Faults {
    /// Creates the faults of a run. None has happened yet.
    pub fn new(seed: u64) -> Self {
        Self {
            dice: StdRng::seed_from_u64(seed),
            next_strike: Instant::now(),
            to_come: VecDeque::from([(0.3, Server::Broker), (0.6, Server::Database)]),
            under_way: None,
            crashed: Vec::new(),
        }
    }

    /// Executes the faults that are due. `handled` is the share of commands, from 0 to 1, that are
    /// handled.
    pub async fn happen(
        &mut self,
        processes: &mut Processes,
        servers: &Servers,
        handled: f64,
    ) -> Result<()> {
        if Instant::now() >= self.next_strike {
            processes.strike(&mut self.dice).await?;
            self.next_strike =
                Instant::now() + KILL_EVERY.mul_f64(self.dice.random_range(0.5..1.5));
        }
        if let Some((server, crash)) = self.under_way.take_if(|(_, crash)| crash.is_finished()) {
            crash
                .await?
                .with_context(|| format!("cannot crash and restart the {server:?}"))?;
            self.crashed.push(server);
        }
        if self.under_way.is_none()
            && let Some(&(share, server)) = self.to_come.front()
            && handled >= share
        {
            self.under_way = Some((server, servers.crash(server)));
            self.to_come.pop_front();
        }
        Ok(())
    }

    /// Returns whether a server is down or starting.
    pub fn server_is_away(&self) -> bool {
        self.under_way.is_some()
    }

    /// Returns whether all planned crashes have happened and the servers are up again.
    pub fn crashes_are_over(&self) -> bool {
        self.under_way.is_none() && self.to_come.is_empty()
    }

    /// Returns the servers that have crashed and are up again.
    pub fn crashed(&self) -> &[Server] {
        &self.crashed
    }
}
