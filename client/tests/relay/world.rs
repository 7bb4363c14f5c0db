//! A database with effects, and relays that run.

use std::time::Duration;

use deadpool_postgres::Pool;
use idem_client::{Effect, Error, Publisher, Relay, RelayStatus, RelaySummary, create_relay, send};
use tokio::{
    sync::{oneshot, watch},
    task::JoinHandle,
};
use tokio_postgres::Client;
use uuid::Uuid;

use crate::support::{DEADLINE, until};

/// A relay with pauses that do not make a test long, and a lease that does not run out during one.
pub fn quick<P: Publisher>(pool: Pool, publisher: P) -> Relay<P> {
    Relay::new(pool, publisher)
        .lease(Duration::from_secs(3600))
        .back_off(Duration::from_millis(5), Duration::from_millis(20))
}

/// A relay that runs in a task of its own.
pub struct Running {
    pub status: watch::Receiver<RelayStatus>,
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<RelaySummary, Error>>,
}

impl Running {
    pub fn start<P: Publisher>(relay: Relay<P>) -> Self {
        let (stop, stopped) = oneshot::channel();
        Self {
            status: relay.status(),
            stop,
            task: tokio::spawn(relay.run(async {
                let _ = stopped.await;
            })),
        }
    }

    /// Tells it to leave, and waits until it has.
    pub async fn stop(self) -> RelaySummary {
        self.stop.send(()).unwrap();
        tokio::time::timeout(DEADLINE, self.task)
            .await
            .expect("a relay that is told to stop stops")
            .unwrap()
            .unwrap()
    }

    /// As a process that is killed: nothing more happens in it.
    pub async fn kill(self) {
        self.task.abort();
        assert!(self.task.await.unwrap_err().is_cancelled());
    }

    /// Why it ended.
    pub async fn failed(self) -> Error {
        tokio::time::timeout(DEADLINE, self.task)
            .await
            .unwrap()
            .unwrap()
            .unwrap_err()
    }
}

/// A relay with several partitions.
pub async fn split(client: &Client, partitions: i32) {
    create_relay(client, "split", partitions, true)
        .await
        .unwrap();
}

/// Sends an effect that says this.
pub async fn say(client: &Client, key: Option<&str>, says: &str) -> Uuid {
    let mut effect = Effect::json("things", &says).unwrap();
    if let Some(key) = key {
        effect = effect.key(key);
    }
    send(client, &effect).await.unwrap()
}

/// Sends `a-0`, `b-0`, `a-1`, `b-1` and so on, each under its letter.
pub async fn say_rounds(client: &mut Client, keys: &[&str], rounds: usize) {
    let tx = client.transaction().await.unwrap();
    for round in 0..rounds {
        for key in keys {
            say(tx.client(), Some(key), &format!("{key}-{round}")).await;
        }
    }
    tx.commit().await.unwrap();
}

/// What [`say_rounds`] said of one key.
pub fn rounds(key: &str, rounds: usize) -> Vec<String> {
    (0..rounds).map(|round| format!("{key}-{round}")).collect()
}

/// Waits until a relay has acknowledged, parked or put aside everything.
pub async fn until_acknowledged(client: &Client, relay: &str) {
    until("everything is acknowledged", async || {
        let lag = "SELECT sum(lag_messages)::bigint = 0 FROM idem.relays WHERE relay = $1";
        client.query_one(lag, &[&relay]).await.unwrap().get(0)
    })
    .await;
}

/// The reasons of what is parked.
pub async fn parked(client: &Client) -> Vec<(Uuid, String)> {
    let parked = "SELECT message_id, error FROM idem.parked ORDER BY seq";
    let rows = client.query(parked, &[]).await.unwrap();
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}
