//! Tests of I4 and I5 under load. Producers pause inside transactions, roll back and run long,
//! while relays read, and a checker compares the effects that the relays read with the committed
//! effects. A reader that polls for `seq > last`, as many simple relays do, loses effects of the
//! same traffic.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use idem_testkit::ring::rotations;
use idem_testkit::{DEADLINE, Database, Session, until};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio::task::JoinSet;
use uuid::Uuid;

use super::reader::{Effect, Reader};
use super::rotation::{keep_for, maintain};

const KEYS: i32 = 6;

/// I5: every relay reads every committed effect once, and the effects of a key in their order. The
/// polling reader loses effects, so the checker can detect a loss.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i5_relays_read_committed_effects_once_in_key_order() -> Result<()> {
    let db = Arc::new(Database::with_idem("traffic").await?);
    let session = db.connect().await?;
    session.run("SELECT idem_create_relay('split', 3)").await?;
    let traffic = Traffic::start(&db, 8, 1).await?;
    let whole = traffic.follow(Reader::of(&db, "default").await?.limit(7));
    let mut parts = Vec::new();
    for partition in 0..3 {
        parts.push(
            traffic.follow(
                Reader::of(&db, "split")
                    .await?
                    .partition(partition)
                    .limit(5),
            ),
        );
    }
    let poller = traffic.poll(db.connect().await?);

    until("the polling reader has lost an effect", async || {
        traffic.check_alive()?;
        Ok(
            poller.lost.load(Ordering::SeqCst) > 0
                && traffic.committed.load(Ordering::SeqCst) > 600,
        )
    })
    .await?;
    traffic.stop().await?;

    let committed = Committed::read(&session).await?;
    assert!(
        traffic.rolled_back.load(Ordering::SeqCst) > 10,
        "too few transactions were rolled back to test this"
    );
    assert_eq!(
        committed.verdict(&joined(whole).await?),
        Verdict::default(),
        "relay default"
    );
    let mut split = Vec::new();
    for part in parts {
        split.extend(joined(part).await?);
    }
    assert_eq!(committed.verdict(&split), Verdict::default(), "relay split");

    let polled = poller.task.await??;
    let verdict = committed.verdict(&polled);
    assert!(
        verdict.lost > 0,
        "the checker does not find what the polling reader lost: {verdict:?}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i4_rotation_with_a_lagging_relay_loses_no_effect() -> Result<()> {
    const ROTATIONS: i64 = 5;
    let db = Arc::new(Database::with_idem("lag").await?);
    let (session, maintainer) = (db.connect().await?, db.connect().await?);
    session.run("SELECT idem_create_relay('lagging')").await?;
    maintainer.run("SET idem.fence_wait = 0").await?;
    keep_for(&session, "200 milliseconds").await?;
    let traffic = Traffic::start(&db, 5, 2).await?;
    let prompt = traffic.follow(Reader::of(&db, "default").await?);
    let lagging = Reader::of(&db, "lagging").await?.limit(50);

    // The lagging relay reads only when it blocks the rotation of the outbox.
    let mut late = Vec::new();
    let mut blocked = 0;
    until("the outbox has rotated often enough", async || {
        traffic.check_alive()?;
        maintain(&maintainer).await?;
        let blocks = "SELECT count(*) FROM idem_health() \
                      WHERE check_name = 'outbox' AND status = 'critical' \
                      AND detail LIKE '%lagging%'";
        if session.text(blocks).await? == "1" {
            blocked += 1;
            late.extend(lagging.drain().await?);
        }
        Ok(blocked > 0 && rotations(&session, "outbox").await? >= ROTATIONS)
    })
    .await?;
    traffic.stop().await?;
    late.extend(lagging.drain().await?);

    let committed = Committed::read(&session).await?;
    assert_eq!(
        committed.verdict(&joined(prompt).await?),
        Verdict::default(),
        "relay default"
    );
    assert_eq!(
        committed.verdict(&late),
        Verdict::default(),
        "relay lagging"
    );
    assert!(
        session
            .text("SELECT count(*) FROM idem.outbox_row")
            .await?
            .parse::<usize>()?
            < committed.keys.len(),
        "the outbox still holds every effect, so this tests no rotation"
    );
    Ok(())
}

/// The producers, their counters and the flags that stop them.
struct Traffic {
    producers: tokio::sync::Mutex<JoinSet<Result<()>>>,
    stopping: Arc<AtomicBool>,
    /// True when no further effect will be recorded.
    over: Arc<AtomicBool>,
    failed: Arc<AtomicBool>,
    committed: Arc<AtomicUsize>,
    rolled_back: Arc<AtomicUsize>,
}

impl Traffic {
    async fn start(db: &Arc<Database>, producers: u64, seed: u64) -> Result<Self> {
        let session = db.connect().await?;
        session
            .run(&format!(
                "CREATE TABLE account (key text PRIMARY KEY, n integer NOT NULL DEFAULT 0); \
                 INSERT INTO account (key) SELECT 'k' || n FROM generate_series(1, {KEYS}) n; \
                 CREATE TABLE sent (message_id uuid PRIMARY KEY, key text, n integer)"
            ))
            .await?;
        let traffic = Self {
            producers: tokio::sync::Mutex::default(),
            stopping: Arc::default(),
            over: Arc::default(),
            failed: Arc::default(),
            committed: Arc::default(),
            rolled_back: Arc::default(),
        };
        for producer in 0..producers {
            let session = db.connect().await?;
            let dice = StdRng::seed_from_u64(seed << 32 | producer);
            let (stopping, failed) = (Arc::clone(&traffic.stopping), Arc::clone(&traffic.failed));
            let (committed, rolled_back) = (
                Arc::clone(&traffic.committed),
                Arc::clone(&traffic.rolled_back),
            );
            traffic.producers.lock().await.spawn(async move {
                let produced = produce(session, dice, &stopping, (&committed, &rolled_back)).await;
                failed.fetch_or(produced.is_err(), Ordering::SeqCst);
                produced
            });
        }
        Ok(traffic)
    }

    /// Runs a relay until the producers have stopped and no effect is left. Returns the effects
    /// that the relay acknowledged.
    fn follow(&self, reader: Reader) -> tokio::task::JoinHandle<Result<Vec<Effect>>> {
        let over = Arc::clone(&self.over);
        tokio::spawn(async move {
            let mut published = Vec::new();
            loop {
                // Read the flag before the batch: effects that were committed before the flag was
                // set are then in this batch.
                let is_last = over.load(Ordering::SeqCst);
                let batch = reader.drain().await?;
                let idle = batch.is_empty();
                published.extend(batch);
                if is_last {
                    return Ok(published);
                }
                if idle {
                    reader.session.run("SELECT idem_relay_wait(20)").await?;
                }
            }
        })
    }

    /// Runs the broken variant: a reader that polls for `seq > last`.
    fn poll(&self, session: Session) -> Poller {
        let over = Arc::clone(&self.over);
        let lost = Arc::new(AtomicUsize::new(0));
        let noticed = Arc::clone(&lost);
        let task = tokio::spawn(async move {
            let (mut published, mut last) = (Vec::new(), 0_i64);
            loop {
                let is_last = over.load(Ordering::SeqCst);
                let rows = session
                    .query(
                        "SELECT seq, message_id, key, \
                                convert_from(payload, 'UTF8')::jsonb #>> '{}' \
                         FROM idem.outbox_row WHERE seq > $1 ORDER BY seq",
                        &[&last],
                    )
                    .await?;
                published.extend(rows.iter().map(|row| Effect {
                    seq: row.get(0),
                    message_id: row.get(1),
                    key: row.get(2),
                    says: row.get(3),
                }));
                last = published.last().map_or(0, |effect| effect.seq);
                let behind = session
                    .query_one(
                        "SELECT count(*) FROM idem.outbox_row WHERE seq <= $1",
                        &[&last],
                    )
                    .await?;
                let there = usize::try_from(behind.get::<_, i64>(0))?;
                noticed.store(there - published.len(), Ordering::SeqCst);
                if is_last {
                    return Ok(published);
                }
            }
        });
        Poller { task, lost }
    }

    fn check_alive(&self) -> Result<()> {
        anyhow::ensure!(!self.failed.load(Ordering::SeqCst), "a producer has failed");
        Ok(())
    }

    /// Stops the producers after their current transactions, and waits for them.
    async fn stop(&self) -> Result<()> {
        self.stopping.store(true, Ordering::SeqCst);
        let mut producers = self.producers.lock().await;
        while let Some(producer) = producers.join_next().await {
            producer??;
        }
        self.over.store(true, Ordering::SeqCst);
        Ok(())
    }
}

struct Poller {
    task: tokio::task::JoinHandle<Result<Vec<Effect>>>,
    /// The number of effects that the reader has skipped.
    lost: Arc<AtomicUsize>,
}

/// Runs one transaction after another. Each transaction inserts what it sends into the table
/// `sent`, so every committed row stands for a committed effect.
async fn produce(
    session: Session,
    mut dice: StdRng,
    stopping: &AtomicBool,
    (committed, rolled_back): (&AtomicUsize, &AtomicUsize),
) -> Result<()> {
    while !stopping.load(Ordering::SeqCst) {
        session.run("BEGIN").await?;
        if dice.random_bool(0.3) {
            // The effect takes its number now and commits at any time later.
            session
                .run(
                    "INSERT INTO sent (message_id) \
                     SELECT idem_send('things', to_jsonb('alone'::text))",
                )
                .await?;
        }
        hesitate(&mut dice).await;
        // The UPDATE locks the row of the key, which serializes the effects of the key, as in an
        // application. All producers lock the rows in the same order, so there is no deadlock.
        let mut keys: Vec<i32> = (0..dice.random_range(0..=2))
            .map(|_| dice.random_range(1..=KEYS))
            .collect();
        keys.sort_unstable();
        for key in keys {
            session
                .run(&format!(
                    "WITH next AS (UPDATE account SET n = n + 1 WHERE key = 'k{key}' \
                     RETURNING key, n) \
                     INSERT INTO sent (message_id, key, n) \
                     SELECT idem_send('things', to_jsonb(n::text), key), key, n FROM next"
                ))
                .await?;
            hesitate(&mut dice).await;
        }
        if dice.random_bool(0.15) {
            session.run("ROLLBACK").await?;
            rolled_back.fetch_add(1, Ordering::SeqCst);
        } else {
            session.run("COMMIT").await?;
            committed.fetch_add(1, Ordering::SeqCst);
        }
    }
    Ok(())
}

async fn hesitate(dice: &mut StdRng) {
    let ms = match dice.random_range(0..100) {
        0..60 => 0,
        60..98 => dice.random_range(1..6),
        _ => dice.random_range(100..300),
    };
    tokio::time::sleep(Duration::from_millis(ms)).await;
}

async fn joined(reader: tokio::task::JoinHandle<Result<Vec<Effect>>>) -> Result<Vec<Effect>> {
    tokio::time::timeout(DEADLINE, reader)
        .await
        .context("a relay does not reach the last effect")??
}

/// The effects that the producers have committed: key and number within the key, by message id.
struct Committed {
    keys: BTreeMap<Uuid, (Option<String>, Option<i32>)>,
}

/// The numbers of errors in the effects that a reader published.
#[derive(Debug, Default, PartialEq, Eq)]
struct Verdict {
    lost: usize,
    twice: usize,
    never_committed: usize,
    out_of_order: usize,
}

impl Committed {
    async fn read(session: &Session) -> Result<Self> {
        let rows = session
            .query("SELECT message_id, key, n FROM sent", &[])
            .await?;
        Ok(Self {
            keys: rows
                .iter()
                .map(|row| (row.get(0), (row.get(1), row.get(2))))
                .collect(),
        })
    }

    fn verdict(&self, published: &[Effect]) -> Verdict {
        let mut verdict = Verdict::default();
        let mut seen = BTreeSet::new();
        let mut last_of: BTreeMap<&str, i32> = BTreeMap::new();
        for effect in published {
            let Some((key, n)) = self.keys.get(&effect.message_id) else {
                verdict.never_committed += 1;
                continue;
            };
            verdict.twice += usize::from(!seen.insert(effect.message_id));
            if let (Some(key), Some(n)) = (key, n) {
                let last = last_of.entry(key).or_default();
                // The numbers of the committed effects of a key have no gaps, because a rollback
                // also restores the counter of the key.
                verdict.out_of_order += usize::from(*n != *last + 1);
                *last = *n;
            }
        }
        verdict.lost = self.keys.len() - seen.len();
        verdict
    }
}
