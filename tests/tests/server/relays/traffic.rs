//! I4 and I5 under load: producers that hesitate, roll back and run long, against relays and a
//! checker that knows what was committed. A reader that polls for `seq > last`, as people write it,
//! loses effects of the same traffic.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use idem_tests::harness::{DEADLINE, Database, Session, until};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio::task::JoinSet;
use uuid::Uuid;

use super::reader::{Effect, Reader};
use super::rotation::{keep_for, maintain, turns};

const KEYS: i32 = 6;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i5_every_committed_effect_reaches_every_relay_once_and_in_the_order_of_its_key()
-> Result<()> {
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

    until("the polling reader has lost something", async || {
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
        "otherwise this tests less than it says"
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
    assert!(verdict.lost > 0, "the checker must catch it: {verdict:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i4_no_effect_is_lost_while_the_outbox_turns_and_a_relay_lags() -> Result<()> {
    const TURNS: i64 = 5;
    let db = Arc::new(Database::with_idem("lag").await?);
    let (session, keeper) = (db.connect().await?, db.connect().await?);
    session.run("SELECT idem_create_relay('lagging')").await?;
    keeper.run("SET idem.fence_wait = 0").await?;
    keep_for(&session, "200 milliseconds").await?;
    let traffic = Traffic::start(&db, 5, 2).await?;
    let prompt = traffic.follow(Reader::of(&db, "default").await?);
    let lagging = Reader::of(&db, "lagging").await?.limit(50);

    // It works only when the outbox is blocked because of it.
    let mut late = Vec::new();
    let mut blocked = 0;
    until("the outbox has turned often enough", async || {
        traffic.check_alive()?;
        maintain(&keeper).await?;
        let blocks = "SELECT count(*) FROM idem_health() \
                      WHERE check_name = 'outbox' AND status = 'critical' AND detail LIKE '%lagging%'";
        if session.text(blocks).await? == "1" {
            blocked += 1;
            late.extend(lagging.drain().await?);
        }
        Ok(blocked > 0 && turns(&session, "outbox").await? >= TURNS)
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
        "the outbox has forgotten some: otherwise this tests nothing"
    );
    Ok(())
}

/// Producers at work.
struct Traffic {
    producers: tokio::sync::Mutex<JoinSet<Result<()>>>,
    stopping: Arc<AtomicBool>,
    /// Nothing more will be recorded.
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
                 CREATE TABLE told (message_id uuid PRIMARY KEY, key text, n integer)"
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

    /// A relay that works until all is over and drained; answers what it acknowledged.
    fn follow(&self, reader: Reader) -> tokio::task::JoinHandle<Result<Vec<Effect>>> {
        let over = Arc::clone(&self.over);
        tokio::spawn(async move {
            let mut published = Vec::new();
            loop {
                // Looked at first: what was committed before is found after.
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

    /// The broken variant.
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
                        "SELECT seq, message_id, key, convert_from(payload, 'UTF8')::jsonb #>> '{}' \
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

    /// Lets the producers finish what they do.
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
    /// How many effects it has passed by.
    lost: Arc<AtomicUsize>,
}

/// One transaction after another. Each notes in `told` what it has sent, so that a committed note
/// is a committed effect.
async fn produce(
    session: Session,
    mut dice: StdRng,
    stopping: &AtomicBool,
    (committed, rolled_back): (&AtomicUsize, &AtomicUsize),
) -> Result<()> {
    while !stopping.load(Ordering::SeqCst) {
        session.run("BEGIN").await?;
        if dice.random_bool(0.3) {
            // Takes its number now and commits whenever.
            session
                .run("INSERT INTO told (message_id) SELECT idem_send('things', to_jsonb('alone'::text))")
                .await?;
        }
        hesitate(&mut dice).await;
        // The row lock makes the effects of a key follow each other, the way a business does it;
        // one order, so no deadlock.
        let mut keys: Vec<i32> = (0..dice.random_range(0..=2))
            .map(|_| dice.random_range(1..=KEYS))
            .collect();
        keys.sort_unstable();
        for key in keys {
            session
                .run(&format!(
                    "WITH next AS (UPDATE account SET n = n + 1 WHERE key = 'k{key}' RETURNING key, n) \
                     INSERT INTO told (message_id, key, n) SELECT idem_send('things', to_jsonb(n::text), key), key, n FROM next"
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
        .context("a relay gets to the end")??
}

/// What the producers have committed.
struct Committed {
    keys: BTreeMap<Uuid, (Option<String>, Option<i32>)>,
}

/// What is wrong with what a reader published.
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
            .query("SELECT message_id, key, n FROM told", &[])
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
                // The account counts without gaps, so its effects do.
                verdict.out_of_order += usize::from(*n != *last + 1);
                *last = *n;
            }
        }
        verdict.lost = self.keys.len() - seen.len();
        verdict
    }
}
