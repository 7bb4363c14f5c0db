//! A request whose future is dropped at any await leaves all or nothing.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    task::Poll,
};

use axum::body::Body;
use tower::ServiceExt;

use crate::ground::{Ground, Mode, ask, layer};

/// Polls a future so many times; `None` when that was not enough and it was dropped.
async fn poll_times<F: Future>(future: F, times: usize) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut polls = 0;
    poll_fn(|context| {
        if polls == times {
            return Poll::Ready(None);
        }
        polls += 1;
        future.as_mut().poll(context).map(Some)
    })
    .await
}

#[tokio::test]
async fn a_request_that_is_dropped_at_any_await_leaves_all_or_nothing() {
    let ground = Ground::new(Mode::Transaction).await;
    let (mut done, mut undone) = (0, 0);
    // Answers that come together wake the future once: on a busy machine one round may miss an
    // await.
    for round in 1..=20 {
        let seen = stop_everywhere(&ground, round).await;
        (done, undone) = (done + seen.0, undone + seen.1);
        if done > 0 && undone >= 2 {
            break;
        }
    }
    assert!(done > 0 && undone >= 2, "{done} done, {undone} undone");
}

/// Stops at every await in turn; answers how many of the requests took effect, and how many did
/// not.
async fn stop_everywhere(ground: &Ground, round: usize) -> (i64, i64) {
    let (mut done, mut undone) = (0, 0);
    for polls in 1.. {
        let key = format!("round-{round}-polls-{polls}");
        // One connection: whoever comes next gets the one that was left, if it was.
        let router = ground
            .app
            .router(layer(ground.mode, ground.database.pool(1)));
        let answer = poll_times(
            router
                .clone()
                .oneshot(ask(&key).to::<Body>(ground.server.address)),
            polls,
        )
        .await;
        let next = router
            .oneshot(ask(&format!("{key}-next")).to::<Body>(ground.server.address))
            .await
            .unwrap();
        assert_eq!(next.status(), 201, "after {polls}");
        ground.until_quiet().await;
        let claimed = ground
            .count(&format!(
                "SELECT count(*) FROM idem.inbox WHERE id = 'all:{key}'"
            ))
            .await;
        assert_eq!(ground.work(&key).await, 2 * claimed, "after {polls}");
        if let Some(answer) = answer {
            assert_eq!((answer.unwrap().status().as_u16(), claimed), (201, 1));
            break;
        }
        done += claimed;
        undone += 1 - claimed;
        let again = ground.send_until_settled(&ask(&key)).await;
        assert_eq!(
            (again.status.as_u16(), again.is_replayed()),
            (201, claimed == 1),
            "after {polls}"
        );
        assert_eq!(ground.work(&key).await, 2);
    }
    (done, undone)
}
