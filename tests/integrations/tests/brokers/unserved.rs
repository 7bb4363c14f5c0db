//! A fixture: a consumer that fails because of its environment.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use idem_runtime::{
    Consumer, Error, Message, Source, Tx,
    consumer::{Selector, Summary},
};
use idem_testkit::{Database, in_time, until};
use tokio::{sync::oneshot, task::JoinHandle};

/// A running consumer. Its database lacks a table, so each attempt fails because of the environment
/// and not because of the message.
pub struct Unserved {
    pub db: Database,
    attempts: Arc<AtomicU32>,
    running: JoinHandle<Result<Summary, Error>>,
    stop: oneshot::Sender<()>,
}

impl Unserved {
    /// Starts a consumer of this source. Its handler inserts the delivery count of the only message
    /// into the table `done`, which does not exist yet.
    pub async fn start(source: impl Source, destination: &str) -> Self {
        let db = Database::create();
        let attempts = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&attempts);
        let any = Selector::matching(move |_| {
            counted.fetch_add(1, Ordering::Relaxed);
            true
        });
        let handler = |tx: Tx, message: Message| async move {
            let text = format!("{:?}", message.deliveries());
            tx.execute("INSERT INTO done (text) VALUES ($1)", &[&text])
                .await?;
            Ok(vec![])
        };
        let consumer = Consumer::new(db.pool(4), source)
            .back_off(Duration::from_millis(10), Duration::from_millis(100))
            .route(any, destination, handler);
        let (stop, stopped) = oneshot::channel();
        let running = tokio::spawn(consumer.run(async {
            let _ = stopped.await;
        }));
        Self {
            db,
            attempts,
            running,
            stop,
        }
    }

    /// Waits until the message has been attempted at least `times` times.
    pub async fn attempted(&self, times: u32) {
        until("the message is attempted often enough", async || {
            self.attempts.load(Ordering::Relaxed) >= times
        })
        .await;
    }

    pub async fn stop(self) -> Summary {
        self.stop.send(()).unwrap();
        in_time(self.running).await.unwrap().unwrap()
    }
}
