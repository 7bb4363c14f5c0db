//! The primary and its synchronous standby.
//!
//! A commit is acknowledged after the standby has flushed it, so a promotion loses no acknowledged
//! commit. But two kinds of commits are visible although the standby may not have them: commits of
//! a session that ended while it waited for the standby, and commits that a restarted primary
//! recovers from its WAL. A duplicate of such a message may be acknowledged, because
//! `idem.wait_for_flush` waits only for the disk of the primary. Therefore an operator must promote
//! only a standby that has all WAL of the primary. [`Pair::promote`] first waits until the standby
//! has all of it.

use std::fs;
use std::io::Write;
use std::mem;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use idem_cluster::{Cluster, Install, wait_for};

use super::{disk::Disk, server_log};
use idem_testkit::clock::Clock;

/// The longest time that the standby may take to be in sync.
const PATIENCE: Duration = Duration::from_secs(120);

/// A query that returns whether the standby is synchronous and has flushed up to an LSN, which is
/// appended to the text.
const IS_IN_SYNC: &str = "SELECT count(*) > 0 FROM pg_stat_replication
    WHERE state = 'streaming' AND sync_state = 'sync' AND flush_lsn >= ";

/// One server with its own disk.
struct Node {
    cluster: Cluster,
    disk: Disk,
}

/// The primary and its standby.
pub struct Pair {
    primary: Node,
    standby: Node,
    /// The file with the logs of servers that were replaced.
    old_logs: PathBuf,
}

impl Pair {
    /// Starts the primary, with the extension in database `postgres`, and its standby.
    pub fn start(dir: &Path, clock: &Clock) -> Result<Self> {
        let disks = [
            Disk::mount(dir.join("disk-a"))?,
            Disk::mount(dir.join("disk-b"))?,
        ];
        let mut builder = Cluster::builder(&Install::from_env()?).name("chaos");
        for (name, value) in SETTINGS.into_iter().chain(server_log::SETTINGS) {
            builder = builder.setting(name, value);
        }
        for (name, value) in clock.environment() {
            builder = builder.env(&name, &value);
        }
        let [first, second] = disks;
        let primary = Node {
            cluster: builder.data_dir(first.dir().join("data")).start()?,
            disk: first,
        };
        primary.cluster.psql("postgres", "CREATE EXTENSION idem")?;
        let standby = Node {
            cluster: follow(&primary.cluster, &second)?,
            disk: second,
        };
        let mut pair = Self {
            primary,
            standby,
            old_logs: dir.join("servers.log"),
        };
        pair.synchronize()?;
        Ok(pair)
    }

    /// Returns the connection string of the primary for the superuser, without a proxy.
    #[must_use]
    pub fn connection_string(&self) -> String {
        self.primary.cluster.connection_string("postgres")
    }

    /// Returns the path of the socket of the primary.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.primary.cluster.socket_dir().join(".s.PGSQL.5432")
    }

    /// Returns the disk of the primary.
    #[must_use]
    pub fn disk(&self) -> &Disk {
        &self.primary.disk
    }

    /// Returns the logs of all servers so far.
    pub fn log(&self) -> Result<String> {
        let old = if self.old_logs.exists() {
            fs::read_to_string(&self.old_logs)?
        } else {
            String::new()
        };
        Ok(old + &self.primary.cluster.log()? + &self.standby.cluster.log()?)
    }

    /// Returns the number of lines in the log of the primary that contain this text.
    pub fn count_in_log(&self, text: &str) -> Result<usize> {
        let log = self.primary.cluster.log()?;
        Ok(log.lines().filter(|line| line.contains(text)).count())
    }

    /// Waits until the standby is synchronous and has all WAL that the primary has written so far.
    ///
    /// # Errors
    /// When the standby is not in sync within 120 seconds.
    pub fn wait_for_sync(&self) -> Result<()> {
        let primary = &self.primary.cluster;
        let written = primary.psql("postgres", "SELECT pg_current_wal_insert_lsn()")?;
        wait_for("the standby is in sync", PATIENCE, || {
            Ok(primary.psql("postgres", &format!("{IS_IN_SYNC} '{written}'"))? == "t")
        })
    }

    /// Kills the primary with SIGKILL and restarts it.
    pub fn crash_primary(&mut self) -> Result<()> {
        self.primary.cluster.kill()?;
        self.primary.cluster.start()
    }

    /// Kills the standby with SIGKILL and restarts it. Commits wait meanwhile.
    ///
    /// # Errors
    /// When the standby does not start, or is not in sync within 120 seconds.
    pub fn crash_standby(&mut self) -> Result<()> {
        self.standby.cluster.kill()?;
        self.standby.cluster.start()?;
        self.wait_for_sync()
    }

    /// Waits until the standby is in sync, kills the primary under load, and promotes the standby.
    ///
    /// # Errors
    /// When the standby is not in sync within 120 seconds, or cannot be promoted.
    pub fn promote(&mut self) -> Result<()> {
        self.wait_for_sync()?;
        self.primary.cluster.kill()?;
        self.standby.cluster.promote()?;
        mem::swap(&mut self.primary, &mut self.standby);
        Ok(())
    }

    /// Rebuilds the old primary as the standby of the new primary, after
    /// [`promote`](Self::promote).
    ///
    /// # Errors
    /// When the new standby does not start or is not in sync within 120 seconds.
    pub fn rebuild(&mut self) -> Result<()> {
        let mut logs = fs::File::options()
            .create(true)
            .append(true)
            .open(&self.old_logs)?;
        logs.write_all(self.standby.cluster.log()?.as_bytes())?;
        fs::remove_dir_all(self.standby.cluster.data_dir())?;
        self.standby.cluster = follow(&self.primary.cluster, &self.standby.disk)?;
        self.synchronize()
    }

    /// Restarts the primary if it has ended. When the disk is full, the primary ends as soon as it
    /// cannot create the next WAL file.
    pub fn revive_primary(&mut self) -> Result<()> {
        if self
            .primary
            .cluster
            .wait_until_ready(Duration::from_secs(20))
            .is_ok()
        {
            return Ok(());
        }
        self.primary.cluster.kill()?;
        self.primary.cluster.start()
    }

    /// Makes commits wait for the standby from now on.
    fn synchronize(&mut self) -> Result<()> {
        let primary = &mut self.primary.cluster;
        primary.configure("synchronous_standby_names", Some("*"))?;
        primary.psql("postgres", "SELECT pg_reload_conf()")?;
        self.wait_for_sync()
    }
}

/// The settings of both servers.
const SETTINGS: [(&str, &str); 11] = [
    ("shared_buffers", "64MB"),
    ("synchronous_commit", "on"),
    // `synchronize` changes this setting of the primary when the standby runs.
    ("synchronous_standby_names", ""),
    ("max_wal_size", "256MB"),
    ("wal_keep_size", "128MB"),
    ("max_connections", "80"),
    ("idem.naptime", "200ms"),
    // The timeouts are long, so that a standby that is slow on a busy machine is not disconnected.
    ("wal_sender_timeout", "300s"),
    ("wal_receiver_timeout", "300s"),
    ("wal_retrieve_retry_interval", "200ms"),
    ("restart_after_crash", "on"),
];

/// Starts a standby of this server on an empty disk.
fn follow(primary: &Cluster, disk: &Disk) -> Result<Cluster> {
    let standby = primary
        .standby()
        .name("chaos")
        .setting("synchronous_standby_names", "")
        .data_dir(disk.dir().join("data"));
    standby.start().context("cannot start the standby")
}
