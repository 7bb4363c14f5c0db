//! Tests of events in the life of a server: dump and restore, crashes, reinstallation, killed
//! workers, standbys, a server without the preloaded library, maintenance with a failing step, and
//! jumps of the clock.

mod clocks;
mod dump;
mod flush;
mod health;
mod install_script;
mod installation;
mod loads;
mod maintenance;
mod reinstall;
mod restore;
mod standby;
mod unloaded;
mod update;
mod versions;
mod worker;

use anyhow::Result;
use idem_cluster::{Builder, Cluster, Install};
use idem_testkit::Session;

/// Returns the builder of a cluster for one test.
fn cluster(name: &str) -> Result<Builder> {
    Ok(Cluster::builder(&Install::from_env()?)
        .name(name)
        .setting("shared_buffers", "32MB"))
}

async fn claim(session: &Session, id: &str) -> Result<String> {
    session
        .text(&format!("SELECT idem_try_claim('{id}', 'orders')"))
        .await
}

/// Claims the message and records an effect that has the id as payload.
async fn record(session: &Session, id: &str) -> Result<String> {
    session
        .text(&format!(
            r#"SELECT idem_try_record('{id}', 'orders',
               '[{{"topic": "shipped", "payload": "{id}", "key": "k", "headers": {{"n": 1}}}}]')"#
        ))
        .await
}

/// Returns every column of the effects of a message.
async fn effects(session: &Session, id: &str) -> Result<String> {
    session
        .text(&format!("SELECT * FROM idem_effects('{id}', 'orders')"))
        .await
}

/// Leases and acknowledges all batches of a relay. Returns the payloads in order.
async fn drain(session: &Session, relay: &str, partition: i32) -> Result<Vec<String>> {
    let mut published = Vec::new();
    loop {
        let batch = session
            .text(&format!(
                "SELECT token, convert_from(payload, 'UTF8') \
                 FROM idem_relay_next('{relay}', {partition}, 2)"
            ))
            .await?;
        let Some((token, _)) = batch.split_once('|') else {
            return Ok(published);
        };
        published.extend(
            batch
                .lines()
                .filter_map(|line| Some(line.split_once('|')?.1.trim_matches('"').to_owned())),
        );
        session
            .run(&format!(
                "SELECT idem_relay_ack('{relay}', {partition}, {token})"
            ))
            .await?;
    }
}
