//! Tests of the styles of a policy: the time of the claim, and its results.

use std::sync::atomic::{AtomicUsize, Ordering};

use idem_client::{Effect, ErrorKind};
use idem_runtime::{
    Handled, HandlerError, Idem, Message, Policies, Processed, Settlement, Tx,
    policy::{Isolation, MissingId, OnDuplicate, Policy, Store, Style},
};
use idem_testkit::until;
use serde_json::json;
use time::{Duration, OffsetDateTime};

use crate::fixtures::{
    DESTINATION, Fixture, fact, idem, insert, message, preparing, preparing_idem, styles, work,
};

const STYLES: [Style; 2] = [Style::Eager, Style::Reactive];

/// The rules for every form of a transaction: both styles, and a transaction without a claim.
const RULES: [fn(&mut Policy); 3] = [
    |policy| policy.style = Style::Eager,
    |policy| policy.style = Style::Reactive,
    |policy| policy.store = Store::Memory,
];

#[tokio::test]
async fn duplicate_takes_no_effect_in_any_combination_of_styles() {
    let fixture = Fixture::new().await;
    for &prepared in preparing() {
        for (first, second) in [
            (Style::Eager, Style::Eager),
            (Style::Eager, Style::Reactive),
            (Style::Reactive, Style::Eager),
            (Style::Reactive, Style::Reactive),
        ] {
            let of = |style| {
                let policies = Policies::default().default_rule(|policy| policy.style = style);
                Idem::builder()
                    .policies(policies)
                    .prepared_statements(prepared)
                    .build()
                    .unwrap()
            };
            let message = message();
            let processed = of(first)
                .process(&fixture.pool, &message, work)
                .await
                .unwrap();
            let Processed::New { effects } = processed else {
                panic!("{processed:?}");
            };
            let recorded: Vec<_> = fixture
                .effects(&message)
                .await
                .iter()
                .map(|effect| effect.message_id)
                .collect();
            assert_eq!(effects, recorded);
            let again = of(second)
                .process(&fixture.pool, &message, work)
                .await
                .unwrap();
            assert_eq!(
                again,
                Processed::Duplicate {
                    effects: Vec::new()
                },
                "{first:?}, {second:?}"
            );
            fixture.assert_done_once(&message).await;
        }
    }
}

#[tokio::test]
async fn duplicate_does_not_run_an_eager_handler() {
    let fixture = Fixture::new().await;
    let message = message();
    let calls = AtomicUsize::new(0);
    for style in [Style::Eager, Style::Eager, Style::Reactive] {
        let idem = idem(|policy| policy.style = style);
        let processed = idem.process(&fixture.pool, &message, |tx, message| {
            calls.fetch_add(1, Ordering::SeqCst);
            work(tx, message)
        });
        assert_eq!(
            processed.await.unwrap().settlement(),
            Settlement::Acknowledge
        );
    }
    // The handler runs for the first delivery and for the delivery with the reactive style, which
    // is rolled back.
    assert_eq!(calls.into_inner(), 2);
    fixture.assert_done_once(&message).await;
}

#[tokio::test]
async fn message_without_an_id_can_be_unprotected() {
    let fixture = Fixture::new().await;
    let message = Message::new(DESTINATION, "{}");
    let error = Idem::new()
        .process(&fixture.pool, &message, work)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::MissingId);
    let idem = idem(|policy| policy.missing_id = MissingId::Unprotected);
    for times in 1..=2 {
        let processed = idem.process(&fixture.pool, &message, work).await.unwrap();
        assert_eq!(processed.settlement(), Settlement::Acknowledge);
        let Processed::Unprotected { effects } = processed else {
            panic!("{processed:?}");
        };
        assert_eq!(effects.len(), 1);
        assert_eq!(fixture.count("SELECT count(*) FROM work").await, times);
        assert_eq!(
            fixture.count("SELECT count(*) FROM idem.outbox").await,
            times
        );
    }
}

#[tokio::test]
async fn ignored_failed_statement_is_never_acknowledged() {
    let fixture = Fixture::new().await;
    for &prepared in preparing() {
        for (rule, effects) in RULES.into_iter().flat_map(|rule| [(rule, 0), (rule, 2)]) {
            let policies = Policies::default().default_rule(|policy| {
                rule(policy);
                policy.missing_id = MissingId::Unprotected;
            });
            let idem = Idem::builder()
                .policies(policies)
                .prepared_statements(prepared)
                .build()
                .unwrap();
            for message in [
                message(),
                Message::new(DESTINATION, "{}").with_message_id(""),
            ] {
                let message = if message.message_id() == Some("") {
                    Message::new(DESTINATION, "{}")
                } else {
                    message
                };
                let processed =
                    idem.process(&fixture.pool, &message, |tx: Tx, message| async move {
                        insert(&tx, &message).await?;
                        assert!(tx.batch_execute("SELECT 1 / 0").await.is_err());
                        Ok((0..effects).map(|_| fact()).collect())
                    });
                let error = processed.await.unwrap_err();
                assert_ne!(
                    error.settlement(),
                    Settlement::Acknowledge,
                    "{idem:?}: {error:?}"
                );
            }
        }
    }
    assert_eq!(fixture.count("SELECT count(*) FROM work").await, 0);
    assert_eq!(fixture.count("SELECT count(*) FROM idem.inbox").await, 0);
    assert_eq!(fixture.count("SELECT count(*) FROM idem.outbox").await, 0);
    fixture.until_quiet().await;
}

#[tokio::test]
async fn failed_handler_leaves_nothing_and_keeps_its_connection() {
    let fixture = Fixture::new().await;
    let pool = fixture.database.pool(1);
    for rule in RULES {
        let message = message();
        let backend =
            |processed: Result<Processed, idem_runtime::Error>| processed.unwrap_err().to_string();
        let mut seen = Vec::new();
        for _ in 0..2 {
            let idem = idem(rule);
            let processed = idem.process(&pool, &message, |tx, message| async move {
                insert(&tx, &message).await?;
                let row = tx.query_typed_one("SELECT pg_backend_pid()", &[]).await?;
                Err(HandlerError::from(format!(
                    "failed on backend {}",
                    row.get::<_, i32>(0)
                )))
            });
            seen.push(backend(processed.await));
        }
        assert_eq!(seen[0], seen[1]);
        fixture.until_quiet().await;
        fixture.assert_untouched(&message).await;
        assert_eq!(
            Idem::new()
                .process(&pool, &message, work)
                .await
                .unwrap()
                .settlement(),
            Settlement::Acknowledge
        );
        fixture.assert_done_once(&message).await;
    }
}

#[tokio::test]
async fn invalid_effects_roll_back_the_handler() {
    let fixture = Fixture::new().await;
    let pool = fixture.database.pool(1);
    for rule in RULES {
        let message = message();
        let idem = idem(rule);
        let processed = idem.process(&pool, &message, |tx, message| async move {
            insert(&tx, &message).await?;
            Ok(vec![fact(), Effect::json("", &json!({}))?])
        });
        assert_eq!(processed.await.unwrap_err().kind(), ErrorKind::Invalid);
        fixture.until_quiet().await;
        fixture.assert_untouched(&message).await;
        // PostgreSQL accepts no zero byte in a text or in a `jsonb` value, so these effects are
        // invalid.
        for wrong in [Effect::json("facts", &"a\0b").unwrap(), fact().key("a\0b")] {
            let processed = idem.process(&pool, &message, |tx, message| {
                let wrong = wrong.clone();
                async move {
                    insert(&tx, &message).await?;
                    Ok(vec![wrong])
                }
            });
            assert_eq!(
                processed.await.unwrap_err().kind(),
                ErrorKind::Invalid,
                "{idem:?}"
            );
        }
        fixture.assert_untouched(&message).await;
    }
    assert_eq!(fixture.count("SELECT count(*) FROM idem.outbox").await, 0);
}

#[tokio::test]
async fn other_payload_with_the_same_id_is_a_mismatch() {
    let fixture = Fixture::new().await;
    for (style, prepared) in styles() {
        let idem = preparing_idem(prepared, |policy| {
            policy.style = style;
            policy.fingerprint = true;
        });
        let first = message();
        let other = Message::new(DESTINATION, r#"{"other": true}"#)
            .with_message_id(first.message_id().unwrap());
        let processed = idem.process(&fixture.pool, &first, work).await.unwrap();
        assert!(matches!(processed, Processed::New { .. }), "{processed:?}");
        let processed = idem.process(&fixture.pool, &first, work).await.unwrap();
        assert!(
            matches!(processed, Processed::Duplicate { .. }),
            "{processed:?}"
        );
        let processed = idem.process(&fixture.pool, &other, work).await.unwrap();
        assert_eq!(processed, Processed::Mismatch);
        assert!(matches!(processed.settlement(), Settlement::Reject { .. }));
        fixture.assert_done_once(&first).await;
    }
}

#[tokio::test]
async fn message_older_than_the_retained_claims_is_expired() {
    let fixture = Fixture::new().await;
    let short_retention = format!(
        "SELECT idem_set_retention('short', '200 milliseconds');
         SELECT idem_configure('{DESTINATION}', '200 milliseconds');"
    );
    fixture
        .observer
        .batch_execute(&short_retention)
        .await
        .unwrap();
    let (fixture, now) = (&fixture, OffsetDateTime::now_utc());
    for (style, prepared) in styles() {
        let idem = &preparing_idem(prepared, |policy| {
            policy.style = style;
            policy.expire = true;
        });
        let process = |sent_at| async move {
            let message = message().with_sent_at(sent_at);
            let processed = idem.process(&fixture.pool, &message, work).await.unwrap();
            (message, processed)
        };
        // The ring retains all claims until its first rotation.
        until("the ring has rotated", || async {
            fixture
                .observer
                .batch_execute("CALL idem_maintain()")
                .await
                .unwrap();
            let (message, processed) = process(now).await;
            if processed == Processed::Expired {
                fixture.assert_untouched(&message).await;
            }
            processed == Processed::Expired
        })
        .await;
        let (message, processed) = process(now + Duration::hours(1)).await;
        assert!(matches!(processed, Processed::New { .. }), "{processed:?}");
        assert_eq!(fixture.work(&message).await, 1);
    }
}

#[tokio::test]
async fn concurrent_duplicate_without_wait_is_in_progress() {
    let fixture = Fixture::new().await;
    for &prepared in preparing() {
        let message = message();
        let idem = preparing_idem(prepared, |policy| policy.wait = false);
        let (inner, pool) = (&idem, &fixture.pool);
        let processed = idem.process(pool, &message, |tx, message| async move {
            let meanwhile = inner.process(pool, &message, work).await?;
            assert_eq!(meanwhile, Processed::InProgress);
            assert!(matches!(meanwhile.settlement(), Settlement::Release { .. }));
            work(tx, message).await
        });
        assert!(matches!(processed.await.unwrap(), Processed::New { .. }));
        fixture.assert_done_once(&message).await;
    }
}

#[tokio::test]
async fn handler_runs_at_the_isolation_level_of_its_policy() {
    let fixture = Fixture::new().await;
    for rule in RULES {
        for (isolation, name) in [
            (Isolation::Default, "read committed"),
            (Isolation::ReadCommitted, "read committed"),
            (Isolation::RepeatableRead, "repeatable read"),
            (Isolation::Serializable, "serializable"),
        ] {
            let idem = idem(|policy| {
                rule(policy);
                policy.isolation = isolation;
            });
            let message = message();
            let processed = idem.process(&fixture.pool, &message, |tx: Tx, message| async move {
                let row = tx
                    .query_typed_one("SHOW transaction_isolation", &[])
                    .await?;
                assert_eq!(row.get::<_, &str>(0), name);
                work(tx, message).await
            });
            assert!(matches!(processed.await.unwrap(), Processed::New { .. }));
        }
    }
}

#[tokio::test]
async fn on_duplicate_effects_returns_the_recorded_effects() {
    let fixture = Fixture::new().await;
    for style in STYLES {
        let message = message();
        drop(
            Idem::new()
                .process(&fixture.pool, &message, work)
                .await
                .unwrap(),
        );
        for &prepared in preparing() {
            let policies = Policies::default().default_rule(|policy| {
                policy.style = style;
                policy.on_duplicate = OnDuplicate::Effects;
            });
            let idem = Idem::builder()
                .policies(policies)
                .prepared_statements(prepared)
                .build()
                .unwrap();
            let processed = idem.process(&fixture.pool, &message, work).await.unwrap();
            let effects = fixture.effects(&message).await;
            assert_eq!(processed, Processed::Duplicate { effects });
        }
        fixture.assert_done_once(&message).await;
    }
}

#[tokio::test]
async fn special_characters_in_an_id_are_quoted() {
    let fixture = Fixture::new().await;
    for id in [
        "it's",
        r"back\slash",
        "$1",
        "'; ROLLBACK; --",
        "€ üñí",
        "6b7c1d1e-2b1f-4ad1-9b8e-3d0c4d1f0a55",
    ] {
        let message = Message::new(DESTINATION, "{}").with_message_id(id);
        let handler =
            |tx: Tx, message: Message| async move { Handled::from(work(tx, message).await) };
        let processed = Idem::new()
            .process(&fixture.pool, &message, handler)
            .await
            .unwrap();
        assert!(matches!(processed, Processed::New { .. }), "{id}");
        fixture.assert_done_once(&message).await;
    }
}
