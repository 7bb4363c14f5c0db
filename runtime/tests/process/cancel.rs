//! When a future is dropped at any await point, it has its complete effect or no effect.

use deadpool_postgres::Pool;
use idem_runtime::{Idem, Policies, Processed, Settlement, policy::Style};
use idem_testkit::polls::{Moment, poll_times};
use idem_testkit::proxy::Proxy;

use crate::fixtures::{Fixture, message, preparing, preparing_idem, work};

/// The number of dropped futures with an effect, and the number without an effect.
#[derive(Debug, Default)]
struct Seen {
    done: usize,
    undone: usize,
}

/// Drops a future at each of its await points.
async fn drop_at_every_await(fixture: &Fixture, idem: &Idem, pool: &Pool, moment: Moment) -> Seen {
    let mut seen = Seen::default();
    for polls in 1.. {
        let message = message();
        let processed = poll_times(idem.process(pool, &message, work), polls, moment).await;
        // If the connection of the dropped future is still open, the next message uses it.
        let next = crate::fixtures::message();
        let next_result = idem.process(pool, &next, work).await;
        assert!(
            matches!(next_result, Ok(Processed::New { .. })),
            "{moment:?} after {polls}: {next_result:?}"
        );
        fixture.assert_done_once(&next).await;
        fixture.until_quiet().await;
        let is_done = fixture.is_claimed(&message).await;
        match is_done {
            true => fixture.assert_done_once(&message).await,
            false => fixture.assert_untouched(&message).await,
        }
        if let Some(processed) = processed {
            assert!(
                is_done && matches!(processed, Ok(Processed::New { .. })),
                "{processed:?}"
            );
            break;
        }
        seen.done += usize::from(is_done);
        seen.undone += usize::from(!is_done);
        // After a redelivery, the message is done exactly once.
        assert!(idem.process(pool, &message, work).await.is_ok());
        fixture.assert_done_once(&message).await;
    }
    seen
}

#[tokio::test]
async fn future_dropped_at_any_await_has_full_effect_or_none() {
    let fixture = Fixture::new().await;
    for &prepared in preparing() {
        for style in [Style::Eager, Style::Reactive] {
            let idem = of(style, prepared);
            for moment in [Moment::AtOnce, Moment::WhenWoken] {
                // A future that waits for the reply to COMMIT is woken only after COMMIT was sent.
                // At the drop, the server may not have executed it yet, and then sees the end of
                // the connection first. The run is then repeated.
                let mut done = 0;
                for _ in 0..20 {
                    // Use a new pool with one connection in each run, so that the first message of
                    // each run also prepares its statements.
                    let pool = fixture.database.pool(1);
                    let seen = drop_at_every_await(&fixture, &idem, &pool, moment).await;
                    assert!(
                        seen.undone >= 2,
                        "{style:?}: too few await points before the commit: {seen:?}"
                    );
                    done += seen.done;
                    if done > 0 || moment == Moment::AtOnce {
                        break;
                    }
                }
                assert!(
                    done > 0 || moment == Moment::AtOnce,
                    "{style:?}, {prepared}: no future was dropped after its COMMIT"
                );
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn future_dropped_with_connection_on_other_thread_is_atomic() {
    let fixture = Fixture::new().await;
    for style in [Style::Eager, Style::Reactive] {
        let idem = of(style, false);
        for moment in [Moment::AtOnce, Moment::WhenWoken] {
            // On a busy machine, all replies can arrive before the future is polled. The run is
            // then repeated.
            let mut undone = 0;
            for _ in 0..20 {
                undone += drop_at_every_await(&fixture, &idem, &fixture.database.pool(1), moment)
                    .await
                    .undone;
                if undone > 0 {
                    break;
                }
            }
            assert!(
                undone > 0,
                "{style:?} {moment:?}: no future was dropped while it waited"
            );
        }
    }
}

/// I2: the server cancels BEGIN, and a prepared claim was sent after it. The claim fails too, so it
/// does not commit alone, also if the server accepts claims that are alone. The proxy leads
/// directly to the server, because a pooler does not keep prepared statements.
#[tokio::test]
async fn i2_prepared_claim_fails_with_its_cancelled_begin() {
    let fixture = Fixture::new().await;
    let allow = format!(
        "ALTER DATABASE {} SET idem.lone_claims = allow",
        fixture.database.name()
    );
    fixture.observer.batch_execute(&allow).await.unwrap();
    let proxy = Proxy::to(&fixture.database).await;
    let pool = proxy.pool(1);
    let idem = of(Style::Eager, true);
    // The first message prepares the statements.
    assert!(idem.process(&pool, &message(), work).await.is_ok());
    let message = message();
    proxy.cancel_once("BEGIN");
    let error = idem.process(&pool, &message, work).await.unwrap_err();
    assert!(proxy.has_cancelled());
    assert_eq!(
        error.sqlstate().map(|code| code.code()),
        Some("57014"),
        "{error:?}"
    );
    fixture.assert_untouched(&message).await;
    // The connection is still usable, and the next delivery processes the message.
    assert!(matches!(
        idem.process(&pool, &message, work).await,
        Ok(Processed::New { .. })
    ));
    fixture.assert_done_once(&message).await;
}

/// An earlier user of the connection has left a failed transaction. It costs one message, and not
/// each later one.
#[tokio::test]
async fn failed_transaction_of_an_earlier_user_is_rolled_back() {
    let fixture = Fixture::new().await;
    for &prepared in preparing() {
        let pool = fixture.database.pool(1);
        let idem = of(Style::Eager, prepared);
        let client = pool.get().await.unwrap();
        let failed = client.batch_execute("BEGIN; SELECT 1 / 0").await;
        assert!(failed.is_err());
        drop(client);
        let first = idem.process(&pool, &message(), work).await;
        assert!(first.is_err(), "{prepared}: {first:?}");
        for _ in 0..2 {
            let message = message();
            let next = idem.process(&pool, &message, work).await;
            assert!(
                matches!(next, Ok(Processed::New { .. })),
                "{prepared}: {next:?}"
            );
            fixture.assert_done_once(&message).await;
        }
    }
}

/// I4: a handler drops the prepared statements of its session. The next message fails because of
/// its environment, and is processed on a new connection.
#[tokio::test]
async fn i4_dropped_prepared_statements_close_the_connection() {
    let fixture = Fixture::new().await;
    let proxy = Proxy::to(&fixture.database).await;
    let pool = proxy.pool(1);
    let idem = of(Style::Eager, true);
    assert!(idem.process(&pool, &message(), work).await.is_ok());
    let client = pool.get().await.unwrap();
    client.batch_execute("DEALLOCATE ALL").await.unwrap();
    drop(client);
    let message = message();
    let error = idem.process(&pool, &message, work).await.unwrap_err();
    let state = error.sqlstate().map(|state| state.code());
    assert_eq!(state, Some("26000"), "{error:?}");
    assert_eq!(error.settlement(), Settlement::RELEASE);
    fixture.assert_untouched(&message).await;
    let processed = idem.process(&pool, &message, work).await;
    assert!(
        matches!(processed, Ok(Processed::New { .. })),
        "{processed:?}"
    );
    fixture.assert_done_once(&message).await;
}

fn of(style: Style, prepared: bool) -> Idem {
    let policies = Policies::default().default_rule(|policy| policy.style = style);
    Idem::builder()
        .policies(policies)
        .prepared_statements(prepared)
        .build()
        .unwrap()
}

#[tokio::test]
async fn batch_dropped_at_any_await_has_full_effect_or_none() {
    let fixture = Fixture::new().await;
    let moments = [Moment::AtOnce, Moment::WhenWoken].into_iter();
    for (moment, prepared) in
        moments.flat_map(|moment| preparing().iter().map(move |&prepared| (moment, prepared)))
    {
        let idem = preparing_idem(prepared, |_| {});
        let pool = fixture.database.pool(1);
        for polls in 1.. {
            let messages = [message(), message(), message()];
            let results =
                poll_times(idem.process_batch(&pool, &messages, work), polls, moment).await;
            assert!(matches!(
                idem.process(&pool, &message(), work).await,
                Ok(Processed::New { .. })
            ));
            fixture.until_quiet().await;
            let is_done = fixture.is_claimed(&messages[0]).await;
            for message in &messages {
                match is_done {
                    true => fixture.assert_done_once(message).await,
                    false => fixture.assert_untouched(message).await,
                }
            }
            if results.is_some() {
                assert!(is_done && polls > 4);
                break;
            }
        }
    }
}
