//! When a future is dropped at any await point, no transaction stays open, and the lease ends after
//! the lease time at the latest.

use idem_runtime::{Handled, Idem, Message, Processed, lease::LeaseContext};
use idem_testkit::polls::{Moment, poll_times};

use crate::fixtures::{Fixture, fact, id, idem, message};

async fn handler(_: LeaseContext, _: Message) -> Handled {
    tokio::task::yield_now().await;
    Ok(vec![fact()])
}

async fn failing(_: LeaseContext, _: Message) -> Handled {
    tokio::task::yield_now().await;
    Err("out of stock".into())
}

#[tokio::test]
async fn dropped_future_leaves_message_done_or_free_after_lease() {
    assert_done_or_free_after_each_drop().await;
}

/// Goal: a future can be dropped at any await point also when another thread serves the connection.
/// At the drop, this thread may or may not have sent the last statement.
#[tokio::test(flavor = "multi_thread")]
async fn future_dropped_with_connection_on_other_thread_is_safe() {
    assert_done_or_free_after_each_drop().await;
}

/// Drops futures at each of their await points, until a message was not done after two drops.
async fn assert_done_or_free_after_each_drop() {
    let fixture = Fixture::new().await;
    for moment in [Moment::AtOnce, Moment::WhenWoken] {
        let (mut done, mut undone) = (0, 0);
        // Replies of the server that arrive together wake the future only once. So on a busy
        // machine, one round may miss an await point.
        for _ in 0..20 {
            let seen = drop_at_every_await(&fixture, moment).await;
            (done, undone) = (done + seen.0, undone + seen.1);
            if undone >= 2 {
                break;
            }
        }
        assert!(
            undone >= 2,
            "{moment:?}: too few await points: {done} done, {undone} undone"
        );
    }
}

/// Drops the future at each of its await points. Asserts that its message is then done once, or is
/// free after its lease. Returns the number of messages that were done, and of those that were not.
async fn drop_at_every_await(fixture: &Fixture, moment: Moment) -> (usize, usize) {
    let lease = std::time::Duration::from_secs(1);
    let idem = idem(|policy| policy.lease = lease);
    // The pool has one connection, so the next message uses the connection of the dropped future.
    let pool = fixture.database.pool(1);
    let (mut done, mut undone) = (0, 0);
    for polls in 1.. {
        let message = message();
        let processed =
            poll_times(idem.process_leased(&pool, &message, handler), polls, moment).await;
        assert_next_is_processed(fixture, &idem, &pool).await;
        fixture.until_quiet_beside(&pool).await;
        // The lease may have been renewed before the drop, but it is not renewed after the drop.
        let left = fixture.left(&message).await;
        assert!(
            left.is_none_or(|left| left <= lease.as_secs_f64()),
            "{left:?}"
        );
        let is_done = fixture.is_claimed(&message).await;
        match is_done {
            true => fixture.assert_done_once(&message).await,
            false => {
                fixture.assert_undone(&message).await;
                let held = fixture.acquired_next(&message).await;
                held.complete(&fixture.observer, &[fact()]).await.unwrap();
                fixture.assert_done_once(&message).await;
            }
        }
        if let Some(processed) = processed {
            assert!(
                is_done && matches!(processed, Ok(Processed::New { .. })),
                "{processed:?}"
            );
            break;
        }
        done += usize::from(is_done);
        undone += usize::from(!is_done);
    }
    (done, undone)
}

/// Goal: the future of a failing attempt is dropped at any await point. Its message can then be
/// leased again after its lease has expired, or is stored as exactly one dead letter.
#[tokio::test]
async fn dropped_failure_leaves_message_free_or_dead() {
    let fixture = Fixture::new().await;
    fixture.attempts(1).await;
    let idem = idem(|policy| policy.lease = std::time::Duration::from_secs(1));
    let pool = fixture.database.pool(1);
    for moment in [Moment::AtOnce, Moment::WhenWoken] {
        for polls in 1.. {
            let message = message();
            let processed =
                poll_times(idem.process_leased(&pool, &message, failing), polls, moment).await;
            assert_next_is_processed(&fixture, &idem, &pool).await;
            fixture.until_quiet_beside(&pool).await;
            fixture.assert_undone(&message).await;
            // Process the message until it is a dead letter. Then there is exactly one dead letter.
            crate::fixtures::until("the message is a dead letter", async || {
                let processed = idem.process_leased(&pool, &message, failing).await;
                matches!(processed, Ok(Processed::Dead))
            })
            .await;
            let sql = "SELECT count(*) FROM idem.dead_letter WHERE id = $1";
            let row = fixture
                .observer
                .query_one(sql, &[&id(&message).to_string()])
                .await
                .unwrap();
            assert_eq!(row.get::<_, i64>(0), 1);
            if processed.is_some() {
                break;
            }
        }
    }
}

async fn assert_next_is_processed(fixture: &Fixture, idem: &Idem, pool: &deadpool_postgres::Pool) {
    let next = message();
    let processed = idem.process_leased(pool, &next, handler).await;
    assert!(crate::fixtures::is_new(&processed), "{processed:?}");
    fixture.assert_done_once(&next).await;
}
