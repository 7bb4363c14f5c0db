//! When a future is dropped at any await point, it has its complete effect or no effect.

use deadpool_postgres::Pool;
use idem_runtime::{
    Idem, Policies, Processed,
    policy::{Rule, Style},
};
use idem_testkit::polls::{Moment, poll_times};

use crate::fixtures::{Fixture, message, preparing, work};

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
                // Use a new pool with one connection in each run, so that the first message of each
                // run also prepares its statements.
                let seen =
                    drop_at_every_await(&fixture, &idem, &fixture.database.pool(1), moment).await;
                assert!(
                    seen.undone >= 2,
                    "{style:?}: too few await points before the commit: {seen:?}"
                );
                // A future that waits for the reply to COMMIT is woken only after COMMIT was sent,
                // so some messages are done.
                assert!(
                    seen.done > 0 || moment == Moment::AtOnce,
                    "{style:?}: {seen:?}"
                );
            }
        }
    }
}

/// Goal: a dropped future has its complete effect or no effect also when another thread serves the
/// connection. At the drop, this thread may or may not have sent the last statement.
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

fn of(style: Style, prepared: bool) -> Idem {
    let policies = Policies::default().default_rule(|rule: Rule| rule.style(style));
    Idem::builder()
        .policies(policies)
        .prepared_statements(prepared)
        .build()
        .unwrap()
}

#[tokio::test]
async fn batch_dropped_at_any_await_has_full_effect_or_none() {
    let fixture = Fixture::new().await;
    let idem = Idem::new();
    for moment in [Moment::AtOnce, Moment::WhenWoken] {
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
