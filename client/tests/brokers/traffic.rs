//! Effects published and consumed without a pause while a broker is killed.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use idem_client::{Publisher, Source};
use tokio::task::JoinSet;

use crate::{DEADLINE, next, plain, publish, text};

/// So many are under way at once.
const AT_ONCE: u32 = 20;

/// What has happened so far.
#[derive(Default)]
struct Score {
    confirmed: Mutex<HashSet<String>>,
    consumed: Mutex<HashSet<String>>,
    /// How often the publisher found the broker away.
    away: AtomicU32,
}

/// A publisher and a consumer at work until this is dropped.
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
                // When that does not reach the broker, the message comes again.
                let _ = delivery.settle(idem_client::Settlement::Acknowledge).await;
            }
        });
        Self {
            score,
            publishing,
            _consuming: consuming,
        }
    }

    /// How many effects have been confirmed.
    pub fn confirmed(&self) -> usize {
        self.score.confirmed.lock().unwrap().len()
    }

    /// Waits until this many more are confirmed.
    pub async fn go_on(&mut self, more: usize) {
        let goal = self.confirmed() + more;
        self.wait_until("more is confirmed", |score| {
            score.confirmed.lock().unwrap().len() >= goal
        })
        .await;
    }

    /// Waits until the publisher has found the broker away.
    pub async fn meet_absence(&mut self) {
        self.wait_until("the broker is away", |score| {
            score.away.load(Ordering::SeqCst) > 0
        })
        .await;
    }

    /// Publishes no more, and waits until everything confirmed has been consumed.
    pub async fn finish(mut self) {
        self.publishing.shutdown().await;
        self.wait_until("everything confirmed arrives", |score| {
            let consumed = score.consumed.lock().unwrap();
            score.confirmed.lock().unwrap().is_subset(&consumed)
        })
        .await;
    }

    async fn wait_until(&mut self, what: &str, reached: impl Fn(&Score) -> bool) {
        let started = Instant::now();
        while !reached(&self.score) {
            assert!(started.elapsed() < DEADLINE, "{what}: not in time");
            assert!(
                self.publishing.try_join_next().is_none(),
                "the publisher has given up"
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}
