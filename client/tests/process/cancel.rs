//! A future that is dropped at any await leaves all or nothing.

use deadpool_postgres::Pool;
use idem_client::{Idem, Policies, Processed, Rule, Style};

use crate::{
    ground::{Ground, message, preparing, work},
    polls::{Moment, poll_times},
};

/// What was found after the futures that were dropped.
#[derive(Debug, Default)]
struct Seen {
    done: usize,
    undone: usize,
}

/// Stops at every await in turn.
async fn stop_everywhere(ground: &Ground, idem: &Idem, pool: &Pool, moment: Moment) -> Seen {
    let mut seen = Seen::default();
    for polls in 1.. {
        let message = message();
        let processed = poll_times(idem.process(pool, &message, work), polls, moment).await;
        // Whoever comes next gets the connection that was left, if it was.
        let next = crate::ground::message();
        let answer = idem.process(pool, &next, work).await;
        assert!(
            matches!(answer, Ok(Processed::New { .. })),
            "{moment:?} after {polls}: {answer:?}"
        );
        ground.assert_done_once(&next).await;
        ground.until_quiet().await;
        let is_done = ground.is_claimed(&message).await;
        match is_done {
            true => ground.assert_done_once(&message).await,
            false => ground.assert_untouched(&message).await,
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
        // The message comes again, and then it is done once in any case.
        assert!(idem.process(pool, &message, work).await.is_ok());
        ground.assert_done_once(&message).await;
    }
    seen
}

#[tokio::test]
async fn a_future_that_is_dropped_at_any_await_leaves_all_or_nothing() {
    let ground = Ground::new().await;
    for &prepared in preparing() {
        for style in [Style::Eager, Style::Reactive] {
            let idem = of(style, prepared);
            for moment in [Moment::AtOnce, Moment::WhenWoken] {
                // One connection, and one that is new to each: its first statements are prepared.
                let seen = stop_everywhere(&ground, &idem, &ground.database.pool(1), moment).await;
                assert!(
                    seen.undone >= 2,
                    "{style:?}: BEGIN and the handler wait: {seen:?}"
                );
                // What waits for the answer to COMMIT wakes up after it was sent.
                assert!(
                    seen.done > 0 || moment == Moment::AtOnce,
                    "{style:?}: {seen:?}"
                );
            }
        }
    }
}

/// Where the connection is served by another thread, a request may have left or not.
#[tokio::test(flavor = "multi_thread")]
async fn a_future_that_is_dropped_beside_its_connection_leaves_all_or_nothing() {
    let ground = Ground::new().await;
    for style in [Style::Eager, Style::Reactive] {
        let idem = of(style, false);
        for moment in [Moment::AtOnce, Moment::WhenWoken] {
            // On a busy machine every response can be there before the future looks for it.
            let mut undone = 0;
            for _ in 0..20 {
                undone += stop_everywhere(&ground, &idem, &ground.database.pool(1), moment)
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
async fn a_batch_that_is_dropped_at_any_await_leaves_all_or_nothing() {
    let ground = Ground::new().await;
    let idem = Idem::new();
    for moment in [Moment::AtOnce, Moment::WhenWoken] {
        let pool = ground.database.pool(1);
        for polls in 1.. {
            let messages = [message(), message(), message()];
            let answers =
                poll_times(idem.process_batch(&pool, &messages, work), polls, moment).await;
            assert!(matches!(
                idem.process(&pool, &message(), work).await,
                Ok(Processed::New { .. })
            ));
            ground.until_quiet().await;
            let is_done = ground.is_claimed(&messages[0]).await;
            for message in &messages {
                match is_done {
                    true => ground.assert_done_once(message).await,
                    false => ground.assert_untouched(message).await,
                }
            }
            if answers.is_some() {
                assert!(is_done && polls > 4);
                break;
            }
        }
    }
}
