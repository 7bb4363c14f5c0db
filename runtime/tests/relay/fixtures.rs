//! Fixtures: a database with effects, and running relays.

use std::time::Duration;

use deadpool_postgres::Pool;
use idem_client::{Effect, send};
use idem_runtime::{
    Error, Publisher, Relay,
    relay::{RelayStatus, RelaySummary},
};
use idem_testkit::{DEADLINE, until};
use tokio::{
    sync::{oneshot, watch},
    task::JoinHandle,
};
use tokio_postgres::Client;
use uuid::Uuid;

/// Returns a relay with a short back-off, and with a lease that does not expire during a test.
pub fn quick<P: Publisher>(pool: Pool, publisher: P) -> Relay<P> {
    Relay::new(pool, publisher)
        .lease(Duration::from_secs(3600))
        .back_off(Duration::from_millis(5), Duration::from_millis(20))
}

/// A relay that runs in its own task.
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

    /// Requests a shutdown and waits until the relay has stopped.
    pub async fn stop(self) -> RelaySummary {
        self.stop.send(()).unwrap();
        tokio::time::timeout(DEADLINE, self.task)
            .await
            .expect("the relay does not stop")
            .unwrap()
            .unwrap()
    }

    /// Stops the relay as a kill of its process would.
    pub async fn kill(self) {
        self.task.abort();
        assert!(self.task.await.unwrap_err().is_cancelled());
    }

    /// Waits until the relay fails, and returns its error.
    pub async fn failed(self) -> Error {
        tokio::time::timeout(DEADLINE, self.task)
            .await
            .unwrap()
            .unwrap()
            .unwrap_err()
    }
}

/// Creates the relay `split` with several partitions.
pub async fn split(client: &Client, partitions: i32) {
    let create = format!("SELECT idem_create_relay('split', {partitions}, true)");
    client.batch_execute(&create).await.unwrap();
}

/// Sends an effect with this payload to the topic `things`.
pub async fn say(client: &Client, key: Option<&str>, payload: &str) -> Uuid {
    let mut effect = Effect::json("things", &payload).unwrap();
    if let Some(key) = key {
        effect = effect.key(key);
    }
    send(client, &effect).await.unwrap()
}

/// Sends `a-0`, `b-0`, `a-1`, `b-1` and so on, each with its letter as key.
pub async fn say_rounds(client: &mut Client, keys: &[&str], rounds: usize) {
    let tx = client.transaction().await.unwrap();
    for round in 0..rounds {
        for key in keys {
            say(tx.client(), Some(key), &format!("{key}-{round}")).await;
        }
    }
    tx.commit().await.unwrap();
}

/// Returns the payloads that [`say_rounds`] sends for one key.
pub fn rounds(key: &str, rounds: usize) -> Vec<String> {
    (0..rounds).map(|round| format!("{key}-{round}")).collect()
}

/// Waits until a relay has acknowledged, parked or delayed all effects.
pub async fn until_acknowledged(client: &Client, relay: &str) {
    until("everything is acknowledged", async || {
        let lag = "SELECT sum(lag_messages)::bigint = 0 FROM idem.relays WHERE relay = $1";
        client
            .query_one(lag, &[&relay])
            .await
            .unwrap()
            .get::<_, bool>(0)
    })
    .await;
}

/// Returns the ids of the parked effects and the reasons.
pub async fn parked(client: &Client) -> Vec<(Uuid, String)> {
    let parked = "SELECT message_id, error FROM idem.parked ORDER BY seq";
    let rows = client.query(parked, &[]).await.unwrap();
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}
