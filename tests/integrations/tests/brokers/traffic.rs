//! A load for tests that kill a broker: effects are published and consumed continuously.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use idem_runtime::{Publisher, Source};
use tokio::task::JoinSet;

use crate::{DEADLINE, next, plain, publish, text};

/// The number of effects that are published concurrently.
const AT_ONCE: u32 = 20;

/// The progress of the publisher and the consumer.
#[derive(Default)]
struct Score {
    confirmed: Mutex<HashSet<String>>,
    consumed: Mutex<HashSet<String>>,
    /// The number of attempts that found the broker unavailable.
    away: AtomicU32,
}

/// A publisher and a consumer that run until this value is dropped.
pub struct Traffic {
    score: Arc<Score>,
    publishing: JoinSet<()>,
    _consuming: JoinSet<()>,
}

impl Traffic {
    pub fn start(publisher: impl Publisher, mut source: impl Source, topic: &'static str) -> Self {
        let score = Arc::new(Score::default());
        let (mut publishing, mut consuming) = (JoinSet::new(), JoinSet::new());
        let shared = Arc::clone(&score);
        publishing.spawn(async move {
            for round in 0.. {
                let texts: Vec<_> = (0..AT_ONCE).map(|n| format!("{round}.{n}")).collect();
                let one = async |text: &String| {
                    publish(&publisher, &plain(topic, text), &shared.away).await;
                    shared.confirmed.lock().unwrap().insert(text.clone());
                };
                join_all(texts.iter().map(one)).await;
            }
        });
        let shared = Arc::clone(&score);
        consuming.spawn(async move {
            loop {
                let delivery = next(&mut source).await;
                shared.consumed.lock().unwrap().insert(text(&delivery));
                // Ignore an error: if the settlement does not reach the broker, the broker
                // redelivers the message.
                let _ = delivery.settle(idem_runtime::Settlement::Acknowledge).await;
            }
        });
        Self {
            score,
            publishing,
            _consuming: consuming,
        }
    }

    /// Returns the number of confirmed effects.
    pub fn confirmed(&self) -> usize {
        self.score.confirmed.lock().unwrap().len()
    }

    /// Waits until `more` additional effects are confirmed.
    pub async fn go_on(&mut self, more: usize) {
        let goal = self.confirmed() + more;
        self.wait_until("more effects are confirmed", |score| {
            score.confirmed.lock().unwrap().len() >= goal
        })
        .await;
    }

    /// Waits until the publisher has found the broker unavailable.
    pub async fn meet_absence(&mut self) {
        self.wait_until("the broker is unavailable", |score| {
            score.away.load(Ordering::SeqCst) > 0
        })
        .await;
    }

    /// Stops publishing, and waits until every confirmed effect has been consumed.
    pub async fn finish(mut self) {
        self.publishing.shutdown().await;
        self.wait_until("every confirmed effect is consumed", |score| {
            let consumed = score.consumed.lock().unwrap();
            score.confirmed.lock().unwrap().is_subset(&consumed)
        })
        .await;
    }

    async fn wait_until(&mut self, what: &str, reached: impl Fn(&Score) -> bool) {
        let started = Instant::now();
        while !reached(&self.score) {
            assert!(started.elapsed() < DEADLINE, "timed out: {what}");
            assert!(
                self.publishing.try_join_next().is_none(),
                "the publisher has ended"
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}
