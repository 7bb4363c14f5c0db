//! The server that the figures are measured on, and the line that says what machine it was.

use std::fs;
use std::thread::available_parallelism;

use anyhow::{Context, Result};
use idem_cluster::{Cluster, Install};

use super::side::Side;
use super::wire::Session;

/// What differs from the cluster of the tests, or from PostgreSQL's defaults. Everything else is as
/// PostgreSQL ships it.
const SETTINGS: [(&str, &str); 4] = [
    // Durability as people run it.
    ("fsync", "on"),
    // Large enough for the tables of both sides: the figures are of the queues and not of the disk.
    ("shared_buffers", "1GB"),
    ("max_wal_size", "8GB"),
    // Claims are also measured alone, each as a transaction; a look at the setting costs as much.
    ("idem.lone_claims", "allow"),
];

/// Printed although they may have their defaults, because the figures depend on them.
const SHOWN: [&str; 12] = [
    "lc_collate",
    "fsync",
    "full_page_writes",
    "jit",
    "wal_level",
    "wal_compression",
    "wal_sync_method",
    "synchronous_commit",
    "autovacuum",
    "autovacuum_vacuum_scale_factor",
    "autovacuum_naptime",
    "idem.lone_claims",
];

/// The accounts that the business updates go to.
pub const ACCOUNTS: u32 = 100_000;

/// A server with both databases in it: the settings are the same for both because they are the same
/// settings.
pub fn start(install: &Install, name: &str, more: &[(&str, &str)]) -> Result<Cluster> {
    let mut builder = Cluster::builder(install).name(name);
    for (name, value) in SETTINGS.iter().chain(more) {
        builder = builder.setting(name, value);
    }
    let cluster = builder.start()?;
    for side in Side::in_turn(0) {
        cluster.run("createdb", [side.database()], &[])?;
    }
    Session::connect(&cluster, Side::Idem.database())?.run("CREATE EXTENSION idem")?;
    Ok(cluster)
}

/// The business table: the same on both sides.
pub fn create_accounts(session: &mut Session) -> Result<()> {
    session.run("CREATE TABLE account (id int4 PRIMARY KEY, balance int8 NOT NULL DEFAULT 0)")?;
    session.run(&format!(
        "INSERT INTO account (id) SELECT n FROM generate_series(0, {ACCOUNTS} - 1) n"
    ))?;
    session.run("VACUUM (ANALYZE) account")?;
    Ok(())
}

/// The settings of the server: every one that is not PostgreSQL's default, and those that the
/// figures depend on.
pub fn settings(session: &mut Session) -> Result<String> {
    let names = SHOWN.map(|name| format!("'{name}'")).join(", ");
    let shown = session.column(&format!(
        "SELECT name || '=' || current_setting(name) FROM pg_settings
          WHERE name IN ({names}) OR source IN ('configuration file', 'command line', 'database', 'user', 'global', 'database user')
          ORDER BY name"
    ))?;
    Ok(format!("settings of both sides: {}", shown.join(" ")))
}

/// Cores, memory and versions.
pub fn machine(install: &Install) -> Result<String> {
    let memory = fs::read_to_string("/proc/meminfo")?;
    let memory_kb: u64 = memory
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))
        .and_then(|rest| rest.trim().strip_suffix("kB"))
        .context("no MemTotal in /proc/meminfo")?
        .trim()
        .parse()?;
    let processors = fs::read_to_string("/proc/cpuinfo")?;
    let model = processors
        .lines()
        .find_map(|line| line.strip_prefix("model name"))
        .map_or("processor of unknown model", |rest| {
            rest.trim_start_matches([':', '\t', ' '])
        });
    let version = std::process::Command::new(install.program("postgres")?)
        .arg("--version")
        .output()?;
    Ok(format!(
        "machine: {} cores ({model}), {:.0} GB of memory, {}",
        available_parallelism()?,
        memory_kb as f64 / 1024.0 / 1024.0,
        String::from_utf8_lossy(&version.stdout).trim(),
    ))
}
