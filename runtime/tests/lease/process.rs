//! Tests of handlers that run with a lease and without a transaction.

use std::{
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use deadpool_postgres::{Manager, Object, Pool, PoolError};
use idem_client::{Effect, ErrorKind};
use idem_runtime::{
    Consumer, Error, Handled, HandlerError, Idem, Message, Policies, Processed, Settlement, Tx,
    lease::LeaseContext,
    policy::{IdStrategy, OnDuplicate, Policy, Store},
};
use idem_testkit::{
    broker::Broker,
    in_time,
    proxy::{Cut, Proxy},
    source_ended,
};
use tokio::sync::oneshot;
use tokio_postgres::NoTls;

use crate::fixtures::{DESTINATION, Fixture, LONG, SHORT, fact, idem, is_new, message, until};

async fn handler(_: LeaseContext, _: Message) -> Handled {
    Ok(vec![fact()])
}

async fn failing(_: LeaseContext, _: Message) -> Handled {
    Err("out of stock".into())
}

#[tokio::test]
async fn completion_records_effects_and_duplicate_is_acknowledged() {
    let fixture = Fixture::new().await;
    let message = message();
    let idem = idem(|policy| policy.on_duplicate = OnDuplicate::Effects);
    let processed = idem
        .process_leased(&fixture.pool, &message, handler)
        .await
        .unwrap();
    let Processed::New { effects } = &processed else {
        panic!("{processed:?}")
    };
    assert_eq!(processed.settlement(), Settlement::Acknowledge);
    let recorded = fixture.effects(&message).await;
    assert_eq!(
        recorded
            .iter()
            .map(|effect| effect.message_id)
            .collect::<Vec<_>>(),
        *effects
    );

    let again = idem
        .process_leased(
            &fixture.pool,
            &message,
            async |_: LeaseContext, _: Message| panic!("the handler was called"),
        )
        .await
        .unwrap();
    assert_eq!(again, Processed::Duplicate { effects: recorded });
    assert_eq!(again.settlement(), Settlement::Acknowledge);
    // Leased and transactional handlers use the same claim, so the message is a duplicate here too.
    let transactional = Idem::new()
        .process(&fixture.pool, &message, crate::fixtures::work)
        .await
        .unwrap();
    assert!(matches!(transactional, Processed::Duplicate { .. }));
    fixture.assert_done_once(&message).await;
}

#[tokio::test]
async fn concurrent_delivery_of_a_leased_message_is_released() {
    let fixture = Fixture::new().await;
    let message = message();
    let idem = Idem::new();
    let processed = idem
        .process_leased(
            &fixture.pool,
            &message,
            async |work: LeaseContext, message: Message| {
                assert_eq!((work.attempt(), work.last_error()), (1, None));
                for transactional in [false, true] {
                    let other = Idem::new();
                    let other = match transactional {
                        false => other.process_leased(&fixture.pool, &message, handler).await,
                        true => {
                            crate::fixtures::idem(|policy| policy.wait = false)
                                .process(&fixture.pool, &message, crate::fixtures::work)
                                .await
                        }
                    };
                    match other {
                        Ok(Processed::Leased { retry_after }) => {
                            assert!(!retry_after.is_zero());
                            let settlement = Processed::Leased { retry_after }.settlement();
                            assert_eq!(settlement, Settlement::Release { after: retry_after });
                        }
                        Ok(Processed::InProgress) => assert!(transactional),
                        other => panic!("{other:?}"),
                    }
                }
                Ok(vec![fact()])
            },
        )
        .await;
    assert!(is_new(&processed), "{processed:?}");
    assert_eq!(fixture.work(&message).await, 0);
    fixture.assert_done_once(&message).await;
}

#[tokio::test]
async fn dead_letter_has_payload_properties_and_all_errors() {
    let fixture = Fixture::new().await;
    fixture.attempts(3).await;
    let message = message()
        .with_key("k")
        .with_type("Order")
        .with_header("x", "1");
    let idem = Idem::new();
    for attempt in 1..3 {
        let failed = idem.process_leased(
            &fixture.pool,
            &message,
            async |work: LeaseContext, _: Message| {
                assert_eq!(work.attempt(), attempt);
                assert_eq!(work.last_error().is_some(), attempt > 1);
                Err(format!("failure {attempt}").into())
            },
        );
        let error = failed.await.unwrap_err();
        let Error::Attempt { retry_after, .. } = &error else {
            panic!("{error:?}")
        };
        assert_eq!(
            error.settlement(),
            Settlement::Release {
                after: *retry_after
            }
        );
        assert_eq!(error.kind(), ErrorKind::Handler);
    }
    let buried = idem
        .process_leased(&fixture.pool, &message, failing)
        .await
        .unwrap();
    assert!(
        matches!(&buried, Processed::Buried { reason } if reason.contains("out of stock")),
        "{buried:?}"
    );
    assert_eq!(buried.settlement(), Settlement::Acknowledge);
    // The broker redelivers the message, as if the acknowledgement was late.
    let again = idem
        .process_leased(&fixture.pool, &message, handler)
        .await
        .unwrap();
    assert_eq!(
        (&again, again.settlement()),
        (&Processed::Dead, Settlement::Acknowledge)
    );
    fixture.assert_undone(&message).await;

    let sql = "SELECT convert_from(payload, 'UTF8'), order_key, type, headers->>'x', errors::text,
                      attempt FROM idem.dead_letter";
    let row = fixture.observer.query_one(sql, &[]).await.unwrap();
    let texts: Vec<&str> = (0..4).map(|n| row.get(n)).collect();
    assert_eq!(texts, [r#"{"n": 1}"#, "k", "Order", "1"]);
    assert_eq!(row.get::<_, i32>(5), 3);
    let errors: &str = row.get(4);
    for error in ["failure 1", "failure 2", "out of stock"] {
        assert!(errors.contains(error), "{errors}");
    }
}

#[tokio::test]
async fn crashing_message_becomes_a_dead_letter() {
    let fixture = Fixture::new().await;
    fixture.attempts(2).await;
    let message = message();
    for attempt in 1..=2 {
        // Act as if the process crashed: do not release the lease.
        assert_eq!(fixture.acquired(&message, LONG).await.attempt(), attempt);
        fixture.expire(&message).await;
    }
    let buried = Idem::new()
        .process_leased(&fixture.pool, &message, handler)
        .await
        .unwrap();
    assert!(
        matches!(&buried, Processed::Buried { reason } if reason.contains("lease expired")),
        "{buried:?}"
    );
    assert_eq!(
        fixture.count("SELECT count(*) FROM idem.dead_letter").await,
        1
    );
}

#[tokio::test]
async fn terminal_or_final_error_makes_a_dead_letter_at_once() {
    let fixture = Fixture::new().await;
    let terminal = message();
    let buried = Idem::new()
        .process_leased(
            &fixture.pool,
            &terminal,
            async |_: LeaseContext, _: Message| Err(HandlerError::terminal("no such order")),
        )
        .await
        .unwrap();
    assert!(
        matches!(&buried, Processed::Buried { reason } if reason == "no such order"),
        "{buried:?}"
    );

    // Now the database has a list of final errors, and the error matches it.
    let sql =
        format!("SELECT idem_configure_retries('{DESTINATION}', final_errors => '{{out of%}}')");
    fixture.observer.batch_execute(&sql).await.unwrap();
    let known = message();
    let buried = Idem::new()
        .process_leased(&fixture.pool, &known, failing)
        .await
        .unwrap();
    assert!(matches!(buried, Processed::Buried { .. }), "{buried:?}");
    assert_eq!(
        fixture.count("SELECT count(*) FROM idem.dead_letter").await,
        2
    );
}

#[tokio::test]
async fn failed_message_waits_for_its_back_off() {
    let fixture = Fixture::new().await;
    let sql = format!(
        "SELECT idem_configure_retries(
             '{DESTINATION}', base => '1 hour', cap => '1 hour', jitter => 0)"
    );
    fixture.observer.batch_execute(&sql).await.unwrap();
    let message = message();
    let error = Idem::new()
        .process_leased(&fixture.pool, &message, failing)
        .await
        .unwrap_err();
    let Error::Attempt { retry_after, .. } = error else {
        panic!("{error:?}")
    };
    assert_eq!(retry_after.as_secs(), 3600);
    let early = Idem::new()
        .process_leased(&fixture.pool, &message, handler)
        .await
        .unwrap();
    assert!(
        matches!(early, Processed::Leased { retry_after } if retry_after.as_secs() > 3000),
        "{early:?}"
    );
}

#[tokio::test]
async fn completion_with_a_lost_reply_is_retried() {
    let fixture = Fixture::new().await;
    for (cut, is_duplicate) in [(Cut::AfterCommit, true), (Cut::BeforeCommit, false)] {
        let proxy = Proxy::to(&fixture.database).await;
        let message = message();
        let calls = AtomicUsize::new(0);
        let processed = Idem::new()
            .process_leased(
                &proxy.pool(1),
                &message,
                async |_: LeaseContext, _: Message| {
                    calls.fetch_add(1, Ordering::SeqCst);
                    proxy.cut_once(cut);
                    Ok(vec![fact()])
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
        assert_eq!(processed.settlement(), Settlement::Acknowledge);
        assert_eq!(calls.into_inner(), 1);
        fixture.assert_done_once(&message).await;
    }
}

#[tokio::test]
async fn ambiguous_completion_is_not_acknowledged() {
    let fixture = Fixture::new().await;
    for (cut, is_done) in [(Cut::AfterCommit, true), (Cut::BeforeCommit, false)] {
        let proxy = Proxy::to(&fixture.database).await;
        let message = message();
        let error = Idem::new()
            .process_leased(
                &proxy.pool(1),
                &message,
                async |_: LeaseContext, _: Message| {
                    proxy.cut_for_good(cut);
                    Ok(vec![fact()])
                },
            )
            .await
            .unwrap_err();
        assert_eq!(
            (error.kind(), error.settlement()),
            (ErrorKind::AmbiguousCommit, Settlement::RELEASE)
        );
        // After the lease has expired, the next delivery finds out whether the completion was
        // committed.
        fixture.expire(&message).await;
        let processed = Idem::new()
            .process_leased(&fixture.pool, &message, handler)
            .await
            .unwrap();
        assert_eq!(
            matches!(processed, Processed::Duplicate { .. }),
            is_done,
            "{processed:?}"
        );
        fixture.assert_done_once(&message).await;
    }
}

#[tokio::test]
async fn lease_with_a_lost_reply_expires() {
    let fixture = Fixture::new().await;
    let proxy = Proxy::to(&fixture.database).await;
    let message = message();
    proxy.cut_once(Cut::AfterCommit);
    let idem = idem(|policy| policy.lease = SHORT);
    let processed = idem
        .process_leased(&proxy.pool(1), &message, handler)
        .await
        .unwrap();
    assert!(
        matches!(processed, Processed::Leased { retry_after } if retry_after <= SHORT),
        "{processed:?}"
    );
    assert_eq!(fixture.acquired_next(&message).await.attempt(), 2);
}

#[tokio::test]
async fn unsupported_policy_fails_before_the_handler_runs() {
    let fixture = Fixture::new().await;
    let rules: [fn(&mut Policy); 3] = [
        |policy| policy.fingerprint = true,
        |policy| policy.expire = true,
        |policy| policy.store = Store::Memory,
    ];
    let never = async |_: LeaseContext, _: Message| -> Handled { panic!("the handler was called") };
    for rule in rules {
        let error = idem(rule)
            .process_leased(&fixture.pool, &message(), never)
            .await
            .unwrap_err();
        assert!(matches!(error, Error::Policy(_)), "{error:?}");
        assert_eq!(error.settlement(), Settlement::RELEASE);
    }
    let unprotected = idem(|policy| {
        policy.id = IdStrategy::CorrelationId;
        policy.missing_id = idem_runtime::policy::MissingId::Unprotected;
    });
    let error = unprotected
        .process_leased(&fixture.pool, &message(), never)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::MissingId, "{error}");
}

#[tokio::test]
async fn leased_handler_holds_no_connection() {
    let fixture = Fixture::new().await;
    let pool = fixture.database.pool(1);
    let message = message();
    let idem = Idem::new();
    let processed = idem.process_leased(&pool, &message, async |_: LeaseContext, _: Message| {
        // The handler holds no connection, so the only connection of the pool is free.
        drop(in_time(pool.get()).await.unwrap());
        Ok(vec![fact()])
    });
    assert!(is_new(&processed.await));
}

#[tokio::test]
async fn policy_sets_the_lease_and_rejects_invalid_ones() {
    let fixture = Fixture::new().await;
    let minutes = |n: u64| Duration::from_secs(60 * n);
    let policies = Policies::default()
        .default_rule(|policy| policy.lease = minutes(1))
        .prefix("lease.", move |policy| {
            policy.lease = minutes(5);
            policy.count_attempts = true;
        });
    let idem = Idem::builder().policies(policies).build().unwrap();
    let message = message();
    let processed = idem.process_leased(
        &fixture.pool,
        &message,
        async |_: LeaseContext, message: Message| {
            let left = fixture.left(&message).await.unwrap();
            assert!((240.0..=300.0).contains(&left), "{left}");
            Ok(vec![fact()])
        },
    );
    assert!(is_new(&processed.await));

    let wrong: [fn(&mut Policy); 4] = [
        |policy| policy.lease = Duration::from_millis(1),
        |policy| policy.lease = Duration::from_secs(2 * 86_400),
        |policy| {
            policy.count_attempts = true;
            policy.fingerprint = true;
        },
        |policy| {
            policy.count_attempts = true;
            policy.store = Store::Memory;
        },
    ];
    for rule in wrong {
        let policies = Policies::default().default_rule(rule);
        let error = Idem::builder().policies(policies).build().unwrap_err();
        assert!(error.to_string().contains("lease"), "{error}");
    }
}

/// Goal: a completion that can never succeed makes the message a dead letter at once, with the
/// error of the completion. This applies to leased handlers and to counted attempts.
#[tokio::test]
async fn i4_invalid_effect_is_a_dead_letter_after_one_run() {
    let fixture = Fixture::new().await;
    for is_counted in [false, true] {
        let message = message().with_deliveries(2);
        let broker = Broker::with([message.clone()]).dropping_rejected().closed();
        let runs = Arc::new(AtomicUsize::new(0));
        let ran = Arc::clone(&runs);
        let invalid = move || {
            ran.fetch_add(1, Ordering::SeqCst);
            async { Ok(vec![Effect::json("", &1)?]) }
        };
        let consumer = Consumer::new(fixture.pool.clone(), broker.clone()).idem(idem(|policy| {
            policy.count_attempts = is_counted;
            policy.lease = LONG;
        }));
        let consumer = match is_counted {
            true => consumer.handle(DESTINATION, move |_: Tx, _: Message| invalid()),
            false => {
                consumer.handle_leased(DESTINATION, move |_: LeaseContext, _: Message| invalid())
            }
        };
        let summary = source_ended(in_time(consumer.run(pending())).await);
        assert_eq!((summary.rejected, summary.given_back), (1, 0));
        assert_eq!(broker.told().acknowledged.len(), 1);
        assert_eq!(runs.load(Ordering::SeqCst), 1);
        assert_eq!(fixture.left(&message).await, None);
        let (_, failures) = fixture.dead_letter(&message).await;
        assert_eq!(failures.len(), 1, "{failures:?}");
        assert!(failures[0].contains("topic"), "{failures:?}");
    }
}

/// Goal: if the pool has no connection for the completion, the lease is released and the attempt
/// does not count.
#[tokio::test]
async fn exhausted_pool_at_the_completion_uses_no_attempt() {
    let fixture = Fixture::new().await;
    let message = message();
    let wait = Duration::from_secs(2);
    let config = fixture.database.url().parse().unwrap();
    let pool = Pool::builder(Manager::new(config, NoTls))
        .max_size(2)
        .wait_timeout(Some(wait))
        .runtime(deadpool_postgres::Runtime::Tokio1)
        .build()
        .unwrap();
    let idem = idem(|policy| {
        policy.retry.max_attempts = 1;
        policy.lease = LONG;
    });
    let (take, taken) = oneshot::channel();
    let handler_pool = pool.clone();
    let processed =
        idem.process_leased(&pool, &message, async move |_: LeaseContext, _: Message| {
            let _ = take.send((handler_pool.get().await?, handler_pool.get().await?));
            Ok(vec![fact()])
        });
    let freed = async { free_for_the_release(&pool, taken.await.unwrap()).await };
    // Two waits can end in the same tick of the clock. `biased` then lets the completion see first
    // that its wait has ended.
    let (processed, ()) = tokio::join!(biased; processed, freed);
    let error = processed.unwrap_err();
    assert!(matches!(error, Error::Pool(_)), "{error:?}");
    assert_eq!(fixture.left(&message).await, None);
    fixture.assert_undone(&message).await;
    assert_eq!(fixture.acquired(&message, LONG).await.attempt(), 1);
}

/// Frees the connections when the completion has waited in vain and the release of the lease waits.
async fn free_for_the_release(pool: &Pool, taken: (Object, Object)) {
    let is_waiting = async || pool.status().waiting == 1;
    until("the completion waits for a connection", is_waiting).await;
    // This wait begins later than that of the completion. So it also ends later.
    let waited = pool.get().await;
    assert!(matches!(waited, Err(PoolError::Timeout(_))));
    until("the release waits for a connection", is_waiting).await;
    drop(taken);
}

/// Goal: if the commit of the completion has an unknown result, the lease is not released: it may
/// be completed, and the attempt stays counted.
#[tokio::test]
async fn ambiguous_completion_does_not_release_the_lease() {
    let fixture = Fixture::new().await;
    let message = message();
    let proxy = Proxy::to(&fixture.database).await;
    let idem = idem(|policy| {
        policy.retry.max_attempts = 1;
        policy.lease = LONG;
    });
    let error = idem
        .process_leased(
            &proxy.pool(2),
            &message,
            async |_: LeaseContext, _: Message| {
                proxy.cut_once(Cut::BeforeCommit);
                Ok(vec![fact()])
            },
        )
        .await
        .unwrap_err();
    assert!(
        matches!(error, Error::Client(idem_client::Error::AmbiguousCommit(_))),
        "{error:?}"
    );
    fixture.assert_undone(&message).await;
    assert!(fixture.left(&message).await.is_some());
}
