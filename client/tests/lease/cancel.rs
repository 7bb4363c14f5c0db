//! A future that is dropped at any await leaves nothing leased for longer than the lease, and no
//! open transaction.

use idem_client::{Handled, Idem, Message, Processed, lease::Work};

use crate::{
    ground::{Ground, fact, id, idem, message},
    polls::{Moment, poll_times},
};

async fn handler(_: Work, _: Message) -> Handled {
    tokio::task::yield_now().await;
    Ok(vec![fact()])
}

async fn failing(_: Work, _: Message) -> Handled {
    tokio::task::yield_now().await;
    Err("a bad day".into())
}

#[tokio::test]
async fn a_future_that_is_dropped_at_any_await_leaves_the_message_done_or_free_after_its_lease() {
    stop_everywhere().await;
}

/// Where the connection is served by another thread, a request may have left or not.
#[tokio::test(flavor = "multi_thread")]
async fn a_future_that_is_dropped_beside_its_connection_leaves_the_message_done_or_free_after_its_lease()
 {
    stop_everywhere().await;
}

async fn stop_everywhere() {
    let ground = Ground::new().await;
    for moment in [Moment::AtOnce, Moment::WhenWoken] {
        let (mut done, mut undone) = (0, 0);
        // Answers that come together wake the future once: on a busy machine one round may miss an
        // await.
        for _ in 0..20 {
            let seen = sweep(&ground, moment).await;
            (done, undone) = (done + seen.0, undone + seen.1);
            if undone >= 2 {
                break;
            }
        }
        assert!(
            undone >= 2,
            "{moment:?}: acquiring and the handler wait: {done} {undone}"
        );
    }
}

/// Stops at every await in turn; answers how many of the messages were done, and how many were not.
async fn sweep(ground: &Ground, moment: Moment) -> (usize, usize) {
    let lease = std::time::Duration::from_secs(1);
    let idem = idem(|rule| rule.lease(lease));
    // One connection: whoever comes next gets what was left.
    let pool = ground.database.pool(1);
    let (mut done, mut undone) = (0, 0);
    for polls in 1.. {
        let message = message();
        let processed =
            poll_times(idem.process_leased(&pool, &message, handler), polls, moment).await;
        next_one_works(ground, &idem, &pool).await;
        ground.until_quiet_beside(&pool).await;
        // Two thirds of it may have been renewed when it was dropped, and nothing renews it now.
        let left = ground.left(&message).await;
        assert!(
            left.is_none_or(|left| left <= lease.as_secs_f64()),
            "{left:?}"
        );
        let is_done = ground.is_claimed(&message).await;
        match is_done {
            true => ground.assert_done_once(&message).await,
            false => {
                ground.assert_undone(&message).await;
                let held = ground.acquired_next(&message).await;
                held.complete(&ground.observer, &[fact()]).await.unwrap();
                ground.assert_done_once(&message).await;
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

#[tokio::test]
async fn a_failure_that_is_dropped_at_any_await_leaves_the_message_free_after_its_lease_or_buried()
{
    let ground = Ground::new().await;
    ground.attempts(1).await;
    let idem = idem(|rule| rule.lease(std::time::Duration::from_secs(1)));
    let pool = ground.database.pool(1);
    for moment in [Moment::AtOnce, Moment::WhenWoken] {
        for polls in 1.. {
            let message = message();
            let processed =
                poll_times(idem.process_leased(&pool, &message, failing), polls, moment).await;
            next_one_works(&ground, &idem, &pool).await;
            ground.until_quiet_beside(&pool).await;
            ground.assert_undone(&message).await;
            // Whatever was left: it is tried or buried, once.
            crate::ground::until("it is buried", async || {
                let processed = idem.process_leased(&pool, &message, failing).await;
                matches!(processed, Ok(Processed::Dead))
            })
            .await;
            let sql = "SELECT count(*) FROM idem.dead_letter WHERE id = $1";
            let row = ground
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

async fn next_one_works(ground: &Ground, idem: &Idem, pool: &deadpool_postgres::Pool) {
    let next = message();
    let answer = idem.process_leased(pool, &next, handler).await;
    assert!(crate::ground::is_new(&answer), "{answer:?}");
    ground.assert_done_once(&next).await;
}
