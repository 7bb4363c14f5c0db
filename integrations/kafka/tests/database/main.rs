//! Tests of the Kafka adapter together with a database.

mod consumer;
#[path = "../mock/mod.rs"]
mod mock;
mod restart;

use deadpool_postgres::{Config, Pool, Runtime};
use idem_cluster::Cluster;
use tokio_postgres::NoTls;

fn pool(cluster: &Cluster) -> Pool {
    let config = Config {
        url: Some(cluster.connection_string("postgres")),
        ..Config::default()
    };
    config.create_pool(Some(Runtime::Tokio1), NoTls).unwrap()
}
