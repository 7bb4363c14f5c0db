//! The server that is measured, and a description of the machine.

use std::fs;
use std::thread::available_parallelism;

use anyhow::{Context, Result};
use idem_cluster::{Cluster, Install};

use super::side::Side;
use super::wire::Session;

/// The settings that differ from the cluster of the tests or from PostgreSQL's defaults. All other
/// settings have PostgreSQL's defaults.
const SETTINGS: [(&str, &str); 4] = [
    // The durability that is usual in production.
    ("fsync", "on"),
    // Large enough for the tables of both sides with two million identities, so that no figure
    // depends on reads from the disk. The parts `flat` and `long-run` have larger tables.
    ("shared_buffers", "1GB"),
    ("max_wal_size", "8GB"),
    // Claims are also measured alone, each in its own transaction. The check of this setting costs
    // the same with any value.
    ("idem.lone_claims", "allow"),
];

/// Settings that are always printed, because the figures depend on them.
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

/// The number of accounts that the business updates use.
pub const ACCOUNTS: u32 = 100_000;

/// The business update of every side: adds 1 to the balance of the account `$1`.
pub const BUSINESS: &str = "UPDATE account SET balance = balance + 1 WHERE id = $1";

/// Returns the number of business updates in a database or a schema.
pub const UPDATES: &str = "SELECT sum(balance)::int8 FROM account";

/// Starts a server with the databases of both sides, so that both sides have the same settings.
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

/// Returns the statements that create and fill the business table, which is the same on every side.
/// Each statement is sent alone, because VACUUM fails in a transaction.
pub fn account_statements() -> [String; 3] {
    [
        "CREATE TABLE account (id int4 PRIMARY KEY, balance int8 NOT NULL DEFAULT 0)".to_owned(),
        format!("INSERT INTO account (id) SELECT n FROM generate_series(0, {ACCOUNTS} - 1) n"),
        "VACUUM (ANALYZE) account".to_owned(),
    ]
}

/// Creates the business table.
pub fn create_accounts(session: &mut Session) -> Result<()> {
    for statement in account_statements() {
        session.run(&statement)?;
    }
    Ok(())
}

/// Returns the settings of the server: those that differ from PostgreSQL's defaults, and those that
/// the figures depend on.
pub fn settings(session: &mut Session) -> Result<String> {
    let names = SHOWN.map(|name| format!("'{name}'")).join(", ");
    let shown = session.column(&format!(
        "SELECT name || '=' || current_setting(name) FROM pg_settings
          WHERE name IN ({names})
             OR source IN ('configuration file', 'command line', 'database', 'user', 'global',
                           'database user')
          ORDER BY name"
    ))?;
    Ok(format!("settings of both sides: {}", shown.join(" ")))
}

/// Returns the number of bytes of WAL that the server has written since it was created.
pub fn wal_position(session: &mut Session) -> Result<u64> {
    session.value("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')")
}

/// Returns a line with the cores, the memory and the versions of the machine.
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
        .map_or("unknown processor model", |rest| {
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
