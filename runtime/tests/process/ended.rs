//! Tests of handlers that end their transaction themselves. Such a message is never acknowledged.

use futures_util::FutureExt;
use idem_runtime::{
    Error, Handled, HandlerError, Idem, Message, Policies, Processed, Settlement, Tx,
    policy::{MissingId, Rule, Store, Style},
};

use crate::fixtures::{DESTINATION, Fixture, fact, idem, insert, message, preparing, work};

const ENDS: [&str; 2] = ["ROLLBACK", "COMMIT"];

/// The rules for every form of a transaction: both styles, and a transaction without a claim.
const RULES: [fn(Rule) -> Rule; 3] = [
    |rule| rule.style(Style::Eager),
    |rule| rule.style(Style::Reactive),
    |rule| rule.store(Store::Memory),
];

/// A handler that inserts a row, executes `end`, and returns `effects` effects.
async fn ending(tx: Tx, message: Message, end: &str, effects: usize) -> Handled {
    insert(&tx, &message).await?;
    tx.batch_execute(end).await?;
    Ok((0..effects).map(|_| fact()).collect())
}

fn assert_never_acknowledged(processed: Result<Processed, Error>, what: &str) {
    let error = processed.expect_err(what);
    assert!(
        matches!(error, Error::TransactionEnded),
        "{what}: {error:?}"
    );
    let Settlement::Reject { reason } = error.settlement() else {
        panic!("{what}: {:?}", error.settlement());
    };
    assert!(reason.contains("ended its transaction"), "{reason}");
}

/// I10: a handler that ends its transaction is an error of the message, for each statement that
/// ends the transaction and each form of the transaction.
#[tokio::test]
async fn i10_handler_that_ends_its_transaction_is_rejected() {
    let fixture = Fixture::new().await;
    for &prepared in preparing() {
        for (rule, end) in RULES
            .into_iter()
            .flat_map(|rule| ENDS.map(|end| (rule, end)))
        {
            let policies = Policies::default()
                .default_rule(|none| rule(none).missing_id(MissingId::Unprotected));
            let idem = Idem::builder()
                .policies(policies)
                .prepared_statements(prepared)
                .build()
                .unwrap();
            for effects in [0, 2] {
                for message in [message(), Message::new(DESTINATION, "{}")] {
                    let processed = idem.process(&fixture.pool, &message, |tx, message| {
                        ending(tx, message, end, effects)
                    });
                    let what = format!("{idem:?}, {end}, {effects} effects, {message:?}");
                    assert_never_acknowledged(processed.await, &what);
                    if message.message_id().is_some() {
                        let committed = i64::from(end == "COMMIT");
                        assert_eq!(fixture.work(&message).await, committed, "{what}");
                        assert_eq!(fixture.effects(&message).await.len(), 0, "{what}");
                    }
                }
            }
        }
    }
    fixture.until_quiet().await;
}

/// I10: if a handler ends its transaction, begins another one and returns effects, this is an error
/// of the message.
#[tokio::test]
async fn i10_effects_need_the_transaction_of_the_claim() {
    let fixture = Fixture::new().await;
    for end in ["ROLLBACK; BEGIN", "COMMIT; BEGIN"] {
        let (idem, message) = (Idem::new(), message());
        let processed = idem.process(&fixture.pool, &message, |tx, message| {
            ending(tx, message, end, 1)
        });
        assert_never_acknowledged(processed.await, end);
        assert_eq!(fixture.effects(&message).await.len(), 0);
    }
    fixture.until_quiet().await;
}

/// A statement of the application that fails with 55000 at COMMIT is no sign that the handler has
/// ended the transaction.
#[tokio::test]
async fn deferred_trigger_with_55000_is_an_error_of_the_database() {
    let fixture = Fixture::new().await;
    fixture
        .observer
        .batch_execute(
            "CREATE FUNCTION reject_row() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN
                 RAISE EXCEPTION 'not now' USING ERRCODE = '55000';
             END $$;
             CREATE CONSTRAINT TRIGGER reject_row AFTER INSERT ON work
                 DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION reject_row()",
        )
        .await
        .unwrap();
    let message = message();
    let error = Idem::new()
        .process(&fixture.pool, &message, work)
        .await
        .unwrap_err();
    assert!(!matches!(error, Error::TransactionEnded), "{error:?}");
    assert_eq!(
        error.sqlstate().map(|state| state.code()),
        Some("55000"),
        "{error:?}"
    );
    fixture.assert_untouched(&message).await;
}

/// I1: the reactive style claims after the handler has run. If the handler has ended its
/// transaction, the claim would commit without the writes of the handler.
#[tokio::test]
async fn i1_reactive_claim_needs_the_transaction_of_its_handler() {
    let fixture = Fixture::new().await;
    let allow = format!(
        "ALTER DATABASE {} SET idem.lone_claims = 'allow'",
        fixture.database.name()
    );
    fixture.observer.batch_execute(&allow).await.unwrap();
    let idem = idem(|rule| rule.style(Style::Reactive));
    for effects in [0, 1] {
        let message = message();
        let processed = idem.process(&fixture.pool, &message, |tx, message| {
            ending(tx, message, "ROLLBACK", effects)
        });
        assert_never_acknowledged(processed.await, "reactive");
        fixture.assert_untouched(&message).await;
        let processed = idem.process(&fixture.pool, &message, work).await.unwrap();
        assert!(matches!(processed, Processed::New { .. }), "{processed:?}");
    }
}

/// I4: if a handler ends the transaction of its batch with ROLLBACK, only its own message fails. If
/// it ends the transaction with COMMIT, no message of the batch is acknowledged.
#[tokio::test]
async fn i4_batch_whose_transaction_was_ended_is_not_acknowledged() {
    let fixture = Fixture::new().await;
    for (end, effects, last_fails) in [
        ("ROLLBACK", 0, false),
        ("ROLLBACK", 1, false),
        ("COMMIT", 0, false),
        ("COMMIT", 1, false),
        ("COMMIT", 0, true),
    ] {
        let what = format!("{end}, {effects} effects, the last fails: {last_fails}");
        let messages = [message(), message(), message()];
        let [_, ender, last] = messages.each_ref().map(|message| message.message_id());
        let mut results = Idem::new()
            .process_batch(
                &fixture.pool,
                &messages,
                async |tx: Tx, message: Message| {
                    let id = message.message_id().map(str::to_owned);
                    if id.as_deref() == ender {
                        return ending(tx, message, end, effects).await;
                    }
                    if last_fails && id.as_deref() == last {
                        return Err("out of stock".into());
                    }
                    work(tx, message).await
                },
            )
            .await;
        if end == "COMMIT" {
            for result in results {
                assert_never_acknowledged(result, &what);
            }
            continue;
        }
        assert_never_acknowledged(results.remove(1), &what);
        for result in results {
            assert!(
                matches!(result, Ok(Processed::New { .. })),
                "{what}: {result:?}"
            );
        }
        fixture.assert_done_once(&messages[0]).await;
        fixture.assert_untouched(&messages[1]).await;
    }
    fixture.until_quiet().await;
}

/// How a handler fails.
#[derive(Clone, Copy, Debug)]
enum Failure {
    Plain,
    /// With an error after which the runtime repeats the transaction.
    Retryable,
    Panic,
}

/// A handler that inserts a row, executes `end`, and fails.
async fn failing(tx: Tx, message: Message, end: &str, failure: Failure) -> Handled {
    insert(&tx, &message).await?;
    tx.batch_execute(end).await?;
    match failure {
        Failure::Plain => Err("out of stock".into()),
        Failure::Retryable => {
            let conflict = "DO $$ BEGIN RAISE EXCEPTION 'lost' USING ERRCODE = '40001'; END $$";
            Err(HandlerError::from(
                tx.batch_execute(conflict).await.unwrap_err(),
            ))
        }
        Failure::Panic => panic!("a bug"),
    }
}

/// I4: a handler that commits the claim of its message and fails after that is an error of the
/// message, which no redelivery would handle. A handler that executes ROLLBACK has only failed.
#[tokio::test]
async fn i4_failure_after_commit_is_not_acknowledged() {
    let fixture = Fixture::new().await;
    let idem = Idem::new();
    for failure in [Failure::Plain, Failure::Retryable, Failure::Panic] {
        for (end, in_batch) in ENDS.into_iter().flat_map(|end| [(end, false), (end, true)]) {
            let message = message();
            let what = format!("{end}, {failure:?}, in a batch: {in_batch}");
            let handler = |tx, message| failing(tx, message, end, failure);
            let attempt = async {
                match in_batch {
                    true => idem
                        .process_batch(&fixture.pool, std::slice::from_ref(&message), handler)
                        .await
                        .remove(0),
                    false => idem.process(&fixture.pool, &message, handler).await,
                }
            };
            let attempt = std::panic::AssertUnwindSafe(attempt).catch_unwind().await;
            if end == "COMMIT" {
                assert_never_acknowledged(attempt.expect(&what), &what);
                assert!(fixture.is_claimed(&message).await, "{what}");
                assert_eq!(fixture.work(&message).await, 1, "{what}");
                continue;
            }
            match attempt {
                Ok(processed) => {
                    let error = processed.expect_err(&what);
                    assert!(matches!(error, Error::Handler(_)), "{what}: {error:?}");
                }
                Err(_) => assert!(matches!(failure, Failure::Panic) && !in_batch, "{what}"),
            }
            fixture.assert_untouched(&message).await;
            let processed = idem.process(&fixture.pool, &message, work).await.unwrap();
            assert!(
                matches!(processed, Processed::New { .. }),
                "{what}: {processed:?}"
            );
        }
    }
    fixture.until_quiet().await;
}
