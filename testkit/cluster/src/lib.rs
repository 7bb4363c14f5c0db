//! Throwaway PostgreSQL clusters for the demo, the tests and the benchmarks.
//!
//! A cluster is initialised, started, used and removed. It listens only on a socket in a private
//! directory, keeps its data under `target/clusters`, and stops when its owner ends, however that
//! happens. The machine's own PostgreSQL is only read: [`Install`] copies its programs into
//! `target/pg/<major>`, and the extension is installed in the copy.
//!
//! ```no_run
//! use idem_cluster::{Cluster, Install};
//!
//! # fn main() -> anyhow::Result<()> {
//! let install = Install::from_env()?;
//! let cluster = Cluster::builder(&install).setting("work_mem", "8MB").start()?;
//! cluster.psql("postgres", "CREATE EXTENSION idem")?;
//! let url = cluster.connection_string("postgres");
//! # Ok(())
//! # }
//! ```
//!
//! Other throwaway servers use the same parts: a [`Home`], a [`Process`] and a [`ServerUser`].
//!
//! The next server that starts removes the directories of owners that were killed (`SIGKILL`, a
//! power cut).

mod builder;
mod cluster;
mod home;
mod install;
mod loopback;
mod probe;
mod process;
mod shutdown;
mod user;
mod wait;
mod workspace;

pub use builder::Builder;
pub use cluster::Cluster;
pub use home::Home;
pub use install::Install;
pub use probe::probe;
pub use process::{Process, Stops, is_running, processes_of};
pub use shutdown::Shutdown;
pub use user::ServerUser;
pub use wait::wait_for;
pub use workspace::{cargo, workspace_root};
