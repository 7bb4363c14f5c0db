//! The runtimes on real brokers: consumption with and without idem, publication from the outbox and
//! from memory.

mod consume;
mod lines;
mod publish;

use anyhow::Result;
use deadpool_postgres::{Manager, ManagerConfig, Pool, RecyclingMethod};
use idem_cluster::Cluster;
use tokio::runtime::Runtime;
use tokio_postgres::NoTls;

pub use consume::run as consume;
pub use publish::run as publish;

/// The number of connections on each side, and of concurrent transactions.
const CONNECTIONS: usize = 8;

fn runtime() -> Result<Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?)
}

fn pool(cluster: &Cluster, database: &str) -> Result<Pool> {
    let manager = Manager::from_config(
        cluster.connection_string(database).parse()?,
        NoTls,
        ManagerConfig {
            recycling_method: RecyclingMethod::Fast,
        },
    );
    // One more connection, because the relay waits on a connection of its own.
    Ok(Pool::builder(manager).max_size(CONNECTIONS + 1).build()?)
}
