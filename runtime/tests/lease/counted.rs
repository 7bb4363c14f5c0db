//! Tests of transactional handlers for which the database counts the attempts.

use std::{
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::{FutureExt, future::BoxFuture};
use idem_client::{Effect, ErrorKind, lease::Lease};
use idem_runtime::{
    Consumer, Error, Idem, Message, Policies, Processed, Settlement, Tx,
    consumer::Summary,
    filter::{After, Before, Filter},
    lease::LeaseContext,
    policy::{Policy, Style},
};
use idem_testkit::{
    broker::Broker,
    in_time,
    proxy::{Cut, Proxy},
};
use tokio_postgres::types::Type;

use crate::fixtures::{
    DESTINATION, Fixture, LONG, SHORT, fact, idem, is_new, message, until, work,
};

fn counting(style: Style) -> Idem {
    idem(|policy| {
        policy.style = style;
        policy.count_attempts = true;
        policy.lease = SHORT;
    })
}

/// Returns a message with the delivery count of a redelivery.
fn redelivered() -> Message {
    message().with_deliveries(2)
}

#[tokio::test]
async fn redelivered_message_is_leased_and_takes_effect_once() {
    let fixture = Fixture::new().await;
    for style in [Style::Eager, Style::Reactive] {
        let message = redelivered();
        let processed = counting(style)
            .process(&fixture.pool, &message, async |tx: Tx, message: Message| {
                assert!(
                    fixture.left(&message).await.is_some(),
                    "the message is not leased"
                );
                work(tx, message).await
            })
            .await;
        assert!(is_new(&processed), "{processed:?}");
        fixture.assert_done_once(&message).await;
        let again = counting(style)
            .process(&fixture.pool, &message, work)
            .await
            .unwrap();
        assert!(matches!(again, Processed::Duplicate { .. }), "{again:?}");
        assert_eq!(fixture.work(&message).await, 1);
    }
}

#[tokio::test]
async fn first_delivery_or_uncounted_message_is_not_leased() {
    let fixture = Fixture::new().await;
    let uncounted = idem(|policy| policy.lease = SHORT);
    for (idem, message) in [
        (counting(Style::Eager), message().with_deliveries(1)),
        (uncounted, redelivered()),
    ] {
        let processed = idem
            .process(&fixture.pool, &message, async |tx: Tx, message: Message| {
                assert_eq!(fixture.left(&message).await, None);
                work(tx, message).await
            })
            .await;
        assert!(is_new(&processed), "{processed:?}");
    }
}

#[tokio::test]
async fn crashing_message_is_a_dead_letter_after_its_attempts() {
    let fixture = Fixture::new().await;
    fixture.attempts(3).await;
    let message = redelivered();
    let idem = counting(Style::Eager);
    let crashes = AtomicUsize::new(0);
    let mut last = None;
    until("the message is a dead letter", async || {
        let processed = idem.process(&fixture.pool, &message, async |tx: Tx, message: Message| {
            work(tx, message).await?;
            crashes.fetch_add(1, Ordering::SeqCst);
            pending().await
        });
        let before = crashes.load(Ordering::SeqCst);
        let begins = until("the handler runs", async || {
            crashes.load(Ordering::SeqCst) > before
        });
        tokio::select! {
            processed = processed => last = Some(processed.unwrap()),
            () = begins => fixture.expire(&message).await,
        }
        matches!(last, Some(Processed::Buried { .. }))
    })
    .await;
    assert_eq!(crashes.into_inner(), 3);
    assert_eq!(last.unwrap().settlement(), Settlement::Acknowledge);
    fixture.until_quiet().await;
    assert_eq!(
        (
            fixture.work(&message).await,
            fixture.is_claimed(&message).await
        ),
        (0, false)
    );
    let sql = "SELECT count(*) FROM idem.dead_letter WHERE payload = '{\"n\": 1}'";
    assert_eq!(fixture.count(sql).await, 1);
}

#[tokio::test]
async fn failed_attempt_is_counted_and_rolled_back() {
    let fixture = Fixture::new().await;
    fixture.attempts(2).await;
    for style in [Style::Eager, Style::Reactive] {
        let message = redelivered();
        let idem = counting(style);
        let failing = async |tx: Tx, message: Message| {
            work(tx, message).await?;
            Err("out of stock".into())
        };
        let error = idem
            .process(&fixture.pool, &message, failing)
            .await
            .unwrap_err();
        assert!(matches!(error, Error::Attempt { .. }), "{error:?}");
        let processed = idem
            .process(&fixture.pool, &message, failing)
            .await
            .unwrap();
        assert!(
            matches!(processed, Processed::Buried { .. }),
            "{processed:?}"
        );
        assert_eq!(
            (
                fixture.work(&message).await,
                fixture.is_claimed(&message).await
            ),
            (0, false)
        );
    }
}

#[tokio::test]
async fn ambiguous_commit_is_settled_before_the_next_attempt() {
    let fixture = Fixture::new().await;
    // If a handler takes effect twice, this index makes the second insert fail.
    fixture
        .observer
        .batch_execute("CREATE UNIQUE INDEX ON work (id)")
        .await
        .unwrap();
    for (cut, is_duplicate) in [(Cut::AfterCommit, true), (Cut::BeforeCommit, false)] {
        let proxy = Proxy::to(&fixture.database).await;
        let message = redelivered();
        let processed = counting(Style::Eager)
            .process(
                &proxy.pool(2),
                &message,
                async |tx: Tx, message: Message| {
                    if !proxy.was_cut() {
                        proxy.cut_once(cut);
                    }
                    work(tx, message).await
                },
            )
            .await
            .unwrap();
        assert!(proxy.was_cut());
        assert_eq!(
            matches!(processed, Processed::Duplicate { .. }),
            is_duplicate,
            "{processed:?}"
        );
        assert_eq!(fixture.work(&message).await, 1);
        fixture.assert_done_once(&message).await;
    }
}

/// Goal: while the handler runs, its lease expires and another process completes the message, so a
/// renewal fails. The message is then reported as a duplicate, and the lease is not reported as
/// lost.
#[tokio::test]
async fn completed_lease_is_not_reported_as_lost() {
    let fixture = Fixture::new().await;
    let message = redelivered();
    let processed = counting(Style::Eager)
        .process(&fixture.pool, &message, async |_: Tx, message: Message| {
            fixture.expire(&message).await;
            let held = fixture.acquired_next(&message).await;
            held.complete(&fixture.observer, &[fact()]).await?;
            // Wait here until a renewal fails and the handler is dropped.
            pending().await
        })
        .await
        .unwrap();
    assert!(
        matches!(processed, Processed::Duplicate { .. }),
        "{processed:?}"
    );
    fixture.until_quiet().await;
    assert_eq!(fixture.work(&message).await, 0);
}

#[tokio::test]
async fn lost_lease_commits_nothing() {
    let fixture = Fixture::new().await;
    let message = redelivered();
    let error = counting(Style::Eager)
        .process(&fixture.pool, &message, async |tx: Tx, message: Message| {
            let effects = work(tx, message.clone()).await;
            // Act as if this process was paused and another process acquired the lease.
            fixture.expire(&message).await;
            let _other = fixture.acquired_next(&message).await;
            effects
        })
        .await
        .unwrap_err();
    assert!(matches!(error, Error::LeaseLost), "{error:?}");
    fixture.until_quiet().await;
    assert_eq!(fixture.work(&message).await, 0);
    fixture.assert_undone(&message).await;
}

/// I1: if the handler has ended its transaction, the completion of the lease would not commit
/// together with the writes of the handler. So the message becomes a dead letter, and no write of
/// the handler is committed.
#[tokio::test]
async fn i1_counted_handler_that_ends_its_transaction_is_buried() {
    let fixture = Fixture::new().await;
    for (end, cause) in [
        ("ROLLBACK", "was ended before its commit"),
        ("ROLLBACK; BEGIN", "was ended before its commit"),
        ("COMMIT", "2D000: COMMIT"),
        ("COMMIT AND CHAIN", "2D000: COMMIT"),
        ("SET LOCAL search_path = pg_catalog", "restore both"),
    ] {
        for effects in [0, 1] {
            let message = redelivered();
            let processed = counting(Style::Eager)
                .process(&fixture.pool, &message, async |tx: Tx, message: Message| {
                    tx.execute("INSERT INTO work VALUES ($1)", &[&message.message_id()])
                        .await?;
                    tx.batch_execute(end).await?;
                    Ok((0..effects).map(|_| fact()).collect())
                })
                .await
                .unwrap();
            let Processed::Buried { reason } = processed else {
                panic!("{end}: {processed:?}");
            };
            assert!(reason.contains(cause), "{end}: {reason}");
            fixture.assert_undone(&message).await;
            assert_eq!(fixture.work(&message).await, 0, "{end}");
        }
    }
    fixture.until_quiet().await;
}

/// I2: the server cancels the COMMIT, in each form of it. Nothing is
/// committed, and the attempt is counted. Without a lease the message is retried.
#[tokio::test]
async fn i2_cancelled_commit_commits_nothing() {
    let fixture = Fixture::new().await;
    for (is_counted, style, sql, effects) in [
        (true, Style::Eager, "COMMIT", 1),
        (false, Style::Eager, "COMMIT /* idem */", 1),
        (false, Style::Eager, "COMMIT /* idem */", 0),
        (false, Style::Reactive, "COMMIT /* idem */", 0),
    ] {
        let (message, proxy) = (redelivered(), Proxy::to(&fixture.database).await);
        let idem = idem(|policy| {
            policy.style = style;
            policy.count_attempts = is_counted;
            policy.lease = LONG;
        });
        let error = idem
            .process(&proxy.pool(2), &message, async |tx: Tx, message| {
                work(tx, message).await?;
                proxy.cancel_once(sql);
                Ok((0..effects).map(|_| fact()).collect())
            })
            .await
            .unwrap_err();
        assert!(proxy.has_cancelled(), "{sql}");
        let is_attempt = matches!(error, Error::Attempt { .. });
        assert_eq!(is_attempt, is_counted, "{sql}: {error:?}");
        assert!(error.to_string().contains("57014"), "{sql}: {error}");
        fixture.assert_undone(&message).await;
        assert_eq!(fixture.work(&message).await, 0, "{sql}");
        if !is_counted {
            assert_eq!(error.settlement(), Settlement::RETRY, "{sql}");
        }
    }
}

/// Goal: a lost connection uses no attempt, if the database is available again.
#[tokio::test]
async fn lost_connection_uses_no_attempt() {
    let fixture = Fixture::new().await;
    let message = redelivered();
    let idem = idem(|policy| {
        policy.retry.max_attempts = 1;
        policy.count_attempts = true;
        policy.lease = LONG;
    });
    // The handler ends before the lost connection is noticed.
    let error = idem
        .process(&fixture.pool, &message, async |tx: Tx, _: Message| {
            let row = tx.query_one("SELECT pg_backend_pid()", &[]).await?;
            let pid: i32 = row.get(0);
            fixture
                .observer
                .execute("SELECT pg_terminate_backend($1, 60000)", &[&pid])
                .await?;
            Ok(vec![])
        })
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionLost, "{error:?}");
    assert!(
        matches!(error, Error::Client(idem_client::Error::Database(_))),
        "{error:?}"
    );
    assert_eq!(
        fixture.left(&message).await,
        None,
        "the lease is not released"
    );
    let processed = idem
        .process_leased(
            &fixture.pool,
            &message,
            async |work: LeaseContext, _: Message| {
                assert_eq!(work.attempt(), 1);
                Ok(vec![fact()])
            },
        )
        .await;
    assert!(is_new(&processed), "{processed:?}");
    fixture.assert_done_once(&message).await;
}

/// The payload of a message that [`Replacing`] has replaced.
const REPLACED: &str = r#"{"replaced": true}"#;

/// A filter that replaces each message by a new one, and panics after the handler if `panics` is
/// set.
struct Replacing {
    panics: bool,
}

impl Filter for Replacing {
    fn before_consuming<'a>(&'a self, message: &'a Message) -> BoxFuture<'a, Before> {
        let other = Message::new(DESTINATION, REPLACED)
            .with_message_id(message.message_id().unwrap())
            .with_deliveries(2);
        async { Before::Replace(other) }.boxed()
    }

    fn on_consumed<'a>(&'a self, _: &'a Message, _: &'a [Effect]) -> BoxFuture<'a, After> {
        assert!(!self.panics, "a bug");
        async { After::Continue }.boxed()
    }
}

/// Returns an `Idem` that counts attempts, with a filter that replaces each message.
fn counting_replaced(panics: bool) -> Idem {
    Idem::builder()
        .policies(Policies::default().default_rule(counted))
        .filter(Replacing { panics })
        .build()
        .unwrap()
}

/// Goal: an attempt that the end of the grace period interrupts has not failed. Its transaction is
/// rolled back, and its lease is released without counting before its message is returned. This
/// also applies to a message that a filter has replaced.
#[tokio::test(flavor = "multi_thread")]
async fn interrupted_counted_attempt_is_released_uncounted() {
    let fixture = Fixture::new().await;
    for (sleeps, is_replaced) in [(false, false), (true, false), (false, true)] {
        let message = redelivered();
        let broker = Broker::with([message.clone()]);
        let idem = match is_replaced {
            true => counting_replaced(false),
            false => idem(|policy| {
                policy.count_attempts = true;
                policy.lease = LONG;
            }),
        };
        let summary = interrupt(&fixture, broker.clone(), idem, sleeps).await;
        assert_eq!((summary.given_back, summary.rejected), (1, 0));
        assert_eq!(broker.told().released.len(), 1);
        assert_eq!(fixture.work(&message).await, 0);
        let held = match fixture.acquire(&message, LONG).await {
            Lease::Acquired(held) => held,
            other => panic!("the message is not free: {other:?}"),
        };
        assert_eq!((held.attempt(), held.last_error()), (1, None));
    }
}

/// I4: a message at its last delivery, whose counted attempt the end of the grace period
/// interrupts, becomes a dead letter.
#[tokio::test(flavor = "multi_thread")]
async fn i4_interrupted_last_delivery_becomes_dead_letter() {
    let fixture = Fixture::new().await;
    for (letters, broker) in [(1, Broker::default()), (2, Broker::default().withholding())] {
        let broker = broker.dropping_rejected().near_limit();
        broker.send(redelivered());
        let summary = interrupt(&fixture, broker.clone(), idem(counted), false).await;
        assert_eq!((summary.given_back, summary.rejected), (0, 1));
        let told = broker.told();
        assert_eq!((told.acknowledged.len(), told.released.len()), (1, 0));
        let sql = "SELECT count(*) FROM idem.dead_letter";
        assert_eq!(fixture.count(sql).await, letters);
    }
}

/// Goal: an interrupted counted attempt near the limit of its broker is not counted if its message
/// is not stored in the database: its source returns the message at its close, or its broker keeps
/// the rejected message.
#[tokio::test(flavor = "multi_thread")]
async fn interrupted_attempt_near_the_limit_is_not_counted() {
    let fixture = Fixture::new().await;
    for is_returned in [true, false] {
        let message = redelivered();
        let broker = Broker::with([message.clone()]).near_limit();
        let broker = match is_returned {
            true => broker.dropping_rejected().returning(),
            false => broker,
        };
        let summary = interrupt(&fixture, broker.clone(), idem(counted), false).await;
        let told = broker.told();
        let counts = (summary.given_back, summary.rejected, told.rejected.len());
        match is_returned {
            true => assert_eq!(counts, (1, 0, 0), "{summary:?}"),
            false => assert_eq!(counts, (0, 1, 1), "{summary:?}"),
        }
        let held = fixture.acquired(&message, LONG).await;
        assert_eq!((held.attempt(), held.last_error()), (1, None));
    }
}

/// I4: a message at its last delivery, whose leased handler the end of the grace period interrupts,
/// becomes a dead letter, although a thread of the handler may still run. Away from its limit the
/// message is returned, and its lease expires.
#[tokio::test(flavor = "multi_thread")]
async fn i4_interrupted_leased_last_delivery_is_kept() {
    let fixture = Fixture::new().await;
    for (is_last, kind) in [
        (true, ""),
        (true, "withholding"),
        (true, "returning"),
        (false, ""),
    ] {
        let message = redelivered();
        let mut broker = Broker::with([message.clone()]).dropping_rejected();
        if is_last {
            broker = broker.near_limit();
        }
        broker = match kind {
            "withholding" => broker.withholding(),
            "returning" => broker.returning(),
            _ => broker,
        };
        let runs = Arc::new(AtomicUsize::new(0));
        let began = Arc::clone(&runs);
        let consumer = Consumer::new(fixture.pool.clone(), broker.clone())
            .idem(idem(|policy| policy.lease = LONG))
            .handle_leased(DESTINATION, move |_: LeaseContext, _: Message| {
                began.fetch_add(1, Ordering::SeqCst);
                pending()
            })
            .grace(Duration::from_millis(50));
        let handler_runs = until("the handler runs", async || {
            runs.load(Ordering::SeqCst) == 1
        });
        let summary = in_time(consumer.run(handler_runs)).await.unwrap();
        let lease = fixture.acquire(&message, LONG).await;
        let told = broker.told();
        let counts = (told.acknowledged.len(), told.released.len());
        if is_last {
            assert_eq!((summary.rejected, counts), (1, (1, 0)), "{summary:?}");
            assert!(matches!(lease, Lease::Dead), "{lease:?}");
        } else {
            assert_eq!((summary.given_back, counts), (1, (0, 1)), "{summary:?}");
            assert!(matches!(lease, Lease::InProgress { .. }), "{lease:?}");
        }
    }
}

/// Runs a consumer that counts attempts, and stops it while its handler runs.
async fn interrupt(fixture: &Fixture, broker: Broker, idem: Idem, sleeps: bool) -> Summary {
    let runs = Arc::new(AtomicUsize::new(0));
    let began = Arc::clone(&runs);
    let handler = move |tx: Tx, message: Message| {
        let began = Arc::clone(&began);
        async move {
            let insert = "INSERT INTO work VALUES ($1)";
            tx.execute_typed(insert, &[(&message.message_id(), Type::TEXT)])
                .await?;
            began.fetch_add(1, Ordering::SeqCst);
            match sleeps {
                true => tx.batch_execute("SELECT pg_sleep(600)").await?,
                false => pending().await,
            }
            Ok(vec![])
        }
    };
    let consumer = Consumer::new(fixture.pool.clone(), broker)
        .idem(idem)
        .handle(DESTINATION, handler)
        .grace(Duration::from_millis(50));
    let handler_runs = until("the handler runs", async || {
        runs.load(Ordering::SeqCst) == 1
    });
    in_time(consumer.run(handler_runs)).await.unwrap()
}

/// I4: a message at its last delivery that waits in the database for its next attempt becomes a
/// dead letter, when its source hands it over at the stop of a consumer. The test has one thread,
/// so nothing is fetched before the stop.
#[tokio::test]
async fn i4_last_delivery_in_back_off_is_kept_at_a_stop() {
    let fixture = Fixture::new().await;
    let sql =
        format!("SELECT idem_configure_retries('{DESTINATION}', base => '1 h', cap => '1 h')");
    fixture.observer.batch_execute(&sql).await.unwrap();
    let message = redelivered();
    let held = fixture.acquired(&message, LONG).await;
    let after = held.release(&fixture.observer, "out of stock", false).await;
    assert!(after.unwrap().is_some_and(|after| after > LONG));
    let broker = Broker::with([message.clone()])
        .dropping_rejected()
        .near_limit();
    let consumer = Consumer::new(fixture.pool.clone(), broker.clone())
        .idem(idem(counted))
        .handle(DESTINATION, work);
    let summary = in_time(consumer.run(async {})).await.unwrap();
    assert_eq!((summary.handled, summary.rejected), (0, 1), "{summary:?}");
    assert_eq!(broker.told().acknowledged.len(), 1);
    let (_, errors) = fixture.dead_letter(&message).await;
    assert!(
        matches!(&errors[..], [first, stopped]
                 if first == "out of stock" && stopped.contains("stopped before")),
        "{errors:?}"
    );
}

/// Goal: a filter that panics after the handler ends the attempt: the attempt is counted, and the
/// lease does not delay the next one.
#[tokio::test]
async fn panic_of_a_filter_ends_the_counted_attempt() {
    let fixture = Fixture::new().await;
    fixture.attempts(3).await;
    let message = redelivered();
    let idem = counting_replaced(true);
    let error = idem
        .process(&fixture.pool, &message, work)
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Attempt { .. }), "{error:?}");
    assert!(error.to_string().contains("a bug"), "{error}");
    assert_eq!(fixture.work(&message).await, 0);
    let held = fixture.acquired(&message, LONG).await;
    assert_eq!(held.attempt(), 2);
    assert!(held.last_error().unwrap().contains("a bug"), "{held:?}");
}

/// Goal: the grace period ends while the lease of a failed attempt is released. The attempt stays
/// counted.
#[tokio::test(flavor = "multi_thread")]
async fn failed_attempt_whose_release_is_interrupted_is_counted() {
    let (fixture, message) = (Fixture::new().await, redelivered());
    let broker = Broker::with([message.clone()]);
    let release = Interrupted {
        idem: idem(counted),
        lock: LEASES,
        is_leased: false,
    };
    let summary = release.run(&fixture, &message, broker.clone()).await;
    assert_eq!((summary.given_back, summary.rejected), (1, 0));
    assert_eq!(broker.told().released.len(), 1);
    let leased = fixture.acquire(&message, LONG).await;
    assert!(matches!(leased, Lease::InProgress { .. }), "{leased:?}");
    fixture.expire(&message).await;
    assert_eq!(fixture.acquired(&message, LONG).await.attempt(), 2);
}

/// I4: the grace period ends while the lease of a failed attempt is ended, and the broker may
/// delete the message at its next return. The message becomes a dead letter with the error of the
/// attempt, although its lease is still valid. This applies to an attempt whose lease is released,
/// to the last attempt, which is stored as a dead letter, to a leased handler, to a message that a
/// filter has replaced, and to a source that withholds the message.
#[tokio::test(flavor = "multi_thread")]
async fn i4_interrupted_end_of_last_delivery_is_kept() {
    let kinds = [(false, false), (true, false), (false, true)];
    let cases = kinds.into_iter().flat_map(|(is_leased, is_replaced)| {
        [
            (LEASES, 10, false),
            (LEASES, 10, true),
            (DEAD_LETTERS, 1, false),
        ]
        .map(|end| (end, is_leased, is_replaced))
    });
    for ((lock, max_attempts, withholds), is_leased, is_replaced) in cases {
        let what =
            format!("{lock}, withholds: {withholds}, leased: {is_leased}, replaced: {is_replaced}");
        let fixture = Fixture::new().await;
        fixture.attempts(max_attempts).await;
        let message = redelivered();
        let broker = Broker::with([message.clone()])
            .dropping_rejected()
            .near_limit();
        let broker = match withholds {
            true => broker.withholding(),
            false => broker,
        };
        let (idem, payload) = match is_replaced {
            true => (counting_replaced(false), REPLACED.as_bytes()),
            false => (idem(counted), &message.payload()[..]),
        };
        let end = Interrupted {
            idem,
            lock,
            is_leased,
        };
        let summary = end.run(&fixture, &message, broker.clone()).await;
        assert_eq!(
            (
                summary.given_back,
                summary.rejected,
                summary.failed_settlements
            ),
            (0, 1, 0),
            "{what}"
        );
        let told = broker.told();
        assert_eq!(
            (told.acknowledged.len(), told.dropped.len()),
            (1, 0),
            "{what}"
        );
        assert_eq!(fixture.left(&message).await, None, "{what}");
        let (kept, errors) = fixture.dead_letter(&message).await;
        assert_eq!(kept, payload, "{what}");
        assert_eq!(errors, ["out of stock"], "{what}");
    }
}

fn counted(policy: &mut Policy) {
    policy.count_attempts = true;
    policy.lease = LONG;
}

/// Locks that make the release of a lease wait.
const LEASES: &str =
    "BEGIN; SELECT FROM idem.pending_0 FOR UPDATE; SELECT FROM idem.pending_1 FOR UPDATE";
/// A lock that makes the insert of a dead letter wait.
const DEAD_LETTERS: &str = "BEGIN; LOCK TABLE idem.dead_letter IN SHARE MODE";

/// A consumer whose handler fails, and which stops while the lease of the attempt is ended.
struct Interrupted {
    idem: Idem,
    /// The lock that the end of the lease waits for.
    lock: &'static str,
    is_leased: bool,
}

impl Interrupted {
    async fn run(self, fixture: &Fixture, message: &Message, broker: Broker) -> Summary {
        let locker = fixture.database.client().await;
        let locked = Arc::new(tokio::sync::Semaphore::new(0));
        let may_fail = Arc::clone(&locked);
        let fail = move || {
            let may_fail = Arc::clone(&may_fail);
            async move {
                let _locked = may_fail.acquire().await?;
                Err("out of stock".into())
            }
        };
        let consumer = Consumer::new(fixture.pool.clone(), broker)
            .idem(self.idem)
            .grace(Duration::from_millis(50));
        let consumer = match self.is_leased {
            true => consumer.handle_leased(DESTINATION, move |_: LeaseContext, _: Message| fail()),
            false => consumer.handle(DESTINATION, move |tx: Tx, _: Message| {
                drop(tx);
                fail()
            }),
        };
        let waiting = async || {
            let sql = "SELECT array_agg(pid) FROM pg_stat_activity
                        WHERE datname = current_database() AND wait_event_type = 'Lock'";
            let row = fixture.observer.query_one(sql, &[]).await.unwrap();
            row.get::<_, Option<Vec<i32>>>(0)
        };
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let running = tokio::spawn(consumer.run(async {
            let _ = stopped.await;
        }));
        until("the message is leased", async || {
            fixture.left(message).await.is_some()
        })
        .await;
        locker.batch_execute(self.lock).await.unwrap();
        locked.add_permits(1);
        let mut enders = None;
        until("the lease is being ended", async || {
            enders = waiting().await;
            enders.is_some()
        })
        .await;
        stop.send(()).unwrap();
        let enders = enders.unwrap_or_default();
        until("the end of the lease is cancelled", async || {
            let waiting = waiting().await.unwrap_or_default();
            enders.iter().all(|ender| !waiting.contains(ender))
        })
        .await;
        locker.batch_execute("ROLLBACK").await.unwrap();
        in_time(running).await.unwrap().unwrap()
    }
}
