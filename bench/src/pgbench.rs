//! Runs scripts with pgbench.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};
use idem_cluster::Cluster;

/// A script that each client runs again and again, with prepared statements.
pub struct Script<'a> {
    pub cluster: &'a Cluster,
    pub database: &'a str,
    pub text: &'a str,
    pub clients: usize,
    pub time: Duration,
    pub synchronous_commit: bool,
}

/// The output of pgbench.
pub struct Output(String);

impl Script<'_> {
    /// Runs the script. Fails if one transaction fails.
    pub fn run(&self) -> Result<Output> {
        let file = self.cluster.socket_dir().join("script.pgbench");
        fs::write(&file, self.text)?;
        let file = file.display().to_string();
        let seconds = self.time.as_secs().max(1).to_string();
        let clients = self.clients.to_string();
        let arguments = [
            "--no-vacuum",
            "--protocol=prepared",
            "--report-per-command",
            "--client",
            &clients,
            "--time",
            &seconds,
            "--file",
            &file,
            self.database,
        ];
        let options = match self.synchronous_commit {
            true => "-c synchronous_commit=on",
            false => "-c synchronous_commit=off",
        };
        let output = self
            .cluster
            .run("pgbench", arguments, &[("PGOPTIONS", options)])?;
        Ok(Output(output))
    }
}

impl Output {
    /// Returns the number of transactions.
    pub fn transactions(&self) -> Result<u64> {
        self.number_after("number of transactions actually processed: ")
            .map(|count| count as u64)
    }

    /// Returns the number of transactions per second, without the time to connect.
    pub fn rate(&self) -> Result<f64> {
        self.number_after("tps = ")
    }

    fn number_after(&self, prefix: &str) -> Result<f64> {
        let rest = self.0.lines().find_map(|line| line.strip_prefix(prefix));
        rest.and_then(|rest| rest.split([' ', '/']).next()?.parse().ok())
            .with_context(|| format!("pgbench printed no line \"{prefix}\":\n{}", self.0))
    }

    /// Returns the mean latency of a statement of the script, in microseconds.
    pub fn latency_us(&self, statement: &str) -> Result<f64> {
        // Format of the line: "  0.045  0  SELECT ...", that is milliseconds, failures, statement.
        let begin = &statement[..statement.len().min(30)];
        let line = self.0.lines().find(|line| line.contains(begin));
        let milliseconds =
            line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
        let milliseconds = milliseconds
            .with_context(|| format!("pgbench printed no latency of the statement:\n{}", self.0))?;
        Ok(1_000.0 * milliseconds)
    }
}
