//! The connection pool of the database.

use anyhow::{Context, Result};
use deadpool_postgres::Pool;
use idem_runtime::PoolConfig;

use crate::config::Database;

/// Returns a pool of connections. Does not connect.
pub fn pool(database: &Database) -> Result<Pool> {
    let mut config = PoolConfig::parse(&database.url)
        .context("database.url")?
        .application_name("idem-relay")
        .max_size(database.connections);
    if let Some(ca) = &database.ca {
        config = config.ca(ca).context("database.ca")?;
    }
    if let Some(schema) = &database.schema {
        config = config.schema(schema).context("database.schema")?;
    }
    config.build().context("cannot create the connection pool")
}
